/*
 * Pooling of one strip of one sample.
 */
#include <math.h>

#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/simd.h"

/* The window of one output row or column: the input indices [begin, end), and which place of the
 * window `begin` is. */
struct window {
    int64_t begin, end, first;
};

static struct window pool_window_of(int64_t out, int kernel, int stride, int pad, int64_t size)
{
    int64_t start = out * stride - pad;
    struct window w = { .begin = start, .end = start + kernel };
    if (w.begin < 0)
        w.begin = 0;
    if (w.end > size)
        w.end = size;
    w.first = w.begin - start;
    return w;
}

/* Returns the place of the input position (h, w) in the window, row by row from 0. */
static int32_t pool_place_of(const struct pool_shape *s, struct window row, struct window column,
                             int64_t h, int64_t w)
{
    return (int32_t)((h - row.begin + row.first) * s->kernel + w - column.begin + column.first);
}

LOOPS_INLINE void index_store(uint8_t *to, ivec index)
{
    int32_t wide[W];
    memcpy(wide, &index, sizeof(index));
    for (int l = 0; l < W; l++)
        to[l] = (uint8_t)wide[l];
}

LOOPS_INLINE ivec index_load(const uint8_t *from)
{
    int32_t wide[W];
    ivec index;
    for (int l = 0; l < W; l++)
        wide[l] = from[l];
    memcpy(&index, wide, sizeof(index));
    return index;
}

static void pool_max_at(const struct pool_shape *s, struct window row, struct window column,
                        const float *x, float *y, uint8_t *index)
{
    vec best = vec_set(-INFINITY);
    ivec won = vec_bits(vec_set(0.0f));
    const ivec none = won;
    bool any = false;
    for (int64_t h = row.begin; h < row.end; h++) {
        for (int64_t w = column.begin; w < column.end; w++) {
            vec v = vec_load(x + (h * s->w + w) * s->pitch);
            /* The first of the greatest wins; a NaN wins and stays, as in PyTorch. */
            ivec keep = any ? vec_not_above(v, best) | vec_is_nan(best) : none;
            any = true;
            best = vec_choose(keep, best, v);
            won = (won & keep) | ((none + pool_place_of(s, row, column, h, w)) & ~keep);
        }
    }
    vec_store(y, best);
    if (index != NULL)
        index_store(index, won);
}

static void pool_max(const struct pool_shape *s, const float *x, float *y, uint8_t *index)
{
    for (int64_t p = 0; p < s->p; p++) {
        struct window row = pool_window_of(p, s->kernel, s->stride, s->pad, s->h);
        for (int64_t q = 0; q < s->q; q++) {
            struct window column = pool_window_of(q, s->kernel, s->stride, s->pad, s->w);
            int64_t at = (p * s->q + q) * s->pitch;
            pool_max_at(s, row, column, x, y + at, index == NULL ? NULL : index + at);
        }
    }
}

static void pool_max_backward_at(const struct pool_shape *s, struct window row,
                                 struct window column, vec g, ivec won, float *dx)
{
    for (int64_t h = row.begin; h < row.end; h++) {
        for (int64_t w = column.begin; w < column.end; w++) {
            float *to = dx + (h * s->w + w) * s->pitch;
            ivec here = vec_same_index(won, pool_place_of(s, row, column, h, w));
            vec_store(to, vec_load(to) + vec_of_bits(vec_bits(g) & here));
        }
    }
}

static void pool_max_backward(const struct pool_shape *s, const float *dy, const uint8_t *index,
                              float *dx)
{
    for (int64_t i = 0; i < s->h * s->w; i++)
        vec_store(dx + i * s->pitch, vec_set(0.0f));
    for (int64_t p = 0; p < s->p; p++) {
        struct window row = pool_window_of(p, s->kernel, s->stride, s->pad, s->h);
        for (int64_t q = 0; q < s->q; q++) {
            struct window column = pool_window_of(q, s->kernel, s->stride, s->pad, s->w);
            int64_t at = (p * s->q + q) * s->pitch;
            pool_max_backward_at(s, row, column, vec_load(dy + at), index_load(index + at), dx);
        }
    }
}

static void pool_average(const struct pool_shape *s, const float *x, float *y)
{
    double sum[W] = { 0 };
    const int64_t count = s->h * s->w;
    for (int64_t i = 0; i < count; i++) {
        const float *from = x + i * s->pitch;
        for (int l = 0; l < W; l++)
            sum[l] += (double)from[l];
    }
    for (int l = 0; l < W; l++)
        y[l] = (float)(sum[l] / (double)count);
}

static void pool_average_backward(const struct pool_shape *s, const float *dy, float *dx)
{
    const int64_t count = s->h * s->w;
    const vec g = vec_load(dy) / vec_set((float)count);
    for (int64_t i = 0; i < count; i++)
        vec_store(dx + i * s->pitch, g);
}

const struct pool_loops LOOPS_TABLE(pool_loops) = {
    .width = W,
    .max = pool_max,
    .max_backward = pool_max_backward,
    .average = pool_average,
    .average_backward = pool_average_backward,
};
