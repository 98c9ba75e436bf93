/*
 * The step loop allocates nothing after its first step: the linker sends every allocation of our
 * own objects (and of this test) through the counters below; what libraries allocate isn't counted.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"

static atomic_bool counting;
static atomic_int allocations;
static atomic_int ranks_counting;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

static void count(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&allocations, 1);
}

void *__wrap_malloc(size_t size)
{
    count();
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    count();
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    count();
    return __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    count();
    return __real_aligned_alloc(alignment, size);
}

/* Counts while every rank is past its first step and none has made its last. */
static void after_row(void *arg, uint32_t rank, const struct session_row *row)
{
    const struct ranks_options *options = arg;
    (void)rank;
    if (row->step == 1 && atomic_fetch_add(&ranks_counting, 1) + 1 == (int)options->size)
        atomic_store(&counting, true);
    if (row->step == 8)
        atomic_store(&counting, false);
}

static const char job[] = "name: test\n"
                          "model: {arch: lenet, classes: 10}\n"
                          "data:\n"
                          "  train: {format: synthetic, samples: 100}\n"
                          "  eval: {format: synthetic, samples: 20}\n"
                          "  augment: [crop, flip]\n"
                          "train:\n"
                          "  duration: 9 steps\n"
                          "  global_batch: 8\n"
                          "  lanes: 4\n"
                          "  accumulate: 2\n"
                          "  optimizer: {name: adamw, lr: 0.001}\n"
                          "  clip_norm: 1\n"
                          "eval: {every: 2 steps}\n";

static int run(uint32_t size, const uint32_t *shares)
{
    struct ranks_options options = { .job = job, .size = size, .row = after_row };
    options.row_arg = &options;
    for (uint32_t r = 0; r < size; r++)
        options.shares[r] = shares[r];
    struct ranks_result *result = malloc(sizeof(*result));
    assert_non_null(result);
    atomic_store(&ranks_counting, 0);
    atomic_store(&allocations, 0);
    ranks_run(&options, result);
    assert_int_equal(result->st, ST_OK);
    assert_int_equal(result->row_count, 9);
    assert_int_equal(atomic_load(&ranks_counting), size); /* it did count */
    free(result);
    return atomic_load(&allocations);
}

static void the_counters_see_our_objects(void **state)
{
    (void)state;
    atomic_store(&counting, true);
    atomic_store(&allocations, 0);
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    tape_free(tape);
    atomic_store(&counting, false);
    assert_true(atomic_load(&allocations) > 0);
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
