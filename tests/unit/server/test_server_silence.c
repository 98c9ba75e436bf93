/* A rank that is silent with its agent: lost with its node, or cut off from the coordinator. */
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static void set_agent(struct bench *b, uint32_t rank, enum fsm_agent state)
{
    struct fsm_event event = { .kind = FSM_EV_AGENT, .generation = b->m.generation, .rank = rank };
    event.agent.state = state;
    event.agent.saw = "seen from c: reached";
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* Rank 0 says the same each second: it doesn't get on. */
static void wait_in(struct bench *b, int seconds, const char *phase)
{
    for (int i = 0; i < seconds; i++) {
        bench_tick(b, 1000);
        bench_counter(b, 0, b->m.step_max, phase, b->m.ranks[0].counter);
    }
}

/* Rank 0 says something each second, a step further each time that often. */
static void go_on(struct bench *b, int seconds, uint64_t step_each)
{
    for (int i = 0; i < seconds; i++) {
        bench_tick(b, 1000);
        bench_counter(b, 0, b->m.step_max + step_each, "forward", (uint64_t)b->now);
    }
}

static void whoever_others_finish_steps_with_is_not_lost(void **state)
{
    struct bench *b = *state;
    set_agent(b, 1, FSM_AGENT_SILENT);
    go_on(b, 60, 1);
    bench_is_state(b, "RUNNING");
    go_on(b, 3, 0);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_NODE);
    assert_int_equal(b->m.cause.rank, 1);
}

static void where_others_reach_it_the_next_step_may_take_longer(void **state)
{
    struct bench *b = *state;
    go_on(b, 1, 1);
    set_agent(b, 1, FSM_AGENT_CUT_OFF);
    go_on(b, 10, 1);
    wait_in(b, 4, "forward");
    bench_is_state(b, "RUNNING");
    wait_in(b, 2, "forward");
    bench_is_state(b, "RECOVERING");
    assert_non_null(
        strstr(b->m.cause.message, "other nodes reach it, but the job gets no further"));
}

static void where_others_reach_it_an_evaluation_goes_on(void **state)
{
    struct bench *b = *state;
    go_on(b, 2, 1);
    set_agent(b, 1, FSM_AGENT_CUT_OFF);
    for (uint64_t i = 0; i < 60; i++) {
        bench_tick(b, 1000);
        bench_counter(b, 0, b->m.step_max, "evaluate", i);
    }
    bench_is_state(b, "RUNNING");
    wait_in(b, 8, "evaluate");
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.rank, 1);
}

static void where_others_reach_it_the_first_step_may_take_as_long_as_a_hang(void **state)
{
    struct bench *b = *state;
    set_agent(b, 1, FSM_AGENT_CUT_OFF);
    wait_in(b, 28, "forward");
    bench_is_state(b, "RUNNING");
    wait_in(b, 4, "forward");
    bench_is_state(b, "RECOVERING");
}

static void with_nobody_else_heard_it_is_waited_for_and_then_lost(void **state)
{
    struct bench *b = *state;
    set_agent(b, 0, FSM_AGENT_CUT_OFF);
    set_agent(b, 1, FSM_AGENT_CUT_OFF);
    for (int i = 0; i < 290; i++)
        bench_tick(b, 1000);
    bench_is_state(b, "RUNNING");
    for (int i = 0; i < 15; i++)
        bench_tick(b, 1000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_NODE);
}

static void nobody_reaches_it_and_it_is_lost_at_once(void **state)
{
    struct bench *b = *state;
    set_agent(b, 0, FSM_AGENT_CUT_OFF);
    set_agent(b, 1, FSM_AGENT_CUT_OFF);
    bench_tick(b, 20000);
    set_agent(b, 1, FSM_AGENT_SILENT);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.rank, 1);
}

static void once_it_is_heard_again_its_worker_has_time_to_come_back(void **state)
{
    struct bench *b = *state;
    set_agent(b, 1, FSM_AGENT_CUT_OFF);
    bench_session_lost(b, 1);
    go_on(b, 30, 1);
    set_agent(b, 1, FSM_AGENT_HEARD);
    go_on(b, 8, 1);
    bench_is_state(b, "RUNNING");
    bench_attach(b, 1, b->m.step_max);
    go_on(b, 5, 1);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.generation, 1);
}

static void a_lost_session_has_its_turn_to_come_back(void **state)
{
    struct bench *b = *state;
    b->m.config.spread_ms = 18000;
    bench_session_lost(b, 1);
    go_on(b, 27, 1);
    bench_is_state(b, "RUNNING");
    go_on(b, 2, 1);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_SESSION);
}

static void who_is_silent_with_his_agent_in_doubt_does_not_hang(void **state)
{
    struct bench *b = *state;
    set_agent(b, 1, FSM_AGENT_DOUBTED);
    go_on(b, 14, 1);
    bench_is_state(b, "RUNNING");
    set_agent(b, 1, FSM_AGENT_HEARD);
    go_on(b, 11, 1);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
}

static void outlive_failures(struct bench *b)
{
    struct fsm_config config = bench_config();
    config.restarts = false;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
}

/* All nodes have to be silent for a while before that counts as an outage, which excuses them. */
static void after_a_start_there_is_time_to_tell_an_outage_before_anybody_is_ended(void **state)
{
    struct bench *b = *state;
    outlive_failures(b);
    bench_progress(b, 0, 1, "forward");
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_restart(b, 0);
    assert_true(b->m.ending.parks);
    assert_true(b->m.ending.hard_at > b->m.grace_until + b->m.config.silent_ms);
    const int64_t hard_at = b->m.ending.hard_at, survivors_until = b->m.ending.survivors_until;
    fsm_extend_grace(&b->m, 3000); /* others are still coming back */
    assert_int_equal(b->m.ending.hard_at, hard_at + 3000);
    assert_int_equal(b->m.ending.survivors_until, survivors_until + 3000);
}

/* Steps take 100 ms, and the last three 4 s each. */
/* All of it was on a node that was cut off: what its workers say next comes one after the other. */
static void the_first_that_is_heard_again_does_not_end_the_others(void **state)
{
    struct bench *b = *state;
    go_on(b, 2, 1);
    bench_counter(b, 1, b->m.step_max, "forward", 1);
    set_agent(b, 0, FSM_AGENT_CUT_OFF);
    set_agent(b, 1, FSM_AGENT_CUT_OFF);
    for (int i = 0; i < 40; i++)
        bench_tick(b, 1000);
    bench_is_state(b, "RUNNING");
    bench_begin(b, 1, b->m.step_max); /* says nothing of its pace */
    bench_is_state(b, "RUNNING");
    for (int i = 0; i < 4; i++)
        bench_tick(b, 1000);
    bench_is_state(b, "RUNNING");
    for (int i = 0; i < 10; i++) { /* one that doesn't come is lost in the end */
        bench_tick(b, 1000);
        bench_counter(b, 1, b->m.step_max, "reduce", 2);
    }
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.rank, 0);
}

/* The rank's session came back before its agent did, and then its node was cut off: that is known
 * only once the agent has had its time. */
static void after_a_start_silence_is_no_hang_before_its_agent_is_missed(void **state)
{
    struct bench *b = *state;
    outlive_failures(b);
    bench_restart(b, 0);
    bench_attach(b, 0, 57);
    bench_attach(b, 1, 57);
    for (int s = 1; s < 17; s++) { /* 10 s of grace, 5 s for its agent */
        bench_tick(b, 1000);
        bench_counter(b, 0, 57, "reduce", (uint64_t)s);
    }
    bench_is_state(b, "RUNNING");
    set_agent(b, 1, FSM_AGENT_CUT_OFF);
    for (int s = 17; s < 30; s++) {
        bench_tick(b, 1000);
        bench_progress(b, 0, 57 + (uint64_t)s, "forward");
    }
    bench_is_state(b, "RUNNING");
}

/* One whose agent is heard has stopped. */
static void after_a_start_a_session_without_a_word_is_a_hang_in_the_end(void **state)
{
    struct bench *b = *state;
    outlive_failures(b);
    bench_restart(b, 0);
    bench_attach(b, 0, 57);
    bench_attach(b, 1, 57);
    for (int s = 1; s < 22; s++) {
        bench_tick(b, 1000);
        bench_counter(b, 0, 57, "reduce", (uint64_t)s);
    }
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
    assert_int_equal(b->m.cause.rank, 1);
}

/* The others stand still, for it didn't come back to us: they are not judged before it was. */
static void after_a_start_nobody_hangs_before_all_had_time_to_come_back(void **state)
{
    struct bench *b = *state;
    outlive_failures(b);
    bench_restart(b, 0);
    b->m.config.hang_ms = 8000;
    b->m.config.spread_ms = 10000; /* others come back before it */
    bench_attach(b, 0, 57);
    for (int s = 0; s < 30; s++) { /* 10 s of grace, 20 s for its session */
        bench_is_state(b, "RUNNING");
        bench_counter(b, 0, 57, "reduce", 1);
        bench_tick(b, 1000);
    }
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_SESSION);
    assert_int_equal(b->m.cause.rank, 1);
}

static void some_long_stalls_do_not_lengthen_the_time_to_park(void **state)
{
    struct bench *b = *state;
    outlive_failures(b);
    for (uint64_t step = 1; step <= 23; step++) {
        b->now += step > 20 ? 4000 : 100;
        for (uint32_t i = 0; i < 2; i++)
            bench_progress(b, i, step, "forward");
    }
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    bench_tick(b, 4999);
    assert_int_equal(bench_count(b, FSM_ACT_END), 0);
    bench_tick(b, 1); /* as if every step had taken 100 ms */
    assert_int_equal(bench_count(b, FSM_ACT_END), 1);
}

/* All that is known of the pace, after a start, is one step of 47 s. */
static void a_first_step_that_stalls_lengthens_it_to_a_hang_at_most(void **state)
{
    struct bench *b = *state;
    outlive_failures(b);
    for (uint64_t step = 1; step <= 2; step++) {
        for (uint32_t i = 0; i < 2; i++)
            bench_progress(b, i, step, "forward");
        b->now += step == 1 ? 47000 : 0;
    }
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    bench_tick(b, b->m.config.hang_ms - 1);
    assert_int_equal(bench_count(b, FSM_ACT_END), 0);
    bench_tick(b, 1);
    assert_int_equal(bench_count(b, FSM_ACT_END), 1);
}

/* What a survivor says once it is told to park ends a gap that was no work of its own. */
static void how_long_a_hang_was_waited_for_is_not_usual(void **state)
{
    struct bench *b = *state;
    outlive_failures(b);
    bench_progress(b, 0, 1, "forward");
    bench_progress(b, 1, 1, "forward");
    b->now += 3000;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    const uint32_t before =
        b->m.phase_times[0].count + b->m.phase_times[1].count + b->m.phase_times[2].count;
    bench_counter(b, 0, 1, "save", 7);
    assert_int_equal(
        b->m.phase_times[0].count + b->m.phase_times[1].count + b->m.phase_times[2].count, before);
}

/* Two ranks are heard, and get no further. */
static void get_no_further(struct bench *b, int seconds, uint64_t counter)
{
    for (int s = 0; s < seconds; s++) {
        bench_tick(b, 1000);
        for (uint32_t r = 0; r < 2; r++)
            bench_counter(b, r, 1, "forward", counter);
    }
}

/* Both waited, so both say so: it is one time, not what is usual. */
static void one_standstill_is_not_usual_either(void **state)
{
    struct bench *b = *state;
    outlive_failures(b);
    bench_counter(b, 0, 1, "forward", 1);
    bench_counter(b, 1, 1, "forward", 1);
    get_no_further(b, 20, 1);
    get_no_further(b, 1, 2); /* after 21 s, both */
    get_no_further(b, 58, 2);
    bench_is_state(b, "RUNNING");
    get_no_further(b, 4, 2);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
}

/* Rank 0 is excused, as its last save begins; rank 1 can't say that it came there, too. Whether it
 * lives its session tells. */
static void while_one_is_away_nobody_counts_as_hung(void **state)
{
    struct bench *b = *state;
    b->m.config.hang_ms = 4000;
    b->m.total_steps = 31;
    bench_progress(b, 1, 1, "forward");
    bench_session_lost(b, 1);
    for (int i = 0; i < 30; i++) {
        bench_tick(b, 200);
        bench_counter(b, 0, b->m.step_max + 1, "forward", (uint64_t)b->now);
    }
    bench_begin(b, 0, b->m.total_steps);
    assert_int_equal(b->m.saves[0].state, FSM_SAVE_OPENING);
    wait_in(b, 1, "save");
    bench_is_state(b, "SAVING");
    wait_in(b, 3, "save");
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.rank, 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)
    const struct CMUnitTest tests[] = {
        CASE(whoever_others_finish_steps_with_is_not_lost),
        CASE(where_others_reach_it_the_next_step_may_take_longer),
        CASE(where_others_reach_it_an_evaluation_goes_on),
        CASE(where_others_reach_it_the_first_step_may_take_as_long_as_a_hang),
        CASE(with_nobody_else_heard_it_is_waited_for_and_then_lost),
        CASE(nobody_reaches_it_and_it_is_lost_at_once),
        CASE(once_it_is_heard_again_its_worker_has_time_to_come_back),
        CASE(a_lost_session_has_its_turn_to_come_back),
        CASE(who_is_silent_with_his_agent_in_doubt_does_not_hang),
        CASE(while_one_is_away_nobody_counts_as_hung),
        CASE(how_long_a_hang_was_waited_for_is_not_usual),
        CASE(one_standstill_is_not_usual_either),
        CASE(after_a_start_there_is_time_to_tell_an_outage_before_anybody_is_ended),
        CASE(the_first_that_is_heard_again_does_not_end_the_others),
        CASE(after_a_start_silence_is_no_hang_before_its_agent_is_missed),
        CASE(after_a_start_a_session_without_a_word_is_a_hang_in_the_end),
        CASE(after_a_start_nobody_hangs_before_all_had_time_to_come_back),
        CASE(some_long_stalls_do_not_lengthen_the_time_to_park),
        CASE(a_first_step_that_stalls_lengthens_it_to_a_hang_at_most),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
