#include "common/rng.h"

#include "common/check.h"

#define PHILOX_ROUNDS 10
#define PHILOX_M0     0xD2511F53u
#define PHILOX_M1     0xCD9E8D57u
#define PHILOX_W0     0x9E3779B9u
#define PHILOX_W1     0xBB67AE85u

struct rng_counter rng_philox(struct rng_counter counter, uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t *c = counter.word;
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c[0];
        uint64_t p1 = (uint64_t)PHILOX_M1 * c[2];
        uint32_t next0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        uint32_t next2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = next0;
        c[1] = (uint32_t)p1;
        c[2] = next2;
        c[3] = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    return counter;
}

uint64_t rng_key(uint64_t seed, enum rng_purpose purpose)
{
    struct rng_counter out =
        rng_philox((struct rng_counter){ { (uint32_t)purpose, 0, 0, 0 } }, seed);
    return (uint64_t)out.word[1] << 32 | out.word[0];
}

struct rng_counter rng_words(uint64_t key, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return rng_philox((struct rng_counter){ { a, b, c, d } }, key);
}

float rng_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

uint32_t rng_below(uint32_t word, uint32_t n)
{
    CHECK(n >= 1);
    return (uint32_t)((uint64_t)word * n >> 32);
}

/* A balanced Feistel network of 4 rounds over 2·half bits. */
static uint64_t feistel(uint64_t key, uint64_t epoch, int half, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t left = x >> half, right = x & mask;
    for (uint32_t round = 0; round < 4; round++) {
        struct rng_counter f =
            rng_words(key, (uint32_t)right, round << 28 | (uint32_t)(right >> 32), (uint32_t)epoch,
                      (uint32_t)(epoch >> 32));
        uint64_t mixed = ((uint64_t)f.word[1] << 32 | f.word[0]) & mask;
        uint64_t next = left ^ mixed;
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i)
{
    CHECK(n >= 1);
    CHECK(i < n);
    CHECK(n <= (uint64_t)1 << 56); /* right's high bits share a counter word with the round */
    int half = 1;
    while (((uint64_t)1 << (2 * half)) < n)
        half++;
    uint64_t key = rng_key(seed, RNG_PERMUTATION);
    do { /* walks the cycle until it is back in range; fewer than 4 steps on average */
        i = feistel(key, epoch, half, i);
    } while (i >= n);
    return i;
}
