/* Jobs with programs that Cairn saves: how programs end, and how they begin. */
#include <string.h>

#include "server/jobfsm/ctx.h"
#include "server/jobfsm/inspect/blocked.h"
#include "tests/test.h"
#include "tests/unit/server/jobfsm/program/saved_fixture.h"

/* ---- how programs end ---- */

static void a_program_that_ends_before_its_last_step_has_failed(void **state)
{
    for (int said = 0; said < 2; said++) {
        struct bench *b = saved_run(state);
        bench_progress(b, 1, 57, "running");
        if (said) {
            saved_finish(b, 1, 57);
        } else {
            bench_exit(b, 1, FSM_EXIT_FINISHED, 0);
        }
        bench_is_state(b, "RECOVERING");
        assert_int_equal(b->m.cause.kind, FSM_FAULT_PROCESS);
        assert_int_equal(b->m.cause.rank, 1);
        assert_non_null(strstr(b->m.cause.message, "after step 57, before its last step: 1000"));
    }
}

static void a_program_that_ends_before_it_is_ready_too(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = saved_config();
    bench_reopen(b, &config);
    saved_form(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    saved_finish(b, 0, 0);
    assert_int_equal(b->m.cause.rank, 0);
    assert_non_null(strstr(b->m.cause.message, "before it was ready"));
}

static void it_may_leave_with_an_earlier_save_than_was_announced(void **state)
{
    for (int moves = 0; moves < 2; moves++) {
        struct bench *b = saved_run(state);
        struct fsm_event told = { .kind = FSM_EV_SAVE_WANTED,
                                  .generation = 1,
                                  .rank = 1,
                                  .save_wanted = { true, 5000, "SIGTERM" } };
        for (uint32_t i = 0; i < RANKS; i++)
            bench_progress(b, i, 40, "running");
        if (moves) {
            assert_int_equal(bench_apply(b, told), ST_OK);
        } else {
            assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
        }
        assert_true(saved_announced(b) > 40);
        bench_save_until(b, 40, FSM_SAVE_COMMITTED); /* of copies of step 40 */
        bench_is_state(b, moves ? "RUNNING" : "SAVING");
        saved_finish(b, 0, 40);
        assert_false(fsm_ends(&b->m)); /* the other one follows */
        assert_null(bench_told(b, "earlier-save"));
        bench_exit(b, 0, FSM_EXIT_CODE, 0);
        b->now += 15000;
        saved_finish(b, 1, 40);
        assert_non_null(bench_told(b, "earlier-save"));
        assert_non_null(strstr(bench_told(b, "earlier-save"),
                               "was to end, within 15.0 s: step 40 is saved instead"));
        assert_int_equal(b->m.ending.to, moves ? FSM_RECOVERING : FSM_PAUSED);
        bench_exit(b, 1, FSM_EXIT_CODE, 0);
        bench_is_state(b, moves ? "RECOVERING" : "PAUSED");
        assert_int_equal(b->m.budget.failures, 0);
    }
}

/* ---- programs that end by themselves before their last step ---- */

static void say_last(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = { .kind = FSM_EV_READY,
                               .generation = b->m.generation,
                               .rank = rank,
                               .ready = { .total_steps = STEPS,
                                          .steps_per_epoch = 10,
                                          .last_step = step,
                                          .last_reason = "the loss rises" } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* All ranks have finished `step`, and the first of them says that it is the last. */
static struct bench *end_early(void **state, uint64_t step)
{
    struct bench *b = saved_run(state);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_progress(b, i, step, "running");
    say_last(b, 0, step);
    return b;
}

static void a_step_that_all_say_is_the_last_ends_the_job_once_it_is_saved(void **state)
{
    struct bench *b = end_early(state, 57);
    assert_true(bench_event(b, "last"));
    say_last(b, 1, 57);
    bench_is_state(b, "RUNNING");
    bench_save_until(b, 57, FSM_SAVE_COMMITTED);
    assert_int_equal(b->m.ending.to, FSM_SUCCEEDED);
    for (uint32_t i = 0; i < RANKS; i++) {
        saved_finish(b, i, 57);
        bench_exit(b, i, FSM_EXIT_CODE, 0);
    }
    bench_is_state(b, "SUCCEEDED");
}

static void it_may_be_saved_before_it_is_known_to_be_the_last(void **state)
{
    struct bench *b = saved_run(state);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_progress(b, i, 57, "running");
    bench_commit(b, 57);
    for (uint32_t i = 0; i < RANKS; i++)
        say_last(b, i, 57);
    bench_is_state(b, "RUNNING");
    for (uint32_t i = 0; i < RANKS; i++)
        saved_finish(b, i, 57);
    assert_int_equal(b->m.ending.to, FSM_SUCCEEDED);
}

static void ranks_that_end_with_different_steps_fail_the_job(void **state)
{
    for (int how = 0; how < 3; how++) {
        struct bench *b = end_early(state, 57);
        if (how == 0)
            say_last(b, 1, 56);
        else if (how == 1)
            bench_progress(b, 1, 58, "running");
        if (how == 2) { /* it was beyond already */
            b = saved_run(state);
            bench_progress(b, 1, 58, "running");
            say_last(b, 0, 57);
        }
        bench_tick(b, FSM_WINDOW_MS);
        assert_int_equal(b->m.ending.to, FSM_FAILED);
        assert_int_equal(b->m.cause.kind, FSM_FAULT_USER);
        assert_int_equal(b->m.cause.rank, 1);
        assert_non_null(
            strstr(b->m.cause.message, how == 0 ? "ends with step 56" : "goes on with step 58"));
        assert_non_null(strstr(b->m.cause.message, "another rank ends with step 57"));
    }
}

static void what_was_saved_of_an_end_that_failed_is_not_gone_on_from(void **state)
{
    struct bench *b = end_early(state, 57);
    saved_fail_and_park(b);
    saved_form(b);
    for (uint32_t i = 0; i < RANKS; i++)
        saved_offer(b, i, 57, 1);
    assert_int_equal(b->m.restore.step, 0); /* it would train beyond */
    for (uint32_t i = 0; i < RANKS; i++)
        bench_ready(b, i, STEPS);
    bench_is_state(b, "RUNNING");
    for (uint32_t i = 0; i < RANKS; i++)
        bench_progress(b, i, 58, "running"); /* this start may do otherwise */
    assert_false(fsm_ends(&b->m));
}

/* All workers live and say so for so long, at their steps. */
static void stand_still(struct bench *b, int64_t ms)
{
    for (int64_t passed = 0; passed < ms && !fsm_ends(&b->m); passed += 1000) {
        b->now += 1000;
        for (uint32_t i = 0; i < b->m.size && !fsm_ends(&b->m); i++)
            bench_counter(b, i, b->m.ranks[i].step, "running", (uint64_t)b->now);
    }
}

/* The program is in something that takes long, or stuck: what is in memory is saved by another
 * start. */
static void who_does_not_come_to_the_step_is_started_anew_and_saves_then(void **state)
{
    struct fsm_config config = saved_config();
    config.come_ms = GRACE_MS;
    struct bench *b = saved_run_with(state, config);
    bench_commit(b, 10);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_progress(b, i, 40, "running");
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    const uint64_t step = saved_announced(b);
    bench_progress(b, 0, step, "running"); /* it waits there for rank 1 */
    stand_still(b, GRACE_MS + FSM_LEAVE_MS - 3000);
    bench_is_state(b, "SAVING");
    assert_false(fsm_ends(&b->m));
    stand_still(b, 5000);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
    assert_int_equal(b->m.cause.rank, 1);
    assert_int_equal(b->m.budget.own, 0); /* people wanted it to go */
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_say_parked(b, 0);
    saved_form(b);
    saved_offer(b, 0, 40, 1);
    saved_offer(b, 1, 40, 1);
    assert_int_equal(b->m.restore.step, 40);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_ready(b, i, STEPS);
    bench_is_state(b, "SAVING");
    (void)saved_announced(b);
    b->m.progressed = false; /* no step since */
    stand_still(b, GRACE_MS + FSM_LEAVE_MS + 2000);
    assert_true(fsm_ends(&b->m));
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_CODE, 4);
    bench_is_state(b, "PAUSED");
    assert_int_equal(fsm_newest(&b->m)->step, 10);
}

/* ---- forming ---- */

static void another_number_of_steps_is_accepted_from_all(void **state)
{
    struct bench *b = saved_run(state);
    saved_fail_and_park(b);
    saved_form(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, 2 * STEPS);
    assert_non_null(strstr(bench_told(b, "steps"), "has 2000 steps now, and had 1000 before"));
    bench_ready(b, 1, 2 * STEPS);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.total_steps, 2 * STEPS);
    assert_false(bench_event(b, "steps"));
}

static void ranks_that_say_different_numbers_of_steps_are_refused(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = saved_config();
    bench_reopen(b, &config);
    saved_form(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, STEPS);
    bench_ready(b, 1, STEPS + 1);
    assert_int_equal(b->m.ending.to, FSM_FAILED);
    assert_non_null(strstr(b->m.reason, "all ranks have to say the same"));
}

static void who_waits_for_a_program_to_be_ready_is_told(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = saved_config();
    struct fsm_blocked blocked;
    bench_reopen(b, &config);
    saved_form(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, STEPS);
    for (int i = 0; i < 600; i++) { /* its worker lives, and what it does counts up */
        b->now += 1000;
        bench_counter(b, 0, 0, "running", (uint64_t)b->now);
        bench_counter(b, 1, 0, "starting", (uint64_t)b->now);
    }
    bench_is_state(b, "FORMING");
    fsm_blocked(&b->m, b->now, &blocked);
    assert_int_equal(blocked.by, FSM_BLOCK_FORMING);
    assert_non_null(strstr(blocked.text, "1 of 2 workers are ready; rank 1 on node node"));
    assert_non_null(strstr(blocked.text, "600 s ago, its program has not called cairn_ready"));
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_CODE, 4);
    bench_is_state(b, "PAUSED");
}

static void asked_once_more_while_it_starts_anew_it_goes_at_once(void **state)
{
    struct bench *b = saved_run(state);
    bench_commit(b, 10);
    saved_fail_and_park(b);
    saved_form(b);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_is_state(b, "FORMING"); /* what is in memory is to be saved first */
    assert_false(fsm_ends(&b->m));
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    assert_true(fsm_ends(&b->m));
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_CODE, 4);
    bench_is_state(b, "PAUSED");
    assert_int_equal(fsm_newest(&b->m)->step, 10);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_program_that_ends_before_its_last_step_has_failed),
        TEST(a_program_that_ends_before_it_is_ready_too),
        TEST(it_may_leave_with_an_earlier_save_than_was_announced),
        TEST(a_step_that_all_say_is_the_last_ends_the_job_once_it_is_saved),
        TEST(it_may_be_saved_before_it_is_known_to_be_the_last),
        TEST(ranks_that_end_with_different_steps_fail_the_job),
        TEST(what_was_saved_of_an_end_that_failed_is_not_gone_on_from),
        TEST(who_does_not_come_to_the_step_is_started_anew_and_saves_then),
        TEST(another_number_of_steps_is_accepted_from_all),
        TEST(ranks_that_say_different_numbers_of_steps_are_refused),
        TEST(who_waits_for_a_program_to_be_ready_is_told),
        TEST(asked_once_more_while_it_starts_anew_it_goes_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
