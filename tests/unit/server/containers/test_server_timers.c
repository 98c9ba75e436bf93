/* A heap of timers, against a list that is searched. */
#include "common/rng.h"
#include "server/containers/timers.h"
#include "tests/test.h"

#define COUNT 200
#define TURNS 20000

/* Parents are not later than children, and every entry knows its place. */
static void is_sound(const struct timers *timers)
{
    for (size_t i = 0; i < timers->count; i++) {
        assert_int_equal(timers->list[i]->place, i + 1);
        assert_true(i == 0 || timers->list[(i - 1) / 2]->at <= timers->list[i]->at);
    }
}

static void the_first_is_the_earliest_of_all_that_are_set(void **state)
{
    struct timers timers = { 0 };
    struct timer list[COUNT] = { 0 };
    int64_t model[COUNT];
    (void)state;
    for (int i = 0; i < COUNT; i++)
        model[i] = TIMERS_NEVER;
    assert_int_equal(timers_reserve(&timers, COUNT), ST_OK);
    assert_null(timers_first(&timers));
    assert_true(timers_at(&timers) == TIMERS_NEVER);
    const uint64_t key = rng_key(7, RNG_SYNTHETIC);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        struct rng_counter words = rng_words(key, turn, 0, 0, 0);
        uint32_t which = rng_below(words.word[0], COUNT);
        /* few times, so that many are equal; a third of the turns takes one out */
        model[which] =
            rng_below(words.word[1], 3) == 0 ? TIMERS_NEVER : (int64_t)rng_below(words.word[2], 50);
        timers_set(&timers, &list[which], model[which]);
        int64_t earliest = TIMERS_NEVER;
        size_t set = 0;
        for (int i = 0; i < COUNT; i++) {
            earliest = model[i] < earliest ? model[i] : earliest;
            set += model[i] != TIMERS_NEVER;
            assert_int_equal(list[i].place > 0, model[i] != TIMERS_NEVER);
        }
        assert_true(timers_at(&timers) == earliest);
        assert_int_equal(timers.count, set);
        if (turn % 100 == 0)
            is_sound(&timers);
    }
    timers_release(&timers);
    assert_int_equal(timers.count, 0);
}

static void they_come_out_in_order(void **state)
{
    struct timers timers = { 0 };
    struct timer list[COUNT] = { 0 };
    (void)state;
    assert_int_equal(timers_reserve(&timers, 3), ST_OK);
    assert_int_equal(timers_reserve(&timers, COUNT), ST_OK);
    for (int i = 0; i < COUNT; i++)
        timers_set(&timers, &list[i], (i * 37) % COUNT);
    for (int64_t at = 0; at < COUNT; at++) {
        struct timer *first = timers_first(&timers);
        assert_int_equal(first->at, at);
        timers_set(&timers, first, TIMERS_NEVER);
    }
    assert_null(timers_first(&timers));
    timers_release(&timers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_is_the_earliest_of_all_that_are_set),
        cmocka_unit_test(they_come_out_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
