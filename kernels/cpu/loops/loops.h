/*
 * Loops over elements, compiled once per instruction set from the same sources (CMakeLists.txt) and
 * chosen when the backend opens. No contraction and no reassociation: an element's bits depend on
 * the order written here, which is the same in every one of them, except where a function says
 * otherwise.
 *
 * A strip is `width` neighbouring channels of a 4-dim tensor in plain (width 1) or blocked format:
 * for sample i and position j (over H and W) they lie at i·plane + j·step, width floats together.
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
    int64_t step;  /* floats from one position to the next; a multiple of width */
    bool stream;   /* results go past the caches; they are aligned to the vector */
};

/* Where relu's derivative comes from. */
enum norm_mask {
    NORM_MASK_NONE,
    NORM_MASK_INPUT,  /* (x - mean)·scale + shift > 0, recomputed */
    NORM_MASK_OUTPUT, /* out > 0 */
};

/* Per-channel arrays of `width` floats; see batch_norm.c for the formulas. */
struct norm_affine {
    const float *mean, *scale, *shift;
};

struct norm_gradient {
    const float *x;
    const float *dout[2]; /* dout[1] may be NULL */
    const float *out;     /* for NORM_MASK_OUTPUT, else NULL */
    enum norm_mask mask;
    struct norm_affine affine;
};

struct norm_loops {
    int width;
    /* Mean and biased variance of each channel, one read of x. */
    void (*stats)(const struct strip *strip, const float *x, double *mean, double *variance);
    /* y = (x - mean)·scale + shift (+ residual), then relu. */
    void (*apply)(const struct strip *strip, const float *x, const float *residual, float *y,
                  const struct norm_affine *affine, bool relu);
    /* With g = masked sum of the douts: sum[c] = Σ g, dot[c] = Σ g·(x - mean); g is stored if
     * wanted. */
    void (*gradient_sums)(const struct strip *strip, const struct norm_gradient *gradient,
                          float *store, double *sum, double *dot);
    /* dx = by_g·g - by_x·(x - mean) - constant. */
    void (*gradient_apply)(const struct strip *strip, const struct norm_gradient *gradient,
                           const float *const by[3], float *dx);
};

struct pool_shape {
    int64_t h, w, p, q; /* input and output positions */
    int64_t step;       /* floats from one position to the next */
    int kernel, stride, pad;
};

struct pool_loops {
    int width;
    /* One plane: y and the winning window index of each element (uint8, laid out like y). */
    void (*max)(const struct pool_shape *shape, const float *x, float *y, uint8_t *index);
    void (*max_backward)(const struct pool_shape *shape, const float *dy, const uint8_t *index,
                         float *dx);
    /* y[c] = mean of the plane; dx = dy[c] / (h·w) everywhere. */
    void (*average)(const struct pool_shape *shape, const float *x, float *y);
    void (*average_backward)(const struct pool_shape *shape, const float *dy, float *dx);
};

struct flat_loops {
    void (*add)(float *out, const float *x, const float *y, size_t n);
    void (*fill)(float *out, float value, size_t n);
    void (*relu)(float *out, const float *x, size_t n);
    /* din = (a + b) where out > 0, else 0; b may be NULL, out may be NULL (no mask). */
    void (*relu_backward)(float *din, const float *a, const float *b, const float *out, size_t n);
    /* Sum of squares: lane i mod 16 in double, then the 16 lanes by a tree. */
    double (*square_sum)(const float *x, size_t n);
    /* out[r][c] = relu?(out[r][c] + bias[c]); bias may be NULL. */
    void (*bias_relu)(float *out, const float *bias, size_t rows, size_t columns, bool relu);
    /* out[c] (+)= Σ over rows in order, in double. */
    void (*column_sums)(float *out, const float *x, size_t rows, size_t columns, bool accumulate);
    /* As torch.optim.SGD and torch.optim.AdamW; the arrays do not overlap. */
    void (*sgd)(float *param, float *momentum, const float *grad, size_t n,
                const struct sgd_args *args);
    void (*adamw)(float *param, float *m, float *v, const float *grad, size_t n,
                  const struct adamw_args *args);
};

struct nhwc_norm_loops; /* loops_nhwc.h */
struct nhwc_loops;

struct text_loops; /* loops_text.h */

struct loops {
    const struct text_loops *text;
    const struct norm_loops *norm_plain, *norm_blocked;
    const struct pool_loops *pool_plain, *pool_blocked;
    const struct flat_loops *flat;
    const struct nhwc_norm_loops *nhwc_norm;
    const struct nhwc_loops *nhwc;
    const char *name; /* "avx512", "avx2", "base": a pin */
};

extern const struct norm_loops norm_loops_scalar, norm_loops_base, norm_loops_avx2,
    norm_loops_avx512;
extern const struct pool_loops pool_loops_scalar, pool_loops_base, pool_loops_avx2,
    pool_loops_avx512;
extern const struct flat_loops flat_loops_base, flat_loops_avx2, flat_loops_avx512;
