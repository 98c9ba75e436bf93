/*
 * Softmax cross-entropy over rows of V logits x, with smoothing s.
 *
 * Forward: a block per row, which is read once. A thread keeps the greatest logit so far, where it
 * was first, and Σ 2^((x - greatest)·log2 e); a new greatest rescales that sum. A tree of fixed
 * shape joins the threads, and another, in one block, adds up the rows.
 *
 * Backward: dx = (softmax(x) - (1 - s)·onehot - s/V)·scale, each element by itself from lse.
 *
 * Both at once, where dx goes where x lies: the block keeps its row in shared memory meanwhile. A
 * thread takes the same elements of it both times. Same bits as one after the other, and therefore
 * compiled without contraction, which the compiler would do as it likes in each.
 *
 * A row may begin anywhere (GPT-2's V is odd). Its elements are a head, up to 16 bytes' alignment,
 * a body of vectors, and a tail. Which these are depends on the row's number alone.
 *
 * Source: the sum in one read: Milakov, Gimelshein, arXiv 1805.02867, algorithm 3; smoothing:
 * Szegedy and others, arXiv 1512.00567, section 7.
 */
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/vector.cuh"

#define LOSS_THREADS 512
#define LOSS_FOLD    1024               /* threads that add up the rows */
#define LOSS_UNSEEN  (-3.402823466e38f) /* "none yet"; only -inf is less, and it adds nothing */

/* Result of a row, for the sums over rows. */
struct row_result {
    float loss;
    int32_t counted, right;
};

/* A set of logits. */
struct logits_seen {
    float greatest;
    float sum;     /* Σ 2^((x - greatest)·log2 e) */
    float plain;   /* Σ x */
    int32_t place; /* of the greatest, the first of equals */
};

DEVICE_INLINE float power_of(float x, float greatest)
{
    return exp2_approximate((x - greatest) * LOG2_E);
}

template <int N>
DEVICE_INLINE void see(struct logits_seen &seen, const float *v, int64_t at, bool smoothed)
{
    float greatest = v[0];
#pragma unroll
    for (int k = 1; k < N; k++)
        greatest = fmaxf(greatest, v[k]);
    if (greatest > seen.greatest) {
        seen.sum *= power_of(seen.greatest, greatest);
        seen.greatest = greatest;
        int place = 0;
#pragma unroll
        for (int k = N - 1; k >= 0; k--)
            place = v[k] == greatest ? k : place;
        seen.place = (int32_t)at + place;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        seen.sum += power_of(v[k], seen.greatest);
    if (smoothed) {
#pragma unroll
        for (int k = 0; k < N; k++)
            seen.plain += v[k];
    }
}

/* Joins two sets; either may be empty. */
DEVICE_INLINE struct logits_seen logits_joined(const struct logits_seen &a,
                                               const struct logits_seen &b)
{
    const bool first = a.greatest > b.greatest || (a.greatest == b.greatest && a.place < b.place);
    const float greatest = first ? a.greatest : b.greatest;
    struct logits_seen both = { greatest, 0.0f, a.plain + b.plain, first ? a.place : b.place };
    both.sum = (a.greatest == greatest ? a.sum : a.sum * power_of(a.greatest, greatest)) +
               (b.greatest == greatest ? b.sum : b.sum * power_of(b.greatest, greatest));
    return both;
}

/* Calls f.at<N>(first element) for the row's head, body and tail, by the threads of a block. */
template <typename T, typename F>
DEVICE_INLINE void walk_row(int64_t row, int64_t stride, int64_t vocab, F &f)
{
    constexpr int WIDTH = 16 / (int)sizeof(T);
    const int64_t begin = row * stride;
    int64_t head = (WIDTH - begin % WIDTH) % WIDTH;
    head = head < vocab ? head : vocab;
    const int64_t body = (vocab - head) / WIDTH, tail = head + body * WIDTH;
    /* The last threads take head and tail, since they may have one vector less. A thread's elements
     * come in ascending order. */
    const int64_t left = LOSS_THREADS - 1 - (int64_t)threadIdx.x;
    if (left < head)
        f.template at<1>(left);
    for (int64_t i = threadIdx.x; i < body; i += LOSS_THREADS)
        f.template at<WIDTH>(head + i * WIDTH);
    if (left >= head && left - head < vocab - tail)
        f.template at<1>(tail + left - head);
}

template <typename T, bool KEEPS> struct row_forward {
    const T *x;
    T *kept; /* KEEPS: shared memory */
    bool smoothed;
    struct logits_seen seen;

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        float v[N];
        load<N>(v, x + i);
        if constexpr (KEEPS)
            put<N>(kept + i, v);
        see<N>(seen, v, i, smoothed);
    }
};

DEVICE_INLINE struct logits_seen warp_joined(struct logits_seen seen)
{
#pragma unroll
    for (int bit = 16; bit > 0; bit >>= 1) {
        struct logits_seen other;
        other.greatest = __shfl_xor_sync(FULL_WARP, seen.greatest, bit);
        other.sum = __shfl_xor_sync(FULL_WARP, seen.sum, bit);
        other.plain = __shfl_xor_sync(FULL_WARP, seen.plain, bit);
        other.place = __shfl_xor_sync(FULL_WARP, seen.place, bit);
        seen = logits_joined(seen, other);
    }
    return seen;
}

#define LOSS_WARPS (LOSS_THREADS / 32)

/* The block's row is read, by all threads; of_warps [LOSS_WARPS] are there when it returns. */
template <typename T, bool KEEPS>
DEVICE_INLINE void see_row(const struct k_loss &a, T *kept, struct logits_seen *of_warps)
{
    const int64_t row = blockIdx.x;
    struct row_forward<T, KEEPS> f = {
        (const T *)a.logits + row *a.stride, kept, a.smoothing > 0.0f,
        {
            LOSS_UNSEEN, 0.0f, 0.0f, INT32_MAX
        }
    };
    walk_row<T>(row, a.stride, a.vocab, f);
    f.seen = warp_joined(f.seen);
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = f.seen;
    __syncthreads();
}

/* Writes the result of the block's row; called by one thread. Returns the row's lse. */
template <typename T>
DEVICE_INLINE float finish_row(const struct k_loss &a, const struct logits_seen *of_warps,
                               struct row_result *results)
{
    const int64_t row = blockIdx.x;
    const T *const x = (const T *)a.logits + row * a.stride;
    struct logits_seen seen = of_warps[0];
    for (int w = 1; w < LOSS_WARPS; w++)
        seen = logits_joined(seen, of_warps[w]);
    const float lse = seen.greatest + logf(seen.sum);
    const int32_t label = a.labels[row];
    struct row_result result = { 0.0f, 0, 0 };
    a.lse[row] = lse;
    if (label < -1 || label >= a.vocab) {
        (void)atomicOr(a.fault, (unsigned)K_FAULT_LABEL);
    } else if (label >= 0) {
        const float even = lse - seen.plain / (float)a.vocab; /* the mean over x of lse - x */
        result.loss = (1.0f - a.smoothing) * (lse - to_float(x[label]));
        if (a.smoothing > 0.0f)
            result.loss += a.smoothing * even;
        result.counted = 1;
        result.right = seen.place == label;
    }
    results[row] = result;
    return lse;
}

template <typename T>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_forward_kernel(struct k_loss a, struct row_result *results)
{
    SHARED_ARRAY(struct logits_seen, of_warps, LOSS_WARPS);
    see_row<T, false>(a, (T *)nullptr, of_warps);
    if (threadIdx.x == 0)
        (void)finish_row<T>(a, of_warps, results);
}

/* Sums the results in one block: thread t adds the rows t, t + LOSS_FOLD, …; then a tree. */
static __global__ void __launch_bounds__(LOSS_FOLD)
    loss_fold_kernel(const struct row_result *results, int64_t rows, float *out)
{
    SHARED_ARRAY(double, loss, LOSS_FOLD);
    SHARED_ARRAY(int32_t, counted, LOSS_FOLD);
    SHARED_ARRAY(int32_t, right, LOSS_FOLD);
    const int t = (int)threadIdx.x;
    double sum = 0.0;
    int32_t n = 0, good = 0;
    for (int64_t row = t; row < rows; row += LOSS_FOLD) {
        sum += (double)results[row].loss;
        n += results[row].counted;
        good += results[row].right;
    }
    loss[t] = sum;
    counted[t] = n;
    right[t] = good;
    for (int half = LOSS_FOLD / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) {
            loss[t] += loss[t + half];
            counted[t] += counted[t + half];
            right[t] += right[t + half];
        }
    }
    if (t == 0) {
        out[0] = (float)loss[0];
        out[1] = (float)counted[0];
        out[2] = (float)right[0];
    }
}

size_t k_loss_scratch(int64_t rows)
{
    return (size_t)rows * sizeof(struct row_result);
}

static bool loss_is_valid(int64_t rows, int64_t vocab, int64_t stride, float smoothing)
{
    return rows >= 1 && rows <= INT32_MAX && vocab >= 1 && vocab <= INT32_MAX && stride >= vocab &&
           smoothing >= 0.0f && smoothing < 1.0f;
}

static enum status loss_fold(const struct k_loss *a, void *stream)
{
    const struct row_result *const results = (const struct row_result *)a->scratch;
    return launch(loss_fold_kernel, dim3(1), dim3(LOSS_FOLD), 0, stream, results, a->rows, a->out);
}

static bool forward_is_valid(const struct k_loss *a)
{
    return loss_is_valid(a->rows, a->vocab, a->stride, a->smoothing) && is_aligned(a->logits) &&
           is_aligned(a->scratch);
}

enum status k_loss_forward(const struct k_loss *args, void *stream)
{
    const struct k_loss *const a = args;
    struct row_result *const results = (struct row_result *)a->scratch;
    if (!forward_is_valid(a))
        return ST_INVALID;
    const enum status st = with_type(a->dtype, [&](auto t) {
        return launch(loss_forward_kernel<typename decltype(t)::type>, dim3((unsigned)a->rows),
                      dim3(LOSS_THREADS), 0, stream, *a, results);
    });
    return st == ST_OK ? loss_fold(a, stream) : st;
}

template <typename T, bool KEPT> struct row_backward {
    const T *x; /* KEPT: shared memory */
    T *dx;
    float lse2; /* lse·log2 e */
    float scale, even, peak;
    int64_t label; /* -1: zeros */

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        float v[N];
        if constexpr (KEPT)
            get<N>(v, x + i);
        else
            load<N>(v, x + i);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float d = exp2_approximate(fmaf(v[k], LOG2_E, -lse2)) - even;
            d = i + k == label ? d - peak : d;
            v[k] = label >= 0 ? d * scale : 0.0f;
        }
        store<N>(dx + i, v);
    }
};

/* The gradient of the block's row x. */
template <typename T, bool KEPT>
DEVICE_INLINE void write_gradient(const struct k_loss_grad &a, const T *x, float lse)
{
    const int64_t row = blockIdx.x;
    const int32_t label = a.labels[row];
    struct row_backward<T, KEPT> f = {
        x, (T *)a.dlogits + row *a.stride, lse *LOG2_E, a.scale != nullptr ? *a.scale : 1.0f,
            a.smoothing / (float)a.vocab, 1.0f - a.smoothing, label < a.vocab ? label : -1,
    };
    const float zero = 0.0f;
    walk_row<T>(row, a.stride, a.vocab, f);
    for (int64_t i = a.vocab + threadIdx.x; i < a.stride; i += LOSS_THREADS)
        store<1>(f.dx + i, &zero);
}

template <typename T>
static __global__ void __launch_bounds__(LOSS_THREADS) loss_backward_kernel(struct k_loss_grad a)
{
    const int64_t row = blockIdx.x;
    write_gradient<T, false>(a, (const T *)a.logits + row * a.stride, a.lse[row]);
}

template <typename T, bool KEEPS>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_both_kernel(struct k_loss a, struct k_loss_grad g, struct row_result *results)
{
    SHARED_ARRAY(struct logits_seen, of_warps, LOSS_WARPS);
    SHARED_ARRAY(float, lse, 1);
    const int64_t begin = (int64_t)blockIdx.x * a.stride;
    T *x = (T *)g.dlogits + begin;
    if constexpr (KEEPS) {
        SHARED_DYNAMIC(T, kept);
        x = kept + begin % (16 / (int)sizeof(T)); /* aligned where the row is */
    }
    see_row<T, KEEPS>(a, x, of_warps);
    if (threadIdx.x == 0)
        lse[0] = finish_row<T>(a, of_warps, results);
    __syncthreads();
    write_gradient<T, KEEPS>(g, x, lse[0]);
}

template <typename T>
static enum status both_launch(const struct k_loss *a, const struct k_loss_grad *g,
                               size_t shared_max, void *stream)
{
    struct row_result *const results = (struct row_result *)a->scratch;
    const dim3 grid((unsigned)a->rows);
    const size_t bytes = (size_t)a->vocab * sizeof(T) + 16;
    if (bytes <= shared_max / 2)
        return launch(loss_both_kernel<T, true>, grid, dim3(LOSS_THREADS), bytes, stream, *a, *g,
                      results);
    return launch(loss_both_kernel<T, false>, grid, dim3(LOSS_THREADS), 0, stream, *a, *g, results);
}

enum status k_loss_both(const struct k_loss *args, const struct k_loss_grad *grad,
                        size_t shared_max, void *stream)
{
    if (!forward_is_valid(args) || grad->dlogits != args->logits || grad->rows != args->rows ||
        grad->vocab != args->vocab || grad->stride != args->stride || grad->dtype != args->dtype)
        return ST_INVALID;
    const enum status st = with_type(args->dtype, [&](auto t) {
        return both_launch<typename decltype(t)::type>(args, grad, shared_max, stream);
    });
    return st == ST_OK ? loss_fold(args, stream) : st;
}

enum status k_loss_backward(const struct k_loss_grad *args, void *stream)
{
    const struct k_loss_grad *const a = args;
    if (!loss_is_valid(a->rows, a->vocab, a->stride, a->smoothing) || !is_aligned(a->logits) ||
        !is_aligned(a->dlogits))
        return ST_INVALID;
    return with_type(a->dtype, [&](auto t) {
        return launch(loss_backward_kernel<typename decltype(t)::type>, dim3((unsigned)a->rows),
                      dim3(LOSS_THREADS), 0, stream, *a);
    });
}
