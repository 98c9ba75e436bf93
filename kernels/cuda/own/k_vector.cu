/*
 * Loops over flat float32 buffers: fill, squares, optimizers. The arithmetic is the CPU backend's
 * (kernels/cpu/loops/flat.c), element by element, compiled without contraction: which elements a
 * thread takes together depends on where a part of the state begins, and their bits must not.
 *
 * Source: AdamW: Loshchilov, Hutter, arXiv 1711.05101, algorithm 2; SGD as PyTorch has it;
 *         Lion: Chen et al., arXiv 2302.06675, algorithm 2; LAMB: You et al., arXiv 1904.00962,
 *         algorithm 2.
 */
#include "common/limits.h"
#include "kernels/backend.h"
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/vector.cuh"
#include "kernels/mix.h"

#define SQUARE_THREADS 512
#define BLOCK_ELEMENTS (VECTOR_THREADS * 4) /* elements of a block, four per thread */
#define UPDATE_BLOCKS  4 /* at once: so many registers that four loads are under way */

struct fill_each {
    float *out;
    float value;

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        float v[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = value;
        store<N>(out + i, v);
    }
};

enum status k_vector_fill(float *out, float value, size_t n, void *stream)
{
    const struct fill_each f = { out, value };
    return is_aligned(out) ? launch_each<4>((int64_t)n, stream, f)
                           : launch_each<1>((int64_t)n, stream, f);
}

struct words_each {
    uint32_t *out;
    const uint32_t *in;

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            out[i + k] = in[i + k];
    }
};

enum status k_vector_words(void *out, const void *in, size_t n, void *stream)
{
    const struct words_each f = { (uint32_t *)out, (const uint32_t *)in };
    return launch_each<1>((int64_t)n, stream, f);
}

/*
 * A block per range: thread t takes four neighbours of each 4·SQUARE_THREADS; then a tree.
 */
static __global__ void __launch_bounds__(SQUARE_THREADS)
    vector_square_kernel(double *out, const float *x, const uint64_t *begin, bool x_aligned)
{
    SHARED_ARRAY(double, shared, SQUARE_THREADS);
    const int t = (int)threadIdx.x;
    const int64_t first = (int64_t)begin[blockIdx.x];
    const int64_t end = (int64_t)begin[blockIdx.x + 1];
    const bool aligned = x_aligned && first % 4 == 0;
    double sum[4] = {};
    for (int64_t i = first + t * 4; i < end; i += SQUARE_THREADS * 4) {
        float v[4] = {};
        if (i + 4 <= end) {
            load_flat<4>(v, x + i, aligned);
        } else {
            for (int k = 0; i + k < end; k++)
                v[k] = x[i + k];
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum[k] = fma((double)v[k], (double)v[k], sum[k]); /* the product is exact */
    }
    shared[t] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    for (int half = SQUARE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half)
            shared[t] += shared[t + half];
    }
    if (t == 0)
        out[blockIdx.x] = shared[0];
}

enum status k_vector_square_sums(double *out, const float *x, const uint64_t *begin, size_t n,
                                 void *stream)
{
    if (n == 0)
        return ST_OK;
    if (n > INT32_MAX)
        return ST_INVALID;
    return launch(vector_square_kernel, dim3((unsigned)n), dim3(SQUARE_THREADS), 0, stream, out, x,
                  begin, is_aligned(x));
}

static __global__ void __launch_bounds__(SQUARE_THREADS)
    vector_checksum_kernel(uint64_t *out, const float *x, int64_t n)
{
    SHARED_ARRAY(uint64_t, shared, SQUARE_THREADS);
    const int t = (int)threadIdx.x;
    const int64_t first = (int64_t)blockIdx.x * PIECE_ELEMENTS;
    const int64_t end = first + PIECE_ELEMENTS < n ? first + PIECE_ELEMENTS : n;
    uint64_t sum = 0;
    for (int64_t i = first + t; i < end; i += SQUARE_THREADS) {
        uint32_t word = __float_as_uint(x[i]);
        MIX_WORD(word, (uint32_t)(i - first));
        sum += word;
    }
    shared[t] = sum;
    for (int half = SQUARE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half)
            shared[t] += shared[t + half];
    }
    if (t == 0)
        out[blockIdx.x] = shared[0];
}

enum status k_vector_checksums(uint64_t *out, const float *x, size_t n, void *stream)
{
    const size_t pieces = (n + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
    if (n == 0)
        return ST_OK;
    if (pieces > INT32_MAX)
        return ST_INVALID;
    return launch(vector_checksum_kernel, dim3((unsigned)pieces), dim3(SQUARE_THREADS), 0, stream,
                  out, x, (int64_t)n);
}

/* Elements that decay: those before the first border, after the second, … (struct decay_map). A
 * block first looks whether all of its elements are alike. */
struct decay {
    const uint64_t *borders;
    size_t count;
};

/* Counts those of at(0) … at(count - 1), ascending, that are <= i. */
template <typename F> DEVICE_INLINE size_t count_up_to(uint64_t i, size_t count, const F &at)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (at(middle) <= i)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

DEVICE_INLINE size_t borders_before(const struct decay &d, uint64_t i)
{
    return count_up_to(i, d.count, [&](size_t k) { return d.borders[k]; });
}

DEVICE_INLINE bool decays(const struct decay &d, const size_t *of_block, int64_t i)
{
    const size_t before = of_block[0] == of_block[1] ? of_block[0] : borders_before(d, (uint64_t)i);
    return before % 2 == 0;
}

/* Copies of runs of elements (struct copy_map). */
struct copy_runs {
    const struct param_copy *at;
    size_t count;
};

/* Counts the runs that begin at or before element i: only the last of them can contain it. */
DEVICE_INLINE size_t copies_before(const struct copy_runs &c, uint64_t i)
{
    return count_up_to(i, c.count, [&](size_t k) { return c.at[k].first; });
}

template <int N, typename T> DEVICE_INLINE void store_copy(void *out, uint64_t at, const float *v)
{
    T *const to = (T *)out + at;
    if constexpr (N > 1) {
        if ((uintptr_t)to % (N * sizeof(T)) != 0) {
#pragma unroll
            for (int k = 0; k < N; k++)
                store<1>(to + k, v + k);
            return;
        }
    }
    store<N>(to, v);
}

template <int N>
DEVICE_INLINE void write_copy(const struct param_copy &c, uint64_t i, const float *v)
{
    if (c.dtype == DTYPE_BF16)
        store_copy<N, __nv_bfloat16>(c.out, i - c.first, v);
    else if (c.dtype == DTYPE_F16)
        store_copy<N, __half>(c.out, i - c.first, v);
    else
        store_copy<N, float>(c.out, i - c.first, v);
}

/* Elements i … i + N - 1, which are now v, where a copy of them is kept. */
template <int N>
DEVICE_INLINE void write_copies(const struct copy_runs &c, const size_t *of_block, int64_t i,
                                const float *v)
{
    if (of_block[1] == 0)
        return;
    if (of_block[0] == of_block[1]) {
        const struct param_copy &copy = c.at[of_block[0] - 1];
        const uint64_t end = copy.first + copy.count;
        if ((uint64_t)i >= end)
            return;
        if ((uint64_t)i + N <= end) {
            write_copy<N>(copy, (uint64_t)i, v);
            return;
        }
    }
    for (int k = 0; k < N; k++) {
        const uint64_t at = (uint64_t)i + (uint64_t)k;
        const size_t before = copies_before(c, at);
        if (before > 0 && at - c.at[before - 1].first < c.at[before - 1].count)
            write_copy<1>(c.at[before - 1], at, v + k);
    }
}

/*
 * Counts the borders and copies up to the block's first element, and up to its last: [0], [1]
 * borders of decay, [2], [3] copies. All threads call it.
 */
DEVICE_INLINE void look_up_block(const struct decay &d, const struct copy_runs &c, int64_t first,
                                 size_t *of_block)
{
    const uint64_t begin = (uint64_t)first, last = begin + BLOCK_ELEMENTS - 1;
    if (threadIdx.x == 0)
        of_block[0] = borders_before(d, begin);
    if (threadIdx.x == 32)
        of_block[1] = borders_before(d, last);
    if (threadIdx.x == 64)
        of_block[2] = copies_before(c, begin);
    if (threadIdx.x == 96)
        of_block[3] = copies_before(c, last);
    __syncthreads();
}

/* The values of an update for elements that decay, and for the others. */
struct decay_values {
    float where, otherwise;
};

/*
 * An update of N neighbours is f.read<N>(i, state), then f.write<N>(i, state, value), value[k] by
 * whether element i + k decays, which leaves the new parameters in state.p. What is read is on its
 * way while the borders are looked up.
 */
template <int WIDTH, typename F>
static __global__ void __launch_bounds__(VECTOR_THREADS, UPDATE_BLOCKS)
    vector_update_kernel(int64_t n, F f, struct decay d, struct decay_values values,
                         struct copy_runs copies)
{
    SHARED_ARRAY(size_t, of_block, 4);
    const int64_t first = (int64_t)blockIdx.x * BLOCK_ELEMENTS;
    const int64_t mine = first + (int64_t)threadIdx.x * 4;
    const bool whole = WIDTH == 4 && mine + 4 <= n;
    typename F::template state<4> wide;
    float value[4];
    if (whole)
        f.template read<4>(mine, wide);
    look_up_block(d, copies, first, of_block);
    if (whole) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            value[k] = decays(d, of_block, mine + k) ? values.where : values.otherwise;
        f.template write<4>(mine, wide, value);
        write_copies<4>(copies, of_block + 2, mine, wide.p);
        return;
    }
    for (int k = 0; k < 4; k++) {
        const int64_t i = WIDTH == 4 ? mine + k : first + k * VECTOR_THREADS + threadIdx.x;
        typename F::template state<1> narrow;
        if (i >= n)
            continue;
        f.template read<1>(i, narrow);
        value[0] = decays(d, of_block, i) ? values.where : values.otherwise;
        f.template write<1>(i, narrow, value);
        write_copies<1>(copies, of_block + 2, i, narrow.p);
    }
}

template <typename F>
static enum status launch_update(size_t n, const F &f, const struct decay_map *map,
                                 struct decay_values values, const struct copy_map *copy_map,
                                 bool aligned, void *stream)
{
    const struct decay d = { map != nullptr ? map->borders : nullptr,
                             map != nullptr ? map->count : 0 };
    const struct copy_runs copies = { copy_map != nullptr ? copy_map->copies : nullptr,
                                      copy_map != nullptr ? copy_map->count : 0 };
    const size_t blocks = (n + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
    if (n == 0)
        return ST_OK;
    if (blocks > INT32_MAX)
        return ST_INVALID;
    const dim3 grid((unsigned)blocks), block(VECTOR_THREADS);
    if (aligned)
        return launch(vector_update_kernel<4, F>, grid, block, 0, stream, (int64_t)n, f, d, values,
                      copies);
    return launch(vector_update_kernel<1, F>, grid, block, 0, stream, (int64_t)n, f, d, values,
                  copies);
}

struct sgd_each {
    float *param, *momentum;
    const float *grad;
    float lr, scale, keep, direct, along; /* param -= lr·(direct·g + along·m), m = keep·m + g */

    template <int N> struct state {
        float p[N], m[N], g[N];
    };
    template <int N> __device__ __forceinline__ void read(int64_t i, state<N> &s) const
    {
        load_streamed<N>(s.p, param + i);
        load_streamed<N>(s.g, grad + i);
        if (momentum != nullptr && keep != 0.0f) {
            load_streamed<N>(s.m, momentum + i);
        } else {
#pragma unroll
            for (int k = 0; k < N; k++)
                s.m[k] = 0.0f;
        }
    }
    template <int N>
    __device__ __forceinline__ void write(int64_t i, state<N> &s, const float *decay) const
    {
#pragma unroll
        for (int k = 0; k < N; k++) {
            s.g[k] = s.g[k] * scale + decay[k] * s.p[k];
            s.m[k] = keep * s.m[k] + s.g[k];
            s.p[k] -= lr * (direct * s.g[k] + along * s.m[k]);
        }
        if (momentum != nullptr)
            store_streamed<N>(momentum + i, s.m);
        store_streamed<N>(param + i, s.p);
    }
};

enum status k_vector_sgd(float *param, float *momentum, const float *grad, size_t n,
                         const struct sgd_args *args, void *stream)
{
    const bool moving = args->momentum != 0.0f;
    const struct sgd_each f = {
        param,
        moving ? momentum : nullptr,
        grad,
        args->lr,
        args->grad_scale,
        moving && !args->first ? args->momentum : 0.0f,
        moving && !args->nesterov ? 0.0f : 1.0f,
        !moving ? 0.0f : (args->nesterov ? args->momentum : 1.0f),
    };
    const bool aligned = is_aligned(param) && is_aligned(f.momentum) && is_aligned(grad);
    const struct decay_values values = { args->weight_decay, 0.0f };
    return launch_update(n, f, args->decay, values, args->copies, aligned, stream);
}

struct adamw_each {
    struct k_adamw_buffers b;
    float scale, rest1, rest2, beta2, rate, root, eps;

    template <int N> struct state {
        float p[N], m[N], v[N], g[N];
    };
    template <int N> __device__ __forceinline__ void read(int64_t i, state<N> &s) const
    {
        load_streamed<N>(s.p, b.param + i);
        load_streamed<N>(s.m, b.m + i);
        load_streamed<N>(s.v, b.v + i);
        load_streamed<N>(s.g, b.grad + i);
    }
    /* decay: 1 - lr·weight_decay, or 1 */
    template <int N>
    __device__ __forceinline__ void write(int64_t i, state<N> &s, const float *decay) const
    {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float gradient = s.g[k] * scale;
            s.m[k] += rest1 * (gradient - s.m[k]);
            s.v[k] = s.v[k] * beta2 + rest2 * gradient * gradient;
            s.p[k] = s.p[k] * decay[k] - rate * (s.m[k] / (sqrtf(s.v[k]) / root + eps));
        }
        store_streamed<N>(b.m + i, s.m);
        store_streamed<N>(b.v + i, s.v);
        store_streamed<N>(b.param + i, s.p);
    }
};

enum status k_vector_adamw(const struct k_adamw_buffers *buffers, size_t n,
                           const struct adamw_args *args, void *stream)
{
    const double t = (double)args->t;
    const struct adamw_each f = {
        *buffers,
        args->grad_scale,
        (float)(1.0 - (double)args->beta1),
        (float)(1.0 - (double)args->beta2),
        args->beta2,
        (float)((double)args->lr / (1.0 - pow((double)args->beta1, t))),
        (float)sqrt(1.0 - pow((double)args->beta2, t)),
        args->eps,
    };
    const bool aligned = is_aligned(buffers->param) && is_aligned(buffers->m) &&
                         is_aligned(buffers->v) && is_aligned(buffers->grad);
    const struct decay_values values = {
        (float)(1.0 - (double)args->lr * (double)args->weight_decay), 1.0f
    };
    return launch_update(n, f, args->decay, values, args->copies, aligned, stream);
}

struct lion_each {
    float *param, *m;
    const float *grad;
    float scale, rest1, rest2, lr;

    template <int N> struct state {
        float p[N], m[N], g[N];
    };
    template <int N> __device__ __forceinline__ void read(int64_t i, state<N> &s) const
    {
        load_streamed<N>(s.p, param + i);
        load_streamed<N>(s.m, m + i);
        load_streamed<N>(s.g, grad + i);
    }
    /* decay: 1 - lr·weight_decay, or 1 */
    template <int N>
    __device__ __forceinline__ void write(int64_t i, state<N> &s, const float *decay) const
    {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float gradient = s.g[k] * scale;
            const float c = s.m[k] + rest1 * (gradient - s.m[k]);
            const float sign = (float)(c > 0.0f) - (float)(c < 0.0f);
            s.m[k] += rest2 * (gradient - s.m[k]);
            s.p[k] = s.p[k] * decay[k] - lr * sign;
        }
        store_streamed<N>(m + i, s.m);
        store_streamed<N>(param + i, s.p);
    }
};

enum status k_vector_lion(float *param, float *m, const float *grad, size_t n,
                          const struct lion_args *args, void *stream)
{
    const struct lion_each f = {
        param,
        m,
        grad,
        args->grad_scale,
        (float)(1.0 - (double)args->beta1),
        (float)(1.0 - (double)args->beta2),
        args->lr,
    };
    const bool aligned = is_aligned(param) && is_aligned(m) && is_aligned(grad);
    const struct decay_values values = {
        (float)(1.0 - (double)args->lr * (double)args->weight_decay), 1.0f
    };
    return launch_update(n, f, args->decay, values, args->copies, aligned, stream);
}

struct lamb_each {
    struct k_lamb_buffers b;
    float scale, rest1, rest2, beta2, rate, root, eps;

    template <int N> struct state {
        float p[N], m[N], v[N], g[N];
    };
    template <int N> __device__ __forceinline__ void read(int64_t i, state<N> &s) const
    {
        load_streamed<N>(s.p, b.param + i);
        load_streamed<N>(s.m, b.m + i);
        load_streamed<N>(s.v, b.v + i);
        load_streamed<N>(s.g, b.grad + i);
    }
    /* decay: weight_decay, or 0 */
    template <int N>
    __device__ __forceinline__ void write(int64_t i, state<N> &s, const float *decay) const
    {
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float gradient = s.g[k] * scale;
            s.m[k] += rest1 * (gradient - s.m[k]);
            s.v[k] = s.v[k] * beta2 + rest2 * gradient * gradient;
            s.g[k] = rate * (s.m[k] / (sqrtf(s.v[k]) / root + eps)) + decay[k] * s.p[k];
        }
        store_streamed<N>(b.m + i, s.m);
        store_streamed<N>(b.v + i, s.v);
        store_streamed<N>(b.grad + i, s.g);
    }
};

enum status k_vector_lamb(const struct k_lamb_buffers *buffers, size_t n,
                          const struct adamw_args *args, void *stream)
{
    const double t = (double)args->t;
    const struct lamb_each f = {
        *buffers,
        args->grad_scale,
        (float)(1.0 - (double)args->beta1),
        (float)(1.0 - (double)args->beta2),
        args->beta2,
        (float)(1.0 / (1.0 - pow((double)args->beta1, t))),
        (float)sqrt(1.0 - pow((double)args->beta2, t)),
        args->eps,
    };
    const bool aligned = is_aligned(buffers->param) && is_aligned(buffers->m) &&
                         is_aligned(buffers->v) && is_aligned(buffers->grad);
    const struct decay_values values = { args->weight_decay, 0.0f };
    return launch_update(n, f, args->decay, values, (const struct copy_map *)nullptr, aligned,
                         stream);
}
