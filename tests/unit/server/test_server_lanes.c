/* Lanes by speed: when they move, to whom, and what becomes of who stays slow. */
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define RANKS  4
#define LANES  32
#define STEP   100 /* ms */
#define FAST   1000
#define SLOWER 2500

/* What each of the workers takes for a lane, in us; what they have told up to now. */
struct speeds {
    uint32_t us[RANKS], lanes[RANKS];
    struct fsm_timed timed[RANKS];
    uint64_t step;
};

static struct fsm_config config_of(enum fsm_shares shares)
{
    struct fsm_config config = bench_config();
    config.ranks = config.most = RANKS;
    config.lanes = LANES;
    config.shares = shares;
    config.restarts = false;
    return config;
}

static struct bench *open_with(void **state, const struct fsm_config *config, struct speeds *s)
{
    struct bench *b = *state;
    bench_reopen(b, config);
    bench_run(b, BENCH_STEPS);
    *s = (struct speeds){ .step = 0 };
    for (uint32_t i = 0; i < RANKS; i++) {
        s->us[i] = FAST;
        s->lanes[i] = LANES / RANKS;
    }
    return b;
}

static struct bench *open_job(void **state, enum fsm_shares shares, struct speeds *s)
{
    const struct fsm_config config = config_of(shares);
    return open_with(state, &config, s);
}

/* So many steps; each rank tells of each. They end early where the workers park. */
static void train(struct bench *b, struct speeds *s, uint32_t steps)
{
    for (uint32_t i = 0; i < steps && !b->m.ending.parks; i++) {
        s->step++;
        b->now += STEP;
        for (uint32_t r = 0; r < b->m.size && !b->m.ending.parks; r++) {
            s->timed[r].steps++;
            s->timed[r].us += (uint64_t)s->us[r] * s->lanes[r];
            struct fsm_event event = { .kind = FSM_EV_PROGRESS,
                                       .rank = r,
                                       .generation = b->m.generation,
                                       .progress = { .step = s->step,
                                                     .phase = "forward",
                                                     .counter = s->step,
                                                     .collective = "",
                                                     .lanes = s->lanes[r],
                                                     .timed = s->timed[r] } };
            assert_int_equal(bench_apply(b, event), ST_OK);
        }
    }
}

/* All that are left park, and go on; out: their lanes by the plan. */
static void regroup(struct bench *b, struct speeds *s)
{
    assert_true(b->m.ending.parks);
    for (uint32_t i = 0; i < b->m.size && b->m.ending.parks; i++) {
        if (b->m.ranks[i].ended)
            bench_exit(b, i, FSM_EXIT_SIGNAL, 9);
    }
    for (uint32_t i = 0; i < b->m.size && b->m.ending.parks; i++) {
        struct fsm_event event = { .kind = FSM_EV_PARKED,
                                   .rank = i,
                                   .generation = b->m.generation,
                                   .parked = { true, s->step, b->m.generation } };
        if (!b->m.ranks[i].gone)
            assert_int_equal(bench_apply(b, event), ST_OK);
    }
    bench_place(b);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
    for (uint32_t i = 0; i < b->m.size; i++) {
        s->lanes[i] = b->m.balance.by_speed ? b->m.ranks[i].lanes : LANES / b->m.size;
        s->timed[i] = (struct fsm_timed){ 0 };
    }
}

static void lanes_are(const struct bench *b, uint32_t a, uint32_t c, uint32_t d, uint32_t e)
{
    assert_true(b->m.balance.by_speed);
    const uint32_t expected[] = { a, c, d, e };
    for (uint32_t i = 0; i < b->m.size; i++)
        assert_int_equal(b->m.ranks[i].lanes, expected[i]);
}

/* Worker 2, which the lanes follow. */
static void slow_down(struct bench *b, struct speeds *s, uint32_t us)
{
    s->us[2] = us;
    train(b, s, 60);
    regroup(b, s);
    bench_go_on(b);
}

/* ---- when ---- */

static void equal_workers_keep_what_they_have(void **state)
{
    for (enum fsm_shares shares = FSM_SHARES_EVEN; shares <= FSM_SHARES_AUTO; shares++) {
        struct speeds s;
        struct bench *b = open_job(state, shares, &s);
        train(b, &s, 2000);
        assert_int_equal(b->m.generation, 1);
        bench_is_state(b, "RUNNING");
    }
}

/* Noise looked like a reason to move some; then one becomes slow in earnest. */
static void lanes_go_by_the_speeds_that_last(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_AUTO, &s);
    b->m.balance.by_speed = true; /* it waits for 50 steps */
    for (uint32_t i = 0; i < RANKS; i++)
        b->m.ranks[i].lanes = LANES / RANKS;
    s.us[0] = FAST * 120 / 100;
    train(b, &s, 41);
    bench_is_state(b, "RUNNING");
    s.us[0] = FAST;
    s.us[2] = 2 * FAST;
    train(b, &s, 80);
    regroup(b, &s);
    lanes_are(b, 10, 9, 4, 9);
}

static void one_that_becomes_slow_gives_up_lanes_within_60_steps(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_EVEN, &s);
    train(b, &s, 300);
    s.us[2] = 2 * FAST;
    train(b, &s, 60);
    assert_true(b->m.ending.parks);
    regroup(b, &s);
    lanes_are(b, 10, 9, 4, 9);
    const char *told = bench_told(b, "lanes-moved");
    assert_non_null(told);
    assert_non_null(strstr(told, "worker 2 on node"));
    bench_go_on(b);
    train(b, &s, 500);
    assert_int_equal(b->m.generation, 2); /* no better spread */
}

/* After a restore from an old checkpoint. */
static void steps_that_are_repeated_count(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_EVEN, &s);
    b->m.step_max = 1000;
    s.us[2] = 2 * FAST;
    train(b, &s, 60);
    assert_true(b->m.ending.parks);
}

/* Above the median by 20 %: even shares stay, shares by speed do not. */
static void a_little_slower_counts_where_shares_go_by_speed(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_EVEN, &s);
    s.us[0] = s.us[1] = 1200;
    train(b, &s, 500);
    bench_is_state(b, "RUNNING");
    b = open_job(state, FSM_SHARES_AUTO, &s);
    s.us[0] = s.us[1] = 1200;
    train(b, &s, 40);
    assert_true(b->m.ending.parks);
    regroup(b, &s);
    lanes_are(b, 7, 7, 9, 9);
}

static void shares_of_the_file_stay(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_FILE, &s);
    s.us[3] = 5 * FAST;
    train(b, &s, 1000);
    bench_is_state(b, "RUNNING");
}

/* A second in which a worker stands still is no slow worker. */
static void a_stall_moves_nothing(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_AUTO, &s);
    for (int i = 0; i < 20; i++) {
        train(b, &s, 60);
        s.timed[1].us += 2000000;
        train(b, &s, 1);
    }
    bench_is_state(b, "RUNNING");
}

static void near_the_end_a_move_is_not_worth_it(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_AUTO, &s);
    b->m.total_steps = 200; /* it gains 6 ms a step */
    s.us[2] = 2 * FAST;
    train(b, &s, 190);
    bench_is_state(b, "RUNNING");
}

/* More are to come: as few as there are would wait for them. */
static void none_move_among_fewer_than_the_job_may_have(void **state)
{
    struct speeds s;
    struct fsm_config config = config_of(FSM_SHARES_AUTO);
    config.most = 2 * RANKS;
    struct bench *b = open_with(state, &config, &s);
    struct fsm_event event = { .kind = FSM_EV_SET, .set = { .workers = RANKS + 1 } };
    assert_int_equal(bench_apply(b, event), ST_OK);
    s.us[2] = 2 * FAST;
    train(b, &s, 200);
    bench_is_state(b, "RUNNING");
    assert_false(b->m.ending.parks);
}

static void a_minute_lies_between_two_moves(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_AUTO, &s);
    slow_down(b, &s, 2 * FAST);
    s.us[2] = FAST;
    const int64_t from = b->now;
    train(b, &s, 1000);
    assert_true(b->m.ending.parks);
    assert_in_range(b->now - from, 50000, 62000);
    regroup(b, &s);
    lanes_are(b, 8, 8, 8, 8);
}

/* ---- what lasts ---- */

static void who_takes_a_seat_counts_as_the_median(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_AUTO, &s);
    slow_down(b, &s, 2 * FAST);
    bench_exit(b, 2, FSM_EXIT_SIGNAL, 9);
    regroup(b, &s);
    lanes_are(b, 8, 8, 8, 8);
}

static void the_next_coordinator_knows_lanes_and_speeds(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_AUTO, &s);
    slow_down(b, &s, 2 * FAST);
    bench_restart(b, 100);
    lanes_are(b, 10, 9, 4, 9);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_attach(b, i, s.step);
    b->now += 20000;
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    regroup(b, &s);
    lanes_are(b, 10, 9, 4, 9);
}

/* ---- who stays slow ---- */

static uint32_t ready_spare(struct bench *b)
{
    const char *node = "extra";
    uint32_t slot = 7;
    struct fsm_event event = { .kind = FSM_EV_SPARE,
                               .placed = { &node, &slot, 1, "token of spares" } };
    assert_int_equal(bench_apply(b, event), ST_OK);
    const uint32_t at = bench_act(b, FSM_ACT_START, 0)->rank;
    bench_hello(b, at);
    bench_ready(b, at, BENCH_STEPS);
    struct fsm_event parked = {
        .kind = FSM_EV_PARKED, .rank = at, .generation = b->m.generation, .parked = { false, 0, 0 }
    };
    assert_int_equal(bench_apply(b, parked), ST_OK);
    return at;
}

static void one_that_stays_slow_is_replaced(void **state)
{
    struct fsm_config config = config_of(FSM_SHARES_EVEN);
    config.most = LANES;
    struct speeds s;
    struct bench *b = open_with(state, &config, &s);
    slow_down(b, &s, SLOWER);
    train(b, &s, 500);
    assert_false(fsm_wants_spare(&b->m, b->now));
    train(b, &s, 200); /* more than a minute */
    assert_true(fsm_wants_spare(&b->m, b->now));
    const uint32_t spare = b->m.ranks[ready_spare(b)].number;
    train(b, &s, 30);
    assert_true(b->m.ending.parks);
    const char *told = bench_told(b, "slow");
    assert_non_null(told);
    assert_non_null(strstr(told, "a spare takes its place: worker 2 on node"));
    assert_non_null(bench_act(b, FSM_ACT_BLAME, 0));
    regroup(b, &s);
    assert_int_equal(b->m.ranks[2].number, spare);
    lanes_are(b, 8, 8, 8, 8);
    bench_go_on(b);
    assert_false(fsm_wants_spare(&b->m, b->now));
}

/* 0: none is. */
static uint64_t announced(const struct bench *b)
{
    uint64_t step = 0;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++)
        step = b->m.due.announced[i].step > step ? b->m.due.announced[i].step : step;
    return step;
}

/* The slow worker alone has its part of the state: all save first, and it goes when that is
 * committed. */
static void one_that_owns_a_part_is_replaced_after_a_save(void **state)
{
    struct fsm_config config = config_of(FSM_SHARES_EVEN);
    config.most = LANES;
    config.owns = true;
    struct speeds s;
    struct bench *b = open_with(state, &config, &s);
    slow_down(b, &s, SLOWER);
    train(b, &s, 700);
    for (int spares = 2; spares > 0; spares--) {
        const uint32_t spare = ready_spare(b);
        assert_int_equal(announced(b), 0);
        train(b, &s, 30);
        const uint64_t asked = announced(b);
        assert_true(asked > s.step - 30);
        assert_false(b->m.ending.parks);
        if (spares > 1) /* for the next one what is saved then counts */
            bench_exit(b, spare, FSM_EXIT_SIGNAL, 9);
        bench_commit(b, asked);
        assert_int_equal(fsm_newest(&b->m)->step, asked);
        train(b, &s, 100);
        assert_int_equal(b->m.ending.parks, spares == 1);
    }
    assert_non_null(strstr(bench_told(b, "slow"), "a spare takes its place: worker 2 on node"));
}

static void one_that_is_not_worth_a_lane_is_left_out(void **state)
{
    struct fsm_config config = config_of(FSM_SHARES_EVEN);
    config.min = 2;
    struct speeds s;
    struct bench *b = open_with(state, &config, &s);
    s.us[1] = 12 * FAST; /* three others take 11 ms for all */
    train(b, &s, 60);
    assert_null(bench_told(b, "slow"));
    regroup(b, &s);
    lanes_are(b, 11, 1, 10, 10); /* it may be over soon */
    bench_go_on(b);
    train(b, &s, 195);
    bench_is_state(b, "RUNNING");
    train(b, &s, 30);
    assert_true(b->m.ending.parks);
    assert_non_null(bench_told(b, "slow"));
    assert_true(exclusion_holds(&b->m.exclusions, b->m.ranks[1].node, EXCLUSION_SLOW,
                                1800000000000 + b->now));
    regroup(b, &s);
    assert_int_equal(b->m.size, 3);
    lanes_are(b, 11, 11, 10, 0);
}

/* The others take 11 ms for all, as long as it does for one: without it nothing is faster. */
static void one_that_holds_up_nobody_stays(void **state)
{
    struct fsm_config config = config_of(FSM_SHARES_EVEN);
    config.min = 2;
    struct speeds s;
    struct bench *b = open_with(state, &config, &s);
    s.us[1] = 11 * FAST;
    train(b, &s, 60);
    regroup(b, &s);
    lanes_are(b, 11, 1, 10, 10);
    bench_go_on(b);
    train(b, &s, 500);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.size, RANKS);
}

/* 1 ms a step. */
static void near_the_end_nobody_is_left_out(void **state)
{
    struct fsm_config config = config_of(FSM_SHARES_EVEN);
    config.min = 2;
    struct speeds s;
    struct bench *b = open_with(state, &config, &s);
    b->m.total_steps = 2000;
    s.us[1] = 12 * FAST;
    train(b, &s, 60);
    regroup(b, &s);
    lanes_are(b, 11, 1, 10, 10);    /* they move: that saves 85 ms a step */
    b->m.total_steps = BENCH_STEPS; /* which they say */
    bench_go_on(b);
    b->m.total_steps = 2000;
    train(b, &s, 500);
    bench_is_state(b, "RUNNING");
}

static void near_the_end_no_spare_takes_a_seat(void **state)
{
    struct fsm_config config = config_of(FSM_SHARES_EVEN);
    config.most = LANES;
    struct speeds s;
    struct bench *b = open_with(state, &config, &s);
    slow_down(b, &s, SLOWER);
    train(b, &s, 700);
    (void)ready_spare(b);
    b->m.total_steps = s.step + 200; /* a step takes 10 ms: it would be 8 */
    train(b, &s, 190);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.generation, 2);
}

static void with_as_many_as_it_needs_nobody_is_left_out(void **state)
{
    struct speeds s;
    struct bench *b = open_job(state, FSM_SHARES_EVEN, &s);
    s.us[1] = 12 * FAST;
    train(b, &s, 60);
    regroup(b, &s);
    lanes_are(b, 11, 1, 10, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(equal_workers_keep_what_they_have, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(lanes_go_by_the_speeds_that_last, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(one_that_becomes_slow_gives_up_lanes_within_60_steps,
                                        bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(steps_that_are_repeated_count, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_little_slower_counts_where_shares_go_by_speed,
                                        bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(shares_of_the_file_stay, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(a_stall_moves_nothing, bench_setup, bench_teardown),
        cmocka_unit_test_setup_teardown(near_the_end_a_move_is_not_worth_it, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(none_move_among_fewer_than_the_job_may_have, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(a_minute_lies_between_two_moves, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(who_takes_a_seat_counts_as_the_median, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(the_next_coordinator_knows_lanes_and_speeds, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(one_that_stays_slow_is_replaced, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(one_that_owns_a_part_is_replaced_after_a_save, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(one_that_is_not_worth_a_lane_is_left_out, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(one_that_holds_up_nobody_stays, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(near_the_end_nobody_is_left_out, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(near_the_end_no_spare_takes_a_seat, bench_setup,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(with_as_many_as_it_needs_nobody_is_left_out, bench_setup,
                                        bench_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
