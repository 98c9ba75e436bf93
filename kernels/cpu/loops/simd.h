/*
 * Vectors of LOOPS_WIDTH floats for the loops, in GCC's vector extension (clang has it, too).
 *
 * Given per compilation:
 *
 *   LOOPS_WIDTH     1        4      8      16
 *   LOOPS_SUFFIX    scalar   base   avx2   avx512, avx512bf16
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if LOOPS_WIDTH >= 8
#include <immintrin.h>
#endif

#define LOOPS_JOIN_(a, b) a##_##b
#define LOOPS_JOIN(a, b)  LOOPS_JOIN_(a, b)
#define LOOPS_TABLE(kind) LOOPS_JOIN(kind, LOOPS_SUFFIX)

#define W LOOPS_WIDTH

#define LOOPS_INLINE static inline __attribute__((always_inline))

#if LOOPS_WIDTH == 1
typedef float vec;
typedef int32_t ivec;
#else
typedef float vec __attribute__((vector_size(4 * LOOPS_WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * LOOPS_WIDTH)));
#endif

LOOPS_INLINE vec vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof(v));
    return v;
}

LOOPS_INLINE void vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof(v));
}

/* n elements, n <= W; those that are not there read as 0. */
LOOPS_INLINE vec vec_load_part(const float *p, size_t n)
{
    float part[W] = { 0 };
    memcpy(part, p, sizeof(*p) * n);
    return vec_load(part);
}

LOOPS_INLINE void vec_store_part(float *p, vec v, size_t n)
{
    float part[W];
    vec_store(part, v);
    memcpy(p, part, sizeof(*p) * n);
}

/* Stores v. With `stream` it goes past the caches, which pays where they are filled with other
 * things before it is read. p is then aligned to the vector, and vec_put_end comes before the
 * reading. */
LOOPS_INLINE void vec_put(float *p, vec v, bool stream)
{
#if LOOPS_WIDTH == 16
    if (stream) {
        _mm512_stream_ps(p, (__m512)v);
        return;
    }
#elif LOOPS_WIDTH == 8
    if (stream) {
        _mm256_stream_ps(p, (__m256)v);
        return;
    }
#endif
    (void)stream;
    vec_store(p, v);
}

LOOPS_INLINE void vec_put_end(void)
{
#if LOOPS_WIDTH >= 8
    _mm_sfence();
#endif
}

LOOPS_INLINE vec vec_set(float value)
{
#if LOOPS_WIDTH == 1
    return value;
#else
    return value - (vec){ 0 };
#endif
}

/* Compares; all bits of an element are set where the comparison holds. */
LOOPS_INLINE ivec vec_not_above(vec a, vec b)
{
#if LOOPS_WIDTH == 1
    return -(a <= b);
#else
    return a <= b;
#endif
}

LOOPS_INLINE ivec vec_same_index(ivec a, int32_t b)
{
#if LOOPS_WIDTH == 1
    return -(a == b);
#else
    return a == b;
#endif
}

LOOPS_INLINE ivec vec_is_nan(vec a)
{
#if LOOPS_WIDTH == 1
    return -(__builtin_isnan(a) != 0);
#else
    return ~((a <= vec_set(0.0f)) | (a >= vec_set(0.0f)));
#endif
}

LOOPS_INLINE ivec vec_bits(vec v)
{
    ivec bits;
    memcpy(&bits, &v, sizeof(bits));
    return bits;
}

LOOPS_INLINE vec vec_of_bits(ivec bits)
{
    vec v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}

/* v, or 0 where by <= 0. A NaN in `by` keeps v, so that relu passes NaN on. */
LOOPS_INLINE vec vec_keep(vec v, vec by)
{
    return vec_of_bits(vec_bits(v) & ~vec_not_above(by, vec_set(0.0f)));
}

/* a where the mask is set, else b. */
LOOPS_INLINE vec vec_choose(ivec mask, vec a, vec b)
{
    return vec_of_bits((vec_bits(a) & mask) | (vec_bits(b) & ~mask));
}
