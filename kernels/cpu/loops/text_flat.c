/*
 * Loops over flat arrays of float32 or bfloat16.
 */
#include "common/check.h"
#include "kernels/cpu/loops/text_parts.h"

#define COLUMN_TILE 64
#define ROW_CHUNK   64 /* rows that are added in float32 before they go into a double */

LOOPS_INLINE void convert_as(void *out, bool out_half, const void *x, bool x_half, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        text_put(out, i, text_get(x, i, x_half), out_half);
    if (i < n)
        text_put_part(out, i, n - i, text_get_part(x, i, n - i, x_half), out_half);
}

#ifdef __AVX512F__
#define STREAM_MIN   ((size_t)1 << 20)
#define STREAM_AHEAD 512 /* elements: what is read comes from memory */

/* Narrows to bfloat16, past the caches, from STREAM_MIN elements on. Returns how many were done:
 * all but the last few, or none. */
static size_t narrow_stream(uint16_t *out, const float *x, size_t n)
{
    size_t i = 0;
    if (n < STREAM_MIN || (uintptr_t)out % (sizeof(uint16_t) * 2 * LANES) != 0)
        return 0;
    for (; i + (size_t)2 * W <= n; i += (size_t)2 * W) {
        half_vec pair[2];
        __builtin_prefetch(x + i + STREAM_AHEAD);
        __builtin_prefetch(x + i + STREAM_AHEAD + W);
        pair[0] = half_of_vec(vec_load(x + i));
        pair[1] = half_of_vec(vec_load(x + i + W));
        __m512i both;
        memcpy(&both, pair, sizeof(both));
        _mm512_stream_si512((__m512i *)(void *)(out + i), both);
    }
    vec_put_end();
    return i;
}
#else
/* NOLINTNEXTLINE(readability-non-const-parameter): with AVX-512 it writes */
static size_t narrow_stream(uint16_t *out, const float *x, size_t n)
{
    (void)out;
    (void)x;
    (void)n;
    return 0;
}
#endif

void TEXT(convert)(struct text_target out, struct text_source x, size_t n)
{
    if (out.half == x.half) {
        memmove(out.data, x.data, n * (x.half ? sizeof(uint16_t) : sizeof(float)));
    } else if (out.half) {
        const size_t done = narrow_stream(out.data, x.data, n);
        convert_as((uint16_t *)out.data + done, true, (const float *)x.data + done, false,
                   n - done);
    } else {
        convert_as(out.data, false, x.data, true, n);
    }
}

LOOPS_INLINE void add_as(struct text_target out, bool out_half, struct text_source x, bool x_half,
                         struct text_source y, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        text_put(out.data, i, text_get(x.data, i, x_half) + text_get(y.data, i, y.half), out_half);
    if (i < n) {
        text_put_part(out.data, i, n - i,
                      text_get_part(x.data, i, n - i, x_half) +
                          text_get_part(y.data, i, n - i, y.half),
                      out_half);
    }
}

void TEXT(add)(struct text_target out, struct text_source x, struct text_source y, size_t n)
{
    if (y.data == NULL) {
        TEXT(convert)(out, x, n);
    } else if (out.half) {
        x.half ? add_as(out, true, x, true, y, n) : add_as(out, true, x, false, y, n);
    } else {
        x.half ? add_as(out, false, x, true, y, n) : add_as(out, false, x, false, y, n);
    }
}

/* (1 + tanh u) / 2 = 1 / (1 + e^-2u), u = √(2/π)·(x + 0.044715·x³). */
LOOPS_INLINE vec tanh_gate(vec x)
{
    const vec slope = vec_fma(x * x, vec_set(-0.0713548163f), vec_set(-1.5957691216f));
    return vec_set(1.0f) / (vec_set(1.0f) + vec_exp(x * slope));
}

/* Φ(x), and e^(-x²/2). Source: Abramowitz and Stegun 7.1.26; the absolute error is below 1e-7. */
LOOPS_INLINE vec normal_cdf(vec x, vec *out_exp)
{
    const vec zero = vec_set(0.0f), one = vec_set(1.0f);
    const vec size = vec_choose(x < zero, -x, x);
    const vec t = one / (one + size * vec_set(0.2316418882f)); /* 0.3275911 / √2 */
    vec p = vec_set(1.061405429f);
    p = vec_fma(p, t, vec_set(-1.453152027f));
    p = vec_fma(p, t, vec_set(1.421413741f));
    p = vec_fma(p, t, vec_set(-0.284496736f));
    p = vec_fma(p, t, vec_set(0.254829592f));
    *out_exp = vec_exp(x * x * vec_set(-0.5f));
    const vec tail = p * t * *out_exp * vec_set(0.5f);
    return vec_choose(x < zero, tail, one - tail);
}

LOOPS_INLINE vec activation(enum activation kind, vec x)
{
    vec e;
    switch (kind) {
    case ACTIVATION_RELU:
        return vec_keep(x, x);
    case ACTIVATION_GELU_TANH:
        return x * tanh_gate(x);
    case ACTIVATION_GELU_ERF:
        return x * normal_cdf(x, &e);
    case ACTIVATION_NONE:
        break;
    }
    return x;
}

LOOPS_INLINE vec gelu_tanh_derivative(vec x)
{
    const vec gate = tanh_gate(x);
    const vec slope = vec_fma(x * x, vec_set(0.2140644488f), vec_set(1.5957691216f));
    return vec_fma(x * gate * (vec_set(1.0f) - gate), slope, gate);
}

LOOPS_INLINE vec gelu_erf_derivative(vec x)
{
    vec e;
    const vec cdf = normal_cdf(x, &e);
    return vec_fma(x * e, vec_set(0.3989422804f), cdf);
}

LOOPS_INLINE vec activation_derivative(enum activation kind, vec x)
{
    switch (kind) {
    case ACTIVATION_RELU:
        return vec_keep(vec_set(1.0f), x);
    case ACTIVATION_GELU_TANH:
        return gelu_tanh_derivative(x);
    case ACTIVATION_GELU_ERF:
        return gelu_erf_derivative(x);
    case ACTIVATION_NONE:
        break;
    }
    return vec_set(1.0f);
}

LOOPS_INLINE void activate_as(enum activation kind, void *out, const void *x, bool half, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        text_put(out, i, activation(kind, text_get(x, i, half)), half);
    if (i < n)
        text_put_part(out, i, n - i, activation(kind, text_get_part(x, i, n - i, half)), half);
}

void TEXT(activate)(enum activation kind, struct text_target out, struct text_source x, size_t n)
{
    switch (kind) {
    case ACTIVATION_RELU:
        x.half ? activate_as(ACTIVATION_RELU, out.data, x.data, true, n)
               : activate_as(ACTIVATION_RELU, out.data, x.data, false, n);
        return;
    case ACTIVATION_GELU_TANH:
        x.half ? activate_as(ACTIVATION_GELU_TANH, out.data, x.data, true, n)
               : activate_as(ACTIVATION_GELU_TANH, out.data, x.data, false, n);
        return;
    case ACTIVATION_GELU_ERF:
        x.half ? activate_as(ACTIVATION_GELU_ERF, out.data, x.data, true, n)
               : activate_as(ACTIVATION_GELU_ERF, out.data, x.data, false, n);
        return;
    case ACTIVATION_NONE:
        break;
    }
    CHECK("an activation" == NULL);
}

LOOPS_INLINE void activate_backward_as(enum activation kind, void *din, const void *dout,
                                       const void *x, bool half, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W) {
        text_put(din, i,
                 text_get(dout, i, half) * activation_derivative(kind, text_get(x, i, half)), half);
    }
    if (i < n) {
        text_put_part(din, i, n - i,
                      text_get_part(dout, i, n - i, half) *
                          activation_derivative(kind, text_get_part(x, i, n - i, half)),
                      half);
    }
}

void TEXT(activate_backward)(enum activation kind, struct text_target din, struct text_source dout,
                             struct text_source x, size_t n)
{
    switch (kind) {
    case ACTIVATION_RELU:
        x.half ? activate_backward_as(ACTIVATION_RELU, din.data, dout.data, x.data, true, n)
               : activate_backward_as(ACTIVATION_RELU, din.data, dout.data, x.data, false, n);
        return;
    case ACTIVATION_GELU_TANH:
        x.half ? activate_backward_as(ACTIVATION_GELU_TANH, din.data, dout.data, x.data, true, n)
               : activate_backward_as(ACTIVATION_GELU_TANH, din.data, dout.data, x.data, false, n);
        return;
    case ACTIVATION_GELU_ERF:
        x.half ? activate_backward_as(ACTIVATION_GELU_ERF, din.data, dout.data, x.data, true, n)
               : activate_backward_as(ACTIVATION_GELU_ERF, din.data, dout.data, x.data, false, n);
        return;
    case ACTIVATION_NONE:
        break;
    }
    CHECK("an activation" == NULL);
}

/* total[l] += Σ over rows of x[r][column + l], l < count <= COLUMN_TILE; the rows in chunks. */
LOOPS_INLINE void column_tile(double *total, const void *x, bool half, size_t rows, size_t columns,
                              size_t column, size_t count)
{
    for (size_t first = 0; first < rows; first += ROW_CHUNK) {
        vec sum[COLUMN_TILE / W] = { { 0 } };
        const size_t end = rows - first < ROW_CHUNK ? rows : first + ROW_CHUNK;
        for (size_t r = first; r < end; r++) {
            for (size_t v = 0; v * W < count; v++) {
                const size_t left = count - v * W, from = r * columns + column + v * W;
                sum[v] += left >= W ? text_get(x, from, half) : text_get_part(x, from, left, half);
            }
        }
        float lane[COLUMN_TILE];
        memcpy(lane, sum, sizeof(lane));
        for (size_t l = 0; l < COLUMN_TILE; l++)
            total[l] += (double)lane[l];
    }
}

void TEXT(column_sums)(float *out, struct text_source x, size_t rows, size_t columns,
                       bool accumulate)
{
    for (size_t c = 0; c < columns; c += COLUMN_TILE) {
        double total[COLUMN_TILE] = { 0 };
        const size_t count = columns - c < COLUMN_TILE ? columns - c : COLUMN_TILE;
        if (x.half) {
            column_tile(total, x.data, true, rows, columns, c, count);
        } else {
            column_tile(total, x.data, false, rows, columns, c, count);
        }
        for (size_t l = 0; l < count; l++)
            out[c + l] = accumulate ? out[c + l] + (float)total[l] : (float)total[l];
    }
}

LOOPS_INLINE float dot_as(const void *x, const void *y, bool half, size_t n)
{
    vec sum[PARTS] = { { 0 } };
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < PARTS; k++)
            sum[k] += text_get(x, i + k * W, half) * text_get(y, i + k * W, half);
    }
    for (size_t k = 0; i < n; i += W, k++) {
        const size_t count = n - i < W ? n - i : W;
        sum[k] += text_get_part(x, i, count, half) * text_get_part(y, i, count, half);
    }
    return lanes_sum(sum);
}

float TEXT(dot)(struct text_source x, struct text_source y, size_t n)
{
    return x.half ? dot_as(x.data, y.data, true, n) : dot_as(x.data, y.data, false, n);
}
