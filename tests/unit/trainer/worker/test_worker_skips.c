/* The list of steps that are left out: as long as a checkpoint's may be, and what comes then. */
#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "tests/test.h"
#include "trainer/worker/worker.h"

static void add_one(struct worker *w, uint64_t step)
{
    assert_int_equal(worker_skip_add(w, &step, 1), ST_OK);
}

static struct ckpt_scalars scalars_of(const struct worker *w, uint64_t step)
{
    struct ckpt_scalars scalars = { .step = step };
    size_t count = 0;
    scalars.skip = worker_skip_list(w, step, &count);
    scalars.skip_count = count;
    return scalars;
}

static void steps_come_in_any_order_and_count_once(void **state)
{
    (void)state;
    static const uint64_t steps[] = { 9, 3, 9, 0, 7, 3 };
    struct worker w = { .skip = NULL };
    assert_false(worker_skip_has(&w, 0));
    assert_int_equal(worker_skip_before(&w, UINT64_MAX), 0);
    assert_int_equal(worker_skip_add(&w, steps, 6), ST_OK);
    for (uint64_t i = 0; i < 11; i++)
        assert_int_equal(worker_skip_has(&w, i), i == 0 || i == 3 || i == 7 || i == 9);
    assert_int_equal(worker_skip_before(&w, 0), 0);
    assert_int_equal(worker_skip_before(&w, 7), 2);
    assert_int_equal(worker_skip_before(&w, 10), 4);
    const struct ckpt_scalars saved = scalars_of(&w, 8);
    assert_int_equal(saved.skip_count, 3);
    assert_int_equal(saved.skip[2], 7);
    worker_skip_clear(&w);
    assert_int_equal(worker_skip_before(&w, UINT64_MAX), 0);
    free(w.skip);
}

/* Every third step of very many is left out. */
static void a_full_list_forgets_the_oldest_and_counts_them(void **state)
{
    (void)state;
    struct worker w = { .skip = NULL };
    const uint64_t *listed;
    uint64_t count;
    for (uint64_t i = 0; i < CKPT_SKIPS_MAX; i++)
        add_one(&w, 3 * i);
    struct ckpt_scalars saved = scalars_of(&w, 3 * CKPT_SKIPS_MAX);
    assert_int_equal(saved.skip_count, CKPT_SKIPS_MAX); /* all */
    assert_int_equal(saved.skip[0], 0);
    assert_int_equal(ckpt_skips_older(&saved, &listed, &count), 0);
    for (uint64_t i = CKPT_SKIPS_MAX; i < 2 * CKPT_SKIPS_MAX; i += i % 8 + 1) {
        const uint64_t before = worker_skip_before(&w, 3 * i);
        add_one(&w, 3 * i);
        assert_true(worker_skip_has(&w, 3 * i));
        assert_int_equal(worker_skip_before(&w, 3 * i + 1), before + 1);
        saved = scalars_of(&w, 3 * i + 1);
        assert_int_equal(saved.skip_count, CKPT_SKIPS_MAX);
        assert_int_equal(ckpt_skips_older(&saved, &listed, &count) + count, before + 1);
        assert_int_equal(listed[count - 1], 3 * i);
    }
    free(w.skip);
}

/* The later list is added to the earlier one, as after a restore, and as `cairn audit` does. */
static void a_list_with_older_ones_is_taken_over(void **state)
{
    (void)state;
    static const uint64_t saved[] = { CKPT_SKIPS_OLDER | 70000, 500000, 500007 };
    static const uint64_t earlier[] = { CKPT_SKIPS_OLDER | 69990, 400000, 400007 };
    struct worker w = { .skip = NULL };
    assert_int_equal(worker_skip_add(&w, saved, 3), ST_OK);
    assert_int_equal(worker_skip_before(&w, 500008), 70002);
    add_one(&w, 12); /* is one of those that are counted alone */
    assert_int_equal(worker_skip_before(&w, 500008), 70002);
    const struct ckpt_scalars again = scalars_of(&w, 500008);
    assert_int_equal(again.skip_count, 3);
    assert_memory_equal(again.skip, saved, sizeof(saved));
    worker_skip_clear(&w);
    assert_int_equal(worker_skip_add(&w, earlier, 3), ST_OK);
    assert_int_equal(worker_skip_add(&w, saved, 3), ST_OK);
    assert_int_equal(worker_skip_before(&w, 500000), 70000);
    assert_int_equal(worker_skip_before(&w, 500008), 70002);
    free(w.skip);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_come_in_any_order_and_count_once),
        cmocka_unit_test(a_full_list_forgets_the_oldest_and_counts_them),
        cmocka_unit_test(a_list_with_older_ones_is_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
