/*
 * Pools over bfloat16 tensors with the channels innermost, and flat bfloat16 arrays.
 */
#include "kernels/cpu/loops_half.h"

#include <math.h>

#include "kernels/cpu/loops_nhwc.h"

#define CHUNK 64 /* rows that are added in one float */

typedef uint8_t byte_vec __attribute__((vector_size(LOOPS_WIDTH)));

/* [begin, end) of input indices in a window, or of windows that hold an input index. */
struct span {
    int64_t begin, end;
};

static struct span window_of(int64_t out, const struct pool_shape *s, int64_t size)
{
    const int64_t start = out * s->stride - s->pad;
    return (struct span){ .begin = start < 0 ? 0 : start,
                          .end = start + s->kernel > size ? size : start + s->kernel };
}

static struct span windows_with(int64_t in, const struct pool_shape *s, int64_t count)
{
    const int64_t last = (in + s->pad) / s->stride + 1;
    const int64_t before = in + s->pad - s->kernel; /* the last place that is out of reach */
    return (struct span){ .begin = before < 0 ? 0 : before / s->stride + 1,
                          .end = last > count ? count : last };
}

LOOPS_INLINE void index_put(uint8_t *to, ivec index, int64_t n)
{
    const byte_vec bytes = __builtin_convertvector(index, byte_vec);
    if (n == W) {
        memcpy(to, &bytes, sizeof(bytes));
    } else {
        memcpy(to, &bytes, (size_t)n);
    }
}

LOOPS_INLINE ivec index_get(const uint8_t *from, int64_t n)
{
    byte_vec bytes = { 0 };
    if (n == W) {
        memcpy(&bytes, from, sizeof(bytes));
    } else {
        memcpy(&bytes, from, (size_t)n);
    }
    return __builtin_convertvector(bytes, ivec);
}

/* n channels from x on, of the output place whose window begins at start. */
LOOPS_INLINE void max_at(const struct pool_shape *s, const int64_t start[2],
                         const struct span window[2], const uint16_t *x, int64_t n, uint16_t *y,
                         uint8_t *index)
{
    vec best = vec_set(-INFINITY);
    ivec won = vec_bits(vec_set(0.0f));
    const ivec none = won;
    bool any = false;
    for (int64_t h = window[0].begin; h < window[0].end; h++) {
        for (int64_t w = window[1].begin; w < window[1].end; w++) {
            const int32_t place = (int32_t)((h - start[0]) * s->kernel + w - start[1]);
            const vec v = half_get(x + (h * s->w + w) * s->step, n);
            /* The first of the greatest wins; a NaN wins and stays, as in PyTorch. */
            const ivec keep = any ? vec_not_above(v, best) | vec_is_nan(best) : none;
            any = true;
            best = vec_choose(keep, best, v);
            won = (won & keep) | ((none + place) & ~keep);
        }
    }
    half_put(y, best, n);
    if (index != NULL)
        index_put(index, won, n);
}

static void half_max(const struct pool_shape *s, const uint16_t *x, uint16_t *y, uint8_t *index)
{
    const int64_t channels = s->step;
    for (int64_t i = 0; i < s->p * s->q; i++) {
        const int64_t p = i / s->q, q = i % s->q;
        const int64_t start[2] = { p * s->stride - s->pad, q * s->stride - s->pad };
        const struct span window[2] = { window_of(p, s, s->h), window_of(q, s, s->w) };
        for (int64_t c = 0; c < channels; c += W) {
            const int64_t at = i * channels + c;
            max_at(s, start, window, x + c, width_left(channels, c), y + at,
                   index == NULL ? NULL : index + at);
        }
    }
}

/* The gradient of one input place: of all windows that it won, in order. */
static void max_backward_at(const struct pool_shape *s, const int64_t place[2], const uint16_t *dy,
                            const uint8_t *index, uint16_t *dx)
{
    const int64_t channels = s->step;
    const struct span rows = windows_with(place[0], s, s->p);
    const struct span columns = windows_with(place[1], s, s->q);
    for (int64_t c = 0; c < channels; c += W) {
        const int64_t n = width_left(channels, c);
        vec sum = vec_set(0.0f);
        for (int64_t p = rows.begin; p < rows.end; p++) {
            for (int64_t q = columns.begin; q < columns.end; q++) {
                const int64_t at = (p * s->q + q) * channels + c;
                const int64_t h = place[0] - p * s->stride + s->pad;
                const int64_t w = place[1] - q * s->stride + s->pad;
                const ivec here =
                    vec_same_index(index_get(index + at, n), (int32_t)(h * s->kernel + w));
                sum += vec_of_bits(vec_bits(half_get(dy + at, n)) & here);
            }
        }
        half_put(dx + c, sum, n);
    }
}

static void half_max_backward(const struct pool_shape *s, const uint16_t *dy, const uint8_t *index,
                              uint16_t *dx)
{
    for (int64_t i = 0; i < s->h * s->w; i++) {
        const int64_t place[2] = { i / s->w, i % s->w };
        max_backward_at(s, place, dy, index, dx + i * s->step);
    }
}

static void half_average(const struct nhwc_shape *shape, const uint16_t *x, float *y)
{
    const int64_t channels = shape->channels;
    for (int64_t c = 0; c < channels; c += W) {
        const int64_t n = width_left(channels, c);
        vec all = vec_set(0.0f);
        for (int64_t r = 0; r < shape->rows; r += CHUNK) {
            vec sum = vec_set(0.0f);
            for (int64_t i = r; i < r + CHUNK && i < shape->rows; i++)
                sum += half_get(x + i * channels + c, n);
            all += sum;
        }
        all /= vec_set((float)shape->rows);
        memcpy(y + c, &all, sizeof(float) * (size_t)n);
    }
}

static void half_average_backward(const struct nhwc_shape *shape, const float *dy, uint16_t *dx)
{
    const int64_t channels = shape->channels;
    for (int64_t r = 0; r < shape->rows; r++) {
        for (int64_t c = 0; c < channels; c += W) {
            const int64_t n = width_left(channels, c);
            vec g = vec_set(0.0f);
            memcpy(&g, dy + c, sizeof(float) * (size_t)n);
            half_put(dx + r * channels + c, g / vec_set((float)shape->rows), n);
        }
    }
}

static void half_add(uint16_t *out, const uint16_t *x, const uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i += W) {
        const int64_t here = width_left((int64_t)n, (int64_t)i);
        half_put(out + i, half_get(x + i, here) + half_get(y + i, here), here);
    }
}

static void half_relu(uint16_t *out, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i += W) {
        const int64_t here = width_left((int64_t)n, (int64_t)i);
        const vec v = half_get(x + i, here);
        half_put(out + i, vec_keep(v, v), here);
    }
}

static void half_relu_backward(uint16_t *din, const uint16_t *a, const uint16_t *b,
                               const uint16_t *out, size_t n)
{
    for (size_t i = 0; i < n; i += W) {
        const int64_t here = width_left((int64_t)n, (int64_t)i);
        vec g = half_get(a + i, here);
        if (b != NULL)
            g += half_get(b + i, here);
        half_put(din + i, vec_keep(g, half_get(out + i, here)), here);
    }
}

static void half_narrow(uint16_t *out, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        half_put(out + i, vec_load(x + i), W);
    if (i < n) {
        vec v = vec_set(0.0f);
        memcpy(&v, x + i, sizeof(float) * (n - i));
        half_put(out + i, v, (int64_t)(n - i));
    }
}

static void half_widen_all(float *out, const uint16_t *x, size_t n)
{
    half_widen(out, x, n);
}

const struct nhwc_loops LOOPS_TABLE(nhwc_loops) = {
    .max = half_max,
    .max_backward = half_max_backward,
    .average = half_average,
    .average_backward = half_average_backward,
    .add = half_add,
    .relu = half_relu,
    .relu_backward = half_relu_backward,
    .narrow = half_narrow,
    .widen = half_widen_all,
};
