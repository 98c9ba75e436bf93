/* The job's state machine: recovery policies, what people ask, accounts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* ---- policies ---- */

static void recover(struct bench *b, uint64_t total)
{
    bench_all_exit(b);
    for (int i = 0; i < 100 && !fsm_wants_slots(&b->m, b->now); i++)
        bench_tick(b, 1000);
    bench_run(b, total);
}

static void a_user_error_fails_at_once_with_its_message(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_fault(b, 1, FSM_FAULT_USER, 0);
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
    assert_string_equal(b->m.reason, "told by rank 1");
    assert_int_equal(b->m.restarts, 0);
}

static void three_crashes_at_the_same_step_without_progress_fail(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    for (int i = 0; i < 2; i++) {
        bench_progress(b, 1, 7, "backward");
        bench_exit(b, 1, FSM_EXIT_SIGNAL, 11);
        bench_is_state(b, "RECOVERING");
        recover(b, 100);
    }
    bench_progress(b, 1, 7, "backward");
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 11);
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
    assert_non_null(strstr(b->m.reason, "three times at the same place"));
}

static void crashes_with_progress_between_them_use_no_budget(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    for (uint64_t i = 1; i <= 12; i++) {
        bench_progress(b, 1, 7 * i, "backward");
        bench_exit(b, 1, FSM_EXIT_CODE, 1);
        bench_is_state(b, "RECOVERING");
        recover(b, 1000);
    }
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.restarts, 12);
}

static void kills_from_outside_only_back_off(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    int64_t delay[6];
    for (int i = 0; i < 6; i++) {
        bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
        bench_is_state(b, "RECOVERING");
        delay[i] = b->m.retry_at - b->now;
        recover(b, 100);
    }
    assert_int_equal(delay[0], 0); /* the first comes at once */
    assert_in_range(delay[1], 1000, 1250);
    assert_in_range(delay[2], 2000, 2500);
    assert_in_range(delay[3], 4000, 5000);
    assert_in_range(delay[5], 16000, 20000);
}

static void two_attempts_without_a_commit_save_early(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    for (int i = 0; i < 2; i++) {
        bench_progress(b, 0, 10 + (uint64_t)i, "forward");
        bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
        bench_all_exit(b);
        bench_place(b);
        bench_hello(b, 0);
        bench_hello(b, 1);
        bench_ready(b, 0, 100);
        bench_ready(b, 1, 100);
    }
    const struct fsm_action *at = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(at);
    assert_false(at->exit);
}

static void a_number_that_is_not_finite_is_computed_once_more(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_progress(b, 0, 20, "forward");
    bench_fault(b, 0, FSM_FAULT_NUMERIC, 20);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.numeric.skip_count, 0);
    recover(b, 100);
    bench_fault(b, 0, FSM_FAULT_NUMERIC, 20);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.numeric.skip_count, 1);
    assert_int_equal(b->m.numeric.skip[0], 20);
}

/* The fault was the machine's, not that of the numbers: the rank of the lanes is told, and its node
 * suspected. */
static void a_number_that_is_finite_the_second_time_was_a_machines_fault(void **state)
{
    struct bench *b = *state;
    struct fsm_fault fault = { .kind = FSM_FAULT_NUMERIC, .rank = 1, .step = 20 };
    struct fsm_event event = { .kind = FSM_EV_FAULT, .generation = 1, .fault = &fault };
    bench_run(b, 100);
    bench_progress(b, 0, 20, "forward");
    assert_int_equal(bench_apply(b, event), ST_OK);
    recover(b, 100);
    bench_progress(b, 0, 20, "forward");
    assert_int_equal(bench_count(b, FSM_ACT_BLAME), 0);
    bench_progress(b, 0, 21, "forward");
    assert_int_equal(bench_count(b, FSM_ACT_BLAME), 1);
    assert_string_equal(b->m.ranks[bench_act(b, FSM_ACT_BLAME, 0)->rank].node, b->m.ranks[1].node);
    assert_non_null(strstr(bench_told(b, "numeric"), "suspected is node"));
    bench_progress(b, 0, 22, "forward");
    assert_int_equal(bench_count(b, FSM_ACT_BLAME), 0);
    bench_fault(b, 0, FSM_FAULT_NUMERIC, 20); /* it went back, and is not finite again */
    assert_int_equal(b->m.numeric.skip_count, 0);
}

/* A rank finds `step` not finite, and again in the generation after. */
static void not_finite_twice(struct bench *b, uint64_t step)
{
    bench_progress(b, 0, step, "forward");
    bench_fault(b, 0, FSM_FAULT_NUMERIC, step);
    recover(b, 100);
    bench_progress(b, 0, step, "forward");
    bench_fault(b, 0, FSM_FAULT_NUMERIC, step);
}

static void a_third_step_in_a_row_that_is_not_finite_is_divergence(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    for (uint64_t step = 3; step < 5; step++) {
        not_finite_twice(b, step);
        bench_is_state(b, "RECOVERING");
        recover(b, 100);
    }
    not_finite_twice(b, 5);
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
    assert_int_equal(b->m.restarts, 5);
    assert_int_equal(b->m.cause.kind, FSM_FAULT_USER);
    assert_non_null(strstr(b->m.reason, "diverged since step 3: 3 steps in a row"));
    assert_non_null(strstr(b->m.reason, "learning rate"));
}

static void steps_left_out_here_and_there_are_no_divergence(void **state)
{
    struct bench *b = *state;
    static const uint64_t steps[] = { 3, 4, 6, 8, 9, 11 };
    bench_run(b, 100);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        not_finite_twice(b, steps[i]);
        bench_is_state(b, "RECOVERING");
        recover(b, 100);
    }
    assert_int_equal(b->m.numeric.skip_count, 6);
}

static void a_number_that_is_not_finite_twice_fails_without_on_nan_skip(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.skip_nan = false;
    bench_reopen(b, &config);
    bench_run(b, 100);
    bench_fault(b, 0, FSM_FAULT_NUMERIC, 20);
    recover(b, 100);
    bench_fault(b, 0, FSM_FAULT_NUMERIC, 20);
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
}

static void other_pins_are_accepted_when_exactness_is_relaxed(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.relaxed = true;
    bench_reopen(b, &config);
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_hello(b, 0);
    bench_hello(b, 1);
    struct fsm_event ready = {
        .kind = FSM_EV_READY,
        .generation = 1,
        .ready = { .total_steps = 10, .steps_per_epoch = 10, .pins_differ = "another CPU" },
    };
    assert_int_equal(bench_apply(b, ready), ST_OK);
    assert_true(bench_event(b, "pins"));
    bench_ready(b, 1, 10);
    bench_is_state(b, "RUNNING");
}

/* Rank 1 of the current generation is ready to train. */
static void ready_to_train(struct bench *b, uint64_t total, const char *data_differ)
{
    struct fsm_event ready = {
        .kind = FSM_EV_READY,
        .generation = b->m.generation,
        .rank = 1,
        .ready = { .total_steps = total, .steps_per_epoch = 10, .data_differ = data_differ },
    };
    assert_int_equal(bench_apply(b, ready), ST_OK);
}

static void form_until_ready(struct bench *b)
{
    bench_place(b);
    if (b->m.probing)
        bench_probe(b, ST_OK);
    bench_hello(b, 0);
    bench_hello(b, 1);
}

/* However often: the job is not given up, and goes on with the data that it began with. */
static void data_that_changed_are_waited_for_by_name(void **state)
{
    struct bench *b = *state;
    for (int i = 0; i < 20; i++) {
        form_until_ready(b);
        ready_to_train(b, 10, "node n: the data are not those that the job began with: /d/t.bin");
        bench_is_state(b, "RECOVERING");
        assert_int_equal(b->m.cause.kind, FSM_FAULT_DATA);
        assert_non_null(strstr(b->m.reason, "node n: the data are"));
        assert_non_null(strstr(b->m.reason, "/d/t.bin"));
        bench_all_exit(b);
        assert_true(b->m.retry_at <= b->now + 15000);
        bench_tick(b, 15000);
        assert_true(fsm_wants_slots(&b->m, b->now));
    }
    bench_run(b, 10);
    bench_is_state(b, "RUNNING");
}

static void data_that_changed_while_they_are_read_are_waited_for(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_progress(b, 1, 20, "forward");
    bench_fault(b, 1, FSM_FAULT_DATA, 20);
    recover(b, 100);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.budget.used, 0);
}

static void ranks_that_would_train_for_another_number_of_steps_are_refused(void **state)
{
    struct bench *b = *state;
    form_until_ready(b);
    bench_ready(b, 0, 100);
    ready_to_train(b, 99, NULL);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_DATA);
    assert_non_null(strstr(b->m.reason, "99 steps"));
    assert_int_equal(b->m.total_steps, 100);
    bench_all_exit(b);
    form_until_ready(b);
    ready_to_train(b, 99, NULL); /* nor is it what the job had before */
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.total_steps, 100);
}

static void other_data_are_accepted_when_exactness_is_relaxed(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.relaxed = true;
    bench_reopen(b, &config);
    form_until_ready(b);
    ready_to_train(b, 10, "other data");
    assert_true(bench_event(b, "pins"));
    bench_ready(b, 0, 10);
    bench_is_state(b, "RUNNING");
    recover(b, 12); /* all have the same, though not what they had before */
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.total_steps, 12);
}

static void a_full_store_at_the_start_waits_with_the_reason(void **state)
{
    struct bench *b = *state;
    bench_place(b);
    bench_probe(b, ST_FULL);
    bench_is_state(b, "QUEUED");
    assert_non_null(strstr(b->m.reason, "waits for the checkpoint store"));
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_tick(b, 5000);
    bench_run(b, 100);
}

static void a_store_that_may_not_be_written_is_a_user_error(void **state)
{
    struct bench *b = *state;
    bench_place(b);
    bench_probe(b, ST_REFUSED);
    bench_is_state(b, "FAILED");
    assert_string_equal(b->m.reason, "the store");
}

/* A file system that was mounted read-only after an error, rights that were changed for a while. */
static void a_store_that_may_not_be_written_any_more_is_waited_for(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_fault(b, 0, FSM_FAULT_STORE, 10);
    bench_all_exit(b);
    bench_tick(b, 5000);
    bench_place(b);
    assert_non_null(bench_task(b, FSM_TASK_PROBE));
    bench_probe(b, ST_REFUSED);
    bench_is_state(b, "RECOVERING");
    assert_non_null(strstr(b->m.reason, "waits for the checkpoint store"));
    bench_tick(b, 5000);
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

/* ---- what people ask ---- */

static void pause_saves_and_leaves_and_resume_goes_on_from_there(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_progress(b, 0, 10, "forward");
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_is_state(b, "SAVING");
    const struct fsm_action *at = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(at);
    assert_true(at->exit);
    assert_true(at->step > 10);
    uint64_t step = at->step;
    bench_commit(b, step);
    bench_exit(b, 0, FSM_EXIT_FINISHED, 0);
    bench_exit(b, 1, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "PAUSED");
    assert_false(fsm_wants_slots(&b->m, b->now));
    assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
    bench_is_state(b, "QUEUED");
    bench_run(b, 1000);
    assert_int_equal(b->m.restore.step, step);
    assert_int_equal(b->m.restarts, 0);
}

static void a_rank_that_passed_the_announced_step_gets_a_later_one(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_progress(b, 0, 10, "forward");
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    uint64_t first = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    bench_begin(b, 1, first);
    bench_passed(b, 0, first, first + 5); /* it is at first + 5 */
    const struct fsm_action *at = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(at);
    assert_true(at->exit);
    assert_true(at->step > first + 5);
    bench_passed(b, 1, first, first + 5); /* said by another, too: once is enough */
    assert_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
}

static void a_failure_while_pausing_pauses_at_the_newest_checkpoint(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_commit(b, 50);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "PAUSED");
    assert_int_equal(fsm_newest(&b->m)->step, 50);
}

static void stop_ends_in_stopped_and_resume_goes_on_from_its_checkpoint(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
    bench_commit(b, bench_act(b, FSM_ACT_SAVE_AT, 0)->step);
    bench_all_exit(b);
    bench_is_state(b, "STOPPED");
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_REFUSED);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_REFUSED);
    assert_true(b->m.ended_wall > 0);
    const uint64_t saved = fsm_newest(&b->m)->step;
    const uint32_t before = b->m.generation;
    bench_restart(b, 60000); /* the journal has it all */
    assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
    bench_is_state(b, "QUEUED");
    assert_true(b->m.ended_wall == 0);
    assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_REFUSED);
    bench_run(b, 1000);
    assert_int_equal(b->m.generation, before + 1);
    assert_true(b->m.restore.step == saved && b->m.restore.generation == before);
}

static void kill_ends_the_trainers_first(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    assert_non_null(bench_act(b, FSM_ACT_END, 0));
    assert_false(fsm_state_final(b->m.state));
    bench_tick(b, 2500);
    assert_non_null(bench_act(b, FSM_ACT_END, 0)); /* said again */
    bench_all_exit(b);
    bench_is_state(b, "KILLED");
}

static void a_queued_job_is_paused_stopped_and_killed_at_once(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_SAVE), ST_REFUSED);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_is_state(b, "PAUSED");
    assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_is_state(b, "KILLED");
}

static void drain_saves_and_queues_the_job_again(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    assert_int_equal(bench_ask(b, FSM_EV_DRAIN), ST_OK);
    bench_commit(b, bench_act(b, FSM_ACT_SAVE_AT, 0)->step);
    bench_exit(b, 0, FSM_EXIT_FINISHED, 0);
    bench_exit(b, 1, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "QUEUED");
}

static void drain_does_not_undo_what_was_asked_before(void **state)
{
    struct bench *b = *state;
    const struct fsm_config config = bench_config();
    static const enum fsm_event_kind asked[] = { FSM_EV_PAUSE, FSM_EV_STOP };
    static const char *const ends[] = { "PAUSED", "STOPPED" };
    for (int i = 0; i < 3; i++) { /* a stop is hurried in test_server_stuck.c */
        bench_run(b, 100000);
        assert_int_equal(bench_ask(b, asked[i / 2]), ST_OK);
        uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
        assert_int_equal(bench_ask(b, FSM_EV_DRAIN), ST_OK);
        if (i == 1) {
            assert_int_equal(bench_ask(b, FSM_EV_DRAIN_NOW), ST_OK);
        } else {
            bench_commit(b, step);
        }
        bench_all_exit(b);
        bench_is_state(b, ends[i / 2]);
        if (i < 2) {
            assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
        } else {
            bench_reopen(b, &config);
        }
    }
}

static void a_job_limited_in_time_saves_and_succeeds_when_it_is_over(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.time_limit_ms = 20000;
    bench_reopen(b, &config);
    bench_run(b, 0);
    const struct fsm_action *at = NULL;
    for (uint64_t i = 1; i < 30 && at == NULL; i++) {
        b->now += 1000;
        bench_progress(b, 0, i, "forward");
        at = bench_act(b, FSM_ACT_SAVE_AT, 0);
        if (at == NULL)
            bench_progress(b, 1, i, "forward");
    }
    assert_non_null(at);
    bench_commit(b, at->step);
    bench_all_exit(b);
    bench_is_state(b, "SUCCEEDED");
}

/* ---- accounts ---- */

static void every_second_is_attributed(void **state)
{
    struct bench *b = *state;
    bench_tick(b, 3000); /* queued */
    bench_place(b);
    b->now += 100;
    bench_probe(b, ST_OK);
    b->now += 400;
    bench_hello(b, 0);
    bench_hello(b, 1);
    b->now += 600;
    bench_ready(b, 0, 1000);
    bench_ready(b, 1, 1000);
    b->now += 5000;
    bench_progress(b, 0, 10, "forward");
    b->now += 200; /* from the last progress to the death */
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    b->now += 300;
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_place(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, 1000);
    bench_ready(b, 1, 1000);
    b->now += 700;
    bench_progress(b, 0, 10, "forward"); /* steps 1 to 10 again */
    b->now += 900;
    bench_tick(b, 0);
    assert_int_equal(b->m.accounts.lost_ms[FSM_LOST_WAIT], 3000);
    assert_int_equal(b->m.accounts.lost_ms[FSM_LOST_FORM], 500 + 300);
    assert_int_equal(b->m.accounts.lost_ms[FSM_LOST_RESTORE], 600);
    assert_int_equal(b->m.accounts.lost_ms[FSM_LOST_DETECT], 200);
    assert_int_equal(b->m.accounts.lost_ms[FSM_LOST_REPLAY], 700);
    assert_int_equal(b->m.accounts.train_ms, 5000 + 900);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_user_error_fails_at_once_with_its_message),
        TEST(three_crashes_at_the_same_step_without_progress_fail),
        TEST(crashes_with_progress_between_them_use_no_budget),
        TEST(kills_from_outside_only_back_off),
        TEST(two_attempts_without_a_commit_save_early),
        TEST(a_number_that_is_not_finite_is_computed_once_more),
        TEST(a_number_that_is_finite_the_second_time_was_a_machines_fault),
        TEST(a_third_step_in_a_row_that_is_not_finite_is_divergence),
        TEST(steps_left_out_here_and_there_are_no_divergence),
        TEST(a_number_that_is_not_finite_twice_fails_without_on_nan_skip),
        TEST(other_pins_are_accepted_when_exactness_is_relaxed),
        TEST(data_that_changed_are_waited_for_by_name),
        TEST(data_that_changed_while_they_are_read_are_waited_for),
        TEST(ranks_that_would_train_for_another_number_of_steps_are_refused),
        TEST(other_data_are_accepted_when_exactness_is_relaxed),
        TEST(a_full_store_at_the_start_waits_with_the_reason),
        TEST(a_store_that_may_not_be_written_is_a_user_error),
        TEST(a_store_that_may_not_be_written_any_more_is_waited_for),
        TEST(pause_saves_and_leaves_and_resume_goes_on_from_there),
        TEST(a_rank_that_passed_the_announced_step_gets_a_later_one),
        TEST(a_failure_while_pausing_pauses_at_the_newest_checkpoint),
        TEST(stop_ends_in_stopped_and_resume_goes_on_from_its_checkpoint),
        TEST(kill_ends_the_trainers_first),
        TEST(a_queued_job_is_paused_stopped_and_killed_at_once),
        TEST(drain_saves_and_queues_the_job_again),
        TEST(drain_does_not_undo_what_was_asked_before),
        TEST(a_job_limited_in_time_saves_and_succeeds_when_it_is_over),
        TEST(every_second_is_attributed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
