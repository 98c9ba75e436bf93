/* The emulator finds the mistakes that it is for. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/device.h"
#include "tests/gpu/emulator/planted.h"
#include "tests/test.h"

#define COUNT 64

/* Runs it in a process of its own; true if that one came to its end. */
static bool comes_to_its_end(enum planted planted)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(1);
        (void)signal(SIGSEGV, SIG_DFL); /* not the test's, which would go on with other tests */
        (void)signal(SIGBUS, SIG_DFL);
        (void)signal(SIGABRT, SIG_DFL);
        device_seed(1);
        float *out = device_alloc(COUNT * sizeof(float), 16);
        planted_run(planted, out);
        device_free(out);
        _exit(0);
    }
    int state = 0;
    assert_int_equal(waitpid(pid, &state, 0), pid);
    return WIFEXITED(state) && WEXITSTATUS(state) == 0;
}

/* The output under a seed. */
static void run_under(uint64_t seed, enum planted planted, float *host)
{
    device_seed(seed);
    float *out = device_alloc(COUNT * sizeof(float), 16);
    planted_run(planted, out);
    device_get(host, out, COUNT * sizeof(float));
    device_free(out);
}

static void a_right_kernel_runs_alike_under_every_seed(void **state)
{
    (void)state;
    assert_true(comes_to_its_end(PLANTED_NOTHING));
    for (uint64_t seed = 0; seed < 20; seed++) {
        float out[COUNT];
        run_under(seed, PLANTED_NOTHING, out);
        for (int i = 0; i < COUNT; i++)
            assert_true(out[i] == (float)i);
    }
}

static void mistakes_that_no_order_forgives_end_the_process(void **state)
{
    (void)state;
    const enum planted planted[] = { PLANTED_WRITE_BEHIND, PLANTED_WRITE_BEFORE,
                                     PLANTED_READ_FAR,     PLANTED_NO_BARRIER,
                                     PLANTED_MASKS,        PLANTED_LONELY_SHUFFLE,
                                     PLANTED_GRID };
    for (size_t i = 0; i < sizeof(planted) / sizeof(planted[0]); i++) {
        if (comes_to_its_end(planted[i]))
            fail_msg("mistake %d was not found", (int)planted[i]);
    }
}

static void shared_memory_that_nobody_wrote_is_not_a_number(void **state)
{
    (void)state;
    float out[COUNT];
    run_under(1, PLANTED_STALE_SHARED, out);
    for (int i = 0; i < COUNT; i++)
        assert_true(out[i] != out[i]);
}

static void what_depends_on_an_order_differs_from_seed_to_seed(void **state)
{
    (void)state;
    const enum planted planted[] = { PLANTED_RACE, PLANTED_BLOCK_ORDER, PLANTED_HOLE };
    for (size_t i = 0; i < sizeof(planted) / sizeof(planted[0]); i++) {
        float first[COUNT], other[COUNT];
        bool differs = false;
        run_under(0, planted[i], first);
        for (uint64_t seed = 1; seed < 8; seed++) {
            run_under(seed, planted[i], other);
            differs = differs || memcmp(first, other, sizeof(first)) != 0;
        }
        assert_true(differs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_kernel_runs_alike_under_every_seed),
        cmocka_unit_test(mistakes_that_no_order_forgives_end_the_process),
        cmocka_unit_test(shared_memory_that_nobody_wrote_is_not_a_number),
        cmocka_unit_test(what_depends_on_an_order_differs_from_seed_to_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
