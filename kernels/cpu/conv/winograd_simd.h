/*
 * Code that forward and the weights' gradient share: vectors, places of tiles, the transform of
 * inputs (winograd.h has the matrices). A vector is 16 channels of one pixel.
 *
 * Included by winograd_*avx512.c only, which are compiled for AVX-512.
 */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu/conv/winograd.h"

#define TILE  INT64_C(4) /* outputs of a tile, per direction */
#define PATCH INT64_C(6) /* inputs that it sees */
#define LANES INT64_C(16)

#define POINT_A 0.625f
#define POINT_B 1.5f
#define A2      (POINT_A * POINT_A)
#define B2      (POINT_B * POINT_B)

/* Loops over accumulators are unrolled whole, so that these are registers. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define INLINE static inline __attribute__((always_inline))

typedef __m512 vec;

INLINE vec splat(float x)
{
    return _mm512_set1_ps(x);
}

/* madd: a·b + c; nmadd: c - a·b */
INLINE vec madd(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vec nmadd(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* out = Bᵀ d. Two rows at a time share their even and their odd part. */
INLINE void patch_transform(const vec d[PATCH], vec out[PATCH])
{
    const vec product = splat(A2 * B2), sum = splat(A2 + B2);
    const vec even_a = nmadd(splat(B2), d[2], d[4]), odd_a = nmadd(splat(B2), d[1], d[3]);
    const vec even_b = nmadd(splat(A2), d[2], d[4]), odd_b = nmadd(splat(A2), d[1], d[3]);
    out[0] = madd(product, d[0], nmadd(sum, d[2], d[4]));
    out[1] = madd(splat(POINT_A), odd_a, even_a);
    out[2] = nmadd(splat(POINT_A), odd_a, even_a);
    out[3] = madd(splat(POINT_B), odd_b, even_b);
    out[4] = nmadd(splat(POINT_B), odd_b, even_b);
    out[5] = madd(product, d[1], nmadd(sum, d[3], d[5]));
}

INLINE struct winograd_map tiles_map(int64_t n, int64_t h, int64_t w)
{
    struct winograd_map map = { .h = h, .w = w };
    map.tiles_h = (h + TILE - 1) / TILE;
    map.tiles_w = (w + TILE - 1) / TILE;
    map.tiles = n * map.tiles_h * map.tiles_w;
    return map;
}

/* Floats from one place's plane to the next; the odd vector keeps the planes off one cache set. */
INLINE int64_t plane_floats(int64_t tile_block, int64_t channels)
{
    return channels * tile_block + LANES;
}

/* Position of a tile. */
struct tile_place {
    int64_t n, h, w; /* sample; first output row and column */
};

INLINE struct tile_place tile_place_of(const struct winograd_map *w, int64_t tile)
{
    const int64_t in_sample = tile % (w->tiles_h * w->tiles_w);
    return (struct tile_place){ .n = tile / (w->tiles_h * w->tiles_w),
                                .h = in_sample / w->tiles_w * TILE,
                                .w = in_sample % w->tiles_w * TILE };
}

/* Bᵀ d B of a tile, its place ξ to v + ξ·plane. x: the plane of 16 channels that d is cut from. */
INLINE void tile_in(const struct winograd_map *w, const float *x, struct tile_place p, float *v,
                    int64_t plane)
{
    vec half[PATCH][PATCH]; /* [row place][column of the patch] */
    for (int j = 0; j < PATCH; j++) {
        const int64_t column = p.w - 1 + j;
        vec d[PATCH], t[PATCH];
        for (int i = 0; i < PATCH; i++) {
            const int64_t row = p.h - 1 + i;
            const bool inside = row >= 0 && row < w->h && column >= 0 && column < w->w;
            d[i] =
                inside ? _mm512_loadu_ps(x + (row * w->w + column) * LANES) : _mm512_setzero_ps();
        }
        patch_transform(d, t);
        for (int i = 0; i < PATCH; i++)
            half[i][j] = t[i];
    }
    for (int i = 0; i < PATCH; i++) {
        vec t[PATCH];
        patch_transform(half[i], t);
        for (int j = 0; j < PATCH; j++)
            _mm512_storeu_ps(v + (i * PATCH + j) * plane, t[j]);
    }
}
