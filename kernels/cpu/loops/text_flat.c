/*
 * Loops over flat arrays of float32 or bfloat16, and the table of all loops of the text ops.
 */
#include "kernels/cpu/loops/text_parts.h"

#define COLUMN_TILE 64
#define ROW_CHUNK   64 /* rows that are added in float32 before they go into a double */

LOOPS_INLINE void convert(void *out, bool to, const void *x, bool from, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        put(out, i, get(x, i, from), to);
    if (i < n)
        put_part(out, i, n - i, get_part(x, i, n - i, from), to);
}

#ifdef __AVX512F__
#define STREAM_MIN   ((size_t)1 << 20)
#define STREAM_AHEAD 512 /* elements: what is read comes from memory */

/* To bfloat16, far more than the caches hold: past them. Returns how many elements were done. */
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
/* NOLINTNEXTLINE(readability-non-const-parameter): as above */
static size_t narrow_stream(uint16_t *out, const float *x, size_t n)
{
    (void)out;
    (void)x;
    (void)n;
    return 0;
}
#endif

static void text_convert(struct target out, struct source x, size_t n)
{
    if (out.half == x.half) {
        memmove(out.data, x.data, n * (x.half ? sizeof(uint16_t) : sizeof(float)));
    } else if (out.half) {
        const size_t done = narrow_stream(out.data, x.data, n);
        convert((uint16_t *)out.data + done, true, (const float *)x.data + done, false, n - done);
    } else {
        convert(out.data, false, x.data, true, n);
    }
}

LOOPS_INLINE void add(struct target out, bool to, struct source x, bool from, struct source y,
                      size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        put(out.data, i, get(x.data, i, from) + get(y.data, i, y.half), to);
    if (i < n) {
        put_part(out.data, i, n - i,
                 get_part(x.data, i, n - i, from) + get_part(y.data, i, n - i, y.half), to);
    }
}

static void text_add(struct target out, struct source x, struct source y, size_t n)
{
    if (y.data == NULL) {
        text_convert(out, x, n);
    } else if (out.half) {
        x.half ? add(out, true, x, true, y, n) : add(out, true, x, false, y, n);
    } else {
        x.half ? add(out, false, x, true, y, n) : add(out, false, x, false, y, n);
    }
}

/* 1 / (1 + e^-2u), u = √(2/π)·(x + 0.044715·x³): (1 + tanh u) / 2. */
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
    if (kind == ACTIVATION_RELU)
        return vec_keep(x, x);
    if (kind == ACTIVATION_GELU_TANH)
        return x * tanh_gate(x);
    vec e;
    return x * normal_cdf(x, &e);
}

LOOPS_INLINE vec derivative(enum activation kind, vec x)
{
    const vec one = vec_set(1.0f);
    if (kind == ACTIVATION_RELU)
        return vec_keep(one, x);
    if (kind == ACTIVATION_GELU_TANH) {
        const vec gate = tanh_gate(x);
        const vec slope = vec_fma(x * x, vec_set(0.2140644488f), vec_set(1.5957691216f));
        return vec_fma(x * gate * (one - gate), slope, gate);
    }
    vec e;
    const vec cdf = normal_cdf(x, &e);
    return vec_fma(x * e, vec_set(0.3989422804f), cdf);
}

LOOPS_INLINE void activate(enum activation kind, void *out, const void *x, bool half, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        put(out, i, activation(kind, get(x, i, half)), half);
    if (i < n)
        put_part(out, i, n - i, activation(kind, get_part(x, i, n - i, half)), half);
}

static void text_activate(enum activation kind, struct target out, struct source x, size_t n)
{
    if (kind == ACTIVATION_RELU) {
        x.half ? activate(ACTIVATION_RELU, out.data, x.data, true, n)
               : activate(ACTIVATION_RELU, out.data, x.data, false, n);
    } else if (kind == ACTIVATION_GELU_TANH) {
        x.half ? activate(ACTIVATION_GELU_TANH, out.data, x.data, true, n)
               : activate(ACTIVATION_GELU_TANH, out.data, x.data, false, n);
    } else {
        x.half ? activate(ACTIVATION_GELU_ERF, out.data, x.data, true, n)
               : activate(ACTIVATION_GELU_ERF, out.data, x.data, false, n);
    }
}

LOOPS_INLINE void activate_backward(enum activation kind, void *din, const void *dout,
                                    const void *x, bool half, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        put(din, i, get(dout, i, half) * derivative(kind, get(x, i, half)), half);
    if (i < n) {
        put_part(din, i, n - i,
                 get_part(dout, i, n - i, half) * derivative(kind, get_part(x, i, n - i, half)),
                 half);
    }
}

static void text_activate_backward(enum activation kind, struct target din, struct source dout,
                                   struct source x, size_t n)
{
    if (kind == ACTIVATION_RELU) {
        x.half ? activate_backward(ACTIVATION_RELU, din.data, dout.data, x.data, true, n)
               : activate_backward(ACTIVATION_RELU, din.data, dout.data, x.data, false, n);
    } else if (kind == ACTIVATION_GELU_TANH) {
        x.half ? activate_backward(ACTIVATION_GELU_TANH, din.data, dout.data, x.data, true, n)
               : activate_backward(ACTIVATION_GELU_TANH, din.data, dout.data, x.data, false, n);
    } else {
        x.half ? activate_backward(ACTIVATION_GELU_ERF, din.data, dout.data, x.data, true, n)
               : activate_backward(ACTIVATION_GELU_ERF, din.data, dout.data, x.data, false, n);
    }
}

/* Of COLUMN_TILE columns or fewer, the rows in chunks. */
LOOPS_INLINE void column_tile(double *total, const void *x, bool half, size_t rows, size_t columns,
                              size_t count)
{
    for (size_t first = 0; first < rows; first += ROW_CHUNK) {
        vec sum[COLUMN_TILE / W] = { { 0 } };
        const size_t end = rows - first < ROW_CHUNK ? rows : first + ROW_CHUNK;
        for (size_t r = first; r < end; r++) {
            for (size_t v = 0; v * W < count; v++) {
                const size_t left = count - v * W, from = r * columns + v * W;
                sum[v] += left >= W ? get(x, from, half) : get_part(x, from, left, half);
            }
        }
        float lane[COLUMN_TILE];
        memcpy(lane, sum, sizeof(lane));
        for (size_t l = 0; l < COLUMN_TILE; l++)
            total[l] += (double)lane[l];
    }
}

static void text_column_sums(float *out, struct source x, size_t rows, size_t columns,
                             bool accumulate)
{
    for (size_t c = 0; c < columns; c += COLUMN_TILE) {
        double total[COLUMN_TILE] = { 0 };
        const size_t count = columns - c < COLUMN_TILE ? columns - c : COLUMN_TILE;
        const void *from = at(x.data, c, x.half);
        if (x.half) {
            column_tile(total, from, true, rows, columns, count);
        } else {
            column_tile(total, from, false, rows, columns, count);
        }
        for (size_t l = 0; l < count; l++)
            out[c + l] = accumulate ? out[c + l] + (float)total[l] : (float)total[l];
    }
}

LOOPS_INLINE float dot(const void *x, const void *y, bool half, size_t n)
{
    vec sum[PARTS] = { { 0 } };
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t k = 0; k < PARTS; k++)
            sum[k] += get(x, i + k * W, half) * get(y, i + k * W, half);
    }
    for (size_t k = 0; i < n; i += W, k++) {
        const size_t count = n - i < W ? n - i : W;
        sum[k] += get_part(x, i, count, half) * get_part(y, i, count, half);
    }
    return lanes_sum(sum);
}

static float text_dot(struct source x, struct source y, size_t n)
{
    return x.half ? dot(x.data, y.data, true, n) : dot(x.data, y.data, false, n);
}

const struct text_loops LOOPS_TABLE(text_loops) = {
    .convert = text_convert,
    .add = text_add,
    .activate = text_activate,
    .activate_backward = text_activate_backward,
    .column_sums = text_column_sums,
    .dropout = TEXT(dropout),
    .layer_norm = TEXT(layer_norm),
    .layer_norm_backward = TEXT(layer_norm_backward),
    .softmax = TEXT(softmax),
    .softmax_backward = TEXT(softmax_backward),
    .attention = TEXT(attention),
    .attention_backward = TEXT(attention_backward),
    .dot = text_dot,
};
