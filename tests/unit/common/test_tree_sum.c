/* The order of additions: what common/tree_sum.h says, against the tree written down as such. */
#include "common/rng.h"
#include "common/tree_sum.h"
#include "tests/test.h"

#define COUNT_MAX 1100

/* Numbers of very different sizes and both signs: another order gives other bits. */
static double value_of(uint64_t i)
{
    const struct rng_counter word = rng_philox((struct rng_counter){ { (uint32_t)i } }, 17);
    const double size = (double)(UINT64_C(1) << (word.word[1] % 50));
    return ((double)word.word[0] - 0x1p31) * size;
}

/* The tree over [begin, begin + width), width a power of two: absent leaves are skipped. */
static double node(const double *values, size_t count, size_t begin, size_t width)
{
    if (width == 1)
        return values[begin];
    const double left = node(values, count, begin, width / 2);
    if (begin + width / 2 >= count)
        return left;
    return left + node(values, count, begin + width / 2, width / 2);
}

static void sum_is_that_of_the_tree_over_any_power_of_two(void **state)
{
    (void)state;
    for (size_t count = 1; count <= COUNT_MAX; count++) {
        double values[COUNT_MAX], scratch[COUNT_MAX];
        size_t width = 1;
        while (width < count)
            width *= 2;
        for (size_t i = 0; i < count; i++)
            values[i] = scratch[i] = value_of(i);
        const double sum = tree_sum(scratch, count);
        assert_true(sum == node(values, count, 0, width));
        assert_true(sum == node(values, count, 0, 4 * width));
    }
}

static void another_order_is_told_apart(void **state)
{
    (void)state;
    double values[COUNT_MAX];
    double plain = 0;
    for (size_t i = 0; i < COUNT_MAX; i++)
        plain += values[i] = value_of(i);
    assert_true(tree_sum(values, COUNT_MAX) != plain);
}

/* A part that is a complete subtree may be summed elsewhere: what a worker does with its lanes. */
static void complete_subtrees_may_be_summed_apart(void **state)
{
    (void)state;
    double values[48], scratch[48], parts[6];
    for (size_t i = 0; i < 48; i++)
        values[i] = scratch[i] = value_of(i);
    for (size_t part = 0; part < 6; part++)
        parts[part] = tree_sum(scratch + 8 * part, 8);
    assert_true(tree_sum(parts, 6) == tree_sum(values, 48));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_is_that_of_the_tree_over_any_power_of_two),
        cmocka_unit_test(another_order_is_told_apart),
        cmocka_unit_test(complete_subtrees_may_be_summed_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
