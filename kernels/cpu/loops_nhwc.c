/*
 * Batch norm over bfloat16 tensors with the channels innermost, a few rows at a time.
 *
 * Sums run in float: four rows are added as (0 + 1) + (2 + 3), then to what was there, for at most
 * CHUNK rows; chunks are added in double. The order does not depend on the vector width.
 * Statistics are taken of x - first row, as in loops_norm.c.
 */
#include "kernels/cpu/loops_nhwc.h"

#include "kernels/cpu/loops_half.h"

#define CHUNK 256
#define GROUP 4

static void flush(const float *from, double *to, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++)
        to[c] += (double)from[c];
}

static void clear(float *a, float *b, int64_t channels)
{
    memset(a, 0, sizeof(float) * (size_t)NHWC_PADDED(channels));
    memset(b, 0, sizeof(float) * (size_t)NHWC_PADDED(channels));
}

LOOPS_INLINE vec add_up(const vec *v, int count)
{
    return count == GROUP ? (v[0] + v[1]) + (v[2] + v[3]) : v[0];
}

LOOPS_INLINE void gather(float *to, const vec *v, int count)
{
    vec_store(to, vec_load(to) + add_up(v, count));
}

LOOPS_INLINE void stats_group(const uint16_t *x, int64_t channels, int count, const float *first,
                              float *sum, float *square)
{
    for (int64_t c = 0; c < channels; c += W) {
        const int64_t n = width_left(channels, c);
        vec v[GROUP], s[GROUP];
        for (int k = 0; k < count; k++) {
            v[k] = half_get(x + k * channels + c, n) - vec_load(first + c);
            s[k] = v[k] * v[k];
        }
        gather(sum + c, v, count);
        gather(square + c, s, count);
    }
}

static void nhwc_stats(const struct nhwc_shape *shape, const uint16_t *x, float *work, double *mean,
                       double *variance)
{
    const int64_t channels = shape->channels, padded = NHWC_PADDED(channels);
    float *first = work, *sum = work + padded, *square = work + 2 * padded;
    memset(first, 0, sizeof(float) * (size_t)padded);
    half_widen(first, x, (size_t)channels);
    for (int64_t c = 0; c < channels; c++)
        mean[c] = variance[c] = 0.0;
    for (int64_t r = 0; r < shape->rows; r += CHUNK) {
        const int64_t end = r + CHUNK < shape->rows ? r + CHUNK : shape->rows;
        int64_t at = r;
        clear(sum, square, channels);
        for (; at + GROUP <= end; at += GROUP)
            stats_group(x + at * channels, channels, GROUP, first, sum, square);
        for (; at < end; at++)
            stats_group(x + at * channels, channels, 1, first, sum, square);
        flush(sum, mean, channels);
        flush(square, variance, channels);
    }
    for (int64_t c = 0; c < channels; c++) {
        const double m = mean[c] / (double)shape->rows;
        const double v = variance[c] / (double)shape->rows - m * m;
        mean[c] = (double)first[c] + m;
        variance[c] = v < 0.0 ? 0.0 : v;
    }
}

LOOPS_INLINE void apply_all(const struct nhwc_shape *shape, const uint16_t *x,
                            const uint16_t *residual, uint16_t *y, const struct norm_affine *affine,
                            bool relu)
{
    const int64_t channels = shape->channels;
    /* Backwards: what stats read last is still in the cache. */
    for (int64_t r = shape->rows - 1; r >= 0; r--) {
        for (int64_t c = 0; c < channels; c += W) {
            const int64_t n = width_left(channels, c), at = r * channels + c;
            vec v =
                (half_get(x + at, n) - vec_load(affine->mean + c)) * vec_load(affine->scale + c) +
                vec_load(affine->shift + c);
            if (residual != NULL)
                v += half_get(residual + at, n);
            if (relu)
                v = vec_keep(v, v);
            half_put(y + at, v, n);
        }
    }
}

static void nhwc_apply(const struct nhwc_shape *shape, const uint16_t *x, const uint16_t *residual,
                       uint16_t *y, const struct norm_affine *affine, bool relu)
{
    if (residual != NULL && relu) {
        apply_all(shape, x, residual, y, affine, true);
    } else if (residual != NULL) {
        apply_all(shape, x, residual, y, affine, false);
    } else if (relu) {
        apply_all(shape, x, NULL, y, affine, true);
    } else {
        apply_all(shape, x, NULL, y, affine, false);
    }
}

/* The masked sum of the gradients of n channels, given x - mean there. */
LOOPS_INLINE vec masked(const struct nhwc_gradient *g, int64_t at, int64_t c, int64_t n,
                        vec centred, enum norm_mask mask, bool two)
{
    vec v = half_get(g->dout[0] + at, n);
    if (two)
        v += half_get(g->dout[1] + at, n);
    if (mask == NORM_MASK_INPUT) {
        v = vec_keep(v, centred * vec_load(g->affine.scale + c) + vec_load(g->affine.shift + c));
    } else if (mask == NORM_MASK_OUTPUT) {
        v = vec_keep(v, half_get(g->out + at, n));
    }
    return v;
}

struct sums_to {
    uint16_t *store; /* or NULL */
    float *sum, *dot;
};

LOOPS_INLINE void sums_group(const struct nhwc_gradient *g, int64_t row, int64_t channels,
                             int count, const struct sums_to *to, enum norm_mask mask, bool two)
{
    for (int64_t c = 0; c < channels; c += W) {
        const int64_t n = width_left(channels, c);
        vec s[GROUP], d[GROUP];
        for (int k = 0; k < count; k++) {
            const int64_t at = (row + k) * channels + c;
            const vec centred = half_get(g->x + at, n) - vec_load(g->affine.mean + c);
            s[k] = masked(g, at, c, n, centred, mask, two);
            if (to->store != NULL)
                s[k] = half_put_rounded(to->store + at, s[k], n);
            d[k] = s[k] * centred;
        }
        gather(to->sum + c, s, count);
        gather(to->dot + c, d, count);
    }
}

LOOPS_INLINE void sums_all(const struct nhwc_shape *shape, const struct nhwc_gradient *g,
                           const struct sums_to *to, double *const out[2], enum norm_mask mask,
                           bool two)
{
    const int64_t channels = shape->channels;
    for (int64_t r = 0; r < shape->rows; r += CHUNK) {
        const int64_t end = r + CHUNK < shape->rows ? r + CHUNK : shape->rows;
        int64_t at = r;
        clear(to->sum, to->dot, channels);
        for (; at + GROUP <= end; at += GROUP)
            sums_group(g, at, channels, GROUP, to, mask, two);
        for (; at < end; at++)
            sums_group(g, at, channels, 1, to, mask, two);
        flush(to->sum, out[0], channels);
        flush(to->dot, out[1], channels);
    }
}

static void nhwc_gradient_sums(const struct nhwc_shape *shape, const struct nhwc_gradient *g,
                               uint16_t *store, float *work, double *const out[2])
{
    const struct sums_to to = { .store = store,
                                .sum = work,
                                .dot = work + NHWC_PADDED(shape->channels) };
    const bool two = g->dout[1] != NULL;
    for (int64_t c = 0; c < shape->channels; c++)
        out[0][c] = out[1][c] = 0.0;
    if (g->mask == NORM_MASK_NONE && two) {
        sums_all(shape, g, &to, out, NORM_MASK_NONE, true);
    } else if (g->mask == NORM_MASK_NONE) {
        sums_all(shape, g, &to, out, NORM_MASK_NONE, false);
    } else if (g->mask == NORM_MASK_INPUT && two) {
        sums_all(shape, g, &to, out, NORM_MASK_INPUT, true);
    } else if (g->mask == NORM_MASK_INPUT) {
        sums_all(shape, g, &to, out, NORM_MASK_INPUT, false);
    } else if (two) {
        sums_all(shape, g, &to, out, NORM_MASK_OUTPUT, true);
    } else {
        sums_all(shape, g, &to, out, NORM_MASK_OUTPUT, false);
    }
}

LOOPS_INLINE void gradient_all(const struct nhwc_shape *shape, const struct nhwc_gradient *g,
                               const float *const by[3], uint16_t *dx, enum norm_mask mask,
                               bool two)
{
    const int64_t channels = shape->channels;
    for (int64_t r = shape->rows - 1; r >= 0; r--) {
        for (int64_t c = 0; c < channels; c += W) {
            const int64_t n = width_left(channels, c), at = r * channels + c;
            const vec centred = half_get(g->x + at, n) - vec_load(g->affine.mean + c);
            const vec d = masked(g, at, c, n, centred, mask, two);
            half_put(dx + at,
                     vec_load(by[0] + c) * d - vec_load(by[1] + c) * centred - vec_load(by[2] + c),
                     n);
        }
    }
}

static void nhwc_gradient_apply(const struct nhwc_shape *shape, const struct nhwc_gradient *g,
                                const float *const by[3], uint16_t *dx)
{
    const bool two = g->dout[1] != NULL;
    if (g->mask == NORM_MASK_NONE && two) {
        gradient_all(shape, g, by, dx, NORM_MASK_NONE, true);
    } else if (g->mask == NORM_MASK_NONE) {
        gradient_all(shape, g, by, dx, NORM_MASK_NONE, false);
    } else if (g->mask == NORM_MASK_INPUT && two) {
        gradient_all(shape, g, by, dx, NORM_MASK_INPUT, true);
    } else if (g->mask == NORM_MASK_INPUT) {
        gradient_all(shape, g, by, dx, NORM_MASK_INPUT, false);
    } else if (two) {
        gradient_all(shape, g, by, dx, NORM_MASK_OUTPUT, true);
    } else {
        gradient_all(shape, g, by, dx, NORM_MASK_OUTPUT, false);
    }
}

const struct nhwc_norm_loops LOOPS_TABLE(nhwc_norm_loops) = {
    .stats = nhwc_stats,
    .apply = nhwc_apply,
    .gradient_sums = nhwc_gradient_sums,
    .gradient_apply = nhwc_gradient_apply,
};
