/*
 * Vectors for the loops of text.h: elements of float32 or bfloat16 as vectors of float32, and
 * functions of them.
 *
 * Everything is inlined, and `half` is a constant wherever that matters. Reductions add vector i of
 * a row to part i mod PARTS, so that there are LANES sums whatever the width. vec_fma, and so
 * vec_exp, is fused with AVX-512 only: there the last bits differ from other instruction sets.
 */
#pragma once

#include "kernels/cpu/loops/half_simd.h"
#include "kernels/cpu/loops/text.h"

#define LANES LOOPS_LANES
#define PARTS (LANES / W) /* vectors of one group of LANES elements */

typedef half_wide uvec;

/* Elements [i, i + W) of an array. */
LOOPS_INLINE vec text_get(const void *p, size_t i, bool half)
{
    if (!half)
        return vec_load((const float *)p + i);
    return half_get((const uint16_t *)p + i, W);
}

LOOPS_INLINE void text_put(void *p, size_t i, vec v, bool half)
{
    if (!half) {
        vec_store((float *)p + i, v);
        return;
    }
    half_put((uint16_t *)p + i, v, W);
}

/* Elements [i, i + count), count <= W; the others read as 0. */
LOOPS_INLINE vec text_get_part(const void *p, size_t i, size_t count, bool half)
{
    if (!half)
        return vec_load_part((const float *)p + i, count);
    return half_get((const uint16_t *)p + i, (int64_t)count);
}

LOOPS_INLINE void text_put_part(void *p, size_t i, size_t count, vec v, bool half)
{
    if (!half) {
        vec_store_part((float *)p + i, v, count);
        return;
    }
    half_put((uint16_t *)p + i, v, (int64_t)count);
}

/* Elements from i on: W, or what there is up to n. */
LOOPS_INLINE vec text_get_some(const void *p, size_t i, size_t n, bool half)
{
    return n - i >= W ? text_get(p, i, half) : text_get_part(p, i, n - i, half);
}

LOOPS_INLINE void text_put_some(void *p, size_t i, size_t n, vec v, bool half)
{
    if (n - i >= W) {
        text_put(p, i, v, half);
    } else {
        text_put_part(p, i, n - i, v, half);
    }
}

LOOPS_INLINE vec vec_max(vec a, vec b)
{
    return vec_choose(a > b, a, b);
}

/* a·b + c */
LOOPS_INLINE vec vec_fma(vec a, vec b, vec c)
{
#if LOOPS_WIDTH == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    return a * b + c;
#endif
}

/* e^r for |r| <= ln 2 / 2. Source: Cephes' expf. */
LOOPS_INLINE vec exp_near_zero(vec r)
{
    vec p = vec_set(1.9875691500e-4f);
    p = vec_fma(p, r, vec_set(1.3981999507e-3f));
    p = vec_fma(p, r, vec_set(8.3334519073e-3f));
    p = vec_fma(p, r, vec_set(4.1665795894e-2f));
    p = vec_fma(p, r, vec_set(1.6666665459e-1f));
    p = vec_fma(p, r, vec_set(5.0000001201e-1f));
    p = vec_fma(p, r * r, r);
    return p + vec_set(1.0f);
}

/*
 * e^x = 2ⁿ·e^r with x = n·ln 2 + r; the relative error is below 2e-7. It is 0 where it would be
 * denormal, and at least e^88.3 from x = 88.3 on. NaN stays NaN.
 */
LOOPS_INLINE vec vec_exp(vec x)
{
    const vec log2e = vec_set(1.44269504f);
    const vec high = vec_set(-0.693359375f), low = vec_set(2.12194440e-4f); /* -ln 2 */
#if LOOPS_WIDTH == 16
    /* Minimum and maximum return the second operand where one is NaN. */
    const __m512 bounded =
        _mm512_min_ps(_mm512_set1_ps(104.0f), _mm512_max_ps(_mm512_set1_ps(-104.0f), (__m512)x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(bounded, (__m512)log2e),
                                          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const vec r = vec_fma((vec)n, low, vec_fma((vec)n, high, (vec)bounded));
    return (vec)_mm512_scalef_ps((__m512)exp_near_zero(r), n);
#else
    const ivec none = x < vec_set(-87.3f);
    x = vec_choose(x > vec_set(88.3f), vec_set(88.3f), x);
    x = vec_choose(none, vec_set(-87.3f), x);
    const vec magic = vec_set(12582912.0f); /* 1.5·2^23: its ulp is 1 */
    const vec shifted = x * log2e + magic;
    const vec n = shifted - magic;
    const vec r = vec_fma(n, low, vec_fma(n, high, x));
    const ivec power = (vec_bits(shifted) - vec_bits(magic) + 127) << 23;
    return vec_of_bits(vec_bits(exp_near_zero(r) * vec_of_bits(power)) & ~none);
#endif
}

/* The LANES sums become one by a tree: lane l takes l + 8, then l + 4, l + 2, l + 1. */
LOOPS_INLINE float lanes_sum(const vec part[PARTS])
{
    float lane[LANES];
    memcpy(lane, part, sizeof(lane));
    for (size_t l = 0; l < 8; l++)
        lane[l] += lane[l + 8];
    for (size_t l = 0; l < 4; l++)
        lane[l] += lane[l + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

LOOPS_INLINE float lanes_max(const vec part[PARTS])
{
    float lane[LANES];
    memcpy(lane, part, sizeof(lane));
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++)
            lane[l] = lane[l] > lane[l + half] ? lane[l] : lane[l + half];
    }
    return lane[0];
}
