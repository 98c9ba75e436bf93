/*
 * Loops over bfloat16 tensors with the channels innermost, and over flat bfloat16 arrays (loops.h
 * has the rules).
 *
 * A tensor is `rows` rows of `channels` elements; a row is a position of a sample. Arrays per
 * channel are float32 or double and HALF_PADDED(channels) long; beyond the last channel they hold
 * zero or any other finite value.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/loops/loops.h"

#define HALF_PADDED(channels)                                                                      \
    (((channels) + LOOPS_WIDTH_MAX - 1) / LOOPS_WIDTH_MAX * LOOPS_WIDTH_MAX)

/* The bfloat16 counterpart of struct norm_gradient. */
struct half_gradient {
    const uint16_t *x;
    const uint16_t *dout[2]; /* dout[1] may be NULL */
    const uint16_t *out;     /* for NORM_MASK_OUTPUT, else NULL */
    enum norm_mask mask;
    bool rounded; /* the sums are of the rounded g, though it isn't stored */
    struct norm_affine affine;
};

struct half_shape {
    int64_t rows, channels;
};

struct half_norm_loops {
    /* Mean and biased variance of each channel. x is read once. work: 3 arrays of floats. */
    void (*stats)(const struct half_shape *shape, const uint16_t *x, float *work, double *mean,
                  double *variance);
    /* y = (x - mean)·scale + shift (+ residual), then relu. */
    void (*apply)(const struct half_shape *shape, const uint16_t *x, const uint16_t *residual,
                  uint16_t *y, const struct norm_affine *affine, bool relu);
    /* out[0][c] = Σ g, out[1][c] = Σ g·(x - mean). g goes to store, unless that is NULL; then, and
     * where it is said, the sums are of the rounded g. work: 2 arrays of floats. */
    void (*gradient_sums)(const struct half_shape *shape, const struct half_gradient *gradient,
                          uint16_t *store, float *work, double *const out[2]);
    /* dx = by[0]·g - by[1]·(x - mean) - by[2]. */
    void (*gradient_apply)(const struct half_shape *shape, const struct half_gradient *gradient,
                           const float *const by[3], uint16_t *dx);
};

struct half_loops {
    /* Pool one sample, like struct pool_loops; shape->pitch is the number of channels. */
    void (*max)(const struct pool_shape *shape, const uint16_t *x, uint16_t *y, uint8_t *index);
    void (*max_backward)(const struct pool_shape *shape, const uint16_t *dy, const uint8_t *index,
                         uint16_t *dx);
    /* Pool one sample: y[c] = mean over the rows; dx = dy[c] / rows in all of them. */
    void (*average)(const struct half_shape *shape, const uint16_t *x, float *y);
    void (*average_backward)(const struct half_shape *shape, const float *dy, uint16_t *dx);
    /* Flat arrays of n. out may be x or y. */
    void (*add)(uint16_t *out, const uint16_t *x, const uint16_t *y, size_t n);
    void (*relu)(uint16_t *out, const uint16_t *x, size_t n);
    void (*relu_backward)(uint16_t *din, const uint16_t *a, const uint16_t *b, const uint16_t *out,
                          size_t n); /* b may be NULL */
    void (*narrow)(uint16_t *out, const float *x, size_t n);
    void (*widen)(float *out, const uint16_t *x, size_t n);
};

extern const struct half_norm_loops half_norm_loops_base, half_norm_loops_avx2,
    half_norm_loops_avx512, half_norm_loops_avx512bf16;
extern const struct half_loops half_loops_base, half_loops_avx2, half_loops_avx512,
    half_loops_avx512bf16;
