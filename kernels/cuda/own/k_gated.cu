/*
 * silu(a)·b of rows that are a, then b, and its gradient:
 *
 *   s = 1/(1 + e^-a)        y = a·s·b
 *   da = dy·b·s·(1 + a·(1 - s)), db = dy·a·s
 *
 * Source: Shazeer, arXiv 2002.05202, equation 6.
 */
#include "kernels/cuda/own/activation.cuh"
#include "kernels/cuda/own/columns.cuh"
#include "kernels/cuda/own/k.h"

template <typename T, int WIDTH, bool BACK> struct gated_columns {
    struct k_gated a;

    __device__ __forceinline__ void begin(int64_t, int64_t) {}
    template <typename Sums>
    __device__ __forceinline__ void row(int64_t row, int64_t column, Sums &)
    {
        const int64_t first = 2 * row * a.c + column, second = first + a.c;
        float x[WIDTH], b[WIDTH], d[WIDTH];
        load<WIDTH>(x, (const T *)a.x + first);
        load<WIDTH>(b, (const T *)a.x + second);
        if constexpr (BACK)
            load<WIDTH>(d, (const T *)a.dy + row * a.c + column);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float s = logistic(x[i]);
            if constexpr (BACK) {
                const float db = d[i] * (x[i] * s);
                x[i] = d[i] * b[i] * (s * (1.0f + x[i] * (1.0f - s)));
                b[i] = db;
            } else {
                x[i] = x[i] * s * b[i];
            }
        }
        if constexpr (BACK) {
            store<WIDTH>((T *)a.dx + first, x);
            store<WIDTH>((T *)a.dx + second, b);
        } else {
            store<WIDTH>((T *)a.y + row * a.c + column, x);
        }
    }
};

template <typename T, int WIDTH, bool BACK>
static enum status gated_launch(const struct k_gated *args, void *stream)
{
    const struct columns s = columns_of(args->rows, args->c, WIDTH);
    const struct gated_columns<T, WIDTH, BACK> f = {
        *args
    };
    return launch_columns<WIDTH, 0>(&s, f, nullptr, stream);
}

template <bool BACK> static enum status gated_run(const struct k_gated *args, void *stream)
{
    const struct k_gated *const a = args;
    if (a->rows < 1 || a->c < 1 || !is_aligned(a->x) || !is_aligned(a->y) || !is_aligned(a->dy) ||
        !is_aligned(a->dx))
        return ST_INVALID;
    return with_type(a->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int WIDTH = WIDTH_OF<T, T>;
        return a->c % WIDTH == 0 ? gated_launch<T, WIDTH, BACK>(a, stream)
                                 : gated_launch<T, 1, BACK>(a, stream);
    });
}

enum status k_gated_forward(const struct k_gated *args, void *stream)
{
    return gated_run<false>(args, stream);
}

enum status k_gated_backward(const struct k_gated *args, void *stream)
{
    return gated_run<true>(args, stream);
}
