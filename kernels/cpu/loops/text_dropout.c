/*
 * dropout: random words, and what they keep. Counter i (common/rng.h) gives the words of elements
 * 4·i … 4·i + 3. LANES counters are computed side by side:
 *
 *   lane       0          1          2        …        elements of a block, BLOCK = 4·LANES
 *   counter    first      first+1    first+2
 *   words      0 1 2 3    4 5 6 7    8 …
 *
 * Source: common/rng.h; the same generator (Philox 4×32-10), lane by lane.
 */
#include "kernels/cpu/loops/text_parts.h"

#define WORDS  4
#define BLOCK  ((size_t)WORDS * LANES)
#define ROUNDS 10

/* The words of counters first … first + LANES - 1, in the order of the elements. */
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

LOOPS_INLINE void dropout_as(void *out, bool out_half, const void *x, bool x_half,
                             const void *residual, size_t n, const struct dropout_draw *draw)
{
    const float by = 1.0f / (1.0f - draw->drop);
    for (size_t first = 0; first < n; first += BLOCK) {
        uint32_t words[BLOCK];
        block_words(words, (uint32_t)(first / WORDS), draw);
        for (size_t k = 0; k < BLOCK && first + k < n; k += W) {
            const size_t i = first + k, count = n - i < W ? n - i : W;
            const vec factor = factors(words + k, draw->drop, by);
            vec v = count == W ? text_get(x, i, x_half) : text_get_part(x, i, count, x_half);
            v = v * factor;
            if (residual != NULL) {
                v += count == W ? text_get(residual, i, out_half)
                                : text_get_part(residual, i, count, out_half);
            }
            if (count == W) {
                text_put(out, i, v, out_half);
            } else {
                text_put_part(out, i, count, v, out_half);
            }
        }
    }
}

void TEXT(dropout)(struct text_target out, struct text_source x, struct text_source residual,
                   size_t n, const struct dropout_draw *draw)
{
    const void *add = residual.data;
    if (out.half) {
        x.half ? dropout_as(out.data, true, x.data, true, add, n, draw)
               : dropout_as(out.data, true, x.data, false, add, n, draw);
    } else {
        x.half ? dropout_as(out.data, false, x.data, true, add, n, draw)
               : dropout_as(out.data, false, x.data, false, add, n, draw);
    }
}
