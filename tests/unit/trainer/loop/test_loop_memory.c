/* The step loop allocates nothing after its first step. */
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/test.h"
#include "tests/unit/trainer/counted_allocations.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/tiny_jobs.h"

static atomic_int ranks_counting;

/* Counts while every rank is past its first step and none has made its last. */
static void after_row(void *arg, uint32_t rank, const struct session_row *row)
{
    const struct ranks_options *options = arg;
    (void)rank;
    if (row->step == 1 && atomic_fetch_add(&ranks_counting, 1) + 1 == (int)options->size)
        count_allocations(true);
    if (row->step == 8)
        count_allocations(false);
}

static const struct ranks_job job = { tiny_lenet,
                                      { "data.augment=[crop, flip]", "train.duration=9 steps",
                                        "train.global_batch=8", "train.accumulate=2",
                                        "train.clip_norm=1", "eval.every=2 steps" } };

static int run(uint32_t size, const uint32_t *shares)
{
    struct ranks_options options = { .job = &job, .size = size, .row = after_row };
    options.row_arg = &options;
    for (uint32_t r = 0; r < size; r++)
        options.shares[r] = shares[r];
    struct ranks_result *result = malloc(sizeof(*result));
    assert_non_null(result);
    atomic_store(&ranks_counting, 0);
    ranks_run(&options, result);
    assert_int_equal(result->st, ST_OK);
    assert_int_equal(result->row_count, 9);
    assert_int_equal(atomic_load(&ranks_counting), size); /* it did count */
    free(result);
    return counted_allocations();
}

static void the_counters_see_our_objects(void **state)
{
    (void)state;
    count_allocations(true);
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    tape_free(tape);
    count_allocations(false);
    assert_true(counted_allocations() > 0);
}

static void one_worker_allocates_nothing_in_a_step(void **state)
{
    (void)state;
    assert_int_equal(run(1, (const uint32_t[]){ 4 }), 0);
}

static void three_workers_allocate_nothing_in_a_step(void **state)
{
    (void)state;
    assert_int_equal(run(3, (const uint32_t[]){ 1, 2, 1 }), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counters_see_our_objects),
        cmocka_unit_test(one_worker_allocates_nothing_in_a_step),
        cmocka_unit_test(three_workers_allocate_nothing_in_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
