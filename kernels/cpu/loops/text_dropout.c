/*
 * dropout: LANES counters at a time give 4·LANES words; word k of counter l is element 4·l + k.
 *
 * Source: common/rng.h; the same generator, in lanes.
 */
#include "kernels/cpu/loops/text_parts.h"

#define WORDS  4
#define BLOCK  ((size_t)WORDS * LANES)
#define ROUNDS 10

/* The words of counters first … first + LANES - 1, in the order of their elements. */
LOOPS_INLINE void block_words(uint32_t words[BLOCK], uint32_t first,
                              const struct dropout_draw *draw)
{
    uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
    uint32_t k0 = draw->key[0], k1 = draw->key[1];
    for (uint32_t l = 0; l < LANES; l++) {
        a[l] = first + l;
        b[l] = draw->layer;
        c[l] = draw->sample;
        d[l] = draw->step;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t l = 0; l < LANES; l++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * a[l];
            const uint64_t p1 = (uint64_t)0xCD9E8D57u * c[l];
            a[l] = (uint32_t)(p1 >> 32) ^ b[l] ^ k0;
            b[l] = (uint32_t)p1;
            c[l] = (uint32_t)(p0 >> 32) ^ d[l] ^ k1;
            d[l] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (size_t l = 0; l < LANES; l++) {
        words[WORDS * l] = a[l];
        words[WORDS * l + 1] = b[l];
        words[WORDS * l + 2] = c[l];
        words[WORDS * l + 3] = d[l];
    }
}

/* The factor of W elements: rng_uniform(word) >= drop ? by : 0. */
LOOPS_INLINE vec factors(const uint32_t *words, float drop, float by)
{
    ivec bits;
    memcpy(&bits, words, sizeof(bits));
    const uvec top = (uvec)bits >> 8;
    const vec uniform = __builtin_convertvector((ivec)top, vec) * vec_set(0x1p-24f);
    return vec_of_bits(vec_bits(vec_set(by)) & (uniform >= vec_set(drop)));
}

LOOPS_INLINE void dropout(void *out, bool to, const void *x, bool from, const void *residual,
                          size_t n, const struct dropout_draw *draw)
{
    const float by = 1.0f / (1.0f - draw->drop);
    for (size_t first = 0; first < n; first += BLOCK) {
        uint32_t words[BLOCK];
        block_words(words, (uint32_t)(first / WORDS), draw);
        for (size_t k = 0; k < BLOCK && first + k < n; k += W) {
            const size_t i = first + k, count = n - i < W ? n - i : W;
            const vec factor = factors(words + k, draw->drop, by);
            vec v = count == W ? get(x, i, from) : get_part(x, i, count, from);
            v = v * factor;
            if (residual != NULL)
                v += count == W ? get(residual, i, to) : get_part(residual, i, count, to);
            if (count == W) {
                put(out, i, v, to);
            } else {
                put_part(out, i, count, v, to);
            }
        }
    }
}

void TEXT(dropout)(struct target out, struct source x, struct source residual, size_t n,
                   const struct dropout_draw *draw)
{
    const void *add = residual.data;
    if (out.half) {
        x.half ? dropout(out.data, true, x.data, true, add, n, draw)
               : dropout(out.data, true, x.data, false, add, n, draw);
    } else {
        x.half ? dropout(out.data, false, x.data, true, add, n, draw)
               : dropout(out.data, false, x.data, false, add, n, draw);
    }
}
