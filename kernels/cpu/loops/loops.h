/*
 * Loops over elements. The same sources are compiled once per instruction set (CMakeLists.txt),
 * into tables of functions; the backend chooses a table of each kind when it opens.
 *
 *   norm_loops, pool_loops, flat_loops    float32; this header
 *   half_norm_loops, half_loops           bfloat16, channels innermost; half.h
 *   text_loops                            float32 or bfloat16, rows; text.h
 *
 * No contraction and no reassociation: an element's bits depend on the order of operations written
 * here, which is the same in all tables, except where a function says otherwise.
 *
 * A strip is `width` neighbouring channels of an image tensor, plain (width 1) or blocked. Those of
 * sample i at position j (over H and W) lie together, at i·plane + j·pitch:
 *
 *   plain     [N, C, H, W]         plane = C·H·W    pitch = 1
 *   blocked   [N, C/B, H, W, B]    plane = C·H·W    pitch = B    C: rounded up to blocks
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

#define LOOPS_WIDTH_MAX 16

struct strip {
    int64_t n;     /* samples */
    int64_t hw;    /* positions of a sample */
    int64_t plane; /* floats from one sample to the next */
    int64_t pitch; /* floats from one position to the next; a multiple of width */
    bool stream;   /* results go past the caches; they are aligned to the vector */
};

/* Source of relu's derivative. */
enum norm_mask {
    NORM_MASK_NONE,
    NORM_MASK_INPUT,  /* (x - mean)·scale + shift > 0, recomputed */
    NORM_MASK_OUTPUT, /* out > 0 */
};

/* Values of each channel, `width` floats; kernels/cpu/ops/batch_norm.c has the formulas. */
struct norm_affine {
    const float *mean, *scale, *shift;
};

/* Inputs of backward's two passes. g = dout[0] (+ dout[1]), or 0 where the mask says so. */
struct norm_gradient {
    const float *x;
    const float *dout[2]; /* dout[1] may be NULL */
    const float *out;     /* for NORM_MASK_OUTPUT, else NULL */
    enum norm_mask mask;
    struct norm_affine affine;
};

struct norm_loops {
    int width;
    /* Mean and biased variance of each channel. x is read once. */
    void (*stats)(const struct strip *strip, const float *x, double *mean, double *variance);
    /* y = (x - mean)·scale + shift (+ residual), then relu. */
    void (*apply)(const struct strip *strip, const float *x, const float *residual, float *y,
                  const struct norm_affine *affine, bool relu);
    /* sum[c] = Σ g, dot[c] = Σ g·(x - mean). g goes to store, unless that is NULL. */
    void (*gradient_sums)(const struct strip *strip, const struct norm_gradient *gradient,
                          float *store, double *sum, double *dot);
    /* dx = by[0]·g - by[1]·(x - mean) - by[2]. */
    void (*gradient_apply)(const struct strip *strip, const struct norm_gradient *gradient,
                           const float *const by[3], float *dx);
};

struct pool_shape {
    int64_t h, w, p, q; /* input and output positions */
    int64_t pitch;      /* floats from one position to the next */
    int kernel, stride, pad;
};

struct pool_loops {
    int width;
    /* Pools one strip of a sample: writes y and, for each element of y, the place in its window
     * that won (row by row from 0; laid out like y). index may be NULL. */
    void (*max)(const struct pool_shape *shape, const float *x, float *y, uint8_t *index);
    void (*max_backward)(const struct pool_shape *shape, const float *dy, const uint8_t *index,
                         float *dx);
    /* y[c] = mean over the positions; dx = dy[c] / (h·w) at all of them. */
    void (*average)(const struct pool_shape *shape, const float *x, float *y);
    void (*average_backward)(const struct pool_shape *shape, const float *dy, float *dx);
};

struct flat_loops {
    void (*add)(float *out, const float *x, const float *y, size_t n);
    void (*fill)(float *out, float value, size_t n);
    void (*relu)(float *out, const float *x, size_t n);
    /* din = out > 0 ? a + b : 0. Without b (NULL) it is a alone, without out (NULL) not masked. */
    void (*relu_backward)(float *din, const float *a, const float *b, const float *out, size_t n);
    /* Σ x²: element i is added, in double, to lane i mod 16; a tree adds the 16 lanes. */
    double (*square_sum)(const float *x, size_t n);
    /* The sum of mix_word over up to PIECE_ELEMENTS words. */
    uint64_t (*checksum)(const float *x, size_t n);
    /* out[r][c] = relu?(out[r][c] + bias[c]); bias may be NULL. */
    void (*bias_relu)(float *out, const float *bias, size_t rows, size_t columns, bool relu);
    /* out[c] (+)= Σ over rows in order, in double. */
    void (*column_sums)(float *out, const float *x, size_t rows, size_t columns, bool accumulate);
    /* Updates (struct vector_table); the arrays do not overlap. */
    void (*sgd)(float *param, float *momentum, const float *grad, size_t n,
                const struct sgd_args *args);
    void (*adamw)(float *param, float *m, float *v, const float *grad, size_t n,
                  const struct adamw_args *args);
    void (*lion)(float *param, float *m, const float *grad, size_t n, const struct lion_args *args);
    void (*lamb)(const float *param, float *m, float *v, float *grad, size_t n,
                 const struct adamw_args *args);
};

struct half_norm_loops; /* half.h */
struct half_loops;
struct text_loops; /* text.h */

struct loops {
    const struct text_loops *text;
    const struct norm_loops *norm_plain, *norm_blocked;
    const struct pool_loops *pool_plain, *pool_blocked;
    const struct flat_loops *flat;
    const struct half_norm_loops *half_norm;
    const struct half_loops *half;
    const char *name; /* "avx512", "avx2" or "base": one of the backend's pins */
};

extern const struct norm_loops norm_loops_scalar, norm_loops_base, norm_loops_avx2,
    norm_loops_avx512;
extern const struct pool_loops pool_loops_scalar, pool_loops_base, pool_loops_avx2,
    pool_loops_avx512;
extern const struct flat_loops flat_loops_base, flat_loops_avx2, flat_loops_avx512;
