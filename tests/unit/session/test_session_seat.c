/* The session's state machine: a worker's number, and the rank that a generation gives it. */
#include <stdlib.h>

#include "tests/unit/session/session_bench.h"

#define NUMBER 5

/* Worker NUMBER has that rank in a generation of four. */
static struct bench *seated(uint32_t rank)
{
    struct bench *b = bench_new(NUMBER);
    assert_int_equal(session_core_hello(&b->core, ""), ST_OK);
    session_core_link_up(&b->core);
    assert_says(b, HELLO);
    assert_int_equal(b->out.hello.rank, NUMBER);
    hear_plan(b, rank, 4, 0);
    return b;
}

static struct bench *ready(uint32_t rank)
{
    struct bench *b = seated(rank);
    assert_int_equal(session_core_ready(&b->core, &ready_of_100), ST_OK);
    assert_says(b, READY);
    return b;
}

static void its_rank_is_what_the_plan_says(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct session_assignment assignment;
        struct bench *b = seated(rank);
        assert_int_equal(session_core_assignment(&b->core, &assignment), ST_OK);
        assert_int_equal(assignment.rank, rank);
        assert_int_equal(b->core.rank, rank);
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
    assert_int_equal(session_core_ready(&b->core, &ready_of_100), ST_OK);
    assert_null(b->core.rows);
    bench_free(b);
}

static void it_reads_back_what_its_rank_is_to_read(void **state)
{
    (void)state;
    struct readback_order read;
    struct bench *b = ready(2);
    hear(b, read_back_order(10, "/store/a", 4));
    assert_true(session_core_read_order(&b->core, &read));
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
    assert_int_equal(session_core_last_words(&b->core, &b->progress, &bytes, &size), ST_OK);
    Cairn__V1__LastWords *words = cairn__v1__last_words__unpack(NULL, size, bytes);
    assert_non_null(words);
    assert_int_equal(words->rank, NUMBER);
    cairn__v1__last_words__free_unpacked(words, NULL);
    free(bytes);
    uint32_t generation = 0, number = 0;
    char token[SESSION_TOKEN];
    hear(b, park_order("worker 2 died"));
    session_core_parked(&b->core, 3, true, 7);
    hear(b, regroup_order(8, NUMBER, "t"));
    assert_true(session_core_regrouped(&b->core, &generation, &number, token));
    assert_int_equal(number, NUMBER);
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_rank_is_what_the_plan_says),
        cmocka_unit_test(who_has_rank_0_tells_rows_and_nobody_else),
        cmocka_unit_test(it_reads_back_what_its_rank_is_to_read),
        cmocka_unit_test(last_words_and_the_order_to_go_on_have_its_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
