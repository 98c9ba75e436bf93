/* What py-spy says of a process becomes a stack in its output; else nothing is there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/test.h"
#include "trainer/command/spy.h"

static struct output output;

static int set_up(void **state)
{
    (void)state;
    output = (struct output){ .log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC), .label = "" };
    return output.log_fd < 0;
}

static int tear_down(void **state)
{
    (void)state;
    return close(output.log_fd);
}

/* What py-spy 0.4.3 prints, with folders of other names. */
#define DUMP                                                                                       \
    "Process 1007: python3 /home/a/train.py\n"                                                     \
    "Python v3.11.7 (/usr/bin/python3.11)\n"                                                       \
    "\n"                                                                                           \
    "Thread 1049 (idle): \"loader\"\n"                                                             \
    "    wait (/usr/lib/python3.11/threading.py:324)\n"                                            \
    "Thread 1007 (idle): \"MainThread\"\n"                                                         \
    "    all_reduce (/v/lib/python3.11/site-packages/torch/distributed/c10d.py:99)\n"              \
    "    mean.<locals>.<lambda> (/home/a (old)/train.py:3)\n"                                      \
    "    <module> (/home/a/train.py:7)\n"                                                          \
    "Thread 1050 (idle): \"other\"\n"                                                              \
    "    run (/home/a/other.py:1)\n"

static void the_main_thread_is_found(void **state)
{
    (void)state;
    assert_true(spy_add_text(DUMP, 1007, 0, &output));
    const struct output_stack stack = output_python_stack(&output);
    assert_string_equal(stack.at, "train.py, line 3 in mean.<locals>.<lambda>");
    assert_true(stack.waits);
    for (size_t n = 0; output_last(&output, n) != NULL; n++)
        assert_null(strstr(output_last(&output, n), "other.py"));
}

static void text_without_a_main_thread_is_no_stack(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "Error: Failed to find python version from target process\n",
        "Thread 2 (idle): \"MainThread\"\n    run (/a.py:1)\n",
        "Thread 1 (idle): \"MainThread\"\n",
        "Thread 1 (idle): \"MainThread\"\n\n    run (/a.py:1)\n",
        "Thread 1 (idle): \"MainThread\"\n    run\n",
        "Thread 1 (idle): \"MainThread\"\n    run (a.py\n    :1)\n    )\n",
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (spy_add_text(texts[i], 1, 0, &output))
            fail_msg("a stack was found in \"%s\"", texts[i]);
        assert_string_equal(output_python_stack(&output).at, "");
    }
}

/* Asks a program of that name that does as `script` says. */
static bool ask(const char *script)
{
    char folder[] = "/tmp/spy-XXXXXX", path[64], setting[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/py-spy", folder);
    (void)snprintf(setting, sizeof(setting), "PATH=%s:/usr/bin:/bin", folder);
    char *const env[] = { setting, NULL };
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(script, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0700), 0);
    const bool told = spy_add_stack(getpid(), env, 0, &output);
    (void)unlink(path);
    (void)rmdir(folder);
    return told;
}

static void a_program_of_that_name_is_asked(void **state)
{
    (void)state;
    char expected[64];
    assert_true(ask("#!/bin/sh\n"
                    "echo \"Thread $5 (idle)\"\n"
                    "echo \"    asked ($1 $2 $3/$5.py:12)\"\n"));
    (void)snprintf(expected, sizeof(expected), "%ld.py, line 12 in asked", (long)getpid());
    assert_string_equal(output_python_stack(&output).at, expected);
}

static void one_that_fails_or_hangs_is_done_without(void **state)
{
    (void)state;
    assert_false(ask("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n"));
    assert_false(ask("#!/bin/sh\nexec sleep 1000\n"));
    assert_false(ask("#!/bin/sh\nexec >&- 2>&-\nexec sleep 1000\n"));
    assert_string_equal(output_python_stack(&output).at, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_main_thread_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(text_without_a_main_thread_is_no_stack, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_program_of_that_name_is_asked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_fails_or_hangs_is_done_without, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
