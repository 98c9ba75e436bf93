/* The job's state machine: which causes end a job, and which only cost it time. */
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* The next generation runs on these nodes, once its time has come. */
static void run_on(struct bench *b, const char *const *nodes, uint64_t total)
{
    bench_all_exit(b);
    if (b->m.retry_at > b->now)
        bench_tick(b, b->m.retry_at - b->now);
    bench_place_on(b, nodes);
    if (b->m.probing)
        bench_probe(b, ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < 2; i++)
        bench_ready(b, i, total);
    bench_is_state(b, "RUNNING");
}

static const char *const one_node[] = { "n", "n" }, *const two_nodes[] = { "n", "m" };

static void ten_of_its_own_failures_without_progress_fail_with_the_first_cause(void **state)
{
    static const enum fsm_exit kinds[] = { FSM_EXIT_CODE, FSM_EXIT_OOM };
    struct bench *b = *state;
    run_on(b, two_nodes, 100);
    for (uint32_t i = 0; i < 9; i++) { /* never three of a kind */
        bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
        bench_is_state(b, "RECOVERING");
        run_on(b, two_nodes, 100);
        bench_exit(b, 1, kinds[i % 2], 1);
        bench_is_state(b, "RECOVERING");
        run_on(b, two_nodes, 100);
    }
    bench_exit(b, 1, kinds[1], 1);
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
    assert_non_null(strstr(b->m.reason, "process gone: it went (10 generations made no progress"));
    assert_int_equal(b->m.generation, 19);
}

/* A worker is killed, its node or its session is lost, nothing gets through between two nodes. */
static void fail_by_others(struct bench *b, uint32_t how)
{
    struct fsm_fault fault = { .kind = FSM_FAULT_NODE, .rank = 1, .outside = true };
    struct fsm_event event = { .kind = FSM_EV_FAULT,
                               .generation = b->m.generation,
                               .fault = &fault };
    if (how % 4 == 0) {
        bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    } else if (how % 4 == 1) {
        bench_fault(b, 0, FSM_FAULT_COMMUNICATION, 7);
        bench_tick(b, 250);
    } else {
        fault.kind = how % 4 == 2 ? FSM_FAULT_NODE : FSM_FAULT_SESSION;
        assert_int_equal(bench_apply(b, event), ST_OK);
        bench_tick(b, 250);
    }
    bench_is_state(b, "RECOVERING");
}

static void what_is_nobodys_ends_no_job_however_often(void **state)
{
    struct bench *b = *state;
    run_on(b, two_nodes, 100);
    for (uint32_t i = 0; i < 100; i++) {
        fail_by_others(b, i < 40 ? 1 : i); /* first by a switch that flaps, at one step */
        const int64_t wait = b->m.retry_at - b->now;
        assert_true(wait <= (i < 10 ? 75000 : 375000));
        assert_true(i < 11 || wait >= 300000);
        assert_true((i >= 10) == (strstr(b->m.reason, "each 5 min, without end") != NULL));
        run_on(b, two_nodes, 100);
    }
    bench_progress(b, 0, 8, "forward");
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    assert_true(b->m.retry_at <= b->now); /* that counts no more */
    assert_null(strstr(b->m.reason, "without end"));
}

static void on_one_machine_it_is_not_the_network(void **state)
{
    struct bench *b = *state;
    run_on(b, one_node, 100);
    for (uint32_t i = 0; i < 3; i++) {
        bench_is_state(b, "RUNNING");
        bench_fault(b, 0, FSM_FAULT_COMMUNICATION, 7);
        bench_tick(b, 250);
        if (i < 2)
            run_on(b, one_node, 100);
    }
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
    assert_non_null(strstr(b->m.reason, "three times at the same place"));
}

/* A worker that ends itself, or has the kernel end it, as it starts. */
static void crashes_of_its_own_end_it_after_three(void **state)
{
    static const struct {
        enum fsm_exit how;
        int code;
    } rows[] = {
        { FSM_EXIT_CODE, 1 }, { FSM_EXIT_SIGNAL, 11 }, { FSM_EXIT_SIGNAL, 6 }, { FSM_EXIT_OOM, 0 }
    };
    struct bench *b = *state;
    const struct fsm_config config = bench_config();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bench_reopen(b, &config);
        run_on(b, two_nodes, 100);
        for (int j = 0; j < 2; j++) {
            bench_exit(b, 1, rows[i].how, rows[i].code);
            run_on(b, two_nodes, 100);
        }
        bench_exit(b, 1, rows[i].how, rows[i].code);
        bench_all_exit(b);
        bench_is_state(b, "FAILED");
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ten_of_its_own_failures_without_progress_fail_with_the_first_cause),
        TEST(what_is_nobodys_ends_no_job_however_often),
        TEST(on_one_machine_it_is_not_the_network),
        TEST(crashes_of_its_own_end_it_after_three),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
