/* Workers that outlive a failure of their generation: they park, are kept, and go on. */
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define RANKS BENCH_PARK_RANKS

/* The first hello to the next generation, with what the worker brings along. */
static void come_along(struct bench *b, uint32_t rank, uint64_t step, bool complete,
                       uint32_t computed_by)
{
    struct fsm_event event = { .kind = FSM_EV_HELLO,
                               .rank = rank,
                               .generation = b->m.generation,
                               .hello = { .pid = 100 + rank,
                                          .parked = true,
                                          .parked_state = { complete, step, computed_by } } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void survivors_park_and_only_a_seat_is_vacant(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(bench_act(b, FSM_ACT_PARK, 0)->rank, FSM_ALL_RANKS);
    assert_int_equal(bench_count(b, FSM_ACT_END), 0);
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_say_parked(b, 0);
    bench_say_parked(b, 2);
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_say_parked(b, 3);
    assert_non_null(bench_act(b, FSM_ACT_GEN_END, 0));
    assert_true(fsm_wants_slots(&b->m, b->now));
    assert_int_equal(fsm_vacant_ranks(&b->m), 1);
    assert_true(fsm_holds_slot(&b->m, 0));
    assert_false(fsm_holds_slot(&b->m, 1));
    bench_form_again(b);
    assert_int_equal(b->m.generation, 2);
    assert_int_equal(b->m.ranks[0].birth, 1);
    assert_int_equal(b->m.ranks[1].birth, 2);
    assert_int_equal(b->m.ranks[0].pid, 100);
}

static void the_newest_state_of_a_survivor_is_gone_on_from(void **state)
{
    struct bench *b = *state;
    bench_lose_one(b);
    bench_form_again(b);
    come_along(b, 0, 57, true, 1);
    come_along(b, 2, 58, true, 1);
    come_along(b, 3, 58, false, 1); /* it was interrupted while it updated its weights */
    assert_int_equal(bench_count(b, FSM_ACT_ASSIGN), 0);
    bench_hello(b, 1);
    assert_int_equal(bench_count(b, FSM_ACT_ASSIGN), RANKS);
    assert_true(b->m.restore.live);
    assert_int_equal(b->m.restore.step, 58);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(b->m.ranks[i].source, i == 2);
    assert_int_equal(b->m.step_max, 58);
}

/* Nobody compared what those that computed it had. */
static void a_state_of_a_generation_that_never_ran_is_not(void **state)
{
    struct bench *b = *state;
    bench_lose_one(b);
    bench_form_again(b);
    come_along(b, 0, 60, true, 2);
    come_along(b, 2, 57, true, 1);
    come_along(b, 3, 57, true, 1);
    bench_hello(b, 1);
    assert_int_equal(b->m.restore.step, 57);
    assert_false(b->m.ranks[0].source);
}

static void where_no_survivor_is_whole_the_checkpoint_counts(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 60);
    bench_lose_one(b);
    bench_form_again(b);
    come_along(b, 0, 60, false, 0);
    come_along(b, 2, 60, false, 0);
    come_along(b, 3, 60, false, 0);
    bench_hello(b, 1);
    assert_false(b->m.restore.live);
    assert_int_equal(b->m.restore.step, 60);
    assert_int_equal(b->m.restore.generation, 1);
}

/* The worker that hangs is ended by its agent, and by a message to it; the others are not. */
static void only_who_hangs_is_ended(void **state)
{
    struct bench *b = *state;
    bench_fault(b, 2, FSM_FAULT_PROCESS, 57);
    assert_int_equal(bench_count(b, FSM_ACT_END), 1);
    assert_int_equal(bench_act(b, FSM_ACT_END, 0)->rank, 2);
    assert_int_equal(bench_act(b, FSM_ACT_CLOSE, 0)->rank, 2);
    bench_say_parked(b, 2); /* too late: it is to go */
    assert_false(b->m.ranks[2].parked);
}

static void who_does_not_park_in_time_is_ended(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_say_parked(b, 0);
    bench_say_parked(b, 2);
    bench_tick(b, 4999);
    assert_int_equal(bench_count(b, FSM_ACT_END), 0);
    bench_tick(b, 1);
    assert_int_equal(bench_count(b, FSM_ACT_END), 1); /* the core leaves the parked ones out */
    assert_true(b->m.ranks[0].parked);
    bench_say_parked(b, 3);
    assert_false(b->m.ranks[3].parked);
    bench_exit(b, 3, FSM_EXIT_SIGNAL, 9);
    assert_int_equal(fsm_vacant_ranks(&b->m), 2);
    assert_true(fsm_wants_slots(&b->m, b->now));
}

static void a_failure_that_may_be_in_all_of_them_is_outlived_by_none(void **state)
{
    struct bench *b = *state;
    bench_fault(b, 2, FSM_FAULT_NUMERIC, 57);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(bench_count(b, FSM_ACT_PARK), 0);
    assert_int_equal(bench_act(b, FSM_ACT_END, 0)->rank, FSM_ALL_RANKS);
}

static void the_next_failure_while_it_forms_is_outlived_too(void **state)
{
    struct bench *b = *state;
    bench_lose_one(b);
    bench_form_again(b);
    come_along(b, 0, 57, true, 1);
    come_along(b, 2, 57, true, 1);
    come_along(b, 3, 57, true, 1);
    bench_hello(b, 1);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 11); /* the newcomer */
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
    bench_say_parked(b, 0);
    bench_say_parked(b, 2);
    bench_say_parked(b, 3);
    bench_tick(b, 2000); /* it waits a little: nothing came of that generation */
    bench_form_again(b);
    come_along(b, 0, 57, true, 1);
    come_along(b, 2, 57, true, 1);
    come_along(b, 3, 57, false, 1);
    bench_hello(b, 1);
    assert_int_equal(b->m.generation, 3);
    assert_true(b->m.restore.live);
    assert_int_equal(b->m.restore.step, 57);
}

/* The others have what was trained. */
static void a_newcomer_that_does_not_fit_goes_alone(void **state)
{
    static const enum fsm_fault_kind kinds[] = { FSM_FAULT_DATA, FSM_FAULT_FORMATION };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        void *state_of = NULL;
        assert_int_equal(bench_setup_park(&state_of), 0);
        struct bench *b = state_of;
        bench_lose_one(b);
        bench_form_again(b);
        come_along(b, 0, 57, true, 1);
        bench_hello(b, 1);
        bench_fault(b, 1, kinds[i], 0);
        bench_tick(b, 250);
        bench_is_state(b, "RECOVERING");
        assert_int_equal(
            bench_act(b, FSM_ACT_END, 0) != NULL ? bench_act(b, FSM_ACT_END, 0)->rank : 1, 1);
        assert_true(b->m.ending.parks);
        assert_true(b->m.ranks[1].ended);
        bench_teardown(&state_of);
    }
    (void)state;
}

/* The job fails instead of waiting for ever: nobody can fill the vacant rank, as it failed
 * everywhere. */
static void where_it_can_run_nowhere_else_it_fails_with_workers_kept(void **state)
{
    struct bench *b = *state;
    for (int i = 0; i < 8 && fsm_state_name(b->m.state)[0] != 'F'; i++) {
        if (b->m.state == FSM_RUNNING || b->m.state == FSM_FORMING) {
            bench_fault_of_node(b, 1, FSM_FAULT_PROCESS);
            bench_exit(b, 1, FSM_EXIT_CODE, 1);
            for (uint32_t r = 0; r < RANKS; r++) {
                if (r != 1 && b->m.ending.parks)
                    bench_say_parked(b, r);
            }
        }
        bench_tick(b, 5000);
        struct fsm_event nowhere = { .kind = FSM_EV_NOWHERE };
        assert_int_equal(bench_apply(b, nowhere), ST_OK);
        if (fsm_ends(&b->m))
            break;
        bench_tick(b, 5000);
        if (!fsm_wants_slots(&b->m, b->now))
            continue;
        bench_form_again(b);
        for (uint32_t r = 0; r < RANKS; r++) {
            if (b->m.ranks[r].birth < b->m.generation)
                come_along(b, r, 57, true, 1);
            else
                bench_hello(b, r);
        }
        for (uint32_t r = 0; r < RANKS; r++)
            bench_ready(b, r, BENCH_STEPS);
    }
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
}

/* Whoever leaves saves before, also where another worker fails just then. */
static void a_move_outlives_a_failure(void **state)
{
    struct bench *b = *state;
    struct fsm_event leaving = { .kind = FSM_EV_LEAVING,
                                 .rank = 2,
                                 .leaving = { "node two leaves" } };
    assert_int_equal(bench_apply(b, leaving), ST_OK);
    assert_true(bench_act(b, FSM_ACT_SAVE_AT, 0)->exit);
    bench_lose_one(b);
    bench_form_again(b);
    come_along(b, 0, 57, true, 1);
    come_along(b, 2, 57, true, 1);
    come_along(b, 3, 57, true, 1);
    bench_hello(b, 1);
    for (uint32_t r = 0; r < RANKS; r++)
        bench_ready(b, r, BENCH_STEPS);
    assert_true(bench_act(b, FSM_ACT_SAVE_AT, 0)->exit);
}

/* Also a save that waits for a store that is away holds nobody up: live recovery needs no store. */
static void a_store_that_is_away_holds_nobody_up(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 60, FSM_SAVE_COLLECTING);
    bench_lose_one(b);
    bench_store(b, FSM_TASK_DROP, 60, 1, ST_IO);
    assert_true(fsm_wants_slots(&b->m, b->now));
    assert_int_equal(fsm_vacant_ranks(&b->m), 1);
}

/* What is wrong may be in those that stay. */
static void after_three_in_a_row_all_start_anew(void **state)
{
    struct bench *b = *state;
    for (int i = 0; i < 3; i++) {
        bench_lose_one(b);
        bench_tick(b, 4000); /* beyond the back-off */
        bench_form_again(b);
        assert_true(b->m.ranks[0].birth == 1);
        come_along(b, 0, 57, true, 1);
        come_along(b, 2, 57, true, 1);
        come_along(b, 3, 57, true, 1);
        bench_hello(b, 1);
    }
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    assert_int_equal(bench_count(b, FSM_ACT_PARK), 0);
    assert_int_equal(bench_act(b, FSM_ACT_END, 0)->rank, FSM_ALL_RANKS);
}

static void without_room_for_the_others_nobody_is_kept_for_ever(void **state)
{
    struct bench *b = *state;
    bench_lose_one(b);
    assert_int_equal(fsm_vacant_ranks(&b->m), 1);
    for (int i = 0; i < 60; i++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            if (r != 1 && !b->m.ranks[r].gone)
                bench_progress(b, r, 57, "parked");
        }
        bench_tick(b, 500);
    }
    bench_is_state(b, "RECOVERING");
    assert_non_null(bench_told(b, "kept"));
    bench_all_exit(b);
    assert_true(fsm_wants_slots(&b->m, b->now));
    assert_int_equal(fsm_vacant_ranks(&b->m), RANKS);
}

static void a_kept_worker_that_dies_leaves_a_vacant_seat(void **state)
{
    struct bench *b = *state;
    bench_lose_one(b);
    bench_exit(b, 3, FSM_EXIT_SIGNAL, 9);
    assert_int_equal(fsm_vacant_ranks(&b->m), 2);
    bench_form_again(b);
    assert_int_equal(b->m.ranks[3].birth, 2);
    assert_int_equal(b->m.ranks[2].birth, 1);
}

static void what_people_ask_meanwhile_ends_those_that_are_kept(void **state)
{
    static const enum fsm_event_kind asks[] = { FSM_EV_PAUSE, FSM_EV_KILL };
    static const char *const states[] = { "PAUSED", "KILLED" };
    for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
        for (int parking = 0; parking < 2; parking++) {
            void *state_of = NULL;
            assert_int_equal(bench_setup_park(&state_of), 0);
            struct bench *b = state_of;
            bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
            bench_say_parked(b, 0);
            if (parking && asks[i] == FSM_EV_PAUSE) {
                bench_teardown(&state_of); /* what_is_asked_while_they_park... */
                continue;
            }
            if (!parking) {
                bench_say_parked(b, 2);
                bench_say_parked(b, 3);
            }
            assert_int_equal(bench_ask(b, asks[i]), ST_OK);
            assert_int_equal(bench_act(b, FSM_ACT_END, 0)->rank, FSM_ALL_RANKS);
            assert_false(b->m.ranks[0].parked);
            bench_all_exit(b);
            bench_is_state(b, states[i]);
            bench_teardown(&state_of);
        }
    }
    (void)state;
}

/* What is left of it must not be taken for the worker that comes in its place. */
static void a_kept_worker_that_dies_while_the_store_is_asked_is_replaced(void **state)
{
    for (int all = 0; all < 2; all++) { /* the last one that is kept */
        void *state_of = NULL;
        assert_int_equal(bench_setup_park(&state_of), 0);
        struct bench *b = state_of;
        bench_lose_one(b);
        for (uint32_t r = 0; all && r < RANKS; r += 2)
            bench_exit(b, r, FSM_EXIT_SIGNAL, 9);
        b->m.probed = false;
        bench_place(b);
        bench_is_state(b, "PLACING");
        bench_exit(b, 3, FSM_EXIT_SIGNAL, 9);
        bench_probe(b, ST_OK);
        bench_is_state(b, "RECOVERING");
        assert_int_equal(fsm_vacant_ranks(&b->m), all ? RANKS : 2);
        assert_true(fsm_wants_slots(&b->m, b->now));
        bench_form_again(b);
        for (uint32_t r = 0; r < RANKS; r++) {
            const bool newcomer = r == 1 || r == 3 || all;
            assert_int_equal(b->m.ranks[r].birth, newcomer ? 2 : 1);
            assert_false(b->m.ranks[r].parked);
            assert_false(b->m.ranks[r].joined);
        }
        bench_teardown(&state_of);
    }
    (void)state;
}

/* Nothing that is finished is lost by it. */
static void what_is_asked_while_they_park_or_form_waits_for_their_save(void **state)
{
    static const enum fsm_event_kind asks[] = { FSM_EV_PAUSE, FSM_EV_STOP };
    static const char *const states[] = { "PAUSED", "STOPPED" };
    for (size_t i = 0; i < 4; i++) {
        void *state_of = NULL;
        assert_int_equal(bench_setup_park(&state_of), 0);
        struct bench *b = state_of;
        const bool forms = i >= 2;
        bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
        if (!forms)
            assert_int_equal(bench_ask(b, asks[i % 2]), ST_OK);
        bench_say_parked(b, 0);
        bench_say_parked(b, 2);
        bench_say_parked(b, 3);
        bench_form_again(b);
        if (forms)
            assert_int_equal(bench_ask(b, asks[i % 2]), ST_OK);
        bench_is_state(b, "FORMING");
        come_along(b, 0, 57, true, 1);
        come_along(b, 2, 57, true, 1);
        come_along(b, 3, 57, true, 1);
        bench_hello(b, 1);
        for (uint32_t r = 0; r < RANKS; r++)
            bench_ready(b, r, BENCH_STEPS);
        bench_is_state(b, "SAVING");
        const struct fsm_action *at = bench_act(b, FSM_ACT_SAVE_AT, 0);
        assert_non_null(at);
        assert_true(at->exit && at->step >= 57);
        const uint64_t step = at->step;
        bench_commit(b, step);
        bench_all_exit(b);
        bench_is_state(b, states[i % 2]);
        assert_int_equal(fsm_newest(&b->m)->step, step);
        bench_teardown(&state_of);
    }
    (void)state;
}

/* Nobody goes on after all: it is paused once others have come as far. */
static void a_pause_that_survivors_were_to_save_for_is_not_forgotten(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_all_exit(b);
    bench_form_again(b);
    for (uint32_t r = 0; r < RANKS; r++)
        bench_hello(b, r);
    for (uint32_t r = 0; r < RANKS; r++)
        bench_ready(b, r, BENCH_STEPS);
    bench_is_state(b, "SAVING");
    const struct fsm_action *at = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(at);
    assert_true(at->exit && at->step >= 57);
    bench_commit(b, at->step);
    bench_all_exit(b);
    bench_is_state(b, "PAUSED");
}

static void a_node_that_leaves_meanwhile_costs_no_step(void **state)
{
    struct bench *b = *state;
    bench_lose_one(b);
    struct fsm_event leaving = { .kind = FSM_EV_LEAVING,
                                 .rank = 2,
                                 .leaving = { "node two leaves" } };
    assert_int_equal(bench_apply(b, leaving), ST_OK);
    assert_int_equal(bench_count(b, FSM_ACT_END), 0);
    bench_form_again(b);
    come_along(b, 0, 57, true, 1);
    come_along(b, 2, 57, true, 1);
    come_along(b, 3, 57, true, 1);
    bench_hello(b, 1);
    for (uint32_t r = 0; r < RANKS; r++)
        bench_ready(b, r, BENCH_STEPS);
    bench_is_state(b, "RUNNING");
    assert_true(bench_act(b, FSM_ACT_SAVE_AT, 0)->exit);
}

static void a_coordinator_that_comes_back_goes_on_with_them(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_say_parked(b, 0);
    bench_restart(b, 1000);
    bench_is_state(b, "RECOVERING");
    assert_true(b->m.ranks[0].parked);
    assert_int_equal(b->m.ranks[0].birth, 1);
    bench_attach(b, 2, 57); /* it was not told yet */
    assert_int_equal(bench_act(b, FSM_ACT_PARK, 0)->rank, 2);
    bench_say_parked(b, 2);
    struct fsm_event back = { .kind = FSM_EV_HELLO,
                              .rank = 3,
                              .generation = 1,
                              .hello = { .attached = true, .parked = true } };
    assert_int_equal(bench_apply(b, back), ST_OK);
    assert_int_equal(fsm_vacant_ranks(&b->m), 1);
    bench_restart(b, 1000);
    assert_int_equal(fsm_vacant_ranks(&b->m), 1);
    bench_form_again(b);
    bench_restart(b, 1000);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.ranks[0].birth, 1);
    come_along(b, 0, 57, true, 1);
    come_along(b, 2, 57, true, 1);
    come_along(b, 3, 57, true, 1);
    bench_hello(b, 1);
    assert_true(b->m.restore.live);
    bench_restart(b, 1000); /* the decision is journalled */
    assert_true(b->m.restore.live);
    assert_int_equal(b->m.restore.step, 57);
    assert_true(b->m.ranks[2].source);
    assert_false(b->m.ranks[1].source);
}

/* A broken connection doesn't show which rank is at fault: all of them may be well. */
static void a_broken_connection_ends_nobody(void **state)
{
    struct bench *b = *state;
    bench_fault(b, 2, FSM_FAULT_COMMUNICATION, 57);
    bench_tick(b, 250);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(bench_count(b, FSM_ACT_END), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_say_parked(b, i);
    assert_int_equal(fsm_vacant_ranks(&b->m), 0);
    assert_true(fsm_wants_slots(&b->m, b->now));
    bench_form_again(b);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(b->m.ranks[i].birth, 1);
}

/* More than there is room for in one turn's actions. */
static void many_that_do_not_fit_are_ended_a_few_at_a_time(void **state)
{
    enum { MANY = 100, NEW = 60 };
    struct bench *b = *state;
    struct fsm_config config = b->m.config;
    config.ranks = config.min = config.most = MANY;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint32_t i = 0; i < NEW; i++)
        bench_exit(b, i, FSM_EXIT_SIGNAL, 9);
    for (uint32_t i = NEW; i < MANY; i++)
        bench_say_parked(b, i);
    bench_form_again(b);
    for (uint32_t i = 0; i < NEW; i++)
        bench_hello(b, i);
    for (uint32_t i = NEW; i < MANY; i++)
        come_along(b, i, 57, true, 1);
    for (uint32_t i = MANY; i > 0; i--) {
        struct fsm_event event = { .kind = FSM_EV_READY,
                                   .rank = i - 1,
                                   .generation = b->m.generation,
                                   .ready = { .total_steps = BENCH_STEPS,
                                              .steps_per_epoch = 10,
                                              .pins_differ = i <= NEW ? "other" : NULL } };
        assert_int_equal(bench_apply(b, event), ST_OK);
    }
    bench_is_state(b, "RECOVERING");
    const size_t first = bench_count(b, FSM_ACT_END);
    assert_in_range(first, 10, NEW - 1);
    for (uint32_t i = 0; i < first; i++)
        bench_exit(b, i, FSM_EXIT_SIGNAL, 9);
    bench_tick(b, 5000); /* when parking takes too long all are that have not parked */
    assert_int_equal(bench_act(b, FSM_ACT_END, 0)->rank, FSM_ALL_RANKS);
}

int main(void)
{
#define LIVE(test) cmocka_unit_test_setup_teardown(test, bench_setup_park, bench_teardown)
    const struct CMUnitTest tests[] = {
        LIVE(survivors_park_and_only_a_seat_is_vacant),
        LIVE(the_newest_state_of_a_survivor_is_gone_on_from),
        LIVE(a_state_of_a_generation_that_never_ran_is_not),
        LIVE(where_no_survivor_is_whole_the_checkpoint_counts),
        LIVE(only_who_hangs_is_ended),
        LIVE(who_does_not_park_in_time_is_ended),
        LIVE(a_failure_that_may_be_in_all_of_them_is_outlived_by_none),
        LIVE(the_next_failure_while_it_forms_is_outlived_too),
        LIVE(after_three_in_a_row_all_start_anew),
        LIVE(a_newcomer_that_does_not_fit_goes_alone),
        LIVE(where_it_can_run_nowhere_else_it_fails_with_workers_kept),
        LIVE(a_move_outlives_a_failure),
        LIVE(a_store_that_is_away_holds_nobody_up),
        LIVE(without_room_for_the_others_nobody_is_kept_for_ever),
        LIVE(a_kept_worker_that_dies_leaves_a_vacant_seat),
        LIVE(a_kept_worker_that_dies_while_the_store_is_asked_is_replaced),
        LIVE(what_people_ask_meanwhile_ends_those_that_are_kept),
        LIVE(what_is_asked_while_they_park_or_form_waits_for_their_save),
        LIVE(a_pause_that_survivors_were_to_save_for_is_not_forgotten),
        LIVE(a_node_that_leaves_meanwhile_costs_no_step),
        LIVE(a_coordinator_that_comes_back_goes_on_with_them),
        LIVE(a_broken_connection_ends_nobody),
        LIVE(many_that_do_not_fit_are_ended_a_few_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
