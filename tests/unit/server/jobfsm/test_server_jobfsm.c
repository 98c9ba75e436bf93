/* The job's state machine: the way to success, every row of the failure table, the fence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* ---- the way to success ---- */

static void a_job_is_queued_placed_formed_and_runs(void **state)
{
    struct bench *b = *state;
    bench_is_state(b, "QUEUED");
    assert_true(fsm_wants_slots(&b->m, b->now));
    bench_place(b);
    bench_is_state(b, "PLACING");
    assert_non_null(bench_task(b, FSM_TASK_PROBE));
    assert_int_equal(b->m.generation, 0);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.generation, 1);
    assert_non_null(bench_act(b, FSM_ACT_GEN_BEGIN, 0));
    assert_non_null(bench_act(b, FSM_ACT_START, 0));
    bench_hello(b, 0);
    assert_null(bench_act(b, FSM_ACT_ASSIGN, 0)); /* not before all are there */
    bench_hello(b, 1);
    assert_int_equal(bench_count(b, FSM_ACT_ASSIGN), 2);
    bench_ready(b, 0, 100);
    bench_is_state(b, "FORMING");
    bench_ready(b, 1, 100);
    bench_is_state(b, "RUNNING");
}

/* The plan of many is 15 MB for all of them. */
static void who_says_hello_again_gets_its_plan_and_nobody_else(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = config.most = LIMIT_RANKS;
    bench_reopen(b, &config);
    bench_place(b);
    bench_probe(b, ST_OK);
    for (uint32_t i = 0; i < LIMIT_RANKS; i++)
        bench_hello(b, i);
    assert_int_equal(bench_count(b, FSM_ACT_ASSIGN), 1); /* to all */
    assert_int_equal(bench_act(b, FSM_ACT_ASSIGN, 0)->rank, FSM_ALL_RANKS);
    bench_hello(b, 7); /* before it came */
    assert_int_equal(bench_count(b, FSM_ACT_ASSIGN), 1);
    assert_int_equal(bench_act(b, FSM_ACT_ASSIGN, 0)->rank, 7);
    bench_attach(b, 9, 0); /* it has its plan, and forms */
    assert_int_equal(bench_count(b, FSM_ACT_ASSIGN), 0);
}

static void the_last_commit_and_the_exits_make_it_succeed(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_commit(b, 50);
    bench_is_state(b, "RUNNING");
    bench_commit(b, 100);
    bench_is_state(b, "SAVING");
    bench_exit(b, 0, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "SAVING");
    bench_exit(b, 1, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "SUCCEEDED");
    assert_string_equal(b->m.final_digest, "00000000000000000000000000000064");
    assert_int_equal(b->m.restarts, 0);
}

static void trainers_that_stay_after_the_last_commit_are_ended(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_commit(b, 100);
    bench_tick(b, 5000);
    assert_null(bench_act(b, FSM_ACT_END, 0));
    bench_tick(b, 6000);
    assert_non_null(bench_act(b, FSM_ACT_END, 0));
    bench_all_exit(b);
    bench_is_state(b, "SUCCEEDED");
}

static void a_death_after_the_last_commit_does_not_matter(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_commit(b, 100);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 11);
    bench_is_state(b, "SUCCEEDED");
}

/* ---- signs of failure ---- */

static void a_gone_process_recovers_at_once_from_the_newest_checkpoint(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_commit(b, 50);
    bench_progress(b, 0, 57, "forward");
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    assert_non_null(bench_act(b, FSM_ACT_CLOSE, 0));
    assert_non_null(bench_act(b, FSM_ACT_END, 0));
    assert_false(fsm_wants_slots(&b->m, b->now)); /* rank 0 still runs */
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    assert_non_null(bench_act(b, FSM_ACT_SCHEDULE, 0));
    assert_true(fsm_wants_slots(&b->m, b->now)); /* no delay after progress */
    bench_place(b);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.generation, 2);
    assert_int_equal(b->m.restore.step, 50);
    assert_int_equal(b->m.restarts, 1);
}

static void a_communication_error_waits_250_ms_for_the_first_cause(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_fault(b, 0, FSM_FAULT_COMMUNICATION, 3);
    bench_is_state(b, "RUNNING");
    assert_string_equal(fsm_health(&b->m), "degraded");
    bench_tick(b, 100);
    bench_exit(b, 1, FSM_EXIT_OOM, 0); /* the cause */
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_MEMORY);
    assert_int_equal(b->m.cause.rank, 1);
}

static void a_communication_error_alone_is_the_cause_after_250_ms(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_fault(b, 0, FSM_FAULT_COMMUNICATION, 3);
    bench_tick(b, 249);
    bench_is_state(b, "RUNNING");
    bench_tick(b, 1);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_COMMUNICATION);
}

static void set_agent(struct bench *b, uint32_t rank, bool silent)
{
    struct fsm_event event = { .kind = FSM_EV_AGENT, .generation = b->m.generation, .rank = rank };
    event.agent.state = silent ? FSM_AGENT_SILENT : FSM_AGENT_HEARD;
    event.agent.saw = "";
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void a_silent_agent_with_live_trainers_only_is_unsupervised(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    set_agent(b, 0, true);
    set_agent(b, 1, true);
    for (uint64_t i = 1; i < 30; i++) {
        b->now += 1000;
        bench_progress(b, 0, i, "forward");
        bench_progress(b, 1, i, "forward");
    }
    bench_is_state(b, "RUNNING");
    assert_string_equal(fsm_health(&b->m), "unsupervised");
    set_agent(b, 0, false);
    set_agent(b, 1, false);
    assert_string_equal(fsm_health(&b->m), "ok");
}

static void agent_and_trainer_silent_for_5_s_is_a_lost_node(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    set_agent(b, 1, true);
    bench_progress(b, 0, 1, "forward");
    bench_tick(b, 4900);
    bench_is_state(b, "RUNNING");
    bench_progress(b, 0, 1, "forward");
    bench_tick(b, 200);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_NODE);
    assert_int_equal(b->m.cause.rank, 1);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9); /* rank 1 went with its node */
    assert_true(fsm_wants_slots(&b->m, b->now));
}

/* The peer of the lost worker hears of it first, as a broken connection. */
static void a_lost_node_is_told_as_that_and_uses_no_budget(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    for (int i = 1; i <= 4; i++) {
        bench_progress(b, 0, 5, "reduce");
        bench_fault(b, 0, FSM_FAULT_COMMUNICATION, 5);
        bench_tick(b, 250);
        bench_is_state(b, "RECOVERING");
        assert_int_equal(b->m.cause.kind, FSM_FAULT_COMMUNICATION);
        set_agent(b, 1, true);
        bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
        bench_tick(b, 5000);
        assert_int_equal(b->m.cause.kind, FSM_FAULT_NODE);
        assert_int_equal(b->m.cause.rank, 1);
        assert_int_equal(b->m.first_cause.kind, FSM_FAULT_NODE);
        assert_non_null(strstr(bench_told(b, "fault"), "seen first as communication"));
        assert_non_null(strstr(b->m.reason, "node lost"));
        assert_int_equal(b->m.budget.used, 0);
        for (int s = 0; s < 100 && !fsm_wants_slots(&b->m, b->now); s++)
            bench_tick(b, 1000);
        bench_run(b, 1000);
    }
}

static void a_lost_session_has_10_s_to_come_back(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_session_lost(b, 1);
    for (int i = 0; i < 9; i++) {
        b->now += 1000;
        bench_progress(b, 0, (uint64_t)i, "forward");
    }
    bench_is_state(b, "RUNNING");
    b->now += 1100;
    bench_progress(b, 0, 20, "forward");
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_SESSION);
    assert_int_equal(b->m.cause.rank, 1);
}

static void a_session_that_comes_back_in_time_is_welcome(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_session_lost(b, 1);
    b->now += 8000;
    bench_progress(b, 0, 1, "forward");
    bench_attach(b, 1, 1);
    b->now += 8000;
    bench_progress(b, 0, 2, "forward");
    bench_progress(b, 1, 2, "forward");
    bench_is_state(b, "RUNNING");
}

/* Both ranks talk, neither gets on: the counters stand still. */
static void stand_still(struct bench *b, int64_t ms)
{
    for (int64_t t = 0; t < ms; t += 1000) {
        b->now += 1000;
        for (uint32_t i = 0; i < 2; i++)
            bench_counter(b, i, 5, "reduce", 77);
    }
}

static void no_progress_for_30_s_is_a_hang(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    stand_still(b, 29000);
    bench_is_state(b, "RUNNING");
    stand_still(b, 3000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
}

static void a_slow_phase_gets_10_times_its_median(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    for (uint64_t i = 1; i <= 12; i++) { /* a rise every 8 s in "reduce" */
        for (int t = 0; t < 8; t++) {
            b->now += 1000;
            for (uint32_t r = 0; r < 2; r++)
                bench_counter(b, r, i, "reduce", i);
        }
    }
    stand_still(b, 60000);
    bench_is_state(b, "RUNNING");
    stand_still(b, 40000);
    bench_is_state(b, "RECOVERING");
}

static void a_silent_worker_whose_process_lives_hangs(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    for (int i = 0; i < 11; i++) {
        b->now += 1000;
        bench_progress(b, 0, (uint64_t)i, "forward");
    }
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
    assert_int_equal(b->m.cause.rank, 1);
}

/* Thousands of them come in a second: the rules of silence go through all ranks. */
static void messages_of_trainers_are_no_reason_to_look_at_all_ranks_each_time(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_tick(b, 100);
    const int64_t looked_at = b->m.watched_at;
    assert_int_equal(looked_at, b->now);
    for (uint64_t i = 1; i <= 10; i++) {
        b->now++;
        bench_progress(b, 0, i, "forward");
    }
    assert_int_equal(b->m.watched_at, looked_at);
    assert_true(fsm_deadline(&b->m) <= looked_at + 500); /* and yet nobody is forgotten */
    b->now += 15;
    bench_progress(b, 0, 11, "forward");
    assert_int_equal(b->m.watched_at, b->now);
}

static void workers_that_never_say_hello_fail_the_formation_after_60_s(void **state)
{
    struct bench *b = *state;
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_hello(b, 0);
    for (int i = 0; i < 59; i++) {
        b->now += 1000;
        bench_progress(b, 0, 0, "forming");
    }
    bench_is_state(b, "FORMING");
    bench_tick(b, 2000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_FORMATION);
    assert_int_equal(b->m.cause.rank, 1);
}

static void a_trainer_that_its_agent_no_longer_lists_is_gone(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    struct fsm_event missing = { .kind = FSM_EV_MISSING, .generation = 1, .rank = 0 };
    assert_int_equal(bench_apply(b, missing), ST_OK);
    bench_is_state(b, "RUNNING"); /* its exit may still be told */
    bench_tick(b, 1000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_PROCESS);
    assert_true(b->m.cause.outside);
}

static void nobody_is_judged_for_10_s_after_a_restart_of_the_coordinator(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_restart(b, 0);
    bench_tick(b, 9900);
    bench_is_state(b, "RUNNING");
    bench_tick(b, 9000); /* leases count from then */
    bench_is_state(b, "RUNNING");
    bench_tick(b, 2000);
    bench_is_state(b, "RECOVERING");
}

static void time_in_which_the_coordinator_did_not_run_is_nobodys_silence(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_progress(b, 0, 1, "forward");
    bench_progress(b, 1, 1, "forward");
    b->now += 40000;
    fsm_excuse(&b->m, 40000);
    bench_progress(b, 0, 2, "forward");
    bench_is_state(b, "RUNNING");
    b->now += 40000; /* without the excuse it is a hang */
    bench_progress(b, 0, 3, "forward");
    bench_is_state(b, "RECOVERING");
}

static void workers_that_come_back_after_a_restart_go_on(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    bench_progress(b, 0, 40, "forward");
    bench_restart(b, 0);
    for (uint32_t i = 0; i < 2; i++)
        bench_attach(b, i, 60);
    for (uint64_t i = 0; i < 30; i++) {
        b->now += 1000;
        bench_progress(b, 0, 61 + i, "forward");
        bench_progress(b, 1, 61 + i, "forward");
    }
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.generation, 1);
    assert_int_equal(fsm_step_now(&b->m), 90);
}

/* ---- the fence ---- */

static void events_of_an_older_generation_change_nothing(void **state)
{
    struct bench *b = *state;
    bench_run(b, 100);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_run(b, 100);
    assert_int_equal(b->m.generation, 2);
    struct fsm before = b->m;
    struct fsm_event late = {
        .kind = FSM_EV_SAVE_REPORT, .generation = 1, .rank = 0, .save_report = { .step = 10 }
    };
    assert_int_equal(bench_apply(b, late), ST_OK);
    assert_int_equal(b->out.count, 0);
    late = (struct fsm_event){ .kind = FSM_EV_EXITED, .generation = 1, .rank = 0 };
    assert_int_equal(bench_apply(b, late), ST_OK);
    assert_int_equal(b->out.count, 0);
    assert_memory_equal(&before, &b->m, sizeof(before));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(who_says_hello_again_gets_its_plan_and_nobody_else),
        TEST(a_job_is_queued_placed_formed_and_runs),
        TEST(the_last_commit_and_the_exits_make_it_succeed),
        TEST(trainers_that_stay_after_the_last_commit_are_ended),
        TEST(a_death_after_the_last_commit_does_not_matter),
        TEST(a_gone_process_recovers_at_once_from_the_newest_checkpoint),
        TEST(a_communication_error_waits_250_ms_for_the_first_cause),
        TEST(a_communication_error_alone_is_the_cause_after_250_ms),
        TEST(a_silent_agent_with_live_trainers_only_is_unsupervised),
        TEST(agent_and_trainer_silent_for_5_s_is_a_lost_node),
        TEST(a_lost_node_is_told_as_that_and_uses_no_budget),
        TEST(a_lost_session_has_10_s_to_come_back),
        TEST(a_session_that_comes_back_in_time_is_welcome),
        TEST(no_progress_for_30_s_is_a_hang),
        TEST(a_slow_phase_gets_10_times_its_median),
        TEST(a_silent_worker_whose_process_lives_hangs),
        TEST(messages_of_trainers_are_no_reason_to_look_at_all_ranks_each_time),
        TEST(workers_that_never_say_hello_fail_the_formation_after_60_s),
        TEST(a_trainer_that_its_agent_no_longer_lists_is_gone),
        TEST(nobody_is_judged_for_10_s_after_a_restart_of_the_coordinator),
        TEST(time_in_which_the_coordinator_did_not_run_is_nobodys_silence),
        TEST(workers_that_come_back_after_a_restart_go_on),
        TEST(events_of_an_older_generation_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
