/*
 * Loops of the ops gated and rotary.
 */
#include "kernels/cpu/loops/text_parts.h"

/* 1 / (1 + e^-x) */
LOOPS_INLINE vec logistic(vec x)
{
    return vec_set(1.0f) / (vec_set(1.0f) + vec_exp(-x));
}

LOOPS_INLINE void gated_as(void *out, const void *a, const void *b, bool half, size_t n)
{
    for (size_t i = 0; i < n; i += W) {
        const vec x = text_get_some(a, i, n, half);
        text_put_some(out, i, n, x * logistic(x) * text_get_some(b, i, n, half), half);
    }
}

void TEXT(gated)(struct text_target out, struct text_source a, struct text_source b, size_t n)
{
    a.half ? gated_as(out.data, a.data, b.data, true, n)
           : gated_as(out.data, a.data, b.data, false, n);
}

/* With s the logistic function of a: silu' = s·(1 + a·(1 - s)). */
LOOPS_INLINE void gated_gradient(void *da, void *db, const void *dout, const void *a, const void *b,
                                 bool half, size_t n)
{
    const vec one = vec_set(1.0f);
    for (size_t i = 0; i < n; i += W) {
        const vec x = text_get_some(a, i, n, half), s = logistic(x);
        const vec d = text_get_some(dout, i, n, half), other = text_get_some(b, i, n, half);
        text_put_some(da, i, n, d * other * (s * (one + x * (one - s))), half);
        text_put_some(db, i, n, d * (x * s), half);
    }
}

void TEXT(gated_backward)(struct text_target da, struct text_target db, struct text_source dout,
                          struct text_source a, struct text_source b, size_t n)
{
    if (a.half) {
        gated_gradient(da.data, db.data, dout.data, a.data, b.data, true, n);
    } else {
        gated_gradient(da.data, db.data, dout.data, a.data, b.data, false, n);
    }
}

/* Elements from i on of the sum of some heads; from `end` on, which is another half's, 0. */
LOOPS_INLINE vec heads_sum(const void *x, size_t count, size_t depth, size_t i, size_t end,
                           bool half)
{
    vec sum = text_get_some(x, i, end, half);
    for (size_t h = 1; h < count; h++)
        sum += text_get_some(x, h * depth + i, h * depth + end, half);
    return sum;
}

LOOPS_INLINE void turn_as(void *out, const void *x, size_t count, const float *turn, size_t depth,
                          bool half)
{
    const size_t pairs = depth / 2;
    for (size_t i = 0; i < pairs; i += W) {
        const vec first = heads_sum(x, count, depth, i, pairs, half);
        const vec second = heads_sum(x, count, depth, pairs + i, depth, half);
        const vec cosine = text_get_some(turn, i, pairs, false);
        const vec sine = text_get_some(turn, pairs + i, depth, false);
        text_put_some(out, i, pairs, first * cosine - second * sine, half);
        text_put_some(out, pairs + i, depth, second * cosine + first * sine, half);
    }
}

LOOPS_INLINE void sum_as(void *out, const void *x, size_t count, size_t depth, bool half)
{
    for (size_t i = 0; i < depth; i += W)
        text_put_some(out, i, depth, heads_sum(x, count, depth, i, depth, half), half);
}

void TEXT(turn)(struct text_target out, struct text_source x, size_t count, const float *turn,
                size_t depth)
{
    if (turn == NULL) {
        x.half ? sum_as(out.data, x.data, count, depth, true)
               : sum_as(out.data, x.data, count, depth, false);
    } else {
        x.half ? turn_as(out.data, x.data, count, turn, depth, true)
               : turn_as(out.data, x.data, count, turn, depth, false);
    }
}
