/*
 * Loops over flat arrays. What is left after the last whole vector is done element by element with
 * the same operations: where an array begins and ends does not change the bits of an element.
 */
#include <math.h>

#include "common/check.h"
#include "kernels/backend.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/cpu/loops/simd.h"
#include "kernels/mix.h"

#define SQUARE_LANES 16 /* whatever the width, so that the order is the same everywhere */
#define COLUMN_TILE  64
#define STREAM_MIN   ((size_t)1 << 20) /* elements: far more than the caches hold */

typedef double dvec __attribute__((vector_size(8 * LOOPS_WIDTH)));
typedef uint32_t uvec __attribute__((vector_size(4 * LOOPS_WIDTH)));

static void flat_add(float *out, const float *x, const float *y, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        vec_store(out + i, vec_load(x + i) + vec_load(y + i));
    for (; i < n; i++)
        out[i] = x[i] + y[i];
}

/* Past the caches from STREAM_MIN on. */
static void flat_fill(float *out, float value, size_t n)
{
    size_t i = 0;
    if (n >= STREAM_MIN) {
        for (; (uintptr_t)(out + i) % sizeof(vec) != 0; i++)
            out[i] = value;
        for (; i + W <= n; i += W)
            vec_put(out + i, vec_set(value), true);
        vec_put_end();
    }
    for (; i < n; i++)
        out[i] = value;
}

static void flat_relu(float *out, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W) {
        vec v = vec_load(x + i);
        vec_store(out + i, vec_keep(v, v));
    }
    for (; i < n; i++)
        out[i] = x[i] <= 0.0f ? 0.0f : x[i];
}

static void flat_relu_backward(float *din, const float *a, const float *b, const float *out,
                               size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W) {
        vec g = vec_load(a + i);
        if (b != NULL)
            g += vec_load(b + i);
        if (out != NULL)
            g = vec_keep(g, vec_load(out + i));
        vec_store(din + i, g);
    }
    for (; i < n; i++) {
        float g = b == NULL ? a[i] : a[i] + b[i];
        din[i] = out != NULL && out[i] <= 0.0f ? 0.0f : g;
    }
}

static double flat_square_sum(const float *x, size_t n)
{
    dvec sum[SQUARE_LANES / W] = { { 0 } };
    size_t i = 0;
    for (; i + SQUARE_LANES <= n; i += SQUARE_LANES) {
        for (size_t k = 0; k < SQUARE_LANES / W; k++) {
            dvec v = __builtin_convertvector(vec_load(x + i + k * W), dvec);
            sum[k] += v * v;
        }
    }
    double lane[SQUARE_LANES];
    memcpy(lane, sum, sizeof(lane));
    for (size_t l = 0; i < n; i++, l++)
        lane[l] += (double)x[i] * (double)x[i];
    for (size_t half = SQUARE_LANES / 2; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    }
    return lane[0];
}

/* Halves of the mixed words are added apart, so that 32 bits hold the sums of a piece. */
static uint64_t flat_checksum(const float *x, size_t n)
{
    uvec at, low = { 0 }, high = { 0 };
    for (uint32_t k = 0; k < W; k++)
        at[k] = k;
    CHECK(n <= PIECE_ELEMENTS);
    size_t i = 0;
    for (; i + W <= n; i += W, at += W) {
        uvec word;
        memcpy(&word, x + i, sizeof(word));
        MIX_WORD(word, at);
        low += word & 0xffff;
        high += word >> 16;
    }
    uint64_t sum = 0;
    for (size_t k = 0; k < W; k++)
        sum += (uint64_t)low[k] + ((uint64_t)high[k] << 16);
    for (; i < n; i++)
        sum += mix_word(x[i], (uint32_t)i);
    return sum;
}

static void flat_bias_relu(float *out, const float *bias, size_t rows, size_t columns, bool relu)
{
    for (size_t r = 0; r < rows; r++) {
        float *row = out + r * columns;
        if (bias != NULL)
            flat_add(row, row, bias, columns);
        if (relu)
            flat_relu(row, row, columns);
    }
}

static void flat_column_sums(float *out, const float *x, size_t rows, size_t columns,
                             bool accumulate)
{
    for (size_t c = 0; c < columns; c += COLUMN_TILE) {
        double sum[COLUMN_TILE] = { 0 };
        size_t count = columns - c < COLUMN_TILE ? columns - c : COLUMN_TILE;
        for (size_t r = 0; r < rows; r++) {
            const float *from = x + r * columns + c;
            for (size_t l = 0; l < count; l++)
                sum[l] += (double)from[l];
        }
        for (size_t l = 0; l < count; l++)
            out[c + l] = accumulate ? out[c + l] + (float)sum[l] : (float)sum[l];
    }
}

/* A run of elements that all decay, or all don't, and where it ends. */
struct decay_run {
    size_t end;
    bool decays;
};

/* The run that begins at `first`; `border` is the next border, in and out. */
static struct decay_run next_decay_run(const struct decay_map *map, size_t first, size_t n,
                                       size_t *border)
{
    if (map == NULL)
        return (struct decay_run){ .end = n, .decays = true };
    while (*border < map->count && map->borders[*border] <= first)
        (*border)++;
    const bool last = *border == map->count || map->borders[*border] >= n;
    return (struct decay_run){ .end = last ? n : (size_t)map->borders[*border],
                               .decays = *border % 2 == 0 };
}

static void sgd_run(float *restrict param, float *restrict momentum, const float *restrict grad,
                    size_t n, const struct sgd_args *args)
{
    const struct sgd_args a = *args;
    if (a.momentum == 0.0f || momentum == NULL) {
        for (size_t i = 0; i < n; i++) {
            float g = grad[i] * a.grad_scale + a.weight_decay * param[i];
            param[i] -= a.lr * g;
        }
        return;
    }
    const float keep = a.first ? 0.0f : a.momentum;
    const float direct = a.nesterov ? 1.0f : 0.0f, along = a.nesterov ? a.momentum : 1.0f;
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * a.grad_scale + a.weight_decay * param[i];
        float m = keep * momentum[i] + g;
        momentum[i] = m;
        param[i] -= a.lr * (direct * g + along * m);
    }
}

static void flat_sgd(float *restrict param, float *restrict momentum, const float *restrict grad,
                     size_t n, const struct sgd_args *args)
{
    struct decay_run run;
    size_t border = 0;
    for (size_t i = 0; i < n; i = run.end) {
        struct sgd_args a = *args;
        run = next_decay_run(args->decay, i, n, &border);
        if (!run.decays)
            a.weight_decay = 0.0f;
        sgd_run(param + i, momentum == NULL ? NULL : momentum + i, grad + i, run.end - i, &a);
    }
}

/*
 * What is the same for all elements of a run, at step t. With it, torch.optim.AdamW is
 *
 *   m = m + rest1·(g - m)                        rest1 = 1 - β1    rate = lr / (1 - β1ᵗ)
 *   v = β2·v + rest2·g²                          rest2 = 1 - β2    root = √(1 - β2ᵗ)
 *   θ = decay·θ - rate·m / (√v / root + ε)       decay = 1 - lr·weight_decay
 */
struct adamw_factors {
    float rate, root, decay, rest1, rest2, beta2, eps, grad_scale;
};

static void adamw_run(float *restrict param, float *restrict m, float *restrict v,
                      const float *restrict grad, size_t n, const struct adamw_factors *factors)
{
    const struct adamw_factors f = *factors;
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad_scale;
        float first = m[i] + f.rest1 * (g - m[i]);
        float second = v[i] * f.beta2 + f.rest2 * g * g;
        m[i] = first;
        v[i] = second;
        param[i] =
            param[i] * f.decay - f.rate * (first / (__builtin_sqrtf(second) / f.root + f.eps));
    }
}

/* All but .decay. rate_of: what the corrected first moment is multiplied by. */
static struct adamw_factors adamw_factors_of(const struct adamw_args *args, double rate_of)
{
    const double t = (double)args->t;
    return (struct adamw_factors){
        .rate = (float)(rate_of / (1.0 - pow((double)args->beta1, t))),
        .root = (float)sqrt(1.0 - pow((double)args->beta2, t)),
        .rest1 = (float)(1.0 - (double)args->beta1),
        .rest2 = (float)(1.0 - (double)args->beta2),
        .beta2 = args->beta2,
        .eps = args->eps,
        .grad_scale = args->grad_scale,
    };
}

static void flat_adamw(float *restrict param, float *restrict m, float *restrict v,
                       const float *restrict grad, size_t n, const struct adamw_args *args)
{
    const struct adamw_args a = *args;
    struct adamw_factors f = adamw_factors_of(&a, (double)a.lr);
    struct decay_run run;
    size_t border = 0;
    for (size_t i = 0; i < n; i = run.end) {
        run = next_decay_run(a.decay, i, n, &border);
        f.decay = run.decays ? (float)(1.0 - (double)a.lr * (double)a.weight_decay) : 1.0f;
        adamw_run(param + i, m + i, v + i, grad + i, run.end - i, &f);
    }
}

/* As adamw_run, but with f.rate for m alone, and f.decay·param added, into grad. */
static void lamb_run(const float *restrict param, float *restrict m, float *restrict v,
                     float *restrict grad, size_t n, const struct adamw_factors *factors)
{
    const struct adamw_factors f = *factors;
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad_scale;
        float first = m[i] + f.rest1 * (g - m[i]);
        float second = v[i] * f.beta2 + f.rest2 * g * g;
        m[i] = first;
        v[i] = second;
        grad[i] =
            f.rate * (first / (__builtin_sqrtf(second) / f.root + f.eps)) + f.decay * param[i];
    }
}

static void flat_lamb(const float *restrict param, float *restrict m, float *restrict v,
                      float *restrict grad, size_t n, const struct adamw_args *args)
{
    struct adamw_factors f = adamw_factors_of(args, 1.0);
    struct decay_run run;
    size_t border = 0;
    for (size_t i = 0; i < n; i = run.end) {
        run = next_decay_run(args->decay, i, n, &border);
        f.decay = run.decays ? args->weight_decay : 0.0f;
        lamb_run(param + i, m + i, v + i, grad + i, run.end - i, &f);
    }
}

/*
 *   c = m + rest1·(g - m)            rest1 = 1 - β1    decay = 1 - lr·weight_decay
 *   θ = decay·θ - lr·sign(c)
 *   m = m + rest2·(g - m)            rest2 = 1 - β2
 */
static void lion_run(float *restrict param, float *restrict m, const float *restrict grad, size_t n,
                     const struct lion_args *args, float decay)
{
    const float scale = args->grad_scale, lr = args->lr;
    const float rest1 = (float)(1.0 - (double)args->beta1);
    const float rest2 = (float)(1.0 - (double)args->beta2);
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * scale;
        float c = m[i] + rest1 * (g - m[i]);
        float sign = (float)(c > 0.0f) - (float)(c < 0.0f);
        m[i] += rest2 * (g - m[i]);
        param[i] = param[i] * decay - lr * sign;
    }
}

static void flat_lion(float *restrict param, float *restrict m, const float *restrict grad,
                      size_t n, const struct lion_args *args)
{
    const float decay = (float)(1.0 - (double)args->lr * (double)args->weight_decay);
    struct decay_run run;
    size_t border = 0;
    for (size_t i = 0; i < n; i = run.end) {
        run = next_decay_run(args->decay, i, n, &border);
        lion_run(param + i, m + i, grad + i, run.end - i, args, run.decays ? decay : 1.0f);
    }
}

const struct flat_loops LOOPS_TABLE(flat_loops) = {
    .add = flat_add,
    .fill = flat_fill,
    .relu = flat_relu,
    .relu_backward = flat_relu_backward,
    .square_sum = flat_square_sum,
    .checksum = flat_checksum,
    .bias_relu = flat_bias_relu,
    .column_sums = flat_column_sums,
    .sgd = flat_sgd,
    .adamw = flat_adamw,
    .lion = flat_lion,
    .lamb = flat_lamb,
};
