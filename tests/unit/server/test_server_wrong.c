/* Two workers computed different bits: what goes, who goes, and when the job gives up. */
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define NOBODY FSM_ALL_RANKS
#define LANES  20 /* within so many steps what is wrong shows, of lanes and of states */
#define STATES 10

/* Checkpoints of steps 10, 20 and 30; found in step 35. */
static struct bench *open_job(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = config.most = 3;
    config.audited = config.lanes_audited = LANES;
    config.states_audited = STATES;
    config.restarts = false;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint64_t step = 10; step <= 30; step += 10)
        bench_commit(b, step);
    for (uint32_t r = 0; r < 3; r++)
        bench_progress(b, r, 35, "audit");
    bench_audited(b, 34);
    return b;
}

static void find_within(struct bench *b, uint32_t from, uint32_t wrong, uint64_t good_step,
                        uint64_t within)
{
    struct fsm_fault fault = { .kind = FSM_FAULT_WRONG,
                               .rank = wrong,
                               .step = good_step + within,
                               .good_step = good_step,
                               .message = "ranks 1 and 2 differ" };
    struct fsm_event event = {
        .kind = FSM_EV_FAULT, .rank = from, .generation = b->m.generation, .fault = &fault
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* States that differ. */
static void find(struct bench *b, uint32_t from, uint32_t wrong, uint64_t good_step)
{
    find_within(b, from, wrong, good_step, STATES);
}

static enum fsm_ckpt_state state_of(struct bench *b, uint64_t step)
{
    const struct fsm_ckpt *ckpt = fsm_find_ckpt(&b->m, step, 1);
    assert_non_null(ckpt);
    return ckpt->state;
}

static void go_on(struct bench *b)
{
    bench_all_exit(b);
    bench_tick(b, 10000); /* longer than it waits after a failure */
    bench_place(b);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

static void train_again(struct bench *b)
{
    go_on(b);
    for (uint32_t r = 0; r < 3; r++)
        bench_hello(b, r);
    for (uint32_t r = 0; r < 3; r++)
        bench_ready(b, r, BENCH_STEPS);
}

static void later_checkpoints_go_and_who_is_wrong_is_accused(void **state)
{
    struct bench *b = open_job(state);
    find(b, 0, 2, 20);
    bench_is_state(b, "RECOVERING");
    assert_non_null(bench_told(b, "audit-failed"));
    assert_int_equal(bench_act(b, FSM_ACT_ACCUSE, 0)->rank, 2);
    assert_int_equal(state_of(b, 10), FSM_CKPT_GOOD);
    assert_int_equal(state_of(b, 20), FSM_CKPT_GOOD);
    assert_int_equal(state_of(b, 30), FSM_CKPT_QUARANTINING);
    assert_false(b->m.ending.parks); /* nobody's state is good */
    go_on(b);
    assert_int_equal(b->m.restore.step, 20);
    assert_false(b->m.restore.live);
}

static void copies_in_memory_go_too(void **state)
{
    struct bench *b = open_job(state);
    find(b, 0, 2, 20);
    assert_int_equal(b->m.restore.memory_from, 2);
}

static void a_save_under_way_is_dropped(void **state)
{
    struct bench *b = open_job(state);
    bench_save_until(b, 40, FSM_SAVE_COLLECTING);
    find(b, 0, 2, 20);
    const struct fsm_save *save = fsm_find_save(&b->m, 40, 1);
    assert_true(save == NULL || save->state == FSM_SAVE_DROPPING);
}

static void where_nobody_knows_it_is_computed_once_more(void **state)
{
    struct bench *b = open_job(state);
    find(b, 0, NOBODY, 10);
    bench_is_state(b, "RECOVERING");
    assert_null(bench_act(b, FSM_ACT_ACCUSE, 0)); /* nor who said so */
    assert_int_equal(state_of(b, 20), FSM_CKPT_QUARANTINING);
    train_again(b);
    assert_int_equal(b->m.restore.step, 10);
    find(b, 1, NOBODY, 10);
    assert_int_equal(b->m.ending.to, FSM_FAILED);
    assert_non_null(strstr(b->m.reason, "ranks 1 and 2 differ"));
}

/* The wrong worker's node is the only one: to keep away from it doesn't help. */
static void who_is_wrong_again_and_again_ends_the_job(void **state)
{
    struct bench *b = open_job(state);
    for (uint32_t i = 0; i < 3; i++) {
        find(b, 0, 2, 20);
        assert_int_equal(b->m.ending.to, FSM_RECOVERING);
        train_again(b);
    }
    find(b, 0, 2, 20);
    assert_int_equal(b->m.ending.to, FSM_FAILED);
    assert_non_null(strstr(b->m.reason, "ranks 1 and 2 differ"));
}

/* Nobody knows who is wrong; what is computed again is right for longer than audits need, and then
 * that is found once more. */
static void be_right_in_between(struct bench *b, uint64_t good_step, uint64_t within)
{
    find_within(b, 0, NOBODY, good_step, within);
    train_again(b);
    for (uint32_t r = 0; r < 3; r++)
        bench_progress(b, r, 95, "audit");
    bench_audited(b, 94);
    find(b, 1, NOBODY, 60);
    assert_int_equal(b->m.ending.to, FSM_RECOVERING);
}

static void what_was_right_in_between_counts(void **state)
{
    be_right_in_between(open_job(state), 10, STATES);
}

/* The wrong result had been found far beyond. */
static void so_does_what_was_right_after_a_long_way_back(void **state)
{
    be_right_in_between(open_job(state), 90, LANES);
}

static void what_was_found_earlier_each_time_is_in_a_row(void **state)
{
    struct bench *b = open_job(state);
    static const uint64_t good[] = { 20, 18, 29 };
    for (uint32_t i = 0; i < 3; i++) {
        find(b, 0, 2, good[i]);
        assert_int_equal(b->m.audit.weight, i + 1);
        train_again(b);
    }
}

/* Where it was found counts, however far back what is beyond doubt lies. */
static void what_is_beyond_where_it_was_found_is_another_one(void **state)
{
    struct bench *b = open_job(state);
    find_within(b, 0, NOBODY, 5, LANES);
    assert_int_equal(b->m.audit.good_step, 14);
    assert_int_equal(b->m.audit.found, 25);
    train_again(b);
    bench_audited(b, 48);
    assert_int_equal(b->m.audit.sure, 28);
    find(b, 1, NOBODY, 30);
    assert_int_equal(b->m.ending.to, FSM_RECOVERING);
}

static void the_next_coordinator_distrusts_them_too(void **state)
{
    struct bench *b = open_job(state);
    find(b, 0, 2, 20);
    bench_restart(b, 100);
    assert_int_equal(b->m.audit.good_step, 20);
    assert_int_equal(b->m.audit.found, 20 + STATES);
    assert_int_equal(b->m.audit.generation, 1);
}

static void fail_and_go_on_live(struct bench *b, uint64_t step)
{
    for (uint32_t r = 0; r < 3; r++)
        bench_progress(b, r, step, "forward");
    bench_exit(b, 2, FSM_EXIT_SIGNAL, 9);
    train_again(b);
}

/* No generation of two trained long enough that a wrong worker of both would have been found
 * before. What both trained is in doubt, whatever the second one's audits say. */
static void generations_that_are_too_short_for_audits_prove_nothing(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = config.most = 3;
    config.audited = config.states_audited = 20;
    config.lanes_audited = 8; /* states are compared less often */
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    bench_audited(b, 30); /* it began at 0 */
    assert_int_equal(b->m.audit.sure, 10);
    bench_commit(b, 30);
    fail_and_go_on_live(b, 31);
    assert_int_equal(b->m.restore.step, 30);
    bench_audited(b, 49);
    bench_commit(b, 49);
    fail_and_go_on_live(b, 49);
    bench_audited(b, 68);
    bench_restart(b, 100);
    assert_int_equal(b->m.audit.sure, 10);
    find_within(b, 0, 1, 60, 8); /* as its generation knows it */
    assert_int_equal(b->m.audit.good_step, 10);
}

/* States that differ were equal when they were compared last. */
static void of_states_the_newest_comparison_counts(void **state)
{
    struct bench *b = open_job(state);
    assert_int_equal(b->m.audit.sure, 14);
    find(b, 0, 2, 25);
    assert_int_equal(b->m.audit.good_step, 25);
}

/* However seldom that is. */
static void also_where_they_are_compared_less_often_than_lanes(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = config.most = 3;
    config.audited = config.states_audited = 50;
    config.lanes_audited = LANES;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    bench_commit(b, 10);
    bench_audited(b, 40);
    assert_int_equal(b->m.audit.sure, 0);
    find_within(b, 0, 2, 12, 50);
    assert_int_equal(b->m.audit.good_step, 12);
    assert_int_equal(state_of(b, 10), FSM_CKPT_GOOD);
}

/* Found before the first step of a generation, say: a worker's copy differs, not what it read. */
static void what_is_beyond_doubt_stays(void **state)
{
    struct bench *b = open_job(state);
    assert_int_equal(b->m.audit.sure, 14);
    find(b, 0, 2, 9);
    assert_int_equal(b->m.audit.good_step, 14);
    assert_int_equal(state_of(b, 10), FSM_CKPT_GOOD);
}

static void what_is_computed_again_is_in_doubt_again(void **state)
{
    struct bench *b = open_job(state);
    bench_audited(b, 47);
    assert_int_equal(b->m.audit.sure, 27);
    find(b, 0, 2, 10);
    train_again(b);
    assert_int_equal(b->m.restore.step, 20);
    assert_int_equal(b->m.audit.sure, 20);
}

static void a_round_takes_a_step_for_each_lane(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = config.most = 3;
    config.lanes = 100; /* 34 of a worker */
    config.audited = config.lanes_audited = LANES;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    bench_audited(b, 67);
    assert_int_equal(b->m.audit.sure, 0);
    bench_audited(b, 80);
    assert_int_equal(b->m.audit.sure, 12);
}

static void audits_of_repeated_steps_prove_them(void **state)
{
    struct bench *b = open_job(state);
    bench_audited(b, 34);
    find(b, 0, 2, 14);
    train_again(b);
    assert_int_equal(b->m.restore.step, 10);
    for (uint32_t r = 0; r < 3; r++)
        bench_progress(b, r, 33, "forward");
    bench_audited(b, 33); /* not as far as they came before */
    assert_int_equal(b->m.audit.sure, 13);
}

static void that_audits_passed_is_told_now_and_then(void **state)
{
    struct bench *b = open_job(state);
    size_t told = 0;
    for (uint64_t step = 36; step < 336; step++) {
        b->now += 5000;
        for (uint32_t r = 1; r < 3; r++)
            bench_counter(b, r, step, "audit", step);
        bench_audited(b, step);
        told += bench_event(b, "audit-passed");
    }
    assert_int_equal(told, 2); /* in 25 minutes, after the first */
    assert_int_equal(b->m.audit.passed, 335);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(later_checkpoints_go_and_who_is_wrong_is_accused),
        CASE(copies_in_memory_go_too),
        CASE(a_save_under_way_is_dropped),
        CASE(where_nobody_knows_it_is_computed_once_more),
        CASE(who_is_wrong_again_and_again_ends_the_job),
        CASE(what_was_right_in_between_counts),
        CASE(so_does_what_was_right_after_a_long_way_back),
        CASE(what_was_found_earlier_each_time_is_in_a_row),
        CASE(a_round_takes_a_step_for_each_lane),
        CASE(what_is_beyond_where_it_was_found_is_another_one),
        CASE(the_next_coordinator_distrusts_them_too),
        CASE(generations_that_are_too_short_for_audits_prove_nothing),
        CASE(of_states_the_newest_comparison_counts),
        CASE(also_where_they_are_compared_less_often_than_lanes),
        CASE(audits_of_repeated_steps_prove_them),
        CASE(what_is_beyond_doubt_stays),
        CASE(what_is_computed_again_is_in_doubt_again),
        CASE(that_audits_passed_is_told_now_and_then),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
