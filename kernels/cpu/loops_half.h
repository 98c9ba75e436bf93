/*
 * For loops over bfloat16: elements as vectors of float32. Rounding is to the nearest, ties to
 * even; a NaN stays one. With AVX512-BF16 denormal results are zero, as in all arithmetic here.
 */
#pragma once

#include "kernels/cpu/loops_simd.h"

typedef uint32_t half_wide __attribute__((vector_size(4 * LOOPS_WIDTH)));
typedef uint16_t half_vec __attribute__((vector_size(2 * LOOPS_WIDTH)));

LOOPS_INLINE int64_t width_left(int64_t count, int64_t at)
{
    return count - at < W ? count - at : W;
}

LOOPS_INLINE vec half_to_vec(half_vec h)
{
    return vec_of_bits((ivec)(__builtin_convertvector(h, half_wide) << 16));
}

LOOPS_INLINE half_vec half_of_vec(vec v)
{
#ifdef __AVX512BF16__
    return (half_vec)_mm512_cvtneps_pbh((__m512)v);
#else
    const half_wide bits = (half_wide)vec_bits(v);
    const half_wide rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const half_wide nan = (half_wide)(v != v);
    const half_wide out = (rounded & ~nan) | ((bits | 0x400000u) & nan);
    return __builtin_convertvector(out >> 16, half_vec);
#endif
}

/* n elements, n <= W; those that are not there read as 0. */
LOOPS_INLINE vec half_get(const uint16_t *p, int64_t n)
{
    half_vec h = { 0 };
    if (n == W) {
        memcpy(&h, p, sizeof(h));
    } else {
        memcpy(&h, p, sizeof(*p) * (size_t)n);
    }
    return half_to_vec(h);
}

LOOPS_INLINE void half_put(uint16_t *p, vec v, int64_t n)
{
    const half_vec h = half_of_vec(v);
    if (n == W) {
        memcpy(p, &h, sizeof(h));
    } else {
        memcpy(p, &h, sizeof(*p) * (size_t)n);
    }
}

/* The same, and what was stored. */
LOOPS_INLINE vec half_put_rounded(uint16_t *p, vec v, int64_t n)
{
    half_put(p, v, n);
    return half_to_vec(half_of_vec(v));
}

LOOPS_INLINE void half_widen(float *out, const uint16_t *x, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        vec_store(out + i, half_get(x + i, W));
    for (; i < n; i++) {
        const uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(out + i, &bits, sizeof(bits));
    }
}
