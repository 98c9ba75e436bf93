/*
 * Loops over bfloat16 tensors with the channels innermost, and over flat bfloat16 arrays; compiled
 * once per instruction set from loops_nhwc.c and loops_half.c (loops.h has the rules).
 *
 * A tensor is `rows` rows (samples and positions, in order) of `channels` elements. Arrays per
 * channel are float32 or double, NHWC_PADDED(channels) long, and zero or anything finite beyond the
 * last channel.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/loops/loops.h"

#define NHWC_PADDED(channels)                                                                      \
    (((channels) + LOOPS_WIDTH_MAX - 1) / LOOPS_WIDTH_MAX * LOOPS_WIDTH_MAX)

/* What batch norm's backward passes read; see struct norm_gradient. */
struct nhwc_gradient {
    const uint16_t *x;
    const uint16_t *dout[2]; /* dout[1] may be NULL */
    const uint16_t *out;     /* for NORM_MASK_OUTPUT, else NULL */
    enum norm_mask mask;
    struct norm_affine affine;
};

struct nhwc_shape {
    int64_t rows, channels;
};

struct nhwc_norm_loops {
    /* Mean and biased variance of each channel, one read of x. work: 3 arrays of floats. */
    void (*stats)(const struct nhwc_shape *shape, const uint16_t *x, float *work, double *mean,
                  double *variance);
    /* y = (x - mean)·scale + shift (+ residual), then relu. */
    void (*apply)(const struct nhwc_shape *shape, const uint16_t *x, const uint16_t *residual,
                  uint16_t *y, const struct norm_affine *affine, bool relu);
    /* With g = masked sum of the douts, rounded if it is stored: sum[c] = Σ g,
     * dot[c] = Σ g·(x - mean). work: 2 arrays of floats. */
    void (*gradient_sums)(const struct nhwc_shape *shape, const struct nhwc_gradient *gradient,
                          uint16_t *store, float *work, double *const out[2]);
    /* dx = by[0]·g - by[1]·(x - mean) - by[2]. */
    void (*gradient_apply)(const struct nhwc_shape *shape, const struct nhwc_gradient *gradient,
                           const float *const by[3], uint16_t *dx);
};

struct nhwc_loops {
    /* One sample: y and the winning window index of each element, laid out like y. index may be
     * NULL. shape->step: the channels. */
    void (*max)(const struct pool_shape *shape, const uint16_t *x, uint16_t *y, uint8_t *index);
    void (*max_backward)(const struct pool_shape *shape, const uint16_t *dy, const uint8_t *index,
                         uint16_t *dx);
    /* One sample: y[c] = mean over the rows; dx = dy[c] / rows everywhere. */
    void (*average)(const struct nhwc_shape *shape, const uint16_t *x, float *y);
    void (*average_backward)(const struct nhwc_shape *shape, const float *dy, uint16_t *dx);
    /* Flat arrays of n. out may be x or y. */
    void (*add)(uint16_t *out, const uint16_t *x, const uint16_t *y, size_t n);
    void (*relu)(uint16_t *out, const uint16_t *x, size_t n);
    void (*relu_backward)(uint16_t *din, const uint16_t *a, const uint16_t *b, const uint16_t *out,
                          size_t n); /* b may be NULL */
    void (*narrow)(uint16_t *out, const float *x, size_t n);
    void (*widen)(float *out, const uint16_t *x, size_t n);
};

extern const struct nhwc_norm_loops nhwc_norm_loops_base, nhwc_norm_loops_avx2,
    nhwc_norm_loops_avx512, nhwc_norm_loops_avx512bf16;
extern const struct nhwc_loops nhwc_loops_base, nhwc_loops_avx2, nhwc_loops_avx512,
    nhwc_loops_avx512bf16;
