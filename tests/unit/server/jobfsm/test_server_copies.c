/* Which copies in memory a generation restores. */
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define RANKS 2
#define MOST  5 /* shares of a state */

/* A hello that offers shares [first, first + count) of `size`, of that step, as `generation` left
 * them. */
static void offer_some(struct bench *b, uint32_t rank, uint64_t step, uint32_t generation,
                       uint32_t size, uint32_t first, uint32_t count)
{
    struct fsm_copy copies[MOST];
    for (uint32_t i = 0; i < count; i++) {
        copies[i] = (struct fsm_copy){
            .step = step, .generation = generation, .rank = first + i, .size = size
        };
    }
    struct fsm_event hello = { .kind = FSM_EV_HELLO,
                               .rank = rank,
                               .generation = b->m.generation,
                               .hello = {
                                   .pid = 100 + rank, .copies = copies, .copy_count = count } };
    assert_int_equal(bench_apply(b, hello), ST_OK);
}

/* The share of each rank. */
static void offer(struct bench *b, uint32_t rank, uint64_t step, uint32_t generation)
{
    offer_some(b, rank, step, generation, RANKS, 0, RANKS);
}

static void fail_and_place(struct bench *b)
{
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_all_exit(b);
    bench_tick(b, 70000); /* beyond any backoff */
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

/* The generation that ran has come to step 5; the next one forms. */
static void train_and_fail(struct bench *b)
{
    bench_progress(b, 0, 5, "forward");
    fail_and_place(b);
}

static void copies_of_a_generation_that_ran_are_restored(void **state)
{
    struct bench *b = *state;
    train_and_fail(b);
    offer(b, 0, 5, 1);
    offer(b, 1, 5, 1);
    assert_int_equal(b->m.restore.memory_generation, 1);
    assert_int_equal(b->m.restore.step, 5);
}

/* The workers of the generation had their plan and trained, but not all had said which data they
 * train on. */
static void copies_of_a_generation_that_never_ran_are_not(void **state)
{
    struct bench *b = *state;
    train_and_fail(b);
    offer(b, 0, 0, 0);
    offer(b, 1, 0, 0);
    bench_ready(b, 1, BENCH_STEPS);
    bench_progress(b, 1, 9, "forward");
    bench_is_state(b, "FORMING");
    fail_and_place(b);
    assert_int_equal(b->m.generation, 3);
    offer(b, 0, 9, 2);
    offer(b, 1, 9, 2);
    assert_int_equal(b->m.restore.memory_generation, 0);
    assert_int_equal(b->m.restore.step, 0);
    bench_restart(b, 1000); /* which of them ran is journalled */
    assert_true(b->m.ran & 4);
    assert_false(b->m.ran & 2);
}

static void assert_holders(const struct bench *b, uint32_t size, const uint32_t *holders)
{
    assert_int_equal(fsm_memory_size(&b->m), size);
    for (uint32_t i = 0; i < size; i++)
        assert_int_equal(fsm_memory_holder(&b->m, i), holders[i]);
}

/* Two ranks restore the copies of five ranks, and of one: each reads what it holds. */
static void copies_of_another_number_of_ranks_are_restored(void **state)
{
    struct bench *b = *state;
    static const uint32_t five[] = { 0, 0, 1, 1, 1 }, one[] = { 1 };
    train_and_fail(b);
    offer_some(b, 0, 5, 1, 5, 0, 2);
    offer_some(b, 1, 5, 1, 5, 2, 3);
    assert_int_equal(b->m.restore.memory_generation, 1);
    assert_int_equal(b->m.restore.step, 5);
    assert_holders(b, 5, five);
    bench_restart(b, 1000); /* who holds what is journalled: others got their plan */
    assert_holders(b, 5, five);
    fail_and_place(b);
    assert_int_equal(fsm_memory_size(&b->m), RANKS);
    offer_some(b, 0, 0, 0, 1, 0, 0);
    offer_some(b, 1, 6, 1, 1, 0, 1);
    assert_int_equal(b->m.restore.step, 6);
    assert_holders(b, 1, one);
}

static void copies_that_are_not_all_there_are_not(void **state)
{
    struct bench *b = *state;
    train_and_fail(b);
    offer_some(b, 0, 5, 1, 5, 0, 2);
    offer_some(b, 1, 5, 1, 5, 3, 2); /* nobody has share 2 */
    assert_int_equal(b->m.restore.memory_generation, 0);
    assert_int_equal(b->m.restore.step, 0);
    assert_null(b->m.restore.holders);
}

/* Shares of one step that were cut differently are not put together. */
static void copies_that_were_cut_differently_are_not_one_state(void **state)
{
    struct bench *b = *state;
    train_and_fail(b);
    offer_some(b, 0, 5, 1, 2, 0, 1);
    offer_some(b, 1, 5, 1, 3, 1, 2);
    assert_int_equal(b->m.restore.memory_generation, 0);
    assert_int_equal(b->m.restore.step, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(copies_of_a_generation_that_ran_are_restored),
        TEST(copies_of_a_generation_that_never_ran_are_not),
        TEST(copies_of_another_number_of_ranks_are_restored),
        TEST(copies_that_are_not_all_there_are_not),
        TEST(copies_that_were_cut_differently_are_not_one_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
