/*
 * Transposes with the inner dimension padded.
 */
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/vector.cuh"

/*
 * A thread takes elements of the padded array, which is so written, or read, in memory's order. A
 * block's threads are `along` for one of the batch, as many as it has elements or all, times the
 * batches beside it: so a place within one of the batch has 32 bits, and so have its divisions.
 */
struct pad_shape {
    int64_t batch;
    int32_t n; /* b · padded: of one of the batch */
    int32_t a, padded, b;
    int32_t along_log2;
    bool accumulate;
};

struct pad_place {
    int64_t in, out; /* in the array without, and with padding */
    bool real;       /* the element is in both */
};

DEVICE_INLINE struct pad_place pad_place(const struct pad_shape &shape, int64_t batch, int32_t i)
{
    const int32_t b = i / shape.padded, a = i - b * shape.padded;
    return { batch * shape.a * shape.b + (int64_t)a * shape.b + b, batch * shape.n + i,
             a < shape.a };
}

/* Calls f(place) for each place of this thread. */
template <typename F> DEVICE_INLINE void pad_walk(const struct pad_shape &shape, const F &f)
{
    const int32_t along = 1 << shape.along_log2, beside = VECTOR_THREADS >> shape.along_log2;
    const int32_t thread = (int32_t)threadIdx.x;
    const int32_t first = (int32_t)blockIdx.x * along + (thread & (along - 1));
    const int64_t batch = (int64_t)blockIdx.y * beside + (thread >> shape.along_log2);
    for (int64_t k = batch; k < shape.batch; k += (int64_t)gridDim.y * beside) {
        for (int32_t i = first; i < shape.n; i += (int32_t)gridDim.x * along)
            f(pad_place(shape, k, i));
    }
}

template <typename From, typename To>
static __global__ void __launch_bounds__(VECTOR_THREADS)
    pad_kernel(const From *in, To *out, struct pad_shape shape)
{
    pad_walk(shape, [&](const struct pad_place &at) {
        float value = 0.0f;
        if (at.real)
            load<1>(&value, in + at.in);
        store<1>(out + at.out, &value);
    });
}

template <typename From, typename To>
static __global__ void __launch_bounds__(VECTOR_THREADS)
    unpad_kernel(const From *in, To *out, struct pad_shape shape)
{
    pad_walk(shape, [&](const struct pad_place &at) {
        float value, before = 0.0f;
        if (!at.real)
            return;
        load<1>(&value, in + at.out);
        if (shape.accumulate) {
            load<1>(&before, out + at.in);
            value += before;
        }
        store<1>(out + at.in, &value);
    });
}

#define PAD_BLOCKS_MAX 65536 /* along one of the batch */
#define PAD_ROWS_MAX   65535
#define PAD_N_MAX      (1 << 30) /* the loop's next place is below 2^31, too */

template <typename From, typename To>
static enum status pad_launch(bool unpad, const struct k_pad *args, void *stream)
{
    struct pad_shape shape = { args->batch,      (int32_t)(args->b * args->padded),
                               (int32_t)args->a, (int32_t)args->padded,
                               (int32_t)args->b, 0,
                               args->accumulate };
    while (1 << shape.along_log2 < shape.n && 1 << shape.along_log2 < VECTOR_THREADS)
        shape.along_log2++;
    const int32_t along = 1 << shape.along_log2, beside = VECTOR_THREADS >> shape.along_log2;
    const int32_t blocks = (shape.n + along - 1) / along;
    const int64_t rows = (shape.batch + beside - 1) / beside;
    const dim3 grid((unsigned)(blocks < PAD_BLOCKS_MAX ? blocks : PAD_BLOCKS_MAX),
                    (unsigned)(rows < PAD_ROWS_MAX ? rows : PAD_ROWS_MAX));
    const From *in = (const From *)args->in;
    To *out = (To *)args->out;
    return launch(unpad ? unpad_kernel<From, To> : pad_kernel<From, To>, grid, VECTOR_THREADS, 0,
                  stream, in, out, shape);
}

static enum status pad_launch_any(bool unpad, const struct k_pad *args, void *stream)
{
    if (args->batch < 1 || args->a < 1 || args->b < 1 || args->padded < args->a ||
        args->padded > PAD_N_MAX || args->b > PAD_N_MAX / args->padded)
        return ST_INVALID;
    return with_both(args->from, args->to, [&](auto from, auto to) {
        return pad_launch<typename decltype(from)::type, typename decltype(to)::type>(unpad, args,
                                                                                      stream);
    });
}

/* Nothing is padded: both arrays are gone through in their own order, by tiles. A thread for each
 * place would take a sector of 32 bytes for 4 of them. */
static enum status plain_transpose(int64_t a, int64_t b, const struct k_pad *args, void *stream)
{
    const struct k_transpose transpose = { args->batch, a,        b,         args->from,
                                           args->to,    args->in, args->out, args->accumulate };
    if ((a == 1 || b == 1) && a >= 1 && b >= 1 && args->batch >= 1 && !args->accumulate)
        return k_cast(args->from, args->in, args->to, args->out, args->batch * a * b, stream);
    return k_transpose(&transpose, stream);
}

enum status k_pad_transpose(const struct k_pad *args, void *stream)
{
    if (args->accumulate)
        return ST_INVALID;
    return args->padded == args->a ? plain_transpose(args->a, args->b, args, stream)
                                   : pad_launch_any(false, args, stream);
}

enum status k_unpad_transpose(const struct k_pad *args, void *stream)
{
    return args->padded == args->a ? plain_transpose(args->b, args->a, args, stream)
                                   : pad_launch_any(true, args, stream);
}
