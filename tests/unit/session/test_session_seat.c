/* The session's state machine: a worker's number, the rank that a generation gives it, and spares,
 * which have none yet. */
#include <stdlib.h>

#include "tests/unit/session/session_bench.h"

#define NUMBER 5

/* Worker NUMBER has that rank in a generation of four. */
static struct bench *seated(uint32_t rank)
{
    struct bench *b = bench_new(NUMBER);
    assert_int_equal(session_fsm_hello(&b->fsm, ""), ST_OK);
    session_fsm_link_up(&b->fsm);
    assert_says(b, HELLO);
    assert_int_equal(b->out.hello.rank, NUMBER);
    hear_plan(b, rank, 4, 0);
    return b;
}

static struct bench *ready(uint32_t rank)
{
    struct bench *b = seated(rank);
    assert_int_equal(session_fsm_ready(&b->fsm, &ready_of_100), ST_OK);
    assert_says(b, READY);
    return b;
}

static void its_rank_is_what_the_plan_says(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct session_assignment assignment;
        struct bench *b = seated(rank);
        assert_int_equal(session_fsm_assignment(&b->fsm, &assignment), ST_OK);
        assert_int_equal(assignment.rank, rank);
        assert_int_equal(b->fsm.rank, rank);
        reconnect(b);
        assert_int_equal(b->out.hello.rank, NUMBER);
        bench_free(b);
    }
}

static void who_has_rank_0_tells_rows_and_nobody_else(void **state)
{
    (void)state;
    struct bench *b = ready(0);
    add_rows(b, 1, 3);
    b->now_ms += SESSION_ROWS_MS;
    assert_says(b, METRICS);
    assert_int_equal(b->out.rows.n_rows, 3);
    bench_free(b);
    b = ready(1);
    add_rows(b, 1, 3);
    b->now_ms += SESSION_ROWS_MS;
    assert_silent(b);
    bench_free(b);
    b = bench_new(0); /* worker 0, which has another rank */
    hear_plan(b, 1, 4, 0);
    assert_int_equal(session_fsm_ready(&b->fsm, &ready_of_100), ST_OK);
    assert_null(b->fsm.rows);
    bench_free(b);
}

static void it_reads_back_what_its_rank_is_to_read(void **state)
{
    (void)state;
    struct readback_order read;
    struct bench *b = ready(2);
    hear(b, read_back_order(10, "/store/a", 4));
    assert_true(session_fsm_read_order(&b->fsm, &read));
    assert_int_equal(read.rank, 2);
    assert_int_equal(read.ranks, 4);
    bench_free(b);
}

static void last_words_and_the_order_to_go_on_have_its_number(void **state)
{
    (void)state;
    struct bench *b = ready(2);
    uint8_t *bytes = NULL;
    size_t size = 0;
    assert_int_equal(session_fsm_last_words(&b->fsm, &b->progress, &bytes, &size), ST_OK);
    Cairn__V1__LastWords *words = cairn__v1__last_words__unpack(NULL, size, bytes);
    assert_non_null(words);
    assert_int_equal(words->rank, NUMBER);
    cairn__v1__last_words__free_unpacked(words, NULL);
    free(bytes);
    uint32_t generation = 0, number = 0;
    char token[SESSION_TOKEN];
    hear(b, park_order("worker 2 died"));
    session_fsm_parked(&b->fsm,
                       &(struct session_parked){ .step = 3, .complete = true, .computed_by = 7 });
    hear(b, regroup_order(8, NUMBER, "t"));
    assert_true(session_fsm_regrouped(&b->fsm, &generation, &number, token));
    assert_int_equal(number, NUMBER);
    bench_free(b);
}

/* ---- a spare ---- */

static struct bench *spare(void)
{
    uint32_t shares[4] = { 2, 1, 1, 4 };
    Cairn__V1__SaveAt at = CAIRN__V1__SAVE_AT__INIT, *list[1] = { &at };
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    struct bench *b = bench_new(NUMBER);
    assert_int_equal(session_fsm_hello(&b->fsm, ""), ST_OK);
    session_fsm_link_up(&b->fsm);
    assert_says(b, HELLO);
    assert_false(b->out.hello.attached);
    plan.spare = true;
    at.step = 5; /* of the generation that it has no part in */
    plan.saves = list;
    plan.n_saves = 1;
    hear(b, plan_order(&plan, 7, 0, shares, 4));
    return b;
}

static struct bench *warm_spare(void)
{
    struct bench *b = spare();
    assert_int_equal(session_fsm_ready(&b->fsm, &ready_of_100), ST_OK);
    assert_says(b, READY);
    session_fsm_parked(&b->fsm, &(struct session_parked){ .step = 0 });
    assert_says(b, PARKED);
    assert_false(b->out.parked.complete);
    assert_silent(b);
    return b;
}

static bool goes_on(const struct bench *b, uint32_t generation)
{
    uint32_t got = 0, number = 0;
    char token[SESSION_TOKEN];
    return session_fsm_regrouped(&b->fsm, &got, &number, token) && got == generation &&
           number == NUMBER;
}

static void a_spare_has_a_plan_and_nothing_to_do_in_its_generation(void **state)
{
    (void)state;
    struct session_assignment assignment;
    const struct rendezvous_part nothing = { 0 };
    const struct session_rendezvous_round *round = NULL;
    struct readback_order read;
    struct bench *b = spare();
    assert_int_equal(session_fsm_assignment(&b->fsm, &assignment), ST_OK);
    assert_true(assignment.spare);
    assert_true(session_fsm_parks(&b->fsm));
    assert_false(b->fsm.over);
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &nothing, 4, &round), ST_STALE);
    hear(b, read_back_order(10, "/store/a", 4));
    assert_false(session_fsm_read_order(&b->fsm, &read));
    hear(b, save_at_order(6, false));
    assert_int_equal(session_fsm_ready(&b->fsm, &ready_of_100), ST_OK);
    assert_says(b, READY);
    assert_silent(b);
    assert_null(b->fsm.rows); /* though the seat that it may get is rank 0's */
    assert_int_equal(session_fsm_due(&b->fsm, 5), SESSION_DUE_NOTHING);
    bench_free(b);
}

static void a_spare_says_ready_then_parked_on_every_connection_and_beats(void **state)
{
    (void)state;
    struct bench *b = spare();
    reconnect(b); /* while it builds */
    assert_true(b->out.hello.attached);
    assert_null(b->out.hello.parked);
    assert_silent(b);
    bench_free(b);
    b = warm_spare();
    for (int i = 0; i < 2; i++) {
        reconnect(b);
        assert_true(b->out.hello.attached);
        assert_int_equal(b->out.hello.generation, 7);
        assert_int_equal(b->out.hello.rank, NUMBER);
        assert_non_null(b->out.hello.parked);
        assert_false(b->out.hello.parked->complete);
        assert_says(b, READY);
        assert_string_equal(b->out.ready.pins, ready_of_100.pins);
        assert_silent(b);
        b->now_ms += SESSION_HEARTBEAT_MS;
        assert_non_null(say(b));
        assert_int_equal(b->out.kind, SESSION_OUT_PROGRESS);
    }
    bench_free(b);
}

static void a_spare_that_is_told_to_park_goes_on_building_and_parks(void **state)
{
    (void)state;
    struct bench *b = spare();
    hear(b, park_order("worker 2 died"));
    assert_silent(b);
    hear(b, regroup_order(9, NUMBER, "t")); /* too early: it is said again to one that has parked */
    assert_int_equal(session_fsm_ready(&b->fsm, &ready_of_100), ST_OK);
    assert_says(b, READY);
    session_fsm_parked(&b->fsm, &(struct session_parked){ .step = 0 });
    assert_says(b, PARKED);
    assert_false(goes_on(b, 9));
    hear(b, regroup_order(9, NUMBER, "t"));
    assert_true(goes_on(b, 9));
    bench_free(b);
}

static void a_spare_gets_a_seat_in_any_later_generation(void **state)
{
    (void)state;
    struct bench *b = warm_spare();
    reconnect(b);
    assert_says(b, READY);
    hear(b, regroup_order(12, NUMBER, "t"));
    assert_true(goes_on(b, 12));
    bench_free(b);
    b = warm_spare();
    hear(b, regroup_order(7, NUMBER, "t")); /* the one that it was started in is none of them */
    assert_true(b->fsm.over);
    bench_free(b);
}

static void over_ends_a_spare_wherever_it_is(void **state)
{
    (void)state;
    struct bench *b = spare();
    hear(b, over_order("enough"));
    assert_true(b->fsm.over);
    assert_false(session_fsm_parks(&b->fsm));
    assert_null(say(b));
    session_fsm_parked(
        &b->fsm, &(struct session_parked){ .step = 0 }); /* the step thread had not yet heard */
    assert_null(say(b));
    bench_free(b);
    b = warm_spare();
    hear(b, over_order("enough"));
    assert_null(say(b));
    assert_false(goes_on(b, 8));
    bench_free(b);
}

static void what_a_spare_fails_of_is_said(void **state)
{
    (void)state;
    struct bench *b = spare();
    const struct session_fault_record fault = { .kind = CAIRN__V1__FAULT_KIND__USER };
    session_fsm_fault(&b->fsm, &fault);
    assert_says(b, FAULT);
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_rank_is_what_the_plan_says),
        cmocka_unit_test(who_has_rank_0_tells_rows_and_nobody_else),
        cmocka_unit_test(it_reads_back_what_its_rank_is_to_read),
        cmocka_unit_test(last_words_and_the_order_to_go_on_have_its_number),
        cmocka_unit_test(a_spare_has_a_plan_and_nothing_to_do_in_its_generation),
        cmocka_unit_test(a_spare_says_ready_then_parked_on_every_connection_and_beats),
        cmocka_unit_test(a_spare_that_is_told_to_park_goes_on_building_and_parks),
        cmocka_unit_test(a_spare_gets_a_seat_in_any_later_generation),
        cmocka_unit_test(over_ends_a_spare_wherever_it_is),
        cmocka_unit_test(what_a_spare_fails_of_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
