/* Philox against Random123's vectors; the permutation is one. */
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "tests/test.h"

static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        struct rng_counter counter;
        uint64_t key;
        uint32_t want[4];
    } vectors[] = {
        { { { 0, 0, 0, 0 } }, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { { ~0u, ~0u, ~0u, ~0u } },
          ~(uint64_t)0,
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 } },
          0x299f31d0a4093822,
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct rng_counter got = rng_philox(vectors[i].counter, vectors[i].key);
        assert_memory_equal(got.word, vectors[i].want, sizeof(got.word));
    }
}

static void assert_bijection(uint64_t seed, uint64_t epoch, uint64_t n)
{
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t to = rng_permute(seed, epoch, n, i);
        assert_true(to < n);
        assert_int_equal(seen[to], 0);
        seen[to] = 1;
    }
    free(seen);
}

static void permutation_is_a_bijection_for_every_size_up_to_4096(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 4096; n++)
        assert_bijection(17, n % 5, n);
}

static void permutation_is_a_bijection_for_large_sizes(void **state)
{
    (void)state;
    static const uint64_t sizes[] = { 50000, 60000, 65536, 65537, 1281167 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        assert_bijection(3, 1, sizes[i]);
}

static void permutation_depends_on_seed_and_epoch(void **state)
{
    (void)state;
    int same_seed = 0, same_epoch = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        same_seed += rng_permute(1, 0, 60000, i) == rng_permute(2, 0, 60000, i);
        same_epoch += rng_permute(1, 0, 60000, i) == rng_permute(1, 1, 60000, i);
    }
    assert_true(same_seed < 10);
    assert_true(same_epoch < 10);
}

static void uniform_numbers_stay_in_their_range(void **state)
{
    (void)state;
    assert_true(rng_uniform(0) == 0.0f);
    assert_true(rng_uniform(UINT32_MAX) < 1.0f);
    assert_int_equal(rng_below(0, 7), 0);
    assert_int_equal(rng_below(UINT32_MAX, 7), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(permutation_is_a_bijection_for_every_size_up_to_4096),
        cmocka_unit_test(permutation_is_a_bijection_for_large_sizes),
        cmocka_unit_test(permutation_depends_on_seed_and_epoch),
        cmocka_unit_test(uniform_numbers_stay_in_their_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
