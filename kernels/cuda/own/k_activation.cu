/*
 * Activations, with what goes along in the same read: bias, residual, a second gradient, and the
 * bias gradient.
 *
 * Without bias the elements are independent, and the tensors are walked flat. With it they are
 * walked by columns (columns.cuh), so that a thread keeps its part of the bias, or of the sums.
 *
 * Source: GELU: Hendrycks, Gimpel, arXiv 1606.08415, section 2.
 */
#include "kernels/cuda/own/activation.cuh"
#include "kernels/cuda/own/columns.cuh"
#include "kernels/cuda/own/k.h"

template <typename X, typename Y, int KIND> struct activation_forward_flat {
    const X *x;
    const Y *residual;
    X *pre;
    Y *y;

    template <int N> __device__ __forceinline__ void at(int64_t i, const float *bias = nullptr)
    {
        float v[N], add[N] = {};
        load<N>(v, x + i);
        if (residual != nullptr)
            load<N>(add, residual + i);
        if (bias != nullptr) {
#pragma unroll
            for (int k = 0; k < N; k++)
                v[k] += bias[k];
        }
        if (pre != nullptr)
            store<N>(pre + i, v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            v[k] = activate<KIND>(v[k]);
            if (residual != nullptr)
                v[k] += add[k];
        }
        store<N>(y + i, v);
    }
};

template <typename X, typename Y, int KIND, int WIDTH> struct activation_forward_columns {
    struct activation_forward_flat<X, Y, KIND> flat;
    const float *bias;
    int64_t c;
    bool aligned;
    float mine[WIDTH];

    __device__ __forceinline__ void begin(int64_t column, int64_t)
    {
        load_flat<WIDTH>(mine, bias + column, aligned);
    }
    template <typename Sums>
    __device__ __forceinline__ void row(int64_t row, int64_t column, Sums &)
    {
        flat.template at<WIDTH>(row * c + column, mine);
    }
};

template <typename X, typename Y, int KIND>
static enum status activation_forward_launch(const struct k_activation *a, void *stream)
{
    constexpr int WIDTH = WIDTH_OF<X, Y>;
    const struct activation_forward_flat<X, Y, KIND> flat = {
        (const X *)a->x, (const Y *)a->residual, (X *)a->pre, (Y *)a->y
    };
    if (a->bias == nullptr)
        return launch_each<WIDTH>(a->rows * a->c, stream, flat);
    if (a->c % WIDTH == 0) {
        const struct columns s = columns_of(a->rows, a->c, WIDTH);
        const struct activation_forward_columns<X, Y, KIND, WIDTH> f = {
            flat, a->bias, a->c, is_aligned(a->bias), {}
        };
        return launch_columns<WIDTH, 0>(&s, f, nullptr, stream);
    }
    const struct columns s = columns_of(a->rows, a->c, 1);
    const struct activation_forward_columns<X, Y, KIND, 1> f = {
        flat, a->bias, a->c, false, {}
    };
    return launch_columns<1, 0>(&s, f, nullptr, stream);
}

enum status k_activation_forward(const struct k_activation *args, void *stream)
{
    const struct k_activation *const a = args;
    if (a->rows < 1 || a->c < 1 || !is_aligned(a->x) || !is_aligned(a->residual) ||
        !is_aligned(a->pre) || !is_aligned(a->y))
        return ST_INVALID;
    return with_any_types(a->x_dtype, a->y_dtype, [&](auto x, auto y) {
        return with_activation(a->activation, [&](auto kind) {
            return activation_forward_launch<typename decltype(x)::type, typename decltype(y)::type,
                                             decltype(kind)::value>(a, stream);
        });
    });
}

/* From, the type of `from`, is X for gelu and Y for relu. */
template <typename X, typename Y, typename From, int KIND> struct activation_backward_flat {
    const Y *dy, *dy2;
    const From *from;
    const X *dx_add;
    X *dx;

    /* N elements: dx is written, and dv = g. */
    template <int N> __device__ __forceinline__ void gradient(int64_t i, float *dv)
    {
        float other[N];
        load<N>(dv, dy + i);
        if (dy2 != nullptr) {
            load<N>(other, dy2 + i);
#pragma unroll
            for (int k = 0; k < N; k++)
                dv[k] += other[k];
        }
        if constexpr (KIND != ACTIVATION_NONE) {
            load<N>(other, from + i);
#pragma unroll
            for (int k = 0; k < N; k++)
                dv[k] = activate_gradient<KIND>(dv[k], other[k]);
        }
        if (dx == nullptr)
            return;
#pragma unroll
        for (int k = 0; k < N; k++)
            other[k] = 0.0f;
        if (dx_add != nullptr)
            load<N>(other, dx_add + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            other[k] += dv[k];
        store<N>(dx + i, other);
    }
    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        float dv[N];
        gradient<N>(i, dv);
    }
};

template <typename Flat, int WIDTH> struct activation_backward_columns {
    Flat flat;
    int64_t c;

    __device__ __forceinline__ void begin(int64_t, int64_t) {}
    __device__ __forceinline__ void row(int64_t row, int64_t column, float (&sum)[1][WIDTH])
    {
        float dv[WIDTH];
        flat.template gradient<WIDTH>(row * c + column, dv);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[0][k] += dv[k];
    }
};

template <int WIDTH, typename Flat>
static enum status activation_backward_sums(const struct k_activation_grad *a, const Flat &flat,
                                            void *stream)
{
    const struct columns s = columns_of(a->rows, a->c, WIDTH);
    const struct activation_backward_columns<Flat, WIDTH> f = {
        flat, a->c
    };
    const struct columns_outputs outputs = { { a->dbias, nullptr }, { a->accumulate, false }, 1 };
    const enum status st = launch_columns<WIDTH, 1>(&s, f, (float *)a->scratch, stream);
    if (st != ST_OK || a->dbias == nullptr)
        return st;
    return columns_finish((const float *)a->scratch, s.slices, a->c, &outputs, stream);
}

template <typename X, typename Y, int KIND>
static enum status activation_backward_launch(const struct k_activation_grad *a, void *stream)
{
    constexpr int WIDTH = WIDTH_OF<X, Y>;
    constexpr enum activation_reads READS = activation_reads((enum activation)KIND);
    using From = std::conditional_t<READS == ACTIVATION_READS_OUTPUT, Y, X>;
    const struct activation_backward_flat<X, Y, From, KIND> flat = {
        (const Y *)a->dy, (const Y *)a->dy2, (const From *)a->from, (const X *)a->dx_add, (X *)a->dx
    };
    if (a->dbias == nullptr && !a->as_with_dbias)
        return a->dx == nullptr ? ST_OK : launch_each<WIDTH>(a->rows * a->c, stream, flat);
    if (a->c % WIDTH == 0)
        return activation_backward_sums<WIDTH>(a, flat, stream);
    return activation_backward_sums<1>(a, flat, stream);
}

size_t k_activation_scratch(int64_t rows, int64_t c)
{
    return columns_scratch(rows, c, 1);
}

enum status k_activation_backward(const struct k_activation_grad *args, void *stream)
{
    const struct k_activation_grad *const a = args;
    if (a->rows < 1 || a->c < 1 || !is_aligned(a->dy) || !is_aligned(a->dy2) ||
        !is_aligned(a->from) || !is_aligned(a->dx_add) || !is_aligned(a->dx) ||
        !is_aligned(a->scratch) ||
        (a->from == nullptr) != (activation_reads(a->activation) == ACTIVATION_READS_NOTHING))
        return ST_INVALID;
    return with_any_types(a->x_dtype, a->y_dtype, [&](auto x, auto y) {
        return with_activation(a->activation, [&](auto kind) {
            return activation_backward_launch<typename decltype(x)::type,
                                              typename decltype(y)::type, decltype(kind)::value>(
                a, stream);
        });
    });
}
