/* The job's state machine: what hangs, and what would be waited for without end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* Both ranks talk, neither gets on. */
static void stand_still(struct bench *b, uint64_t step, int64_t ms)
{
    for (int64_t t = 0; t < ms; t += 1000) {
        b->now += 1000;
        for (uint32_t i = 0; i < 2; i++)
            bench_counter(b, i, step, "reduce", 77);
    }
}

static void come_to(struct bench *b, uint64_t step)
{
    for (uint32_t i = 0; i < 2; i++)
        bench_progress(b, i, step, "reduce");
}

static void recover(struct bench *b)
{
    bench_all_exit(b);
    for (int i = 0; i < 100 && !machine_wants_slots(&b->m, b->now); i++)
        bench_tick(b, 1000);
}

/* ---- a hang while the store is slow ---- */

/* The store fails, and is asked again and again. */
static void publish_fails(struct bench *b, uint64_t step)
{
    bench_store(b, MACHINE_TASK_PUBLISH, step, b->m.generation, ST_IO);
}

static void a_hang_is_seen_while_a_publish_is_repeated(void **state)
{
    struct bench *b = *state;
    come_to(b, 10);
    bench_save_until(b, 10, MACHINE_SAVE_COMMITTING);
    publish_fails(b, 10);
    stand_still(b, 10, 29000);
    bench_is_state(b, "RUNNING");
    publish_fails(b, 10);
    stand_still(b, 10, 3000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, MACHINE_FAULT_HANG);
}

static void a_hang_is_seen_while_a_removal_is_repeated(void **state)
{
    struct bench *b = *state;
    come_to(b, 10);
    bench_save_until(b, 10, MACHINE_SAVE_COLLECTING);
    for (uint32_t i = 0; i < 2; i++)
        bench_save_fails(b, i, 10);
    bench_store(b, MACHINE_TASK_REMOVE, 10, 1, ST_IO);
    stand_still(b, 10, 32000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, MACHINE_FAULT_HANG);
}

/* Who has nothing to do but wait for its last save waits for the store, however long. */
static void who_waits_for_the_last_save_does_not_hang(void **state)
{
    struct bench *b = *state;
    come_to(b, BENCH_STEPS);
    bench_save_until(b, BENCH_STEPS, MACHINE_SAVE_COMMITTING);
    publish_fails(b, BENCH_STEPS);
    stand_still(b, BENCH_STEPS, 200000);
    bench_is_state(b, "SAVING");
    bench_store(b, MACHINE_TASK_PUBLISH, BENCH_STEPS, 1, ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "SUCCEEDED");
}

static void nor_does_who_waits_for_the_save_that_it_leaves_after(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, MACHINE_EV_PAUSE), ST_OK);
    uint64_t step = bench_act(b, MACHINE_ACT_SAVE_AT, 0)->step;
    come_to(b, step);
    bench_save_until(b, step, MACHINE_SAVE_OPENING);
    stand_still(b, step, 100000);
    bench_is_state(b, "SAVING");
}

/* ---- a stop, and a failure before its save ---- */

static void a_stop_whose_workers_die_before_they_saved_saves_first(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    come_to(b, 80);
    assert_int_equal(bench_ask(b, MACHINE_EV_STOP), ST_OK);
    bench_exit(b, 1, MACHINE_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    assert_non_null(strstr(bench_told(b, "recovering"), "then the job stops"));
    recover(b);
    bench_restart(b, 100); /* the coordinator knows it after that, too */
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, BENCH_STEPS);
    bench_ready(b, 1, BENCH_STEPS);
    bench_is_state(b, "SAVING");
    const struct machine_action *at = bench_act(b, MACHINE_ACT_SAVE_AT, 0);
    assert_non_null(at);
    assert_true(at->exit);
    assert_true(at->step >= 80); /* what was trained is trained again */
    uint64_t step = at->step;
    bench_commit(b, step);
    bench_all_exit(b);
    bench_is_state(b, "STOPPED");
    assert_true(machine_newest(&b->m)->step >= 80);
}

static void a_second_stop_while_it_recovers_ends_it_at_once(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    assert_int_equal(bench_ask(b, MACHINE_EV_STOP), ST_OK);
    bench_exit(b, 1, MACHINE_EXIT_SIGNAL, 9);
    assert_int_equal(bench_ask(b, MACHINE_EV_STOP), ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "STOPPED");
}

/* The coordinator goes down while such a job recovers: the stop holds. */
static void a_drain_does_not_undo_a_stop_that_recovers(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    assert_int_equal(bench_ask(b, MACHINE_EV_STOP), ST_OK);
    bench_exit(b, 1, MACHINE_EXIT_SIGNAL, 9);
    assert_int_equal(bench_ask(b, MACHINE_EV_DRAIN), ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.intent, MACHINE_INTENT_STOP);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_hang_is_seen_while_a_publish_is_repeated),
        TEST(a_hang_is_seen_while_a_removal_is_repeated),
        TEST(who_waits_for_the_last_save_does_not_hang),
        TEST(nor_does_who_waits_for_the_save_that_it_leaves_after),
        TEST(a_stop_whose_workers_die_before_they_saved_saves_first),
        TEST(a_second_stop_while_it_recovers_ends_it_at_once),
        TEST(a_drain_does_not_undo_a_stop_that_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
