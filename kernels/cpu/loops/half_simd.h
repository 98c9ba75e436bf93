/*
 * bfloat16 elements as vectors of float32, for the loops over them.
 *
 * Rounding is to the nearest, ties to even; a NaN stays one. With AVX512-BF16 denormal results are
 * zero, as in all arithmetic of the backend.
 */
#pragma once

#include "kernels/cpu/loops/simd.h"

typedef uint32_t half_wide __attribute__((vector_size(4 * LOOPS_WIDTH)));

#if LOOPS_WIDTH == 16
typedef __m256i half_vec;
#elif LOOPS_WIDTH == 8
typedef __m128i half_vec;
#else
typedef uint16_t half_vec __attribute__((vector_size(2 * LOOPS_WIDTH)));
#endif

/* Returns the number of a vector's elements at `at`, out of `count`. */
LOOPS_INLINE int64_t width_left(int64_t count, int64_t at)
{
    return count - at < W ? count - at : W;
}

LOOPS_INLINE vec half_to_vec(half_vec h)
{
#if LOOPS_WIDTH == 16
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
#elif LOOPS_WIDTH == 8
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
#else
    return vec_of_bits((ivec)(__builtin_convertvector(h, half_wide) << 16));
#endif
}

LOOPS_INLINE half_vec half_of_vec(vec v)
{
#ifdef __AVX512BF16__
    return (half_vec)_mm512_cvtneps_pbh((__m512)v);
#else
    const half_wide bits = (half_wide)vec_bits(v);
    const half_wide rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const half_wide nan = (half_wide)(v != v); /* NOLINT(misc-redundant-expression) */
    const half_wide out = (rounded & ~nan) | ((bits | 0x400000u) & nan);
#if LOOPS_WIDTH == 16
    return _mm512_cvtepi32_epi16((__m512i)(out >> 16));
#elif LOOPS_WIDTH == 8
    const __m256i packed = _mm256_packus_epi32((__m256i)(out >> 16), _mm256_setzero_si256());
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
    return __builtin_convertvector(out >> 16, half_vec);
#endif
#endif
}

/* n elements, n <= W; those that are not there read as 0. */
LOOPS_INLINE vec half_get(const uint16_t *p, int64_t n)
{
    half_vec h;
    if (n == W) {
        memcpy(&h, p, sizeof(h));
    } else {
        uint16_t part[W] = { 0 };
        memcpy(part, p, sizeof(*p) * (size_t)n);
        memcpy(&h, part, sizeof(h));
    }
    return half_to_vec(h);
}

LOOPS_INLINE void half_put_bits(uint16_t *p, half_vec h, int64_t n)
{
    if (n == W) {
        memcpy(p, &h, sizeof(h));
    } else {
        uint16_t part[W];
        memcpy(part, &h, sizeof(h));
        memcpy(p, part, sizeof(*p) * (size_t)n);
    }
}

LOOPS_INLINE void half_put(uint16_t *p, vec v, int64_t n)
{
    half_put_bits(p, half_of_vec(v), n);
}

/* Writes v as vec_put does, and returns the written halves. With `stream` n is W, and p aligned to
 * the vector. */
LOOPS_INLINE half_vec half_put_to(uint16_t *p, vec v, int64_t n, bool stream)
{
    const half_vec h = half_of_vec(v);
#if LOOPS_WIDTH == 16
    if (stream) {
        _mm256_stream_si256((__m256i *)(void *)p, h);
        return h;
    }
#elif LOOPS_WIDTH == 8
    if (stream) {
        _mm_stream_si128((__m128i *)(void *)p, h);
        return h;
    }
#endif
    (void)stream;
    half_put_bits(p, h, n);
    return h;
}

LOOPS_INLINE void half_widen(float *out, const uint16_t *x, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        vec_store(out + i, half_get(x + i, W));
    if (i < n)
        vec_store_part(out + i, half_get(x + i, (int64_t)(n - i)), n - i);
}
