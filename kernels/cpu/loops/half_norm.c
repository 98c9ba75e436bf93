/*
 * Batch norm over bfloat16 tensors with the channels innermost, GROUP rows at a time.
 *
 * Sums are float32 over at most CHUNK rows: four rows are added as (0 + 1) + (2 + 3), then to what
 * was there. They are double over the chunks. So the order does not depend on the width of the
 * vectors.
 *
 * Statistics are taken of x - the first row, as in norm.c.
 */
#include "kernels/cpu/loops/half.h"
#include "kernels/cpu/loops/half_simd.h"

#define CHUNK      256
#define GROUP      4
#define AHEAD      2048       /* elements that are fetched ahead of the sweep */
#define STREAM_MIN (4u << 20) /* bytes; what is larger has left the caches before it is read */

static void half_flush(const float *from, double *to, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++)
        to[c] += (double)from[c];
}

static void half_clear(float *a, float *b, int64_t channels)
{
    memset(a, 0, sizeof(float) * (size_t)HALF_PADDED(channels));
    memset(b, 0, sizeof(float) * (size_t)HALF_PADDED(channels));
}

/* Whether a tensor is written past the caches; its rows are whole cache lines then. */
static bool streams(const struct half_shape *shape)
{
    return shape->channels % 32 == 0 &&
           sizeof(uint16_t) * (size_t)(shape->rows * shape->channels) >= STREAM_MIN;
}

/* n elements; what lies `ahead` of them (negative where the sweep goes backwards) is fetched, which
 * processors do by themselves within pages only. */
LOOPS_INLINE vec get_ahead(const uint16_t *p, int64_t n, int64_t ahead)
{
    __builtin_prefetch(p + ahead, 0, 3);
    return half_get(p, n);
}

LOOPS_INLINE void half_add_group(float *to, const vec *v, int count)
{
    const vec sum = count == GROUP ? (v[0] + v[1]) + (v[2] + v[3]) : v[0];
    vec_store(to, vec_load(to) + sum);
}

/* --- statistics ------------------------------------------------------------------------------ */

/* n channels, from x on, of `count` rows. */
LOOPS_INLINE void stats_part(const uint16_t *x, int64_t channels, int64_t n, int count,
                             const float *first, float *sum, float *square)
{
    const vec base = vec_load(first);
    vec v[GROUP], s[GROUP];
    for (int k = 0; k < count; k++) {
        v[k] = get_ahead(x + k * channels, n, AHEAD) - base;
        s[k] = v[k] * v[k];
    }
    half_add_group(sum, v, count);
    half_add_group(square, s, count);
}

LOOPS_INLINE void stats_rows(const uint16_t *x, int64_t channels, int count, const float *first,
                             float *sum, float *square)
{
    int64_t c = 0;
    for (; c + W <= channels; c += W)
        stats_part(x + c, channels, W, count, first + c, sum + c, square + c);
    if (c < channels)
        stats_part(x + c, channels, channels - c, count, first + c, sum + c, square + c);
}

static void half_norm_stats(const struct half_shape *shape, const uint16_t *x, float *work,
                            double *mean, double *variance)
{
    const int64_t channels = shape->channels, padded = HALF_PADDED(channels);
    float *first = work, *sum = work + padded, *square = work + 2 * padded;
    memset(first, 0, sizeof(float) * (size_t)padded);
    half_widen(first, x, (size_t)channels);
    for (int64_t c = 0; c < channels; c++)
        mean[c] = variance[c] = 0.0;
    for (int64_t r = 0; r < shape->rows; r += CHUNK) {
        const int64_t end = r + CHUNK < shape->rows ? r + CHUNK : shape->rows;
        int64_t at = r;
        half_clear(sum, square, channels);
        for (; at + GROUP <= end; at += GROUP)
            stats_rows(x + at * channels, channels, GROUP, first, sum, square);
        for (; at < end; at++)
            stats_rows(x + at * channels, channels, 1, first, sum, square);
        half_flush(sum, mean, channels);
        half_flush(square, variance, channels);
    }
    for (int64_t c = 0; c < channels; c++) {
        const double m = mean[c] / (double)shape->rows;
        const double v = variance[c] / (double)shape->rows - m * m;
        mean[c] = (double)first[c] + m;
        variance[c] = v < 0.0 ? 0.0 : v;
    }
}

/* --- y -------------------------------------------------------------------------------------- */

/* Arrays that apply reads and writes, from some row on. */
struct apply_to {
    const uint16_t *x, *residual;
    uint16_t *y;
    const float *mean, *scale, *shift;
    int64_t channels;
};

LOOPS_INLINE void half_apply_part(const struct apply_to *a, int64_t c, int64_t n, int count,
                                  bool relu, bool stream)
{
    const vec mean = vec_load(a->mean + c), scale = vec_load(a->scale + c);
    const vec shift = vec_load(a->shift + c);
    for (int k = 0; k < count; k++) {
        const int64_t at = k * a->channels + c;
        vec v = (get_ahead(a->x + at, n, -AHEAD) - mean) * scale + shift;
        if (a->residual != NULL)
            v += get_ahead(a->residual + at, n, -AHEAD);
        if (relu)
            v = vec_keep(v, v);
        half_put_to(a->y + at, v, n, stream);
    }
}

LOOPS_INLINE void half_apply_rows(const struct apply_to *all, int64_t row, int count, bool residual,
                                  bool relu, bool stream)
{
    struct apply_to a = *all;
    int64_t c = 0;
    a.x += row * a.channels;
    a.residual = residual ? a.residual + row * a.channels : NULL;
    a.y += row * a.channels;
    for (; c + W <= a.channels; c += W)
        half_apply_part(&a, c, W, count, relu, stream);
    if (c < a.channels)
        half_apply_part(&a, c, a.channels - c, count, relu, false);
}

/* Backwards: what stats read last is still in the cache. */
LOOPS_INLINE void half_apply_all(const struct apply_to *a, int64_t rows, bool residual, bool relu,
                                 bool stream)
{
    int64_t r = rows;
    for (; r >= GROUP; r -= GROUP)
        half_apply_rows(a, r - GROUP, GROUP, residual, relu, stream);
    for (; r > 0; r--)
        half_apply_rows(a, r - 1, 1, residual, relu, stream);
    vec_put_end();
}

static void half_norm_apply(const struct half_shape *shape, const uint16_t *x,
                            const uint16_t *residual,
                            uint16_t *y, /* NOLINT(readability-non-const-parameter): the table's */
                            const struct norm_affine *affine, bool relu)
{
    const struct apply_to a = { .x = x,
                                .residual = residual,
                                .y = y,
                                .mean = affine->mean,
                                .scale = affine->scale,
                                .shift = affine->shift,
                                .channels = shape->channels };
    const bool stream = streams(shape);
    if (residual != NULL && relu) {
        half_apply_all(&a, shape->rows, true, true, stream);
    } else if (residual != NULL) {
        half_apply_all(&a, shape->rows, true, false, stream);
    } else if (relu) {
        half_apply_all(&a, shape->rows, false, true, stream);
    } else {
        half_apply_all(&a, shape->rows, false, false, stream);
    }
}

/* --- backward -------------------------------------------------------------------------------- */

/* Arrays that backward's two passes read and write, from some row on. */
struct half_back {
    const uint16_t *x, *dout[2], *out;
    uint16_t *to; /* the masked sum, or dx; may be NULL */
    const float *mean, *scale, *shift;
    float *sum, *dot;
    const float *by[3];
    int64_t channels;
};

/* Constants of a loop: the compiler makes a copy of the loop for each combination. */
struct half_variant {
    enum norm_mask mask;
    bool two, store, stream;
    int64_t ahead;
    bool rounded; /* not stored, but rounded */
};

LOOPS_INLINE struct half_back half_back_at(const struct half_back *all, int64_t row,
                                           struct half_variant v)
{
    struct half_back b = *all;
    const int64_t at = row * b.channels;
    b.x += at;
    b.dout[0] += at;
    b.dout[1] = v.two ? b.dout[1] + at : NULL;
    b.out = v.mask == NORM_MASK_OUTPUT ? b.out + at : NULL;
    b.to = v.store ? b.to + at : NULL;
    return b;
}

/* The masked sum of the gradients of n channels, given x - mean there. */
LOOPS_INLINE vec half_masked(const struct half_back *b, int64_t at, int64_t c, int64_t n,
                             vec centred, struct half_variant v)
{
    vec g = get_ahead(b->dout[0] + at, n, v.ahead);
    if (v.two)
        g += get_ahead(b->dout[1] + at, n, v.ahead);
    if (v.mask == NORM_MASK_INPUT) {
        g = vec_keep(g, centred * vec_load(b->scale + c) + vec_load(b->shift + c));
    } else if (v.mask == NORM_MASK_OUTPUT) {
        g = vec_keep(g, get_ahead(b->out + at, n, v.ahead));
    }
    return g;
}

LOOPS_INLINE void half_sums_part(const struct half_back *b, int64_t c, int64_t n, int count,
                                 struct half_variant v)
{
    const vec mean = vec_load(b->mean + c);
    vec s[GROUP], d[GROUP];
    for (int k = 0; k < count; k++) {
        const int64_t at = k * b->channels + c;
        const vec centred = get_ahead(b->x + at, n, v.ahead) - mean;
        s[k] = half_masked(b, at, c, n, centred, v);
        if (v.store) {
            s[k] = half_to_vec(half_put_to(b->to + at, s[k], n, v.stream && n == W));
        } else if (v.rounded) {
            s[k] = half_to_vec(half_of_vec(s[k]));
        }
        d[k] = s[k] * centred;
    }
    half_add_group(b->sum + c, s, count);
    half_add_group(b->dot + c, d, count);
}

LOOPS_INLINE void half_sums_rows(const struct half_back *all, int64_t row, int count,
                                 struct half_variant v)
{
    const struct half_back b = half_back_at(all, row, v);
    int64_t c = 0;
    for (; c + W <= b.channels; c += W)
        half_sums_part(&b, c, W, count, v);
    if (c < b.channels)
        half_sums_part(&b, c, b.channels - c, count, v);
}

LOOPS_INLINE void half_sums_all(const struct half_back *b, int64_t rows, double *const out[2],
                                struct half_variant v)
{
    for (int64_t r = 0; r < rows; r += CHUNK) {
        const int64_t end = r + CHUNK < rows ? r + CHUNK : rows;
        int64_t at = r;
        half_clear(b->sum, b->dot, b->channels);
        for (; at + GROUP <= end; at += GROUP)
            half_sums_rows(b, at, GROUP, v);
        for (; at < end; at++)
            half_sums_rows(b, at, 1, v);
        half_flush(b->sum, out[0], b->channels);
        half_flush(b->dot, out[1], b->channels);
    }
    vec_put_end();
}

LOOPS_INLINE void dx_part(const struct half_back *b, int64_t c, int64_t n, int count,
                          struct half_variant v)
{
    const vec mean = vec_load(b->mean + c), by_g = vec_load(b->by[0] + c);
    const vec by_x = vec_load(b->by[1] + c), constant = vec_load(b->by[2] + c);
    for (int k = 0; k < count; k++) {
        const int64_t at = k * b->channels + c;
        const vec centred = get_ahead(b->x + at, n, v.ahead) - mean;
        const vec g = half_masked(b, at, c, n, centred, v);
        half_put_to(b->to + at, by_g * g - by_x * centred - constant, n, v.stream && n == W);
    }
}

LOOPS_INLINE void dx_rows(const struct half_back *all, int64_t row, int count,
                          struct half_variant v)
{
    const struct half_back b = half_back_at(all, row, v);
    int64_t c = 0;
    for (; c + W <= b.channels; c += W)
        dx_part(&b, c, W, count, v);
    if (c < b.channels)
        dx_part(&b, c, b.channels - c, count, v);
}

LOOPS_INLINE void dx_all(const struct half_back *b, int64_t rows, struct half_variant v)
{
    int64_t r = rows;
    for (; r >= GROUP; r -= GROUP)
        dx_rows(b, r - GROUP, GROUP, v);
    for (; r > 0; r--)
        dx_rows(b, r - 1, 1, v);
    vec_put_end();
}

static struct half_back half_back_of(const struct half_shape *shape, const struct half_gradient *g,
                                     uint16_t *to)
{
    return (struct half_back){ .x = g->x,
                               .dout = { g->dout[0], g->dout[1] },
                               .out = g->out,
                               .to = to,
                               .mean = g->affine.mean,
                               .scale = g->affine.scale,
                               .shift = g->affine.shift,
                               .channels = shape->channels };
}

static void half_norm_gradient_sums(const struct half_shape *shape, const struct half_gradient *g,
                                    uint16_t *store, float *work, double *const out[2])
{
    const bool two = g->dout[1] != NULL, stream = streams(shape);
    const int64_t rows = shape->rows;
    struct half_back b = half_back_of(shape, g, store);
    b.sum = work;
    b.dot = work + HALF_PADDED(shape->channels);
    for (int64_t c = 0; c < shape->channels; c++)
        out[0][c] = out[1][c] = 0.0;
    if (g->mask == NORM_MASK_OUTPUT && two && store != NULL) { /* where residuals join */
        half_sums_all(&b, rows, out,
                      (struct half_variant){ NORM_MASK_OUTPUT, true, true, stream, AHEAD, false });
    } else if (g->mask == NORM_MASK_OUTPUT && store != NULL) {
        half_sums_all(&b, rows, out,
                      (struct half_variant){ NORM_MASK_OUTPUT, false, true, stream, AHEAD, false });
    } else if (g->mask == NORM_MASK_INPUT && !two && store == NULL && !g->rounded) {
        half_sums_all(&b, rows, out,
                      (struct half_variant){ NORM_MASK_INPUT, false, false, false, AHEAD, false });
    } else if (g->mask == NORM_MASK_NONE && !two && store == NULL && !g->rounded) {
        half_sums_all(&b, rows, out,
                      (struct half_variant){ NORM_MASK_NONE, false, false, false, AHEAD, false });
    } else if (g->mask == NORM_MASK_OUTPUT && two && g->rounded) { /* halves of a backward */
        half_sums_all(&b, rows, out,
                      (struct half_variant){ NORM_MASK_OUTPUT, true, false, false, AHEAD, true });
    } else if (g->mask == NORM_MASK_OUTPUT && g->rounded) {
        half_sums_all(&b, rows, out,
                      (struct half_variant){ NORM_MASK_OUTPUT, false, false, false, AHEAD, true });
    } else { /* the others, which no model has: their loop decides on the way */
        half_sums_all(
            &b, rows, out,
            (struct half_variant){ g->mask, two, store != NULL, false, AHEAD, g->rounded });
    }
}

static void half_norm_gradient_apply(const struct half_shape *shape, const struct half_gradient *g,
                                     const float *const by[3], uint16_t *dx)
{
    const bool two = g->dout[1] != NULL, stream = streams(shape);
    const int64_t rows = shape->rows;
    struct half_back b = half_back_of(shape, g, dx);
    for (int i = 0; i < 3; i++)
        b.by[i] = by[i];
    if (g->mask == NORM_MASK_INPUT && !two) {
        dx_all(&b, rows,
               (struct half_variant){ NORM_MASK_INPUT, false, true, stream, -AHEAD, false });
    } else if (g->mask == NORM_MASK_NONE && !two) {
        dx_all(&b, rows,
               (struct half_variant){ NORM_MASK_NONE, false, true, stream, -AHEAD, false });
    } else {
        dx_all(&b, rows, (struct half_variant){ g->mask, two, true, false, -AHEAD, false });
    }
}

const struct half_norm_loops LOOPS_TABLE(half_norm_loops) = {
    .stats = half_norm_stats,
    .apply = half_norm_apply,
    .gradient_sums = half_norm_gradient_sums,
    .gradient_apply = half_norm_gradient_apply,
};
