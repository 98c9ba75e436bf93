/* Jobs of which Cairn saves nothing: no saves, and how they go, or go on elsewhere. */
#include <stdio.h>
#include <string.h>

#include "server/jobfsm/ctx.h"
#include "tests/test.h"
#include "tests/unit/server/jobfsm/unsaved/program_fixture.h"

static void say_leaving(struct bench *b, uint32_t rank)
{
    struct fsm_event event = { .kind = FSM_EV_LEAVING,
                               .generation = b->m.generation,
                               .rank = rank,
                               .leaving = { "node n leaves" } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* ---- nothing is saved ---- */

static void no_worker_is_heard_about_saves(void **state)
{
    struct bench *b = program_run(state);
    bench_begin(b, 0, 10);
    program_saves_nothing(b);
    bench_report(b, 0, 10);
    program_saves_nothing(b);
    assert_int_equal(b->m.saves[0].state, FSM_SAVE_FREE);
    struct fsm_event wanted = { .kind = FSM_EV_SAVE_WANTED,
                                .generation = 1,
                                .save_wanted = { false, 0, "SIGUSR1" } };
    assert_int_equal(bench_apply(b, wanted), ST_OK);
    program_saves_nothing(b);
    assert_false(bench_event(b, "save"));
}

static void a_save_is_refused(void **state)
{
    struct bench *b = program_run(state);
    assert_int_equal(bench_ask(b, FSM_EV_SAVE), ST_REFUSED);
    assert_int_equal(b->out.count, 0);
}

static void no_save_comes_by_time_and_none_after_failures(void **state)
{
    struct bench *b = program_run(state);
    program_live_for(b, 120000);
    for (int i = 0; i < 3; i++) { /* two attempts without a commit have others save early */
        program_fail(b, 1, FSM_FAULT_PROCESS, true);
        program_start_anew(b, 1);
    }
    assert_int_equal(b->m.generation, 4);
}

static void what_it_leaves_is_swept_by_nobody(void **state)
{
    struct bench *b = program_run(state);
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    program_start_anew(b, 1);
    for (uint32_t i = 0; i < RANKS; i++)
        program_finish(b, i);
    program_exit_all(b, 0);
    program_saves_nothing(b);
    bench_is_state(b, "SUCCEEDED");
    assert_int_equal(fsm_work_left_of(&b->m), FSM_OVER);
    bench_restart(b, 1000);
    program_saves_nothing(b);
}

/* ---- pause, stop, drain ---- */

/* All are told to go, and have their time. */
static void are_told_to_go(const struct bench *b)
{
    program_saves_nothing(b);
    assert_non_null(bench_act(b, FSM_ACT_CLOSE, 0));
    assert_int_equal(bench_act(b, FSM_ACT_CLOSE, 0)->rank, FSM_ALL_RANKS);
    assert_null(bench_act(b, FSM_ACT_END, 0));
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_LEAVING);
    for (uint32_t i = 0; i < b->m.size; i++)
        assert_true(fsm_is_over(&b->m, i));
}

static void asked_to_go_it_goes_at_once_and_gently(void **state)
{
    static const struct {
        enum fsm_event_kind ask;
        const char *state;
    } rows[] = { { FSM_EV_PAUSE, "PAUSED" },
                 { FSM_EV_STOP, "STOPPED" },
                 { FSM_EV_DRAIN, "QUEUED" } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bench *b = program_run(state);
        assert_int_equal(bench_ask(b, rows[i].ask), ST_OK);
        are_told_to_go(b);
        bench_tick(b, GRACE_MS);
        assert_null(bench_act(b, FSM_ACT_END, 0));
        program_exit_all(b, 0); /* a program that was told to go, and says that all is well */
        program_saves_nothing(b);
        bench_is_state(b, rows[i].state);
        assert_string_equal(b->m.reason, "");
    }
}

static void who_does_not_go_is_ended(void **state)
{
    struct bench *b = program_run(state);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_exit(b, 0, FSM_EXIT_CODE, 4);
    bench_tick(b, GRACE_MS + FSM_LEAVE_MS - 1);
    assert_null(bench_act(b, FSM_ACT_END, 0));
    bench_tick(b, 1);
    assert_non_null(bench_act(b, FSM_ACT_END, 0));
    program_exit_all(b, 4);
    bench_is_state(b, "PAUSED");
}

static void what_a_program_says_on_its_way_is_no_success(void **state)
{
    struct bench *b = program_run(state);
    program_finish(b, 0);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    program_finish(b, 1);
    program_finish(b, 2);
    bench_is_state(b, "SAVING");
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "PAUSED");
}

static void resumed_it_starts_anew(void **state)
{
    struct bench *b = program_run(state);
    bench_progress(b, 0, 57, "running");
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    program_exit_all(b, 0);
    assert_non_null(strstr(bench_told(b, "paused"), "starts anew"));
    assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
    program_form(b);
    assert_non_null(
        strstr(bench_told(b, "forming"), "from the beginning: the program starts anew"));
    program_go_on(b);
    for (uint32_t i = 0; i < RANKS; i++)
        program_finish(b, i);
    program_exit_all(b, 0);
    bench_is_state(b, "SUCCEEDED");
}

/* A restart of the coordinator doesn't cut the time, nor does another generation that follows. */
static void the_time_to_go_outlives_the_coordinator(void **state)
{
    for (int moves = 0; moves < 2; moves++) {
        struct bench *b = program_run(state);
        if (moves) {
            say_leaving(b, 1);
        } else {
            assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
        }
        are_told_to_go(b);
        bench_restart(b, 1000);
        assert_null(bench_act(b, FSM_ACT_END, 0));
        assert_true(fsm_is_over(&b->m, 0));
        bench_tick(b, GRACE_MS);
        assert_null(bench_act(b, FSM_ACT_END, 0));
        bench_tick(b, FSM_LEAVE_MS);
        assert_non_null(bench_act(b, FSM_ACT_END, 0));
        program_exit_all(b, 0);
        bench_is_state(b, moves ? "RECOVERING" : "PAUSED");
    }
}

static void a_pause_while_it_forms_or_parks_is_done_without_another_generation(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = program_config();
    bench_reopen(b, &config);
    program_form(b);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    program_exit_all(b, 4);
    bench_is_state(b, "PAUSED");
    b = program_run(state);
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    bench_exit(b, 1, FSM_EXIT_CODE, 1);
    bench_say_parked(b, 0);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    assert_null(bench_act(b, FSM_ACT_END, 0)); /* the last one's program may take its time */
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
    bench_say_parked(b, 2);
    assert_non_null(bench_act(b, FSM_ACT_END, 0));
    program_exit_all(b, 4);
    bench_is_state(b, "PAUSED");
    assert_int_equal(b->m.generation, 1);
}

/* The last word holds, but for an end that is for good. */
static void a_stop_replaces_a_pause_and_not_the_other_way_round(void **state)
{
    for (int parks = 0; parks < 2; parks++) {
        struct bench *b = program_run(state);
        if (parks)
            program_fail(b, 1, FSM_FAULT_PROCESS, false);
        assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
        assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
        assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
        program_exit_all(b, 0);
        bench_is_state(b, "STOPPED");
    }
}

static void a_pause_while_it_waits_is_done_at_once(void **state)
{
    struct bench *b = program_run(state);
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    bench_exit(b, 1, FSM_EXIT_CODE, 1);
    program_park_all(b);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_KEPT);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    program_exit_all(b, 4);
    bench_is_state(b, "PAUSED");
}

static void its_time_over_it_has_succeeded(void **state)
{
    struct fsm_config config = program_config();
    config.time_limit_ms = 60000;
    struct bench *b = program_run_with(state, config);
    program_live_for(b, 62000);
    assert_int_equal(b->m.ending.to, FSM_SUCCEEDED);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_LEAVING);
    program_exit_all(b, 0);
    bench_is_state(b, "SUCCEEDED");
}

/* ---- nodes that leave, other numbers of workers ---- */

static void a_node_that_leaves_has_all_start_anew_elsewhere(void **state)
{
    for (int asked = 0; asked < 2; asked++) {
        struct bench *b = program_run(state);
        struct fsm_event told = { .kind = FSM_EV_SAVE_WANTED,
                                  .generation = 1,
                                  .rank = 1,
                                  .save_wanted = { true, 5000, "SIGTERM" } };
        if (asked) {
            assert_int_equal(bench_apply(b, told), ST_OK);
        } else {
            say_leaving(b, 1);
        }
        are_told_to_go(b);
        assert_non_null(strstr(bench_told(b, "preempted"), "starts anew"));
        bench_is_state(b, "RECOVERING");
        program_exit_all(b, 0);
        program_form(b);
        program_go_on(b);
        assert_int_equal(b->m.budget.failures, 0);
        assert_int_equal(b->m.restarts, 1);
    }
}

static void a_node_that_leaves_while_all_park_ends_those_that_wait(void **state)
{
    struct bench *b = program_run(state);
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    bench_exit(b, 1, FSM_EXIT_CODE, 1);
    bench_say_parked(b, 0);
    say_leaving(b, 2);
    program_exit_all(b, 4);
    bench_is_state(b, "RECOVERING");
    program_form(b);
    program_go_on(b);
}

/* A pause that waits for those that park isn't undone by a node that leaves, or a broken path. */
static void a_pause_holds_whatever_happens_while_they_park(void **state)
{
    for (int path = 0; path < 2; path++) {
        struct bench *b = program_run(state);
        program_fail(b, 1, FSM_FAULT_PROCESS, false);
        assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
        if (path) {
            struct fsm_event event = { .kind = FSM_EV_PATH, .path = { "n1 and n2" } };
            assert_int_equal(bench_apply(b, event), ST_OK);
        } else {
            say_leaving(b, 2);
        }
        program_exit_all(b, 4);
        bench_is_state(b, "PAUSED");
    }
}

static uint32_t ready_spare(struct bench *b)
{
    const char *node = "extra";
    uint32_t slot = 7;
    struct fsm_event event = { .kind = FSM_EV_SPARE, .placed = { &node, &slot, 1, "spares" } };
    assert_true(fsm_wants_spare(&b->m, b->now));
    assert_int_equal(bench_apply(b, event), ST_OK);
    const uint32_t at = bench_act(b, FSM_ACT_START, 0)->rank;
    bench_hello(b, at);
    bench_ready(b, at, 0);
    bench_say_parked(b, at);
    return at;
}

static void set(struct bench *b, uint32_t workers)
{
    struct fsm_event event = { .kind = FSM_EV_SET, .set = { .workers = workers } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void with_more_workers_all_park_and_start_anew(void **state)
{
    struct bench *b = program_run(state);
    set(b, 4);
    (void)ready_spare(b); /* though no step was ever heard of */
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
    bench_is_state(b, "RECOVERING");
    program_park_all(b);
    program_form(b);
    assert_non_null(strstr(bench_told(b, "forming"), "the program starts anew"));
    assert_int_equal(b->m.size, 4);
    program_go_on(b);
    assert_int_equal(b->m.budget.failures, 0);
}

static void with_fewer_workers_too(void **state)
{
    struct bench *b = program_run(state);
    set(b, 2);
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
    program_park_all(b);
    program_form(b);
    assert_int_equal(b->m.size, 2);
    bench_exit(b, 2, FSM_EXIT_CODE, 4);
    program_go_on(b);
}

static void also_where_none_may_be_kept(void **state)
{
    struct fsm_config config = program_config();
    config.restarts = true;
    struct bench *b = program_run_with(state, config);
    set(b, 2);
    are_told_to_go(b);
    program_exit_all(b, 0);
    program_form(b);
    assert_int_equal(b->m.size, 2);
    program_go_on(b);
}

static void a_program_that_has_ended_somewhere_is_not_started_anew_for_more_workers(void **state)
{
    struct bench *b = program_run(state);
    program_finish(b, 0);
    set(b, 2);
    bench_is_state(b, "RUNNING");
    program_finish(b, 1);
    program_finish(b, 2);
    program_exit_all(b, 0);
    bench_is_state(b, "SUCCEEDED");
}

static void those_that_are_there_go_on_if_they_are_enough(void **state)
{
    struct fsm_config config = program_config();
    config.min = 1;
    struct bench *b = program_run_with(state, config);
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    bench_exit(b, 1, FSM_EXIT_CODE, 1);
    program_park_all(b);
    assert_int_equal(fsm_vacant_ranks(&b->m), 0);
    program_form(b);
    assert_int_equal(b->m.size, 2);
    program_go_on(b);
}

/* Programs are ended before their workers park. */
static void workers_have_their_grace_to_park(void **state)
{
    struct bench *b = program_run(state);
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    bench_exit(b, 1, FSM_EXIT_CODE, 1);
    bench_tick(b, GRACE_MS + FSM_PARK_MS - 1);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
    bench_tick(b, 1);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING_LATE);
}

static void whose_program_failed_stays_if_it_says_so(void **state)
{
    for (int stays = 0; stays < 2; stays++) {
        struct bench *b = program_run(state);
        struct fsm_fault fault = { .kind = FSM_FAULT_PROCESS,
                                   .rank = FSM_ALL_RANKS,
                                   .stays = stays == 1,
                                   .message = "the program of rank 1 failed" };
        struct fsm_event event = {
            .kind = FSM_EV_FAULT, .generation = b->m.generation, .rank = 1, .fault = &fault
        };
        assert_int_equal(bench_apply(b, event), ST_OK);
        assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
        assert_int_equal(b->m.ranks[1].ended, stays == 0);
        assert_int_equal(b->m.ranks[0].ended, false);
        assert_int_equal(b->m.cause.rank, 1);
    }
}

/* In a hang all are asked where their programs are: who is to blame may be another than spoke. */
static void where_the_others_are_in_a_hang_is_told(void **state)
{
    struct bench *b = program_run(state);
    struct fsm_fault fault = { .kind = FSM_FAULT_HANG,
                               .rank = FSM_ALL_RANKS,
                               .stays = true,
                               .message = "the program of rank 0 shows no progress" };
    struct fsm_event event = {
        .kind = FSM_EV_FAULT, .generation = b->m.generation, .rank = 0, .fault = &fault
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
    bench_tick(b, FSM_WINDOW_MS); /* nobody knows more */
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
    assert_false(bench_event(b, "stack"));
    event.rank = 2;
    (void)snprintf(fault.message, sizeof(fault.message), "the program of rank 2 is in f");
    assert_int_equal(bench_apply(b, event), ST_OK);
    assert_true(bench_event(b, "stack"));
    assert_int_equal(b->m.cause.rank, 0);
    fault.kind = FSM_FAULT_PROCESS; /* what follows from the end says nothing */
    assert_int_equal(bench_apply(b, event), ST_OK);
    assert_false(bench_event(b, "stack"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(no_worker_is_heard_about_saves),
        TEST(a_save_is_refused),
        TEST(no_save_comes_by_time_and_none_after_failures),
        TEST(what_it_leaves_is_swept_by_nobody),
        TEST(asked_to_go_it_goes_at_once_and_gently),
        TEST(who_does_not_go_is_ended),
        TEST(what_a_program_says_on_its_way_is_no_success),
        TEST(resumed_it_starts_anew),
        TEST(the_time_to_go_outlives_the_coordinator),
        TEST(a_pause_while_it_forms_or_parks_is_done_without_another_generation),
        TEST(a_stop_replaces_a_pause_and_not_the_other_way_round),
        TEST(a_pause_while_it_waits_is_done_at_once),
        TEST(its_time_over_it_has_succeeded),
        TEST(a_node_that_leaves_has_all_start_anew_elsewhere),
        TEST(a_node_that_leaves_while_all_park_ends_those_that_wait),
        TEST(a_pause_holds_whatever_happens_while_they_park),
        TEST(with_more_workers_all_park_and_start_anew),
        TEST(with_fewer_workers_too),
        TEST(also_where_none_may_be_kept),
        TEST(a_program_that_has_ended_somewhere_is_not_started_anew_for_more_workers),
        TEST(those_that_are_there_go_on_if_they_are_enough),
        TEST(workers_have_their_grace_to_park),
        TEST(whose_program_failed_stays_if_it_says_so),
        TEST(where_the_others_are_in_a_hang_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
