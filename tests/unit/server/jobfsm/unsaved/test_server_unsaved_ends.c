/* Jobs of which Cairn saves nothing: their programs end, fail, or say nothing. */
#include <string.h>

#include "server/jobfsm/ctx.h"
#include "tests/test.h"
#include "tests/unit/server/jobfsm/unsaved/program_fixture.h"

/* ---- finished ---- */

static void a_rank_that_finished_may_go_while_others_run(void **state)
{
    struct bench *b = program_run(state);
    program_finish(b, 0);
    bench_exit(b, 0, FSM_EXIT_CODE, 0);
    bench_exit(b, 1, FSM_EXIT_FINISHED, 0); /* its word was lost, but for its last ones */
    bench_is_state(b, "RUNNING");
    program_live_for(b, 100000);
    bench_is_state(b, "RUNNING");
    program_finish(b, 2);
    bench_exit(b, 2, FSM_EXIT_CODE, 0);
    bench_is_state(b, "SUCCEEDED");
    assert_int_equal(b->m.restarts, 0);
}

static void or_wait_and_be_killed(void **state)
{
    struct bench *b = program_run(state);
    program_finish(b, 0);
    program_live_for(b, 100000); /* it waits for long */
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RUNNING");
    program_finish(b, 1);
    program_finish(b, 2);
    program_exit_all(b, 0);
    bench_is_state(b, "SUCCEEDED");
}

static void or_go_with_its_node(void **state)
{
    for (int missing = 0; missing < 2; missing++) {
        struct bench *b = program_run(state);
        program_finish(b, 0);
        struct fsm_event event = { .kind = missing ? FSM_EV_MISSING : FSM_EV_AGENT,
                                   .generation = 1,
                                   .agent = { FSM_AGENT_SILENT, "" } };
        assert_int_equal(bench_apply(b, event), ST_OK);
        for (int i = 0; i < 20; i++) {
            b->now += 1000;
            bench_counter(b, 1, 0, "running", (uint64_t)b->now);
            bench_counter(b, 2, 0, "running", (uint64_t)b->now);
        }
        assert_true(b->m.ranks[0].gone);
        bench_is_state(b, "RUNNING");
    }
}

static void the_last_words_of_the_last_end_the_job(void **state)
{
    struct bench *b = program_run(state);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "SUCCEEDED");
}

static void who_finished_is_known_after_a_restart(void **state)
{
    struct bench *b = program_run(state);
    program_finish(b, 0);
    bench_exit(b, 0, FSM_EXIT_CODE, 0);
    program_finish(b, 1);
    bench_restart(b, 1000);
    bench_attach(b, 2, 0);
    program_finish(b, 2);
    assert_int_equal(b->m.ending.to, FSM_SUCCEEDED);
    program_exit_all(b, 0);
    bench_is_state(b, "SUCCEEDED");
}

static void if_another_fails_then_all_start_anew(void **state)
{
    for (int waits = 0; waits < 2; waits++) {
        struct bench *b = program_run(state);
        program_finish(b, 0);
        if (!waits)
            bench_exit(b, 0, FSM_EXIT_CODE, 0);
        program_fail(b, 1, FSM_FAULT_PROCESS, false);
        bench_exit(b, 1, FSM_EXIT_CODE, 1);
        program_park_all(b);
        assert_int_equal(fsm_vacant_ranks(&b->m), waits ? 1 : 2);
        program_form(b);
        program_go_on(b);
        program_finish(b, 1);
        program_finish(b, 2);
        bench_is_state(b, "RUNNING"); /* what a generation before finished counts no more */
        program_finish(b, 0);
        program_exit_all(b, 0);
        bench_is_state(b, "SUCCEEDED");
    }
}

/* The workers say how many steps there are to be: of a program that is nothing to go by. */
static void its_end_is_never_a_step(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = program_config();
    bench_reopen(b, &config);
    program_form(b);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_ready(b, i, 100);
    for (uint32_t i = 0; i < RANKS; i++)
        program_finish(b, i);
    program_exit_all(b, 0);
    bench_is_state(b, "SUCCEEDED");
}

/* ---- the budget ---- */

static void so_many_failures_in_a_row_fail_the_job(void **state)
{
    struct bench *b = program_run(state);
    for (uint32_t i = 1; i < BUDGET; i++) {
        program_fail(b, i % RANKS, FSM_FAULT_PROCESS, false); /* all of them at one place */
        bench_is_state(b, "RECOVERING");
        assert_int_not_equal(b->m.ending.to, FSM_FAILED);
        program_start_anew(b, i % RANKS);
    }
    program_fail(b, 0, FSM_FAULT_PROCESS, false);
    program_exit_all(b, 1);
    bench_is_state(b, "FAILED");
    assert_non_null(strstr(b->m.reason, "the program of rank 1 failed")); /* the first cause */
    assert_non_null(strstr(b->m.reason, "4 failures in a row without progress"));
}

static void a_large_budget_is_not_cut_by_other_rules(void **state)
{
    struct fsm_config config = program_config();
    config.budget = 25;
    struct bench *b = program_run_with(state, config);
    for (int i = 1; i < 25; i++) {
        program_fail(b, 1, FSM_FAULT_PROCESS, false);
        assert_int_not_equal(b->m.ending.to, FSM_FAILED);
        assert_null(strstr(b->m.reason, "without end"));
        program_start_anew(b, 1);
    }
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    assert_int_equal(b->m.ending.to, FSM_FAILED);
}

static void a_budget_of_one_is_one_failure(void **state)
{
    struct fsm_config config = program_config();
    config.budget = 1;
    struct bench *b = program_run_with(state, config);
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    program_exit_all(b, 1);
    bench_is_state(b, "FAILED");
    assert_non_null(strstr(b->m.reason, "1 failure in a row"));
}

static void a_cause_outside_uses_none_of_it(void **state)
{
    struct bench *b = program_run(state);
    for (int i = 0; i < 3 * BUDGET; i++) {
        program_fail(b, 1, FSM_FAULT_PROCESS, true);
        program_start_anew(b, 1);
    }
    assert_int_equal(b->m.budget.own, 0);
}

static void steps_give_it_back(void **state)
{
    struct bench *b = program_run(state);
    uint64_t step = 0;
    for (int i = 0; i < 3 * BUDGET; i++) {
        if (i % (BUDGET - 1) == 0)
            bench_progress(b, 0, ++step, "running");
        program_fail(b, 1, FSM_FAULT_PROCESS, false);
        program_start_anew(b, 1);
    }
    assert_true(step > 1);
}

static void but_not_steps_that_were_done_before(void **state)
{
    struct bench *b = program_run(state);
    bench_progress(b, 0, 50, "running");
    for (int i = 0; i < BUDGET; i++) { /* the first of them came after progress */
        program_fail(b, 1, FSM_FAULT_PROCESS, false);
        assert_int_not_equal(b->m.ending.to, FSM_FAILED);
        program_start_anew(b, 1);
        bench_progress(b, 0, 50, "running");
    }
    program_live_for(b, FSM_RAN_MS); /* of a job that has steps, time is no progress */
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    assert_int_equal(b->m.ending.to, FSM_FAILED);
}

static void without_steps_five_minutes_do(void **state)
{
    struct bench *b = program_run(state);
    for (int i = 0; i < 3 * BUDGET; i++) {
        program_live_for(b, i % (BUDGET - 1) == 0 ? FSM_RAN_MS : FSM_RAN_MS - 2000);
        program_fail(b, 1, FSM_FAULT_PROCESS, false);
        assert_int_not_equal(b->m.ending.to, FSM_FAILED);
        program_start_anew(b, 1);
    }
}

static void and_are_known_after_a_restart(void **state)
{
    struct bench *b = program_run(state);
    for (int i = 1; i < BUDGET; i++) {
        program_fail(b, 1, FSM_FAULT_PROCESS, false);
        program_start_anew(b, 1);
    }
    program_live_for(b, FSM_RAN_MS);
    bench_restart(b, 1000);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_attach(b, i, 0);
    program_fail(b, 1, FSM_FAULT_PROCESS, false);
    assert_int_equal(b->m.ending.to, FSM_RECOVERING);
}

static void a_code_that_is_not_to_be_tried_again_fails_it_at_once(void **state)
{
    struct bench *b = program_run(state);
    program_fail(b, 1, FSM_FAULT_USER, false);
    program_exit_all(b, 1);
    bench_is_state(b, "FAILED");
    assert_string_equal(b->m.reason, "the program of rank 1 failed");
}

/* ---- silence ---- */

static void a_program_that_says_nothing_is_no_hang(void **state)
{
    struct bench *b = program_run(state);
    program_live_for(b, 20 * FSM_RAN_MS);
    bench_is_state(b, "RUNNING");
}

static void but_a_worker_that_stands_still_is(void **state)
{
    struct bench *b = program_run(state);
    for (int i = 0; i < 40; i++) {
        b->now += 1000;
        for (uint32_t r = 0; r < RANKS && b->m.state == FSM_RUNNING; r++)
            bench_counter(b, r, 0, "running", 7);
    }
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
}

/* Other programs may finish steps without the one on the node that is lost. */
static void steps_of_others_do_not_keep_a_lost_node(void **state)
{
    struct bench *b = program_run(state);
    struct fsm_event event = { .kind = FSM_EV_AGENT,
                               .generation = 1,
                               .agent = { FSM_AGENT_SILENT, "" } };
    b->now += FSM_SILENT_MS;
    assert_int_equal(bench_apply(b, event), ST_OK);
    for (uint64_t i = 1; i < 20 && b->m.state == FSM_RUNNING; i++) {
        b->now += 1000;
        bench_counter(b, 1, i, "running", i);
        bench_counter(b, 2, i, "running", i);
    }
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_NODE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_rank_that_finished_may_go_while_others_run),
        TEST(or_wait_and_be_killed),
        TEST(or_go_with_its_node),
        TEST(the_last_words_of_the_last_end_the_job),
        TEST(who_finished_is_known_after_a_restart),
        TEST(if_another_fails_then_all_start_anew),
        TEST(its_end_is_never_a_step),
        TEST(so_many_failures_in_a_row_fail_the_job),
        TEST(a_large_budget_is_not_cut_by_other_rules),
        TEST(a_budget_of_one_is_one_failure),
        TEST(a_cause_outside_uses_none_of_it),
        TEST(steps_give_it_back),
        TEST(but_not_steps_that_were_done_before),
        TEST(without_steps_five_minutes_do),
        TEST(and_are_known_after_a_restart),
        TEST(a_code_that_is_not_to_be_tried_again_fails_it_at_once),
        TEST(a_program_that_says_nothing_is_no_hang),
        TEST(but_a_worker_that_stands_still_is),
        TEST(steps_of_others_do_not_keep_a_lost_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
