/*
 * Transposes with the inner dimension padded.
 */
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/vector.cuh"

/* A thread takes one element of the padded array after the other, which is so written, or read, in
 * the order of memory. */
struct pad_shape {
    int64_t n; /* batch · b · padded */
    int64_t a, padded, b;
    bool accumulate;
};

template <typename From, typename To>
static __global__ void __launch_bounds__(VECTOR_THREADS)
    pad_kernel(const From *in, To *out, struct pad_shape shape)
{
    const int64_t stride = (int64_t)gridDim.x * VECTOR_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * VECTOR_THREADS + threadIdx.x; i < shape.n; i += stride) {
        const int64_t a = i % shape.padded, b = i / shape.padded % shape.b;
        const int64_t batch = i / shape.padded / shape.b;
        const int64_t at = (batch * shape.a + a) * shape.b + b;
        out[i] = from_float<To>(a < shape.a ? to_float(in[at]) : 0.0f);
    }
}

template <typename From, typename To>
static __global__ void __launch_bounds__(VECTOR_THREADS)
    unpad_kernel(const From *in, To *out, struct pad_shape shape)
{
    const int64_t stride = (int64_t)gridDim.x * VECTOR_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * VECTOR_THREADS + threadIdx.x; i < shape.n; i += stride) {
        const int64_t a = i % shape.padded, b = i / shape.padded % shape.b;
        const int64_t batch = i / shape.padded / shape.b;
        const int64_t at = (batch * shape.a + a) * shape.b + b;
        if (a < shape.a) {
            const float value = to_float(in[i]);
            out[at] = from_float<To>(shape.accumulate ? to_float(out[at]) + value : value);
        }
    }
}

#define PAD_BLOCKS_MAX 65536

template <typename From, typename To>
static enum status pad_launch(bool unpad, const struct k_pad *args, void *stream)
{
    const struct pad_shape shape = { args->batch * args->b * args->padded, args->a, args->padded,
                                     args->b, args->accumulate };
    const int64_t blocks = (shape.n + VECTOR_THREADS - 1) / VECTOR_THREADS;
    const dim3 grid((unsigned)(blocks < PAD_BLOCKS_MAX ? blocks : PAD_BLOCKS_MAX));
    const From *in = (const From *)args->in;
    To *out = (To *)args->out;
    return launch(unpad ? unpad_kernel<From, To> : pad_kernel<From, To>, grid, VECTOR_THREADS, 0,
                  stream, in, out, shape);
}

static enum status pad_launch_any(bool unpad, const struct k_pad *args, void *stream)
{
    if (args->batch < 1 || args->a < 1 || args->b < 1 || args->padded < args->a)
        return ST_INVALID;
    return with_both(args->from, args->to, [&](auto from, auto to) {
        return pad_launch<typename decltype(from)::type, typename decltype(to)::type>(unpad, args,
                                                                                      stream);
    });
}

enum status k_pad_transpose(const struct k_pad *args, void *stream)
{
    return args->accumulate ? ST_INVALID : pad_launch_any(false, args, stream);
}

enum status k_unpad_transpose(const struct k_pad *args, void *stream)
{
    return pad_launch_any(true, args, stream);
}
