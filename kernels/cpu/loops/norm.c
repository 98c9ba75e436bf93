/*
 * Batch norm over one strip.
 *
 * Sums run in float over at most CHUNK positions of one plane, in four interleaved accumulators
 * (position mod 4), and in double over the chunks: the order does not depend on the vector width.
 * Statistics are taken of x - first, `first` being the strip's first value: one read of x, and no
 * cancellation unless that value is many deviations off.
 */
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/simd.h"

#define CHUNK 512

struct sums {
    vec a[4], b[4];
};

LOOPS_INLINE void sums_flush(const struct sums *s, double *a, double *b)
{
    float fa[W], fb[W];
    vec va = (s->a[0] + s->a[1]) + (s->a[2] + s->a[3]);
    vec vb = (s->b[0] + s->b[1]) + (s->b[2] + s->b[3]);
    memcpy(fa, &va, sizeof(va));
    memcpy(fb, &vb, sizeof(vb));
    for (int l = 0; l < W; l++) {
        a[l] += (double)fa[l];
        b[l] += (double)fb[l];
    }
}

LOOPS_INLINE void stats_one(struct sums *s, int k, const float *x, vec first)
{
    vec v = vec_load(x) - first;
    s->a[k] += v;
    s->b[k] += v * v;
}

static void chunk_stats(const float *x, int64_t count, int64_t step, vec first, double *sum,
                        double *square)
{
    struct sums s = { 0 };
    int64_t j = 0;
    for (; j + 4 <= count; j += 4) {
        stats_one(&s, 0, x + (j + 0) * step, first);
        stats_one(&s, 1, x + (j + 1) * step, first);
        stats_one(&s, 2, x + (j + 2) * step, first);
        stats_one(&s, 3, x + (j + 3) * step, first);
    }
    for (int k = 0; j < count; j++, k++)
        stats_one(&s, k, x + j * step, first);
    sums_flush(&s, sum, square);
}

static void norm_stats(const struct strip *strip, const float *x, double *mean, double *variance)
{
    double sum[W] = { 0 }, square[W] = { 0 };
    const vec first = vec_load(x);
    for (int64_t i = 0; i < strip->n; i++) {
        const float *plane = x + i * strip->plane;
        for (int64_t j = 0; j < strip->hw; j += CHUNK) {
            int64_t count = strip->hw - j < CHUNK ? strip->hw - j : CHUNK;
            chunk_stats(plane + j * strip->step, count, strip->step, first, sum, square);
        }
    }
    const double count = (double)strip->n * (double)strip->hw;
    for (int l = 0; l < W; l++) {
        double m = sum[l] / count;
        double v = square[l] / count - m * m;
        mean[l] = (double)x[l] + m;
        variance[l] = v < 0.0 ? 0.0 : v;
    }
}

LOOPS_INLINE void apply_plane(const struct strip *strip, const float *x, const float *residual,
                              float *y, const vec affine[3], bool relu)
{
    for (int64_t j = 0; j < strip->hw; j++) {
        int64_t at = j * strip->step;
        vec v = (vec_load(x + at) - affine[0]) * affine[1] + affine[2];
        if (residual != NULL)
            v += vec_load(residual + at);
        if (relu)
            v = vec_keep(v, v);
        vec_put(y + at, v, strip->stream);
    }
}

LOOPS_INLINE void apply_all(const struct strip *strip, const float *x, const float *residual,
                            float *y, const struct norm_affine *affine, bool add, bool relu)
{
    const vec by[3] = { vec_load(affine->mean), vec_load(affine->scale), vec_load(affine->shift) };
    /* Backwards: what stats read last is still in the cache. */
    for (int64_t i = strip->n - 1; i >= 0; i--) {
        int64_t at = i * strip->plane;
        apply_plane(strip, x + at, add ? residual + at : NULL, y + at, by, relu);
    }
    vec_put_end();
}

static void norm_apply(const struct strip *strip, const float *x, const float *residual, float *y,
                       const struct norm_affine *affine, bool relu)
{
    if (residual != NULL && relu) {
        apply_all(strip, x, residual, y, affine, true, true);
    } else if (residual != NULL) {
        apply_all(strip, x, residual, y, affine, true, false);
    } else if (relu) {
        apply_all(strip, x, NULL, y, affine, false, true);
    } else {
        apply_all(strip, x, NULL, y, affine, false, false);
    }
}

/* The pointers of one plane, moved along. */
struct plane {
    const float *x, *dout[2], *out;
    float *store;
};

LOOPS_INLINE struct plane plane_at(const struct norm_gradient *g, float *store, int64_t at)
{
    return (struct plane){ .x = g->x + at,
                           .dout = { g->dout[0] + at, g->dout[1] ? g->dout[1] + at : NULL },
                           .out = g->out ? g->out + at : NULL,
                           .store = store ? store + at : NULL };
}

/* The masked sum of the gradients at one position, given x - mean there. */
LOOPS_INLINE vec masked(const struct plane *p, int64_t at, vec centred, const vec affine[3],
                        enum norm_mask mask, bool two)
{
    vec g = vec_load(p->dout[0] + at);
    if (two && p->dout[1] != NULL)
        g += vec_load(p->dout[1] + at);
    if (mask == NORM_MASK_INPUT)
        g = vec_keep(g, centred * affine[1] + affine[2]);
    if (mask == NORM_MASK_OUTPUT && p->out != NULL)
        g = vec_keep(g, vec_load(p->out + at));
    return g;
}

LOOPS_INLINE void sums_one(struct sums *s, int k, const struct plane *p, int64_t at,
                           const vec affine[3], enum norm_mask mask, bool two)
{
    vec centred = vec_load(p->x + at) - affine[0];
    vec g = masked(p, at, centred, affine, mask, two);
    if (p->store != NULL)
        vec_store(p->store + at, g);
    s->a[k] += g;
    s->b[k] += g * centred;
}

LOOPS_INLINE void chunk_sums(const struct plane *p, int64_t j, int64_t end, int64_t step,
                             const vec affine[3], enum norm_mask mask, bool two, double *out[2])
{
    struct sums s = { 0 };
    for (; j + 4 <= end; j += 4) {
        sums_one(&s, 0, p, (j + 0) * step, affine, mask, two);
        sums_one(&s, 1, p, (j + 1) * step, affine, mask, two);
        sums_one(&s, 2, p, (j + 2) * step, affine, mask, two);
        sums_one(&s, 3, p, (j + 3) * step, affine, mask, two);
    }
    for (int k = 0; j < end; j++, k++)
        sums_one(&s, k, p, j * step, affine, mask, two);
    sums_flush(&s, out[0], out[1]);
}

LOOPS_INLINE void sums_all(const struct strip *strip, const struct norm_gradient *g, float *store,
                           enum norm_mask mask, bool two, double *out[2])
{
    const vec affine[3] = { vec_load(g->affine.mean), vec_load(g->affine.scale),
                            vec_load(g->affine.shift) };
    for (int64_t i = 0; i < strip->n; i++) {
        struct plane p = plane_at(g, store, i * strip->plane);
        for (int64_t j = 0; j < strip->hw; j += CHUNK) {
            int64_t end = strip->hw - j < CHUNK ? strip->hw : j + CHUNK;
            chunk_sums(&p, j, end, strip->step, affine, mask, two, out);
        }
    }
}

static void norm_gradient_sums(const struct strip *strip, const struct norm_gradient *g,
                               float *store, double *sum, double *dot)
{
    double *out[2] = { sum, dot };
    for (int l = 0; l < W; l++)
        sum[l] = dot[l] = 0.0;
    const bool two = g->dout[1] != NULL;
    if (g->mask == NORM_MASK_NONE && two) {
        sums_all(strip, g, store, NORM_MASK_NONE, true, out);
    } else if (g->mask == NORM_MASK_NONE) {
        sums_all(strip, g, store, NORM_MASK_NONE, false, out);
    } else if (g->mask == NORM_MASK_INPUT && two) {
        sums_all(strip, g, store, NORM_MASK_INPUT, true, out);
    } else if (g->mask == NORM_MASK_INPUT) {
        sums_all(strip, g, store, NORM_MASK_INPUT, false, out);
    } else if (two) {
        sums_all(strip, g, store, NORM_MASK_OUTPUT, true, out);
    } else {
        sums_all(strip, g, store, NORM_MASK_OUTPUT, false, out);
    }
}

LOOPS_INLINE void gradient_all(const struct strip *strip, const struct norm_gradient *g,
                               const float *const by[3], float *dx, enum norm_mask mask, bool two)
{
    const vec affine[3] = { vec_load(g->affine.mean), vec_load(g->affine.scale),
                            vec_load(g->affine.shift) };
    const vec by_g = vec_load(by[0]), by_x = vec_load(by[1]), constant = vec_load(by[2]);
    for (int64_t i = strip->n - 1; i >= 0; i--) {
        struct plane p = plane_at(g, NULL, i * strip->plane);
        float *to = dx + i * strip->plane;
        for (int64_t j = 0; j < strip->hw; j++) {
            int64_t at = j * strip->step;
            vec centred = vec_load(p.x + at) - affine[0];
            vec d = masked(&p, at, centred, affine, mask, two);
            vec_put(to + at, by_g * d - by_x * centred - constant, strip->stream);
        }
    }
    vec_put_end();
}

static void norm_gradient_apply(const struct strip *strip, const struct norm_gradient *g,
                                const float *const by[3], float *dx)
{
    const bool two = g->dout[1] != NULL;
    if (g->mask == NORM_MASK_NONE && two) {
        gradient_all(strip, g, by, dx, NORM_MASK_NONE, true);
    } else if (g->mask == NORM_MASK_NONE) {
        gradient_all(strip, g, by, dx, NORM_MASK_NONE, false);
    } else if (g->mask == NORM_MASK_INPUT && two) {
        gradient_all(strip, g, by, dx, NORM_MASK_INPUT, true);
    } else if (g->mask == NORM_MASK_INPUT) {
        gradient_all(strip, g, by, dx, NORM_MASK_INPUT, false);
    } else if (two) {
        gradient_all(strip, g, by, dx, NORM_MASK_OUTPUT, true);
    } else {
        gradient_all(strip, g, by, dx, NORM_MASK_OUTPUT, false);
    }
}

const struct norm_loops LOOPS_TABLE(norm_loops) = {
    .width = W,
    .stats = norm_stats,
    .apply = norm_apply,
    .gradient_sums = norm_gradient_sums,
    .gradient_apply = norm_gradient_apply,
};
