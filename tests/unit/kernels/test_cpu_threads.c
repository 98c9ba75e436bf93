/* The CPU backend under variables of its libraries: all threads that were asked for compute, or it
 * doesn't open; products of float32 stay what they are. Libraries read these variables before main
 * or once, so each case is a process of its own. */
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/cleanup.h"
#include "kernels/backend.h"
#include "tests/test.h"

enum { COMPUTES = 0, FEWER = 1, ROUNDS = 2, REFUSED = 3 };

extern char **environ;

static int team(void)
{
    int count = 0;
#pragma omp parallel
    if (omp_get_thread_num() == 0)
        count = omp_get_num_threads();
    return count;
}

/* The child: what became of `threads` threads. */
static int open_with(int threads)
{
    const struct backend_table *cpu = backend_cpu();
    struct reason why = { "" };
    const struct backend_options options = { .threads = threads, .why = &why };
    struct backend *backend = NULL;
    enum status st = cpu->open(&options, &backend);
    if (st == ST_CONFIG)
        return strstr(why.text, "OMP_THREAD_LIMIT") != NULL ? REFUSED : FEWER;
    auto_buf struct buf pins;
    char pin[32];
    buf_init(&pins, 4096);
    (void)snprintf(pin, sizeof(pin), "\"threads\":%d,", threads);
    if (st == ST_OK)
        st = cpu->pins(backend, &pins);
    const bool counted = st == ST_OK && strstr(pins.data, pin) != NULL;
    const bool came = team() == threads;
    dnnl_fpmath_mode_t mode = dnnl_fpmath_mode_any;
    const bool strict =
        dnnl_get_default_fpmath_mode(&mode) == dnnl_success && mode == dnnl_fpmath_mode_strict;
    if (backend != NULL)
        cpu->close(backend);
    return !strict ? ROUNDS : counted && came ? COMPUTES : FEWER;
}

static int run_with(const char *variable, const char *value, int threads)
{
    char number[16];
    (void)snprintf(number, sizeof(number), "%d", threads);
    char *argv[] = { (char *)"/proc/self/exe", number, NULL };
    pid_t pid = 0;
    int status = 0;
    assert_int_equal(setenv(variable, value, 1), 0);
    assert_int_equal(posix_spawn(&pid, argv[0], NULL, NULL, argv, environ), 0);
    assert_int_equal(unsetenv(variable), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void all_threads_compute_or_it_does_not_open(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *value;
        int ends;
    } cases[] = {
        { "OMP_PROC_BIND", "false", COMPUTES }, { "OMP_NUM_THREADS", "1", COMPUTES },
        { "OMP_DYNAMIC", "true", COMPUTES },    { "OMP_MAX_ACTIVE_LEVELS", "0", COMPUTES },
        { "OMP_THREAD_LIMIT", "1", REFUSED },   { "ONEDNN_DEFAULT_FPMATH_MODE", "BF16", COMPUTES },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(run_with(cases[i].variable, cases[i].value, 1), COMPUTES);
        assert_int_equal(run_with(cases[i].variable, cases[i].value, 2), cases[i].ends);
        assert_int_equal(run_with(cases[i].variable, cases[i].value, 4), cases[i].ends);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return open_with((int)strtol(argv[1], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_threads_compute_or_it_does_not_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
