/* How many workers a generation has: spares, fewer than there are to be, other numbers. */
#include "server/jobfsm/elastic.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define RANKS 3

/* So many ranks train, of eight at most. */
static struct bench *open_job(void **state, uint32_t ranks, uint32_t min, uint32_t spares)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = ranks;
    config.most = 8;
    config.min = min;
    config.spares = spares;
    config.restarts = false;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint32_t i = 0; i < ranks; i++)
        bench_progress(b, i, 57, "forward");
    return b;
}

/* Starts a spare and returns its place. */
static uint32_t start_spare(struct bench *b)
{
    const char *node = "extra";
    uint32_t slot = 7;
    struct fsm_event event = { .kind = FSM_EV_SPARE,
                               .placed = { &node, &slot, 1, "token of spares" } };
    assert_int_equal(bench_apply(b, event), ST_OK);
    const struct fsm_action *start = bench_act(b, FSM_ACT_START, 0);
    assert_non_null(start);
    assert_true(fsm_is_spare(&b->m, start->rank));
    return start->rank;
}

static void say_parked(struct bench *b, uint32_t rank, uint64_t step, bool complete)
{
    struct fsm_event event = { .kind = FSM_EV_PARKED,
                               .rank = rank,
                               .generation = b->m.generation,
                               .parked = { complete, step, complete ? b->m.generation : 0 } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static uint32_t ready_spare(struct bench *b)
{
    const uint32_t at = start_spare(b);
    bench_hello(b, at);
    assert_int_equal(bench_act(b, FSM_ACT_ASSIGN, 0)->rank, at);
    bench_ready(b, at, BENCH_STEPS);
    say_parked(b, at, 0, false);
    return at;
}

static enum status set(struct bench *b, uint32_t workers)
{
    struct fsm_event event = { .kind = FSM_EV_SET, .set = { .workers = workers } };
    return bench_apply(b, event);
}

/* All that live, of the generation. */
static void park_all(struct bench *b)
{
    for (uint32_t i = 0; i < b->m.size && b->m.ending.parks; i++) {
        if (!b->m.ranks[i].gone)
            say_parked(b, i, 57, true);
    }
}

static void form(struct bench *b)
{
    bench_place(b);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

static bool is_told_to_go(const struct bench *b, uint32_t rank)
{
    bool found = false;
    for (size_t i = 0; i < bench_count(b, FSM_ACT_END); i++)
        found = found || bench_act(b, FSM_ACT_END, i)->rank == rank;
    return found;
}

/* ---- spares ---- */

static void a_spare_has_a_number_of_its_own_and_no_part_in_the_generation(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    assert_true(fsm_wants_spare(&b->m, b->now));
    const uint32_t at = start_spare(b);
    assert_int_equal(at, RANKS);
    assert_int_equal(b->m.size, RANKS);
    assert_int_equal(b->m.ranks[at].number, 8);
    assert_false(fsm_wants_spare(&b->m, b->now));
    bench_is_state(b, "RUNNING");
}

static void one_that_is_ready_takes_the_seat_of_a_worker_that_died(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    (void)ready_spare(b);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    park_all(b);
    assert_int_equal(fsm_vacant_ranks(&b->m), 0);
    form(b);
    assert_int_equal(b->m.size, RANKS);
    assert_int_equal(b->m.ranks[0].number, 0);
    assert_int_equal(b->m.ranks[1].number, 8);
    assert_int_equal(b->m.ranks[2].number, 2);
    assert_int_equal(b->m.ranks[1].birth, 1);
    assert_false(b->m.ranks[1].parked);
}

static void one_that_is_not_ready_takes_no_seat(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    const uint32_t at = start_spare(b);
    bench_hello(b, at);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    park_all(b);
    assert_int_equal(fsm_vacant_ranks(&b->m), 1);
    form(b);
    assert_int_equal(b->m.ranks[1].number, 1);
    assert_int_equal(b->m.ranks[1].birth, 2);
    assert_true(fsm_is_spare(&b->m, at));
}

static void that_it_is_ready_may_come_with_its_next_hello(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    const uint32_t at = start_spare(b);
    bench_hello(b, at);
    bench_session_lost(b, at);
    struct fsm_event event = { .kind = FSM_EV_HELLO,
                               .rank = at,
                               .generation = b->m.generation,
                               .hello = { .pid = 9, .attached = true, .parked = true } };
    assert_int_equal(bench_apply(b, event), ST_OK);
    assert_true(b->m.ranks[at].parked);
}

static void whatever_becomes_of_one_the_generation_trains_on(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    bench_exit(b, ready_spare(b), FSM_EXIT_SIGNAL, 11);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.window_until, 0);
    assert_true(fsm_wants_spare(&b->m, b->now));
    const uint32_t at = start_spare(b);
    bench_hello(b, at);
    bench_fault(b, at, FSM_FAULT_USER, 0);
    assert_true(is_told_to_go(b, at));
    bench_exit(b, at, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.generation, 1);
    assert_int_equal(b->m.failures, 0);
}

static void they_go_with_the_job_which_waits_for_them(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    const uint32_t at = ready_spare(b);
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    assert_true(is_told_to_go(b, at));
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_SIGNAL, 9);
    assert_false(fsm_state_final(b->m.state));
    bench_exit(b, at, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "KILLED");
}

static void who_does_not_go_on_in_its_seat_is_given_up_as_a_lost_session_is(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    (void)ready_spare(b);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    park_all(b);
    form(b);
    bench_hello(b, 0);
    bench_hello(b, 2);
    bench_tick(b, 9000);
    bench_is_state(b, "FORMING");
    for (uint32_t i = 0; i < RANKS; i += 2)
        bench_progress(b, i, 57, "forming");
    bench_tick(b, 2000);
    bench_tick(b, 300); /* for a better cause */
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.rank, 1);
}

/* ---- fewer ---- */

static void what_was_under_way_from_the_dead_begins_no_save_while_spares_wait(void **state)
{
    struct bench *b = open_job(state, 1, 0, 1);
    (void)ready_spare(b);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    bench_begin(b, 0, 60);
    assert_int_equal(b->m.saves[0].state, FSM_SAVE_FREE);
    form(b);
}

static void as_few_as_min_go_on_at_once(void **state)
{
    struct bench *b = open_job(state, RANKS, 2, 0);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    park_all(b);
    assert_int_equal(fsm_vacant_ranks(&b->m), 0);
    form(b);
    assert_int_equal(b->m.size, 2);
    assert_int_equal(b->m.ranks[0].number, 0);
    assert_int_equal(b->m.ranks[1].number, 2);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9); /* one is fewer than min */
    park_all(b);
    assert_int_equal(fsm_vacant_ranks(&b->m), 2);
    assert_int_equal(fsm_least(&b->m), 1);
}

static void without_a_min_all_seats_are_taken(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    park_all(b);
    assert_int_equal(fsm_vacant_ranks(&b->m), 1);
    assert_int_equal(fsm_least(&b->m), 1);
}

/* ---- other numbers ---- */

static void of_fewer_workers_the_last_ones_go(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    assert_int_equal(set(b, 2), ST_OK);
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
    park_all(b);
    form(b);
    assert_int_equal(b->m.size, 2);
    assert_true(fsm_is_spare(&b->m, 2));
    assert_true(b->m.ranks[2].ended);
    bench_tick(b, 2000);
    assert_true(is_told_to_go(b, 2));
    bench_exit(b, 2, FSM_EXIT_CODE, 4);
    bench_is_state(b, "FORMING");
}

static void a_spare_that_is_away_holds_up_no_smaller_size(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    (void)start_spare(b); /* and says nothing */
    assert_int_equal(set(b, 2), ST_OK);
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
}

static void nor_does_one_that_starts_hold_up_a_larger_one(void **state)
{
    struct bench *b = open_job(state, RANKS, 2, 1);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    park_all(b);
    form(b);
    bench_go_on(b);
    for (uint32_t i = 0; i < b->m.size; i++)
        bench_progress(b, i, 60, "forward");
    assert_true(fsm_is_spare(&b->m, start_spare(b))); /* and says nothing */
    assert_true(fsm_is_spare(&b->m, ready_spare(b)));
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
}

static void but_the_one_with_the_newest_whole_state_stays(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    assert_int_equal(set(b, 1), ST_OK);
    say_parked(b, 0, 58, false); /* in the middle of an update */
    say_parked(b, 1, 57, true);
    say_parked(b, 2, 58, true);
    form(b);
    assert_int_equal(b->m.size, 1);
    assert_int_equal(b->m.ranks[0].number, 2);
    assert_false(b->m.ranks[0].ended);
}

static void more_workers_are_started_beside_and_then_take_their_seats(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    assert_int_equal(set(b, RANKS + 1), ST_OK);
    bench_is_state(b, "RUNNING");
    assert_true(fsm_wants_spare(&b->m, b->now));
    assert_true(fsm_lacks_workers(&b->m));
    (void)ready_spare(b);
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
    park_all(b);
    form(b);
    assert_int_equal(b->m.size, RANKS + 1);
    assert_int_equal(b->m.ranks[RANKS].number, 8);
    assert_int_equal(b->m.failures, 0);
}

/* A worker parked with a state, and then the coordinator started anew. */
static void come_back_parked(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = {
        .kind = FSM_EV_HELLO,
        .rank = rank,
        .generation = b->m.generation,
        .hello = { .pid = 9, .attached = true, .parked = true, .parked_state = { true, step, 1 } }
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* One worker of three died, two are parked; since then the coordinator started, and one is
 * wanted. */
static struct bench *open_too_many(void **state)
{
    struct bench *b = open_job(state, RANKS, 1, 0);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    park_all(b);
    bench_restart(b, 1000);
    assert_int_equal(set(b, 1), ST_OK);
    return b;
}

/* However long the coordinator was cut off from all of them. */
static void who_of_too_many_goes_is_decided_once_all_are_heard(void **state)
{
    struct bench *b = open_too_many(state);
    bench_tick(b, 11000); /* its grace is over */
    assert_true(fsm_gen(&b->m) == FSM_GEN_KEPT);
    assert_false(fsm_wants_slots(&b->m, b->now));
    come_back_parked(b, 0, 57);
    assert_false(fsm_wants_slots(&b->m, b->now));
    come_back_parked(b, 2, 58);
    assert_true(fsm_wants_slots(&b->m, b->now));
    form(b);
    assert_int_equal(b->m.ranks[0].number, 2);
}

static void but_who_is_given_up_is_not_waited_for(void **state)
{
    struct bench *b = open_too_many(state);
    come_back_parked(b, 0, 57);
    b->m.config.silent_ms = 20000; /* of a large fleet: it takes longer than others are kept */
    for (uint64_t i = 0; i < 200 && !fsm_wants_slots(&b->m, b->now); i++) {
        bench_tick(b, 500);
        bench_counter(b, 0, 57, "parked", i);
    }
    assert_true(fsm_gen(&b->m) == FSM_GEN_KEPT);
    assert_true(fsm_wants_slots(&b->m, b->now));
    assert_true(b->m.ranks[2].gone);
    form(b);
    assert_int_equal(b->m.ranks[0].number, 0);
}

/* The worker's agent is heard now and then, and the worker never. */
static void but_not_for_ever(void **state)
{
    struct bench *b = open_too_many(state);
    come_back_parked(b, 0, 57);
    bool told = false;
    for (uint64_t i = 0; i < 200 && !told; i++) {
        bench_counter(b, 0, 57, "parked", i);
        b->m.ranks[2].heard_at = b->now;
        bench_tick(b, 500);
        told = bench_event(b, "kept");
    }
    assert_true(told);
}

/* The workers would stand still until more are ready: until then fewer train. */
static void with_fewer_than_it_may_have_nobody_stops_for(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    assert_int_equal(set(b, RANKS + 2), ST_OK);
    assert_true(fsm_is_spare(&b->m, ready_spare(b)));
    bench_tick(b, 6000); /* no slot for another one */
    assert_false(b->m.ending.parks);
    assert_true(fsm_is_spare(&b->m, ready_spare(b)));
    assert_true(b->m.ending.parks);
}

/* With each look it is seen whether they still have to wait: in between nothing is due. */
static void while_a_save_holds_them_up_nothing_is_due(void **state)
{
    struct bench *b = open_job(state, RANKS, 2, 0);
    bench_save_until(b, 60, FSM_SAVE_COLLECTING);
    assert_int_equal(set(b, RANKS + 2), ST_OK);
    assert_true(fsm_is_spare(&b->m, ready_spare(b)));
    bench_tick(b, 6000);
    assert_false(b->m.ending.parks);
    assert_true(fsm_resize_deadline(&b->m) > b->now);
}

/* The save would be dropped if a worker parked before its file is complete. */
static void what_workers_write_is_awaited(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    bench_save_until(b, 60, FSM_SAVE_COLLECTING);
    assert_int_equal(set(b, RANKS - 1), ST_OK);
    bench_tick(b, 1000);
    bench_is_state(b, "RUNNING");
    bench_report(b, 0, 60);
    bench_report(b, 1, 60);
    bench_is_state(b, "RUNNING");
    bench_report(b, 2, 60);
    bench_is_state(b, "RUNNING"); /* all would wait for the store */
    bench_store(b, FSM_TASK_CHECK, 60, 1, ST_OK);
    bench_is_state(b, "RUNNING");
    bench_store(b, FSM_TASK_PUBLISH, 60, 1, ST_OK);
    assert_true(b->m.ending.parks);
}

/* Half a second in which all ranks are heard; they are past that step. */
static void go_on(struct bench *b, uint64_t step, const char *phase)
{
    for (uint32_t i = 0; i < RANKS; i++)
        bench_counter(b, i, step, phase, (uint64_t)b->now);
    bench_tick(b, 500);
}

/* Training goes on meanwhile. */
static void a_store_that_hangs_is_awaited(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    bench_save_until(b, 60, FSM_SAVE_COMMITTING);
    assert_int_equal(set(b, RANKS - 1), ST_OK);
    for (uint64_t i = 0; i < 120; i++) {
        go_on(b, 60 + i, "forward");
        bench_is_state(b, "RUNNING");
    }
    bench_store(b, FSM_TASK_PUBLISH, 60, 1, ST_OK);
    assert_true(b->m.ending.parks);
}

static void a_change_of_long_ago_took_nobodys_time(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    bench_save_until(b, 60, FSM_SAVE_COLLECTING);
    assert_int_equal(set(b, RANKS - 1), ST_OK);
    bench_tick(b, 500);
    assert_int_equal(set(b, RANKS), ST_OK); /* never mind */
    for (int i = 0; i < 60; i++)
        go_on(b, 60, "save");
    assert_int_equal(set(b, RANKS - 1), ST_OK);
    bench_tick(b, 500);
    bench_is_state(b, "RUNNING");
}

static void nor_does_a_coordinator_that_stands_still(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    bench_save_until(b, 60, FSM_SAVE_COLLECTING);
    assert_int_equal(set(b, RANKS - 1), ST_OK);
    bench_tick(b, 500);
    b->now += 60000;
    fsm_excuse(&b->m, 60000);
    bench_report(b, 0, 60);
    bench_is_state(b, "RUNNING");
}

static void though_not_for_long(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    bench_save_until(b, 60, FSM_SAVE_COLLECTING);
    assert_int_equal(set(b, RANKS - 1), ST_OK);
    const int64_t from = b->now;
    while (!b->m.ending.parks && b->now < from + 60000)
        go_on(b, 60, "save");
    assert_in_range(b->now - from, 10000, 10500);
    bench_is_state(b, "RECOVERING");
}

static void spares_that_were_for_seats_that_there_are_not_go(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 1);
    assert_int_equal(set(b, RANKS + 2), ST_OK);
    const uint32_t first = ready_spare(b), second = start_spare(b), third = start_spare(b);
    assert_int_equal(set(b, RANKS), ST_OK);
    assert_false(b->m.ranks[first].ended); /* it is the one spare that the job wants */
    assert_true(is_told_to_go(b, second));
    assert_true(is_told_to_go(b, third));
    assert_false(fsm_wants_spare(&b->m, b->now));
}

static void a_number_that_was_set_outlives_the_coordinator(void **state)
{
    struct bench *b = open_job(state, RANKS, 0, 0);
    assert_int_equal(set(b, 5), ST_OK);
    bench_restart(b, 1000);
    assert_int_equal(b->m.config.ranks, 5);
    assert_int_equal(b->m.size, RANKS);
}

static void there_is_a_least_and_a_most(void **state)
{
    struct bench *b = open_job(state, RANKS, 2, 0);
    assert_int_equal(set(b, 1), ST_REFUSED);
    assert_int_equal(set(b, 9), ST_REFUSED);
    assert_int_equal(b->m.config.ranks, RANKS);
    bench_ask(b, FSM_EV_KILL);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_SIGNAL, 9);
    assert_int_equal(set(b, 2), ST_REFUSED);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_spare_has_a_number_of_its_own_and_no_part_in_the_generation),
        CASE(one_that_is_ready_takes_the_seat_of_a_worker_that_died),
        CASE(one_that_is_not_ready_takes_no_seat),
        CASE(that_it_is_ready_may_come_with_its_next_hello),
        CASE(whatever_becomes_of_one_the_generation_trains_on),
        CASE(they_go_with_the_job_which_waits_for_them),
        CASE(who_does_not_go_on_in_its_seat_is_given_up_as_a_lost_session_is),
        CASE(what_was_under_way_from_the_dead_begins_no_save_while_spares_wait),
        CASE(as_few_as_min_go_on_at_once),
        CASE(without_a_min_all_seats_are_taken),
        CASE(of_fewer_workers_the_last_ones_go),
        CASE(a_spare_that_is_away_holds_up_no_smaller_size),
        CASE(nor_does_one_that_starts_hold_up_a_larger_one),
        CASE(but_the_one_with_the_newest_whole_state_stays),
        CASE(more_workers_are_started_beside_and_then_take_their_seats),
        CASE(who_of_too_many_goes_is_decided_once_all_are_heard),
        CASE(but_who_is_given_up_is_not_waited_for),
        CASE(but_not_for_ever),
        CASE(with_fewer_than_it_may_have_nobody_stops_for),
        CASE(while_a_save_holds_them_up_nothing_is_due),
        CASE(what_workers_write_is_awaited),
        CASE(a_store_that_hangs_is_awaited),
        CASE(a_change_of_long_ago_took_nobodys_time),
        CASE(nor_does_a_coordinator_that_stands_still),
        CASE(though_not_for_long),
        CASE(spares_that_were_for_seats_that_there_are_not_go),
        CASE(a_number_that_was_set_outlives_the_coordinator),
        CASE(there_is_a_least_and_a_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
