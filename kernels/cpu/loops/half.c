/*
 * Pools over bfloat16 tensors with the channels innermost, and flat bfloat16 arrays.
 */
#include "kernels/cpu/loops/half.h"

#include <math.h>

#include "kernels/cpu/loops/half_simd.h"

#define CHUNK 64 /* rows that are added in one float */

typedef uint8_t byte_vec __attribute__((vector_size(LOOPS_WIDTH)));

/* [begin, end): the input indices in a window, or the windows that hold an input index. */
struct span {
    int64_t begin, end;
};

static struct span half_window_of(int64_t out, const struct pool_shape *s, int64_t size)
{
    const int64_t start = out * s->stride - s->pad;
    return (struct span){ .begin = start < 0 ? 0 : start,
                          .end = start + s->kernel > size ? size : start + s->kernel };
}

static struct span half_windows_with(int64_t in, const struct pool_shape *s, int64_t count)
{
    const int64_t last = (in + s->pad) / s->stride + 1;
    const int64_t before = in + s->pad - s->kernel; /* the last place that is out of reach */
    return (struct span){ .begin = before < 0 ? 0 : before / s->stride + 1,
                          .end = last > count ? count : last };
}

LOOPS_INLINE void index_put(uint8_t *to, ivec index, int64_t n)
{
#if LOOPS_WIDTH == 16
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)index);
#else
    const byte_vec bytes = __builtin_convertvector(index, byte_vec);
#endif
    if (n == W) {
        memcpy(to, &bytes, sizeof(bytes));
    } else {
        uint8_t part[W];
        memcpy(part, &bytes, sizeof(bytes));
        memcpy(to, part, (size_t)n);
    }
}

LOOPS_INLINE ivec index_get(const uint8_t *from, int64_t n)
{
    uint8_t part[W] = { 0 };
    if (n != W) {
        memcpy(part, from, (size_t)n);
        from = part;
    }
#if LOOPS_WIDTH == 16
    __m128i bytes;
    memcpy(&bytes, from, sizeof(bytes));
    return (ivec)_mm512_cvtepu8_epi32(bytes);
#else
    byte_vec bytes;
    memcpy(&bytes, from, sizeof(bytes));
    return __builtin_convertvector(bytes, ivec);
#endif
}

/* n channels, from x on, of the output position whose window begins at `start`. */
LOOPS_INLINE void half_max_at(const struct pool_shape *s, const int64_t start[2],
                              const struct span window[2], const uint16_t *x, int64_t n,
                              uint16_t *y, uint8_t *index)
{
    vec best = vec_set(-INFINITY);
    ivec won = vec_bits(vec_set(0.0f));
    const ivec none = won;
    bool any = false;
    for (int64_t h = window[0].begin; h < window[0].end; h++) {
        for (int64_t w = window[1].begin; w < window[1].end; w++) {
            const int32_t place = (int32_t)((h - start[0]) * s->kernel + w - start[1]);
            const vec v = half_get(x + (h * s->w + w) * s->pitch, n);
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
    const int64_t channels = s->pitch;
    for (int64_t i = 0; i < s->p * s->q; i++) {
        const int64_t p = i / s->q, q = i % s->q;
        const int64_t start[2] = { p * s->stride - s->pad, q * s->stride - s->pad };
        const struct span window[2] = { half_window_of(p, s, s->h), half_window_of(q, s, s->w) };
        uint16_t *to = y + i * channels;
        uint8_t *won = index == NULL ? NULL : index + i * channels;
        int64_t c = 0;
        for (; c + W <= channels; c += W)
            half_max_at(s, start, window, x + c, W, to + c, won == NULL ? NULL : won + c);
        if (c < channels) {
            half_max_at(s, start, window, x + c, channels - c, to + c,
                        won == NULL ? NULL : won + c);
        }
    }
}

/* n channels of the gradient of one input position: the sum over the windows that it won, in order.
 */
LOOPS_INLINE void half_max_backward_part(const struct pool_shape *s, const int64_t place[2],
                                         const struct span window[2], const uint16_t *dy,
                                         const uint8_t *index, int64_t n, uint16_t *dx)
{
    vec sum = vec_set(0.0f);
    for (int64_t p = window[0].begin; p < window[0].end; p++) {
        for (int64_t q = window[1].begin; q < window[1].end; q++) {
            const int64_t at = (p * s->q + q) * s->pitch;
            const int64_t h = place[0] - p * s->stride + s->pad;
            const int64_t w = place[1] - q * s->stride + s->pad;
            const ivec here =
                vec_same_index(index_get(index + at, n), (int32_t)(h * s->kernel + w));
            sum += vec_of_bits(vec_bits(half_get(dy + at, n)) & here);
        }
    }
    half_put(dx, sum, n);
}

static void half_max_backward_at(const struct pool_shape *s, const int64_t place[2],
                                 const uint16_t *dy, const uint8_t *index, uint16_t *dx)
{
    const int64_t channels = s->pitch;
    const struct span window[2] = { half_windows_with(place[0], s, s->p),
                                    half_windows_with(place[1], s, s->q) };
    int64_t c = 0;
    for (; c + W <= channels; c += W)
        half_max_backward_part(s, place, window, dy + c, index + c, W, dx + c);
    if (c < channels)
        half_max_backward_part(s, place, window, dy + c, index + c, channels - c, dx + c);
}

static void half_max_backward(const struct pool_shape *s, const uint16_t *dy, const uint8_t *index,
                              uint16_t *dx)
{
    for (int64_t i = 0; i < s->h * s->w; i++) {
        const int64_t place[2] = { i / s->w, i % s->w };
        half_max_backward_at(s, place, dy, index, dx + i * s->pitch);
    }
}

/* The mean of n channels, in chunks of rows. */
LOOPS_INLINE void average_part(const struct half_shape *shape, const uint16_t *x, int64_t n,
                               float *y)
{
    vec all = vec_set(0.0f);
    for (int64_t r = 0; r < shape->rows; r += CHUNK) {
        vec sum = vec_set(0.0f);
        for (int64_t i = r; i < r + CHUNK && i < shape->rows; i++)
            sum += half_get(x + i * shape->channels, n);
        all += sum;
    }
    all /= vec_set((float)shape->rows);
    if (n == W) {
        vec_store(y, all);
    } else {
        vec_store_part(y, all, (size_t)n);
    }
}

static void half_average(const struct half_shape *shape, const uint16_t *x, float *y)
{
    const int64_t channels = shape->channels;
    int64_t c = 0;
    for (; c + W <= channels; c += W)
        average_part(shape, x + c, W, y + c);
    if (c < channels)
        average_part(shape, x + c, channels - c, y + c);
}

static void half_average_backward(const struct half_shape *shape, const float *dy, uint16_t *dx)
{
    const int64_t channels = shape->channels;
    for (int64_t r = 0; r < shape->rows; r++) {
        for (int64_t c = 0; c < channels; c += W) {
            const int64_t n = width_left(channels, c);
            const vec g = vec_load_part(dy + c, (size_t)n);
            half_put(dx + r * channels + c, g / vec_set((float)shape->rows), n);
        }
    }
}

static void half_add(uint16_t *out, const uint16_t *x, const uint16_t *y, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        half_put(out + i, half_get(x + i, W) + half_get(y + i, W), W);
    if (i < n) {
        const int64_t rest = (int64_t)(n - i);
        half_put(out + i, half_get(x + i, rest) + half_get(y + i, rest), rest);
    }
}

static void half_relu(uint16_t *out, const uint16_t *x, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W) {
        const vec v = half_get(x + i, W);
        half_put(out + i, vec_keep(v, v), W);
    }
    if (i < n) {
        const vec v = half_get(x + i, (int64_t)(n - i));
        half_put(out + i, vec_keep(v, v), (int64_t)(n - i));
    }
}

/* Elements [i, i + n). */
LOOPS_INLINE void relu_backward_at(uint16_t *din, const uint16_t *a, const uint16_t *b,
                                   const uint16_t *out, size_t i, int64_t n)
{
    vec g = half_get(a + i, n);
    if (b != NULL)
        g += half_get(b + i, n);
    half_put(din + i, vec_keep(g, half_get(out + i, n)), n);
}

static void half_relu_backward(uint16_t *din, const uint16_t *a, const uint16_t *b,
                               const uint16_t *out, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        relu_backward_at(din, a, b, out, i, W);
    if (i < n)
        relu_backward_at(din, a, b, out, i, (int64_t)(n - i));
}

static void half_narrow(uint16_t *out, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + W <= n; i += W)
        half_put(out + i, vec_load(x + i), W);
    if (i < n)
        half_put(out + i, vec_load_part(x + i, n - i), (int64_t)(n - i));
}

static void half_widen_all(float *out, const uint16_t *x, size_t n)
{
    half_widen(out, x, n);
}

const struct half_loops LOOPS_TABLE(half_loops) = {
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
