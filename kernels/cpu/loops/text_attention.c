/*
 * Tiles of attention: what happens to the scores between the products. text.h says what a tile has,
 * kernels/cpu/ops/attention.c has the algorithm.
 */
#include <math.h>

#include "kernels/cpu/loops/text_parts.h"

#define MASKED (-INFINITY)

/* Counts the keys of a tile that query r sees: the first ones. */
LOOPS_INLINE size_t keys_seen(const struct attention_tile *t, size_t r)
{
    const size_t keys = (size_t)t->keys;
    return t->diagonal && r + 1 < keys ? r + 1 : keys;
}

/* The scores of a query with W keys from c on: -infinity where it may not see the key. */
LOOPS_INLINE vec visible(vec scores, size_t c, size_t seen)
{
    if (c + W <= seen)
        return scores;
    float lane[W];
    memcpy(lane, &scores, sizeof(scores));
    for (size_t l = seen > c ? seen - c : 0; l < W; l++)
        lane[l] = MASKED;
    return vec_load(lane);
}

/*
 * One query, with m the maximum before these keys and m' after them:
 *
 *   probability = exp(scale·S - m')       sum = sum·exp(m - m') + Σ probability
 *                                         out = out·exp(m - m')
 */
LOOPS_INLINE void attention_row(const struct attention_tile *t, size_t r, bool half)
{
    const size_t side = (size_t)t->side, depth = (size_t)t->depth, seen = keys_seen(t, r);
    const float *scores = t->scores + r * side;
    const vec scale = vec_set(t->scale);
    vec most[PARTS], sum[PARTS] = { { 0 } };
    for (size_t k = 0; k < PARTS; k++)
        most[k] = vec_set(t->most[r]);
    for (size_t c = 0, k = 0; c < side; c += W, k = (k + 1) % PARTS) {
        const vec s = visible(vec_load(scores + c) * scale, c, seen);
        most[k] = vec_max(most[k], s);
    }
    const float before = t->most[r], now = lanes_max(most);
    const vec by = vec_set(now);
    for (size_t c = 0, k = 0; c < side; c += W, k = (k + 1) % PARTS) {
        const vec s = visible(vec_load(scores + c) * scale, c, seen);
        const vec p = vec_exp(s - by);
        sum[k] += p;
        text_put(t->probability.data, r * side + c, p, half);
    }
    const float keep = vec_exp(vec_set(before - now))[0];
    t->most[r] = now;
    t->sum[r] = t->sum[r] * keep + lanes_sum(sum);
    float *out = t->out + r * depth;
    for (size_t d = 0; keep != 1.0f && d < depth; d++)
        out[d] *= keep;
}

void TEXT(attention)(const struct attention_tile *tile)
{
    for (size_t r = 0; r < (size_t)tile->side; r++) {
        if (tile->probability.half) {
            attention_row(tile, r, true);
        } else {
            attention_row(tile, r, false);
        }
    }
}

/* P = exp(scale·S - L), dS = P ∘ (dP - D)·scale. */
LOOPS_INLINE void attention_gradient(const struct attention_tile *t, size_t r, bool half)
{
    const size_t side = (size_t)t->side, seen = keys_seen(t, r);
    const vec scale = vec_set(t->scale), lse = vec_set(t->lse[r]), delta = vec_set(t->delta[r]);
    for (size_t c = 0; c < side; c += W) {
        const vec s = visible(vec_load(t->scores + r * side + c) * scale, c, seen);
        const vec p = vec_exp(s - lse);
        const vec dp = vec_load(t->dprobability + r * side + c);
        text_put(t->probability.data, r * side + c, p, half);
        text_put(t->dscores.data, r * side + c, p * (dp - delta) * scale, half);
    }
}

void TEXT(attention_backward)(const struct attention_tile *tile)
{
    for (size_t r = 0; r < (size_t)tile->side; r++) {
        if (tile->probability.half) {
            attention_gradient(tile, r, true);
        } else {
            attention_gradient(tile, r, false);
        }
    }
}
