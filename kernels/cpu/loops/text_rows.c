/*
 * Rows that are reduced: layer_norm, and the softmax of softmax_cross_entropy. A row sums in LANES
 * lanes of float32; the softmax, whose rows are long, in chunks whose sums go into a double.
 */
#include <math.h>

#include "kernels/cpu/loops/text_parts.h"

#define CHUNK 1024 /* elements that are added in float32 */

/* v, but 0 from lane `count` on: there it was computed from elements that do not exist. */
LOOPS_INLINE vec text_only(vec v, size_t count)
{
    float lane[W];
    memcpy(lane, &v, sizeof(v));
    for (size_t l = count; l < W; l++)
        lane[l] = 0.0f;
    return vec_load(lane);
}

/* rms: the mean counts as 0, and there is no β. */
LOOPS_INLINE void layer_forward(struct layer_row *row, bool x_half, void *out, bool out_half,
                                bool rms)
{
    const size_t n = (size_t)row->count;
    const void *x = row->x.data;
    vec sum[PARTS] = { { 0 } }, square[PARTS] = { { 0 } };
    for (size_t i = 0, k = 0; i < n && !rms; i += W, k = (k + 1) % PARTS)
        sum[k] += text_get_some(x, i, n, x_half);
    const vec mean = vec_set(rms ? 0.0f : lanes_sum(sum) / (float)n);
    for (size_t i = 0, k = 0; i < n; i += W, k = (k + 1) % PARTS) {
        vec d = text_get_some(x, i, n, x_half) - mean;
        if (n - i < W)
            d = text_only(d, n - i);
        square[k] += d * d;
    }
    const vec rstd = vec_set(1.0f / sqrtf(lanes_sum(square) / (float)n + row->eps));
    for (size_t i = 0; i < n; i += W) {
        vec y = (text_get_some(x, i, n, x_half) - mean) * rstd;
        y = y * text_get_some(row->gamma, i, n, false);
        if (!rms)
            y += text_get_some(row->beta, i, n, false);
        text_put_some(out, i, n, y, out_half);
    }
    row->mean = mean[0];
    row->rstd = rstd[0];
}

LOOPS_INLINE void layer_forward_as(struct layer_row *row, struct text_target out, bool rms)
{
    if (out.half) {
        row->x.half ? layer_forward(row, true, out.data, true, rms)
                    : layer_forward(row, false, out.data, true, rms);
    } else {
        row->x.half ? layer_forward(row, true, out.data, false, rms)
                    : layer_forward(row, false, out.data, false, rms);
    }
}

void TEXT(layer_norm)(struct layer_row *row, struct text_target out)
{
    row->rms ? layer_forward_as(row, out, true) : layer_forward_as(row, out, false);
}

/*
 * With g = dout·γ and h = (x - mean)·rstd, the means over the row:
 *
 *   din     = rstd·(g - mean(g) - h·mean(g·h))  (+ add)
 *   dparam  dγ += dout·h, dβ += dout
 *
 * rms: the mean and mean(g) count as 0, and there is no β.
 */
LOOPS_INLINE void layer_backward(const struct layer_row *row, bool x_half, const void *dout,
                                 bool dout_half, const void *add, void *din, float *const dparam[2],
                                 bool rms)
{
    const size_t n = (size_t)row->count;
    const vec mean = vec_set(row->mean), rstd = vec_set(row->rstd);
    vec sum[PARTS] = { { 0 } }, along[PARTS] = { { 0 } };
    for (size_t i = 0, k = 0; i < n; i += W, k = (k + 1) % PARTS) {
        const vec d = text_get_some(dout, i, n, dout_half);
        const vec h = (text_get_some(row->x.data, i, n, x_half) - mean) * rstd;
        const vec g = d * text_get_some(row->gamma, i, n, false);
        sum[k] += g;
        along[k] += g * h;
        text_put_some(dparam[0], i, n, text_get_some(dparam[0], i, n, false) + d * h, false);
        if (!rms)
            text_put_some(dparam[1], i, n, text_get_some(dparam[1], i, n, false) + d, false);
    }
    if (din == NULL)
        return;
    const vec by_one = vec_set(rms ? 0.0f : lanes_sum(sum) / (float)n);
    const vec by_h = vec_set(lanes_sum(along) / (float)n);
    for (size_t i = 0; i < n; i += W) {
        const vec h = (text_get_some(row->x.data, i, n, x_half) - mean) * rstd;
        const vec g = text_get_some(dout, i, n, dout_half) * text_get_some(row->gamma, i, n, false);
        vec d = (g - by_one - h * by_h) * rstd;
        if (add != NULL)
            d += text_get_some(add, i, n, x_half);
        text_put_some(din, i, n, d, x_half);
    }
}

LOOPS_INLINE void layer_backward_as(const struct layer_row *row, struct text_source dout,
                                    const void *add, void *din, float *const dparam[2], bool rms)
{
    if (dout.half) {
        row->x.half ? layer_backward(row, true, dout.data, true, add, din, dparam, rms)
                    : layer_backward(row, false, dout.data, true, add, din, dparam, rms);
    } else {
        row->x.half ? layer_backward(row, true, dout.data, false, add, din, dparam, rms)
                    : layer_backward(row, false, dout.data, false, add, din, dparam, rms);
    }
}

void TEXT(layer_norm_backward)(const struct layer_row *row, struct text_source dout,
                               struct text_source add, struct text_target din, float *dgamma,
                               float *dbeta)
{
    float *const dparam[2] = { dgamma, dbeta };
    row->rms ? layer_backward_as(row, dout, add.data, din.data, dparam, true)
             : layer_backward_as(row, dout, add.data, din.data, dparam, false);
}

/* most and best of the whole groups of LANES. Returns where the rest begins. */
LOOPS_INLINE size_t find_best(struct softmax_row *row, bool half)
{
    const size_t n = (size_t)row->count;
    float lane[LANES];
    int32_t place[LANES];
    vec most[PARTS];
    ivec index[PARTS], group[PARTS];
    for (int32_t l = 0; l < LANES; l++) {
        lane[l] = -INFINITY;
        place[l] = l;
    }
    memcpy(most, lane, sizeof(most));
    memcpy(index, place, sizeof(index));
    memcpy(group, place, sizeof(group));
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < PARTS; k++) {
            const vec v = text_get(row->x.data, i + k * W, half);
            const ivec above = v > most[k];
            most[k] = vec_choose(above, v, most[k]);
            index[k] = (group[k] & above) | (index[k] & ~above);
            group[k] += LANES;
        }
    }
    memcpy(lane, most, sizeof(most));
    memcpy(place, index, sizeof(index));
    row->most = lane[0];
    row->best = place[0];
    for (size_t l = 1; l < LANES; l++) {
        if (lane[l] > row->most || (!(lane[l] < row->most) && place[l] < row->best)) {
            row->most = lane[l];
            row->best = place[l];
        }
    }
    return i;
}

LOOPS_INLINE void softmax_forward(struct softmax_row *row, bool half, bool all)
{
    const size_t n = (size_t)row->count;
    const void *x = row->x.data;
    for (size_t i = find_best(row, half); i < n; i++) {
        const float v = text_get_part(x, i, 1, half)[0];
        if (v > row->most) {
            row->most = v;
            row->best = (int64_t)i;
        }
    }
    row->sum = row->all = 0.0;
    const vec most = vec_set(row->most);
    for (size_t first = 0; first < n; first += CHUNK) {
        const size_t end = n - first < CHUNK ? n : first + CHUNK;
        vec sum[PARTS] = { { 0 } }, plain[PARTS] = { { 0 } };
        for (size_t i = first, k = 0; i < end; i += W, k = (k + 1) % PARTS) {
            const vec v = text_get_some(x, i, end, half);
            vec e = vec_exp(v - most);
            if (end - i < W)
                e = text_only(e, end - i);
            sum[k] += e;
            if (all)
                plain[k] += v;
        }
        row->sum += (double)lanes_sum(sum);
        if (all)
            row->all += (double)lanes_sum(plain);
    }
}

void TEXT(softmax)(struct softmax_row *row, bool all)
{
    if (row->x.half) {
        all ? softmax_forward(row, true, true) : softmax_forward(row, true, false);
    } else {
        all ? softmax_forward(row, false, true) : softmax_forward(row, false, false);
    }
}

LOOPS_INLINE void softmax_gradient(const struct softmax_row *row, bool half, float factor,
                                   float constant, void *dx)
{
    const size_t n = (size_t)row->count;
    const vec most = vec_set(row->most), by = vec_set(factor), less = vec_set(constant);
    for (size_t i = 0; i < n; i += W) {
        const vec e = vec_exp(text_get_some(row->x.data, i, n, half) - most);
        text_put_some(dx, i, n, e * by - less, half);
    }
}

void TEXT(softmax_backward)(const struct softmax_row *row, float factor, float constant,
                            struct text_target dx)
{
    if (row->x.half) {
        softmax_gradient(row, true, factor, constant, dx.data);
    } else {
        softmax_gradient(row, false, factor, constant, dx.data);
    }
}
