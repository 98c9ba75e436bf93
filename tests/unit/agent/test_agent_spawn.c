/* Making a trainer's process where there is little to make it of. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "agent/spawn.h"
#include "common/io.h"
#include "tests/test.h"

static void a_process_that_there_are_no_descriptors_for_is_refused_by_that_reason(void **state)
{
    (void)state;
    struct paths paths;
    const struct ref ref = { .job = "j-a", .generation = 1, .rank = 0 };
    struct ref_files files;
    struct reason why = { "" };
    struct rlimit before;
    pid_t pid = 0;
    (void)snprintf(paths.home, sizeof(paths.home), "/tmp/cairn-agent-XXXXXX");
    assert_non_null(mkdtemp(paths.home));
    assert_int_equal(ref_files(&ref, &paths, &files), ST_OK);
    assert_int_equal(io_mkdir_all(io_system(), files.folder), ST_OK);
    const struct spawn_request request = { .program = "/bin/true",
                                           .ref = &ref,
                                           .files = &files,
                                           .coordinator = "",
                                           .token = "secret",
                                           .tls_ca = "",
                                           .sums = "",
                                           .peaks = "",
                                           .ports = "",
                                           .gpu = "" };
    const int next = open("/dev/null", O_RDONLY); /* all below it are taken */
    assert_true(next >= 0);
    assert_int_equal(close(next), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (rlim_t more = 0; more < 2; more++) { /* none for the log; one, and none for the token */
        const struct rlimit few = { (rlim_t)next + more, before.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        assert_int_not_equal(spawn_trainer(&request, &pid, &why), ST_OK);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_non_null(strstr(why.text, "no descriptors left"));
    }
    char command[LIMIT_PATH + 16];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", paths.home);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_that_there_are_no_descriptors_for_is_refused_by_that_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
