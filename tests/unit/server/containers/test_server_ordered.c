/* Things in order, against an array by number. */
#include "common/rng.h"
#include "server/containers/ordered.h"
#include "tests/test.h"

#define KEYS  300
#define TURNS 20000

static void it_has_what_is_kept_in_order(void **state)
{
    struct ordered ordered = { 0 };
    int values[2];
    int *model[KEYS] = { 0 };
    size_t count = 0;
    (void)state;
    assert_null(ordered_get(&ordered, 1));
    assert_int_equal(ordered_reserve(&ordered, KEYS), ST_OK);
    const uint64_t key = rng_key(13, RNG_SYNTHETIC);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        struct rng_counter words = rng_words(key, turn, 0, 0, 0);
        uint32_t which = rng_below(words.word[0], KEYS);
        int *value = rng_below(words.word[1], 2) == 0 ? NULL : &values[words.word[2] % 2];
        ordered_keep(&ordered, which, value);
        count += value != NULL && model[which] == NULL;
        count -= value == NULL && model[which] != NULL;
        model[which] = value;
        assert_int_equal(ordered.count, count);
        uint32_t other = rng_below(words.word[3], KEYS);
        assert_ptr_equal(ordered_get(&ordered, other), model[other]);
        for (size_t i = 0; turn % 500 == 0 && i < count; i++) {
            assert_true(i == 0 || ordered.list[i - 1].key < ordered.list[i].key);
            assert_ptr_equal(ordered.list[i].value, model[ordered.list[i].key]);
        }
    }
    ordered_release(&ordered);
    assert_int_equal(ordered.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_what_is_kept_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
