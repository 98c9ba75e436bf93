/*
 * Batch norm over one strip.
 *
 * Sums are float32 over at most CHUNK positions of a sample, in four accumulators (position j goes
 * to the one of j mod 4), and double over the chunks. So the order does not depend on the width of
 * the vectors.
 *
 * Statistics are taken of x - first, `first` being the strip's first values. That takes one read of
 * x, and nothing cancels unless such a value lies many deviations off.
 */
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/simd.h"

#define CHUNK 512

struct norm_sums {
    vec a[4], b[4];
};

LOOPS_INLINE void norm_sums_flush(const struct norm_sums *s, double *a, double *b)
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

LOOPS_INLINE void stats_one(struct norm_sums *s, int k, const float *x, vec first)
{
    vec v = vec_load(x) - first;
    s->a[k] += v;
    s->b[k] += v * v;
}

static void chunk_stats(const float *x, int64_t count, int64_t pitch, vec first, double *sum,
                        double *square)
{
    struct norm_sums s = { 0 };
    int64_t j = 0;
    for (; j + 4 <= count; j += 4) {
        stats_one(&s, 0, x + (j + 0) * pitch, first);
        stats_one(&s, 1, x + (j + 1) * pitch, first);
        stats_one(&s, 2, x + (j + 2) * pitch, first);
        stats_one(&s, 3, x + (j + 3) * pitch, first);
    }
    for (int k = 0; j < count; j++, k++)
        stats_one(&s, k, x + j * pitch, first);
    norm_sums_flush(&s, sum, square);
}

static void norm_stats(const struct strip *strip, const float *x, double *mean, double *variance)
{
    double sum[W] = { 0 }, square[W] = { 0 };
    const vec first = vec_load(x);
    for (int64_t i = 0; i < strip->n; i++) {
        const float *plane = x + i * strip->plane;
        for (int64_t j = 0; j < strip->hw; j += CHUNK) {
            int64_t count = strip->hw - j < CHUNK ? strip->hw - j : CHUNK;
            chunk_stats(plane + j * strip->pitch, count, strip->pitch, first, sum, square);
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

LOOPS_INLINE void norm_apply_plane(const struct strip *strip, const float *x, const float *residual,
                                   float *y, const vec affine[3], bool relu)
{
    for (int64_t j = 0; j < strip->hw; j++) {
        int64_t at = j * strip->pitch;
        vec v = (vec_load(x + at) - affine[0]) * affine[1] + affine[2];
        if (residual != NULL)
            v += vec_load(residual + at);
        if (relu)
            v = vec_keep(v, v);
        vec_put(y + at, v, strip->stream);
    }
}

LOOPS_INLINE void norm_apply_all(const struct strip *strip, const float *x, const float *residual,
                                 float *y, const struct norm_affine *affine, bool add, bool relu)
{
    const vec by[3] = { vec_load(affine->mean), vec_load(affine->scale), vec_load(affine->shift) };
    /* Backwards: what stats read last is still in the cache. */
    for (int64_t i = strip->n - 1; i >= 0; i--) {
        int64_t at = i * strip->plane;
        norm_apply_plane(strip, x + at, add ? residual + at : NULL, y + at, by, relu);
    }
    vec_put_end();
}

static void norm_apply(const struct strip *strip, const float *x, const float *residual, float *y,
                       const struct norm_affine *affine, bool relu)
{
    if (residual != NULL && relu) {
        norm_apply_all(strip, x, residual, y, affine, true, true);
    } else if (residual != NULL) {
        norm_apply_all(strip, x, residual, y, affine, true, false);
    } else if (relu) {
        norm_apply_all(strip, x, NULL, y, affine, false, true);
    } else {
        norm_apply_all(strip, x, NULL, y, affine, false, false);
    }
}

/* The pointers into one sample. */
struct plane {
    const float *x, *dout[2], *out;
    float *store;
};

LOOPS_INLINE struct plane plane_at(const struct norm_gradient *g, float *store, int64_t at)
{
    return (struct plane){ .x = g->x + at,
                           .dout = { g->dout[0] + at, g->dout[1] != NULL ? g->dout[1] + at : NULL },
                           .out = g->out != NULL ? g->out + at : NULL,
                           .store = store != NULL ? store + at : NULL };
}

/* The masked sum of the gradients at one position, given x - mean there. */
LOOPS_INLINE vec norm_masked(const struct plane *p, int64_t at, vec centred, const vec affine[3],
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

LOOPS_INLINE void norm_sums_one(struct norm_sums *s, int k, const struct plane *p, int64_t at,
                                const vec affine[3], enum norm_mask mask, bool two)
{
    vec centred = vec_load(p->x + at) - affine[0];
    vec g = norm_masked(p, at, centred, affine, mask, two);
    if (p->store != NULL)
        vec_store(p->store + at, g);
    s->a[k] += g;
    s->b[k] += g * centred;
}

LOOPS_INLINE void chunk_sums(const struct plane *p, int64_t j, int64_t end, int64_t pitch,
                             const vec affine[3], enum norm_mask mask, bool two, double *out[2])
{
    struct norm_sums s = { 0 };
    for (; j + 4 <= end; j += 4) {
        norm_sums_one(&s, 0, p, (j + 0) * pitch, affine, mask, two);
        norm_sums_one(&s, 1, p, (j + 1) * pitch, affine, mask, two);
        norm_sums_one(&s, 2, p, (j + 2) * pitch, affine, mask, two);
        norm_sums_one(&s, 3, p, (j + 3) * pitch, affine, mask, two);
    }
    for (int k = 0; j < end; j++, k++)
        norm_sums_one(&s, k, p, j * pitch, affine, mask, two);
    norm_sums_flush(&s, out[0], out[1]);
}

LOOPS_INLINE void norm_sums_all(const struct strip *strip, const struct norm_gradient *g,
                                float *store, enum norm_mask mask, bool two, double *out[2])
{
    const vec affine[3] = { vec_load(g->affine.mean), vec_load(g->affine.scale),
                            vec_load(g->affine.shift) };
    for (int64_t i = 0; i < strip->n; i++) {
        struct plane p = plane_at(g, store, i * strip->plane);
        for (int64_t j = 0; j < strip->hw; j += CHUNK) {
            int64_t end = strip->hw - j < CHUNK ? strip->hw : j + CHUNK;
            chunk_sums(&p, j, end, strip->pitch, affine, mask, two, out);
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
    switch (g->mask) {
    case NORM_MASK_NONE:
        two ? norm_sums_all(strip, g, store, NORM_MASK_NONE, true, out)
            : norm_sums_all(strip, g, store, NORM_MASK_NONE, false, out);
        return;
    case NORM_MASK_INPUT:
        two ? norm_sums_all(strip, g, store, NORM_MASK_INPUT, true, out)
            : norm_sums_all(strip, g, store, NORM_MASK_INPUT, false, out);
        return;
    case NORM_MASK_OUTPUT:
        two ? norm_sums_all(strip, g, store, NORM_MASK_OUTPUT, true, out)
            : norm_sums_all(strip, g, store, NORM_MASK_OUTPUT, false, out);
        return;
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
            int64_t at = j * strip->pitch;
            vec centred = vec_load(p.x + at) - affine[0];
            vec d = norm_masked(&p, at, centred, affine, mask, two);
            vec_put(to + at, by_g * d - by_x * centred - constant, strip->stream);
        }
    }
    vec_put_end();
}

static void norm_gradient_apply(const struct strip *strip, const struct norm_gradient *g,
                                const float *const by[3], float *dx)
{
    const bool two = g->dout[1] != NULL;
    switch (g->mask) {
    case NORM_MASK_NONE:
        two ? gradient_all(strip, g, by, dx, NORM_MASK_NONE, true)
            : gradient_all(strip, g, by, dx, NORM_MASK_NONE, false);
        return;
    case NORM_MASK_INPUT:
        two ? gradient_all(strip, g, by, dx, NORM_MASK_INPUT, true)
            : gradient_all(strip, g, by, dx, NORM_MASK_INPUT, false);
        return;
    case NORM_MASK_OUTPUT:
        two ? gradient_all(strip, g, by, dx, NORM_MASK_OUTPUT, true)
            : gradient_all(strip, g, by, dx, NORM_MASK_OUTPUT, false);
        return;
    }
}

const struct norm_loops LOOPS_TABLE(norm_loops) = {
    .width = W,
    .stats = norm_stats,
    .apply = norm_apply,
    .gradient_sums = norm_gradient_sums,
    .gradient_apply = norm_gradient_apply,
};
