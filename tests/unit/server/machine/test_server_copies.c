/* Which copies in memory a generation restores. */
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define RANKS 2

/* A hello that offers the share of each rank, of that step, as `generation` left it. */
static void offer(struct bench *b, uint32_t rank, uint64_t step, uint32_t generation)
{
    struct machine_copy copies[RANKS];
    for (uint32_t i = 0; i < RANKS; i++)
        copies[i] = (struct machine_copy){
            .step = step, .generation = generation, .rank = i, .size = RANKS
        };
    struct machine_event hello = { .kind = MACHINE_EV_HELLO,
                                   .rank = rank,
                                   .generation = b->m.generation,
                                   .hello = {
                                       .pid = 100 + rank, .copies = copies, .copy_count = RANKS } };
    assert_int_equal(bench_apply(b, hello), ST_OK);
}

static void fail_and_place(struct bench *b)
{
    bench_exit(b, 0, MACHINE_EXIT_SIGNAL, 9);
    bench_all_exit(b);
    bench_tick(b, 70000); /* beyond any backoff */
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

static void copies_of_a_generation_that_ran_are_restored(void **state)
{
    struct bench *b = *state;
    bench_progress(b, 0, 5, "forward");
    fail_and_place(b);
    offer(b, 0, 5, 1);
    offer(b, 1, 5, 1);
    assert_int_equal(b->m.restore.memory_generation, 1);
    assert_int_equal(b->m.restore.step, 5);
}

/* Its workers had their plan and trained, but not all had said which data they train on. */
static void copies_of_a_generation_that_never_ran_are_not(void **state)
{
    struct bench *b = *state;
    bench_progress(b, 0, 5, "forward");
    fail_and_place(b);
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(copies_of_a_generation_that_ran_are_restored),
        TEST(copies_of_a_generation_that_never_ran_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
