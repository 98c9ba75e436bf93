/* Lanes by speed: against a search through all spreads, and at the edges. */
#include "common/limits.h"
#include "server/jobfsm/balance/balance.h"
#include "tests/test.h"

static uint64_t random_state = 17;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)((random_state >> 33) % n);
}

/* The shortest step of all spreads of `lanes` over the workers from r on. */
static uint64_t search(const uint32_t *us, uint32_t r, uint32_t count, uint32_t lanes)
{
    if (r + 1 == count)
        return (uint64_t)us[r] * lanes;
    uint64_t best = UINT64_MAX;
    for (uint32_t own = 1; own + (count - r - 1) <= lanes; own++) {
        const uint64_t mine = (uint64_t)us[r] * own;
        const uint64_t rest = search(us, r + 1, count, lanes - own);
        const uint64_t step = mine > rest ? mine : rest;
        best = step < best ? step : best;
    }
    return best;
}

static uint64_t dealt(const uint32_t *us, uint32_t count, uint32_t lanes, uint32_t *out)
{
    uint32_t sum = 0;
    balance_lanes(us, count, lanes, out);
    for (uint32_t r = 0; r < count; r++) {
        assert_true(out[r] >= 1);
        sum += out[r];
    }
    assert_int_equal(sum, lanes);
    return balance_step_us(us, out, count);
}

static void no_other_spread_is_faster(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        const uint32_t count = 1 + below(4), lanes = count + below(14);
        uint32_t us[4], out[4];
        for (uint32_t r = 0; r < count; r++)
            us[r] = 1 + below(round % 2 == 0 ? 12 : 4000);
        assert_int_equal(dealt(us, count, lanes, out), search(us, 0, count, lanes));
    }
}

static void those_that_are_equally_fast_get_as_many(void **state)
{
    (void)state;
    static uint32_t us[LIMIT_RANKS], out[LIMIT_RANKS];
    for (uint32_t r = 0; r < LIMIT_RANKS; r++)
        us[r] = 70;
    (void)dealt(us, LIMIT_RANKS, LIMIT_LANES, out);
    for (uint32_t r = 0; r < LIMIT_RANKS; r++)
        assert_int_equal(out[r], LIMIT_LANES / LIMIT_RANKS);
    (void)dealt(us, 3, 8, out);
    assert_int_equal(out[0], 3);
    assert_int_equal(out[1], 3);
    assert_int_equal(out[2], 2);
}

static void the_slowest_has_one_at_least(void **state)
{
    (void)state;
    const uint32_t us[] = { 1, 4000000000U, 1 };
    uint32_t out[3];
    assert_int_equal(dealt(us, 3, LIMIT_LANES, out), 4000000000U);
    assert_int_equal(out[1], 1);
    assert_int_equal(dealt(us, 3, 3, out), 4000000000U);
}

static void half_takes_no_longer_than_the_median(void **state)
{
    (void)state;
    const uint32_t us[] = { 9, 0, 2, 7, 0, 5 };
    assert_int_equal(balance_median(us, 6), 5);
    assert_int_equal(balance_median(us, 3), 2);
    assert_int_equal(balance_median(us + 1, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_other_spread_is_faster),
        cmocka_unit_test(those_that_are_equally_fast_get_as_many),
        cmocka_unit_test(the_slowest_has_one_at_least),
        cmocka_unit_test(half_takes_no_longer_than_the_median),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
