/* Saves by time and auto, for workers that are told to go, and those without room. */
#include <stdlib.h>
#include <string.h>

#include "server/jobfsm/ctx.h"
#include "server/jobfsm/save_schedule.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static int open_with(void **state, const struct fsm_config *config)
{
    struct bench *b = malloc(sizeof(*b));
    assert_non_null(b);
    bench_open(b, config);
    bench_run(b, BENCH_STEPS);
    *state = b;
    return 0;
}

static int open_every_10_s(void **state)
{
    struct fsm_config config = bench_config();
    config.every_ms = 10000;
    return open_with(state, &config);
}

static int open_auto(void **state)
{
    struct fsm_config config = bench_config();
    config.every_auto = true;
    return open_with(state, &config);
}

/* Steps of 100 ms go by until a save is announced; the time that took. */
static int64_t until_announced(struct bench *b, int64_t most_ms)
{
    int64_t from = b->now;
    uint64_t step = b->m.step_max;
    while (b->now - from < most_ms) {
        b->now += 100;
        step++;
        bench_progress(b, 0, step, "forward");
        if (bench_act(b, FSM_ACT_SAVE_AT, 0) != NULL)
            return b->now - from;
        bench_progress(b, 1, step, "forward");
        if (bench_act(b, FSM_ACT_SAVE_AT, 0) != NULL)
            return b->now - from;
    }
    return -1;
}

static void saved(struct bench *b, uint64_t step, int64_t cost_us, int64_t write_ms)
{
    uint32_t generation = b->m.generation;
    bench_save_until(b, step, FSM_SAVE_COLLECTING);
    for (uint32_t i = 0; i < 2; i++) {
        struct fsm_event report = {
            .kind = FSM_EV_SAVE_REPORT,
            .generation = generation,
            .rank = i,
            .save_report = { .step = step, .cost_us = cost_us, .write_ms = write_ms },
        };
        assert_int_equal(bench_apply(b, report), ST_OK);
    }
    bench_store(b, FSM_TASK_CHECK, step, generation, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, step, generation, ST_OK);
}

/* ---- by time ---- */

static void a_save_is_announced_each_time_the_time_is_over(void **state)
{
    struct bench *b = *state;
    for (int i = 0; i < 5; i++) {
        int64_t took = until_announced(b, 30000);
        assert_in_range(took, 7000, 10100);
        uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
        assert_false(bench_act(b, FSM_ACT_SAVE_AT, 0)->exit);
        b->now += 1800;
        saved(b, step, 0, 0);
    }
}

/* What was said before an outage and what is said after it come together: steps seem to take no
 * time, and a save is announced for one that is minutes ahead. */
static void a_save_that_is_far_ahead_by_mistake_holds_up_none(void **state)
{
    struct bench *b = *state;
    b->now += 7900;
    for (uint64_t i = 0; i < 3; i++) {
        b->now += 600;
        bench_progress(b, 0, 10 + 1000 * i, "forward");
    }
    const struct fsm_action *far = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(far);
    assert_true(far->step > 2500);
    assert_true(until_announced(b, 30000) > 0);
    const struct fsm_action *next = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_in_range(next->step, b->m.step_max + 1, b->m.step_max + 100);
}

static void no_save_is_announced_while_one_is_under_way(void **state)
{
    struct bench *b = *state;
    assert_true(until_announced(b, 30000) > 0);
    uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    bench_save_until(b, step, FSM_SAVE_COLLECTING);
    assert_int_equal(until_announced(b, 25000), -1);
}

/* Rank 1 wrote nothing, and says so; what rank 0 says of its file is lost. */
static void a_dropped_save_of_which_nobody_speaks_holds_up_none_for_long(void **state)
{
    struct bench *b = *state;
    assert_true(until_announced(b, 30000) > 0);
    uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    bench_save_until(b, step, FSM_SAVE_COLLECTING);
    struct fsm_event failed = {
        .kind = FSM_EV_SAVE_FAILED,
        .generation = b->m.generation,
        .rank = 1,
        .save_failed = { .step = step, .removed = true, .message = "a worker could not write" },
    };
    assert_int_equal(bench_apply(b, failed), ST_OK);
    assert_int_equal(fsm_find_save(&b->m, step, b->m.generation)->state, FSM_SAVE_DROPPING);
    const int64_t dropped_at = b->now;
    assert_true(until_announced(b, 20000) > 0);
    assert_true(b->now - dropped_at >= FSM_ASSUMED_MS);
    assert_int_equal(fsm_find_save(&b->m, step, b->m.generation)->state, FSM_SAVE_DROPPING);
}

static void a_restart_counts_from_the_save_before_it(void **state)
{
    struct bench *b = *state;
    assert_true(until_announced(b, 30000) > 0);
    saved(b, bench_act(b, FSM_ACT_SAVE_AT, 0)->step, 0, 0);
    int64_t wall = 1800000000000 + b->now;
    fsm_resume(&b->m, 500, wall + 6000, &b->out);
    assert_int_equal(b->m.due.from, 500 - 6000);
    fsm_resume(&b->m, 500, wall - 1000, &b->out); /* the clock was set back */
    assert_int_equal(b->m.due.from, 500);
}

/* The step of the announced save; 0: there is none. */
static uint64_t announced(const struct bench *b)
{
    uint64_t step = 0;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++)
        step = b->m.due.announced[i].step > step ? b->m.due.announced[i].step : step;
    return step;
}

/* All were at step 1000 once, nothing was saved, and they repeat from the beginning. */
static void repeat_steps(struct bench *b)
{
    for (uint32_t i = 0; i < 2; i++)
        bench_progress(b, i, 20, "forward");
    b->m.step_max = 1000;
}

/* Until somebody says where they are, nobody knows. */
static void repeated_steps_are_saved_after_a_restart_too(void **state)
{
    struct bench *b = *state;
    repeat_steps(b);
    bench_restart(b, 20000);
    bench_tick(b, 1000);
    assert_int_equal(announced(b), 0);
    for (uint32_t i = 0; i < 2; i++)
        bench_attach(b, i, 20);
    bench_tick(b, 10000);
    assert_in_range(announced(b), 21, 40);
}

static void an_exit_is_not_put_off_to_the_end_of_what_is_repeated(void **state)
{
    struct bench *b = *state;
    repeat_steps(b);
    bench_restart(b, 1000);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    const uint64_t guess = announced(b);
    assert_in_range(guess, 1, 20);
    bench_attach(b, 0, 20);
    bench_passed(b, 0, guess, 20);
    assert_in_range(announced(b), 21, 60);
    assert_true(fsm_announced_exit(&b->m, announced(b)));
}

/* ---- auto ---- */

static void auto_measures_with_its_first_and_then_tells_its_interval(void **state)
{
    struct bench *b = *state;
    int64_t took = until_announced(b, 60000);
    assert_in_range(took, 25000, 30100);
    saved(b, bench_act(b, FSM_ACT_SAVE_AT, 0)->step, 50000, 300);
    assert_true(bench_event(b, "interval"));
    assert_in_range(b->m.due.interval_ms, 92000, 93500);
    took = until_announced(b, 200000);
    assert_in_range(took, 80000, 93500);
    saved(b, bench_act(b, FSM_ACT_SAVE_AT, 0)->step, 52000, 300);
    assert_false(bench_event(b, "interval"));
}

static void failures_shorten_it_and_it_survives_a_restart(void **state)
{
    struct bench *b = *state;
    assert_true(until_announced(b, 60000) > 0);
    saved(b, bench_act(b, FSM_ACT_SAVE_AT, 0)->step, 50000, 300);
    int64_t before = b->m.due.interval_ms;
    for (int i = 0; i < 3; i++) {
        b->now += 5000;
        bench_progress(b, 0, b->m.step_max + 10, "forward");
        bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
        bench_all_exit(b);
        bench_tick(b, 70000);
        bench_run(b, 100000);
    }
    assert_int_equal(b->m.failures, 3);
    assert_in_range(b->m.due.interval_ms, before * 45 / 100, before * 55 / 100);
    struct fsm old = b->m; /* numbers only: what it points at goes */
    bench_restart(b, 0);
    assert_int_equal(b->m.due.interval_ms, old.due.interval_ms);
    assert_int_equal(b->m.failures, 3);
    assert_int_equal(b->m.due.cost_us, old.due.cost_us);
    assert_int_equal(b->m.due.saved_wall, old.due.saved_wall);
}

/* ---- the lead of an announcement ---- */

/* Steps so short that whatever the coordinator knows is thousands of them old. */
static void a_step_that_is_passed_again_and_again_is_caught_up_with(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    uint64_t lead = step;
    int tries = 0;
    for (; lead < 5000; tries++) {
        uint64_t at = step + 5000 - lead; /* where workers are when they hear of it */
        bench_passed(b, 0, step, at);
        const struct fsm_action *again = bench_act(b, FSM_ACT_SAVE_AT, 0);
        assert_non_null(again);
        assert_true(again->exit);
        assert_true(again->step - at >= 2 * lead);
        lead = again->step - at;
        step = again->step;
    }
    assert_in_range(tries, 5, 14);
    for (uint32_t i = 0; i < 2; i++)
        bench_progress(b, i, step, "forward");
    saved(b, step, 0, 0);
    assert_int_equal(b->m.due.passes, 0);
}

/* One rank took the exit and waits for its save, the other trains in the next step. */
static void an_exit_that_a_worker_had_passed_is_taken_back_for_all(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_DRAIN), ST_OK);
    uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    for (uint32_t i = 0; i < 2; i++)
        bench_progress(b, i, step, "forward");
    bench_begin(b, 0, step);
    bench_store(b, FSM_TASK_FOLDER, step, 1, ST_OK);
    bench_passed(b, 1, step, step);
    const struct fsm_action *stay = bench_act(b, FSM_ACT_STAY, 0);
    assert_non_null(stay);
    assert_int_equal(stay->step, step);
    assert_int_equal(stay->rank, FSM_ALL_RANKS);
    assert_true(stay < bench_act(b, FSM_ACT_SEND_DONE, 0)); /* else it would save again */
    uint64_t next = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    assert_true(next > step);
    bench_restart(b, 0);
    bench_attach(b, 0, step); /* it was away meanwhile */
    assert_int_equal(bench_act(b, FSM_ACT_STAY, 0)->step, step);
    bench_attach(b, 1, step);
    for (uint32_t i = 0; i < 2; i++)
        bench_progress(b, i, next, "forward");
    saved(b, next, 0, 0);
    for (uint32_t i = 0; i < 2; i++)
        bench_exit(b, i, FSM_EXIT_FINISHED, 0);
    bench_store(b, FSM_TASK_DROP, step, 1, ST_OK);
    bench_is_state(b, "QUEUED");
    assert_int_equal(fsm_newest(&b->m)->step, next);
}

static void a_save_that_was_passed_and_ends_nobody_takes_nothing_back(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_SAVE), ST_OK);
    uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    bench_passed(b, 1, step, step + 3);
    assert_null(bench_act(b, FSM_ACT_STAY, 0));
    assert_non_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
}

static void an_exit_finds_a_place_among_stale_announcements(void **state)
{
    struct bench *b = *state;
    for (uint64_t i = 1; i <= FSM_ANNOUNCED_MAX; i++) { /* nobody saves at any of them */
        bench_progress(b, 0, 10 * i, "forward");
        assert_int_equal(bench_ask(b, FSM_EV_SAVE), ST_OK);
        assert_non_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    }
    bench_progress(b, 0, 50, "forward");
    assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
    assert_non_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    assert_true(bench_act(b, FSM_ACT_SAVE_AT, 0)->exit);
}

/* ---- a notice ---- */

static void want(struct bench *b, bool leaves)
{
    struct fsm_event event = {
        .kind = FSM_EV_SAVE_WANTED,
        .generation = b->m.generation,
        .rank = 1,
        .save_wanted = { .leaves = leaves, .grace_ms = 30000, .why = "told so" },
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void a_worker_that_is_told_to_go_takes_all_along_with_a_save(void **state)
{
    struct bench *b = *state;
    bench_progress(b, 0, 50, "forward");
    want(b, true);
    const struct fsm_action *at = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(at);
    assert_true(at->exit);
    uint64_t step = at->step;
    assert_true(bench_event(b, "preempted"));
    want(b, true); /* said again, after a reconnection */
    assert_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    saved(b, step, 0, 0);
    for (uint32_t i = 0; i < 2; i++)
        bench_exit(b, i, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "RECOVERING");
    assert_true(fsm_wants_slots(&b->m, b->now)); /* at once */
    assert_int_equal(b->m.budget.used + b->m.budget.failures + b->m.failures, 0);
    bench_run(b, 100000);
    assert_int_equal(b->m.restore.step, step);
    assert_int_equal(b->m.restarts, 1);
}

static void leave_node(struct bench *b)
{
    struct fsm_event event = { .kind = FSM_EV_LEAVING,
                               .generation = b->m.generation,
                               .rank = 1,
                               .leaving = { .why = "node b leaves within 25.0 s: SIGTERM" } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void a_node_that_leaves_costs_no_step_and_counts_as_no_failure(void **state)
{
    struct bench *b = *state;
    bench_progress(b, 0, 50, "forward");
    leave_node(b);
    const struct fsm_action *at = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(at);
    assert_true(at->exit);
    uint64_t step = at->step;
    assert_non_null(strstr(bench_told(b, "preempted"), "node b leaves"));
    leave_node(b); /* said again, in a hello; and so does its worker */
    assert_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    want(b, true);
    assert_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    saved(b, step, 0, 0);
    for (uint32_t i = 0; i < 2; i++)
        bench_exit(b, i, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "RECOVERING");
    assert_true(fsm_wants_slots(&b->m, b->now)); /* at once */
    leave_node(b);                               /* of a generation that is over */
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.budget.used + b->m.budget.failures + b->m.failures, 0);
    bench_run(b, 100000);
    assert_int_equal(b->m.restore.step, step);
    assert_int_equal(b->m.restarts, 1);
}

static void a_node_that_leaves_before_anything_runs_there_gets_nothing(void **state)
{
    struct bench *b = *state;
    bench_place(b);
    bench_is_state(b, "PLACING");
    leave_node(b);
    bench_is_state(b, "QUEUED");
    assert_non_null(bench_act(b, FSM_ACT_SCHEDULE, 0));
    bench_probe(b, ST_OK); /* the answer to the first placing forms nothing */
    bench_is_state(b, "QUEUED");
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.generation, 1);
    leave_node(b);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(bench_count(b, FSM_ACT_END), 1);
    bench_all_exit(b);
    assert_true(fsm_wants_slots(&b->m, b->now));
}

static void who_goes_while_forming_has_nothing_to_save(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_all_exit(b);
    bench_place(b);
    bench_is_state(b, "FORMING");
    bench_hello(b, 0);
    bench_hello(b, 1);
    want(b, false);
    bench_is_state(b, "FORMING");
    want(b, true);
    assert_non_null(bench_act(b, FSM_ACT_END, 0));
    bench_all_exit(b);
    assert_true(fsm_wants_slots(&b->m, b->now));
}

static void a_save_without_leaving_is_only_a_save(void **state)
{
    struct bench *b = *state;
    bench_progress(b, 0, 50, "forward");
    want(b, false);
    assert_non_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    assert_false(bench_act(b, FSM_ACT_SAVE_AT, 0)->exit);
}

/* ---- no room ---- */

static void refuse(struct bench *b, uint64_t step)
{
    for (uint32_t i = 0; i < 2; i++)
        bench_progress(b, i, step, "forward");
    bench_save_until(b, step, FSM_SAVE_OPENING);
    bench_store(b, FSM_TASK_FOLDER, step, b->m.generation, ST_FULL);
}

static void a_full_store_is_told_once_counted_and_trained_beside(void **state)
{
    struct bench *b = *state;
    refuse(b, 10);
    bench_is_state(b, "RUNNING");
    assert_true(bench_event(b, "store-full"));
    assert_non_null(strstr(b->m.reason, "no room for the checkpoint of step 10"));
    bench_store(b, FSM_TASK_DROP, 10, 1, ST_OK);
    refuse(b, 20);
    assert_false(bench_event(b, "store-full"));
    assert_false(bench_event(b, "save-dropped"));
    bench_store(b, FSM_TASK_DROP, 20, 1, ST_OK);
    assert_int_equal(b->m.store_full.refused, 2);
    bench_commit(b, 30);
    assert_true(bench_event(b, "store-room"));
    assert_string_equal(b->m.reason, "");
    assert_int_equal(b->m.store_full.refused, 2);
    assert_string_equal(b->m.store_full.reason, status_string(ST_FULL));
}

static void no_room_in_a_worker_is_the_same(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 10, FSM_SAVE_COLLECTING);
    bench_save_fails(b, 0, 10);
    assert_true(bench_event(b, "store-full"));
    assert_int_equal(b->m.store_full.refused, 1);
    bench_is_state(b, "RUNNING");
}

static void what_a_save_takes_is_known_from_the_one_before(void **state)
{
    struct bench *b = *state;
    assert_int_equal(fsm_expected_bytes(&b->m, true), 0);
    struct fsm_event ready = {
        .kind = FSM_EV_READY,
        .generation = 1,
        .ready = { .total_steps = BENCH_STEPS, .steps_per_epoch = 10, .state_bytes = 4000 }
    };
    assert_int_equal(bench_apply(b, ready), ST_OK);
    assert_int_equal(fsm_expected_bytes(&b->m, true), 3000);
    bench_commit(b, 10); /* 1000 bytes */
    assert_in_range(fsm_expected_bytes(&b->m, true), 1000, 1000 + 125 + 65536);
}

/* A worker said that it is beyond the step, and the coordinator that heard it is gone; the other
 * worker has begun that save. */
static void who_is_beyond_a_step_will_not_save_it(void **state)
{
    struct bench *b = *state;
    bench_begin(b, 1, 21);
    bench_store(b, FSM_TASK_FOLDER, 21, 1, ST_OK);
    bench_progress(b, 1, 22, "forward");
    bench_progress(b, 0, 21, "forward"); /* at it: its save may come */
    assert_int_equal(fsm_find_save(&b->m, 21, 1)->state, FSM_SAVE_COLLECTING);
    bench_progress(b, 0, 22, "forward");
    assert_string_equal(bench_told(b, "save-dropped"), "step 21: a worker had passed that step");
    bench_begin(b, 0, 30);
    bench_progress(b, 0, 31, "forward"); /* one that it began is on its way */
    bench_store(b, FSM_TASK_FOLDER, 30, 1, ST_OK);
    bench_begin(b, 1, 30);
    bench_progress(b, 1, 31, "forward");
    assert_int_equal(fsm_find_save(&b->m, 30, 1)->state, FSM_SAVE_COLLECTING);
}

#define TEST(name)       cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)
#define TEST_AT(name, s) cmocka_unit_test_setup_teardown(name, s, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_AT(a_save_is_announced_each_time_the_time_is_over, open_every_10_s),
        TEST_AT(no_save_is_announced_while_one_is_under_way, open_every_10_s),
        TEST_AT(a_dropped_save_of_which_nobody_speaks_holds_up_none_for_long, open_every_10_s),
        TEST_AT(a_save_that_is_far_ahead_by_mistake_holds_up_none, open_every_10_s),
        TEST_AT(a_restart_counts_from_the_save_before_it, open_every_10_s),
        TEST_AT(repeated_steps_are_saved_after_a_restart_too, open_every_10_s),
        TEST_AT(an_exit_is_not_put_off_to_the_end_of_what_is_repeated, open_every_10_s),
        TEST_AT(auto_measures_with_its_first_and_then_tells_its_interval, open_auto),
        TEST_AT(failures_shorten_it_and_it_survives_a_restart, open_auto),
        TEST(a_step_that_is_passed_again_and_again_is_caught_up_with),
        TEST(an_exit_that_a_worker_had_passed_is_taken_back_for_all),
        TEST(a_save_that_was_passed_and_ends_nobody_takes_nothing_back),
        TEST(who_is_beyond_a_step_will_not_save_it),
        TEST(an_exit_finds_a_place_among_stale_announcements),
        TEST(a_worker_that_is_told_to_go_takes_all_along_with_a_save),
        TEST(who_goes_while_forming_has_nothing_to_save),
        TEST(a_node_that_leaves_costs_no_step_and_counts_as_no_failure),
        TEST_AT(a_node_that_leaves_before_anything_runs_there_gets_nothing, bench_setup),
        TEST(a_save_without_leaving_is_only_a_save),
        TEST(a_full_store_is_told_once_counted_and_trained_beside),
        TEST(no_room_in_a_worker_is_the_same),
        TEST(what_a_save_takes_is_known_from_the_one_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
