/*
 * From an image to a sequence of its pixels behind a first token, and one token out of a sequence;
 * each an element at a time.
 */
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/samples.cuh"

/* y[n, 0] = first + position[0]; y[n, 1 + p] = x[n, p] + position[1 + p]. */
template <typename X, typename Y> struct sequence_each {
    const X *x;
    const float *first, *position;
    Y *y;
    int64_t c, sample; /* elements of a token, and of a sample of y */
    bool aligned;

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        const int64_t n = i / sample, at = i % sample;
        float v[N], add[N];
        if (at < c)
            load_flat<N>(v, first + at, aligned);
        else
            load<N>(v, x + n * (sample - c) + at - c);
        load_flat<N>(add, position + at, aligned);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] += add[k];
        store<N>(y + i, v);
    }
};

enum status k_sequence_forward(const struct k_sequence *args, void *stream)
{
    const struct k_sequence *const a = args;
    const bool aligned = is_aligned(a->first) && is_aligned(a->position);
    if (a->n < 1 || a->pixels < 1 || a->c < 1 || !is_aligned(a->x) || !is_aligned(a->y))
        return ST_INVALID;
    const int64_t sample = (1 + a->pixels) * a->c;
    return with_any_types(a->x_dtype, a->y_dtype, [&](auto x, auto y) {
        using X = typename decltype(x)::type;
        using Y = typename decltype(y)::type;
        const struct sequence_each<X, Y> f = {
            (const X *)a->x, a->first, a->position, (Y *)a->y, a->c, sample, aligned
        };
        return a->c % 4 == 0 ? launch_each<4>(a->n * sample, stream, f)
                             : launch_each<1>(a->n * sample, stream, f);
    });
}

/* dx[n, p] = dy[n, 1 + p]. */
template <typename X, typename Y> struct sequence_grad_each {
    const Y *dy;
    X *dx;
    int64_t c, image; /* elements of a token, and of a sample of dx */

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        float v[N];
        load<N>(v, dy + i + (i / image + 1) * c);
        store<N>(dx + i, v);
    }
};

template <typename Y, int WIDTH>
static enum status sequence_sum(const struct k_sequence_grad *a, float *to, int64_t count,
                                bool accumulate, void *stream)
{
    const struct sample_sums<Y, WIDTH> f = {
        (const Y *)a->dy, to, a->n, (1 + a->pixels) * a->c, count, accumulate, is_aligned(to)
    };
    return to == nullptr ? ST_OK : launch_each<WIDTH>(count, stream, f);
}

template <typename X, typename Y, int WIDTH>
static enum status sequence_gradients(const struct k_sequence_grad *a, void *stream)
{
    const int64_t image = a->pixels * a->c;
    const struct sequence_grad_each<X, Y> f = {
        (const Y *)a->dy, (X *)a->dx, a->c, image
    };
    enum status st = a->dx == nullptr ? ST_OK : launch_each<WIDTH>(a->n * image, stream, f);
    if (st == ST_OK)
        st = sequence_sum<Y, WIDTH>(a, a->dfirst, a->c, a->accumulate_first, stream);
    if (st == ST_OK)
        st = sequence_sum<Y, WIDTH>(a, a->dposition, image + a->c, a->accumulate_position, stream);
    return st;
}

enum status k_sequence_backward(const struct k_sequence_grad *args, void *stream)
{
    const struct k_sequence_grad *const a = args;
    if (a->n < 1 || a->pixels < 1 || a->c < 1 || !is_aligned(a->dy) || !is_aligned(a->dx))
        return ST_INVALID;
    return with_any_types(a->x_dtype, a->y_dtype, [&](auto x, auto y) {
        using X = typename decltype(x)::type;
        using Y = typename decltype(y)::type;
        return a->c % 4 == 0 ? sequence_gradients<X, Y, 4>(a, stream)
                             : sequence_gradients<X, Y, 1>(a, stream);
    });
}

/* y[n] = x[n, row]; or, backward, x[n, t] = y[n] where t is row, else 0. */
template <typename T> struct select_each {
    const T *in;
    T *out;
    int64_t t, c, row;
    bool backward;

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        const int64_t column = i % c, outer = i / c;
        float v[N] = {};
        if (!backward)
            load<N>(v, in + (outer * t + row) * c + column);
        else if (outer % t == row)
            load<N>(v, in + outer / t * c + column);
        store<N>(out + i, v);
    }
};

enum status k_select(const struct k_select *args, void *stream)
{
    const struct k_select *const a = args;
    if (a->n < 1 || a->t < 1 || a->c < 1 || a->row < 0 || a->row >= a->t || !is_aligned(a->in) ||
        !is_aligned(a->out))
        return ST_INVALID;
    const int64_t count = a->n * a->c * (a->backward ? a->t : 1);
    return with_type(a->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        const struct select_each<T> f = {
            (const T *)a->in, (T *)a->out, a->t, a->c, a->row, a->backward
        };
        return a->c % 4 == 0 ? launch_each<4>(count, stream, f) : launch_each<1>(count, stream, f);
    });
}
