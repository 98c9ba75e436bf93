#include "kernels/cuda/own/pad.h"
#include "kernels/cuda/own/vector.cuh"

/* One thread per element of the padded array, so that writing it, or reading it, is in order. */
struct pad_shape {
    int64_t n; /* batch · b · padded */
    int64_t a, padded, b;
    bool accumulate;
};

template <typename From, typename To>
static __global__ void __launch_bounds__(VECTOR_THREADS)
    pad_kernel(const From *in, To *out, struct pad_shape shape)
{
    const int64_t step = (int64_t)gridDim.x * VECTOR_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * VECTOR_THREADS + threadIdx.x; i < shape.n; i += step) {
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
    const int64_t step = (int64_t)gridDim.x * VECTOR_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * VECTOR_THREADS + threadIdx.x; i < shape.n; i += step) {
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
static enum status run(bool unpad, const struct k_pad *args, void *stream)
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

template <typename From>
static enum status run_from(bool unpad, const struct k_pad *args, void *stream)
{
    switch (args->to) {
    case DTYPE_F32:
        return run<From, float>(unpad, args, stream);
    case DTYPE_BF16:
        return run<From, __nv_bfloat16>(unpad, args, stream);
    case DTYPE_F16:
        return run<From, __half>(unpad, args, stream);
    default:
        return ST_INVALID;
    }
}

static enum status run_any(bool unpad, const struct k_pad *args, void *stream)
{
    if (args->batch < 1 || args->a < 1 || args->b < 1 || args->padded < args->a)
        return ST_INVALID;
    switch (args->from) {
    case DTYPE_F32:
        return run_from<float>(unpad, args, stream);
    case DTYPE_BF16:
        return run_from<__nv_bfloat16>(unpad, args, stream);
    case DTYPE_F16:
        return run_from<__half>(unpad, args, stream);
    default:
        return ST_INVALID;
    }
}

enum status k_pad_transpose(const struct k_pad *args, void *stream)
{
    return args->accumulate ? ST_INVALID : run_any(false, args, stream);
}

enum status k_unpad_transpose(const struct k_pad *args, void *stream)
{
    return run_any(true, args, stream);
}
