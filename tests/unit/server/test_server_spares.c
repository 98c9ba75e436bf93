/* Spares and numbers of workers: places for newcomers, and who has them for a while. */
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* ---- a job of up to four workers, two to start with ---- */

static void send(struct bench *b, enum fsm_event_kind kind, uint32_t rank)
{
    const struct fsm_event event = { .kind = kind, .rank = rank, .generation = b->m.generation };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void say_parked(struct bench *b, uint32_t rank)
{
    send(b, FSM_EV_PARKED, rank);
}

static void set_workers(struct bench *b, uint32_t workers)
{
    const struct fsm_event event = { .kind = FSM_EV_SET, .set = { .workers = workers } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* One is placed, if it is wanted. */
static void add_spare(struct bench *b)
{
    const char *node = "spare";
    const uint32_t slot = 0;
    assert_true(fsm_wants_spare(&b->m, b->now));
    assert_int_equal(bench_apply(b, (struct fsm_event){ .kind = FSM_EV_SPARE,
                                                        .placed = { &node, &slot, 1, "s" } }),
                     ST_OK);
}

static void open_elastic(struct bench *b, uint32_t ranks, uint32_t min, uint32_t spares)
{
    struct fsm_config config = bench_config();
    config.ranks = ranks;
    config.most = 4;
    config.min = min;
    config.spares = spares;
    config.restarts = false;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint32_t i = 0; i < ranks; i++)
        bench_progress(b, i, 57, "forward");
}

static void place(struct bench *b, uint32_t count)
{
    static const char *const nodes[] = { "a", "b", "c", "d" };
    static const uint32_t slots[] = { 0, 1, 2, 3 };
    assert_int_equal(
        bench_apply(b, (struct fsm_event){ .kind = FSM_EV_PLACED,
                                           .placed = { nodes, slots, count, "token" } }),
        ST_OK);
}

/* ---- when ---- */

/* Steps so short that a checkpoint is there before the first beat. */
static void a_save_before_the_first_word_of_a_step_lets_one_start(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.most = 4;
    config.spares = 1;
    config.restarts = false;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    assert_false(fsm_wants_spare(&b->m, b->now));
    bench_save_until(b, 10, FSM_SAVE_COMMITTED);
    assert_true(fsm_wants_spare(&b->m, b->now));
    assert_int_equal(bench_count(b, FSM_ACT_SCHEDULE), 1);
}

/* ---- places ---- */

static void who_was_let_go_keeps_its_place_until_it_is_gone(void **state)
{
    struct bench *b = *state;
    open_elastic(b, 4, 1, 0);
    set_workers(b, 2);
    for (uint32_t i = 0; i < 4; i++)
        say_parked(b, i);
    assert_int_equal(fsm_vacant_ranks(&b->m), 0);
    place(b, 0);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.size, 2);
    for (uint32_t i = 0; i < 2; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < 2; i++)
        bench_ready(b, i, BENCH_STEPS);
    bench_is_state(b, "RUNNING");
    set_workers(b, 4);
    bench_fault(b, 0, FSM_FAULT_NUMERIC, 58); /* all start anew */
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    assert_true(fsm_wants_slots(&b->m, b->now));
    assert_int_equal(fsm_vacant_ranks(&b->m), 2); /* those that were let go are still there */
    place(b, 2);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.size, 2);
}

static void spares_that_are_ended_keep_their_places(void **state)
{
    struct bench *b = *state;
    open_elastic(b, 4, 2, 1);
    bench_exit(b, 3, FSM_EXIT_SIGNAL, 9);
    bench_tick(b, 300);
    for (uint32_t i = 0; i < 3; i++)
        say_parked(b, i);
    place(b, 0);
    for (uint32_t i = 0; i < 3; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < 3; i++)
        bench_ready(b, i, BENCH_STEPS);
    bench_is_state(b, "RUNNING");
    assert_false(fsm_wants_spare(&b->m, b->now)); /* that would slow the first step down */
    bench_progress(b, 0, 58, "forward");
    add_spare(b);
    add_spare(b);
    bench_fault(b, 0, FSM_FAULT_NUMERIC, 58);
    for (uint32_t i = 0; i < 3; i++)
        bench_exit(b, i, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    bench_tick(b, 2000);
    const uint32_t vacant = fsm_vacant_ranks(&b->m);
    assert_int_equal(vacant, 3); /* of five places two are taken */
    place(b, vacant);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

/* Both workers of a job that grows from two to four die before those two are ready. */
static void a_job_that_grows_waits_for_those_that_start(void **state)
{
    struct bench *b = *state;
    open_elastic(b, 2, 0, 0);
    set_workers(b, 4);
    add_spare(b);
    add_spare(b);
    assert_false(fsm_wants_spare(&b->m, b->now));
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_tick(b, 300);
    bench_is_state(b, "RECOVERING");
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_hello(b, 2);
    say_parked(b, 2);
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_hello(b, 3);
    say_parked(b, 3);
    assert_int_equal(bench_count(b, FSM_ACT_SCHEDULE), 1);
    assert_true(fsm_wants_slots(&b->m, b->now));
    assert_int_equal(fsm_vacant_ranks(&b->m), 2);
    place(b, 2);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.size, 4);
}

/* One of two is ready, the other one takes its time. */
static void nothing_is_due_while_another_one_starts(void **state)
{
    struct bench *b = *state;
    open_elastic(b, 2, 1, 0);
    set_workers(b, 4);
    add_spare(b);
    add_spare(b);
    bench_hello(b, 2);
    say_parked(b, 2);
    for (int s = 0; s < 20; s++) {
        for (uint32_t i = 0; i < 3; i++)
            bench_counter(b, i, 58 + (uint64_t)s, "forward", 1000 + (uint64_t)s);
        bench_tick(b, 1000);
        assert_true(fsm_deadline(&b->m) > b->now);
    }
    bench_exit(b, 3, FSM_EXIT_CODE, 1); /* no other one is placed */
    bench_is_state(b, "RECOVERING");
    assert_true(b->m.ending.parks);
}

/* The next one goes elsewhere: with the node of the first it would be the same for ever. */
static void where_a_spare_can_not_be_started_the_next_one_is_not(void **state)
{
    struct bench *b = *state;
    const int64_t wall = 1800000000000 + b->now;
    open_elastic(b, 2, 0, 1);
    add_spare(b);
    assert_false(exclusion_holds(&b->m.exclusions, "spare", EXCLUSION_FAILED, wall));
    bench_exit(b, 2, FSM_EXIT_SPAWN_FAILED, 0);
    assert_true(exclusion_holds(&b->m.exclusions, "spare", EXCLUSION_FAILED, wall));
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.restarts, 0);
}

static void nor_is_it_where_one_did_not_say_hello(void **state)
{
    struct bench *b = *state;
    const int64_t wall = 1800000000000 + b->now;
    open_elastic(b, 2, 0, 1);
    add_spare(b);
    for (int s = 0; s < 61; s++) {
        for (uint32_t i = 0; i < 2; i++)
            bench_counter(b, i, 58 + (uint64_t)s, "forward", 1000 + (uint64_t)s);
        bench_tick(b, 1000);
    }
    assert_true(b->m.ranks[2].ended);
    assert_true(exclusion_holds(&b->m.exclusions, "spare", EXCLUSION_FAILED, wall));
}

/* What is placed for the generation to come has places beyond the ranks of the one before. */
static void one_that_always_fails_gets_rare(void **state)
{
    struct bench *b = *state;
    open_elastic(b, 2, 2, 1);
    int tries = 0;
    for (const int64_t end = b->now + 3600000; b->now < end; tries++) {
        while (!fsm_wants_spare(&b->m, b->now)) {
            b->now += 1000;
            for (uint32_t i = 0; i < 2; i++)
                bench_progress(b, i, 57 + (uint64_t)(b->now / 1000), "forward");
        }
        add_spare(b);
        bench_exit(b, 2, FSM_EXIT_CODE, 4);
    }
    assert_in_range(tries, 10, 18); /* 1, 2, 4 ... 512 s, then every ten minutes */
}

static void a_node_that_leaves_before_its_workers_start_takes_none(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.most = 4;
    bench_reopen(b, &config);
    set_workers(b, 4);
    place(b, 4);
    bench_is_state(b, "PLACING");
    const struct fsm_event event = { .kind = FSM_EV_LEAVING,
                                     .rank = 3,
                                     .leaving = { "node d leaves" } };
    assert_int_equal(bench_apply(b, event), ST_OK);
    bench_is_state(b, "QUEUED");
    assert_int_equal(bench_count(b, FSM_ACT_SCHEDULE), 1);
}

/* Asked for while it can't be done yet; then the coordinator goes. */
static void what_was_asked_of_a_job_that_starts_anew_outlives_the_coordinator(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.most = 4;
    bench_reopen(b, &config);
    place(b, 2);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
    set_workers(b, 3);
    bench_restart(b, 100);
    bool leaves = false;
    for (uint32_t i = 0; i < 2; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < 2; i++)
        bench_ready(b, i, BENCH_STEPS);
    bench_is_state(b, "RUNNING");
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++)
        leaves = leaves || b->m.due.announced[i].exit;
    assert_true(leaves);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_save_before_the_first_word_of_a_step_lets_one_start),
        TEST(who_was_let_go_keeps_its_place_until_it_is_gone),
        TEST(spares_that_are_ended_keep_their_places),
        TEST(a_job_that_grows_waits_for_those_that_start),
        TEST(nothing_is_due_while_another_one_starts),
        TEST(where_a_spare_can_not_be_started_the_next_one_is_not),
        TEST(nor_is_it_where_one_did_not_say_hello),
        TEST(one_that_always_fails_gets_rare),
        TEST(a_node_that_leaves_before_its_workers_start_takes_none),
        TEST(what_was_asked_of_a_job_that_starts_anew_outlives_the_coordinator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
