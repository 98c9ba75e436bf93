/*
 * Batch norm of NHWC tensors, with residual and relu in the same pass.
 *
 * Forward, with scale = gamma·rstd:
 *
 *   y = relu?((x - mean)·scale + beta (+ residual))
 *
 * Backward, with g = dy (+ dy2), 0 where y <= 0 under a relu, and M rows:
 *
 *   dbeta  = Σ g
 *   dgamma = rstd·Σ g·(x - mean)
 *   dx     = scale·(g - Σ g / M - (x - mean)·rstd²·Σ g·(x - mean) / M)
 *
 * Source: Ioffe, Szegedy, arXiv 1502.03167, algorithm 1; sums are joined as by Chan, Golub and
 * LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
 *
 * Statistics: a slice of the rows is summed as differences from its first row, which keeps float32
 * exact enough whatever the mean is. A slice has its number n, mean m and sum of squared
 * differences s. Two are joined in double, with d = m2 - m1 and n = n1 + n2:
 *
 *   m = m1 + d·n2/n
 *   s = s1 + s2 + d²·n1·n2/n
 */
#include "kernels/cuda/own/columns.cuh"
#include "kernels/cuda/own/k.h"

#define JOIN_DOWN  32
#define JOIN_AHEAD 4 /* slices that a thread reads at once: their latency is all that it takes */

template <typename T, int WIDTH> struct statistics_columns {
    const T *x;
    int64_t c;
    float shift[WIDTH];

    __device__ __forceinline__ void begin(int64_t column, int64_t first)
    {
        load<WIDTH>(shift, x + first * c + column);
    }
    __device__ __forceinline__ void row(int64_t row, int64_t column, float (&sum)[2][WIDTH])
    {
        float v[WIDTH];
        load<WIDTH>(v, x + row * c + column);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float d = v[i] - shift[i];
            sum[0][i] += d;
            sum[1][i] += d * d;
        }
    }
};

/* Moments of some rows: number (n), mean (m), sum of squared differences from it (s). */
struct moments {
    double count, mean, squares;
};

DEVICE_INLINE struct moments moments_joined(const struct moments &a, const struct moments &b)
{
    if (a.count == 0.0)
        return b;
    if (b.count == 0.0)
        return a;
    const double count = a.count + b.count, d = b.mean - a.mean;
    return { count, a.mean + d * (b.count / count),
             a.squares + b.squares + d * d * (a.count * b.count / count) };
}

/* Values of a slice in memory; beyond the last slice, those of the first. */
struct slice_read {
    float shift, sum, squares;
};

template <typename T>
DEVICE_INLINE struct slice_read slice_read_of(const struct k_batch_norm &a, const struct columns &s,
                                              const float *partials, int64_t slice, int64_t column)
{
    const int64_t i = slice < s.slices ? slice : 0;
    return { to_float(((const T *)a.x)[i * s.slice * s.c + column]), partials[i * 2 * s.c + column],
             partials[(i * 2 + 1) * s.c + column] };
}

/* Returns the moments of a slice; beyond the last slice, those of no rows. */
DEVICE_INLINE struct moments slice_moments(const struct slice_read &read, const struct columns &s,
                                           int64_t slice)
{
    const int64_t rest = s.rows - slice * s.slice;
    if (rest <= 0)
        return { 0.0, 0.0, 0.0 };
    const double n = (double)(rest < s.slice ? rest : s.slice), sum = (double)read.sum;
    return { n, (double)read.shift + sum / n, (double)read.squares - sum * sum / n };
}

/* Thread (x, y) joins the slices y, y + 32, … of column x; a tree joins the 32. */
template <typename T>
static __global__ void __launch_bounds__(32 * JOIN_DOWN)
    batch_norm_statistics_kernel(struct k_batch_norm a, struct columns s, const float *partials)
{
    SHARED_ARRAY(struct moments, shared, JOIN_DOWN * 32);
    const int x = (int)threadIdx.x % 32, y = (int)threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.x * 32 + x;
    struct moments all = { 0.0, 0.0, 0.0 };
    for (int64_t i = y; i < s.slices && column < s.c; i += JOIN_AHEAD * JOIN_DOWN) {
        struct slice_read read[JOIN_AHEAD];
#pragma unroll
        for (int k = 0; k < JOIN_AHEAD; k++)
            read[k] = slice_read_of<T>(a, s, partials, i + k * JOIN_DOWN, column);
#pragma unroll
        for (int k = 0; k < JOIN_AHEAD; k++)
            all = moments_joined(all, slice_moments(read[k], s, i + k * JOIN_DOWN));
    }
    shared[y * 32 + x] = all;
    for (int half = JOIN_DOWN / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half)
            shared[y * 32 + x] = moments_joined(shared[y * 32 + x], shared[(y + half) * 32 + x]);
    }
    if (y != 0 || column >= s.c)
        return;
    all = shared[x];
    const double squares = all.squares > 0.0 ? all.squares : 0.0;
    const float mean = (float)all.mean;
    const float variance = s.rows > 1 ? (float)(squares / (double)(s.rows - 1)) : 0.0f;
    a.mean[column] = mean;
    a.rstd[column] = (float)(1.0 / sqrt(squares / (double)s.rows + (double)a.eps));
    if (a.mean_sum != nullptr) {
        a.mean_sum[column] = a.accumulate_stats ? a.mean_sum[column] + mean : mean;
        a.var_sum[column] = a.accumulate_stats ? a.var_sum[column] + variance : variance;
    }
}

/* Values of a thread's columns. aligned: all the flat arrays are. */
template <int WIDTH> struct cuda_norm_affine {
    float mean[WIDTH], scale[WIDTH], beta[WIDTH];

    __device__ __forceinline__ void read(const float *means, const float *rstds, const float *gamma,
                                         const float *betas, int64_t column, bool aligned)
    {
        float rstd[WIDTH];
        load_flat<WIDTH>(mean, means + column, aligned);
        load_flat<WIDTH>(rstd, rstds + column, aligned);
        load_flat<WIDTH>(scale, gamma + column, aligned);
        load_flat<WIDTH>(beta, betas + column, aligned);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            scale[i] *= rstd[i];
    }
    /* y without residual and relu: forward writes it, backward asks for its sign; the same bits. */
    __device__ __forceinline__ float of(float x, int i) const
    {
        return fmaf(x - mean[i], scale[i], beta[i]);
    }
};

template <typename T, int WIDTH> struct apply_columns {
    struct k_batch_norm a;
    bool aligned, running; /* running: rstd is made of running_var */
    struct cuda_norm_affine<WIDTH> affine;

    __device__ __forceinline__ void begin(int64_t column, int64_t)
    {
        if (!running) {
            affine.read(a.mean, a.rstd, a.gamma, a.beta, column, aligned);
            return;
        }
        affine.read(a.running_mean, a.running_var, a.gamma, a.beta, column, aligned);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            affine.scale[i] = a.gamma[column + i] / sqrtf(a.running_var[column + i] + a.eps);
    }
    template <typename Sums>
    __device__ __forceinline__ void row(int64_t row, int64_t column, Sums &)
    {
        const int64_t at = row * a.c + column;
        float v[WIDTH], add[WIDTH] = {};
        load<WIDTH>(v, (const T *)a.x + at);
        if (a.residual != nullptr)
            load<WIDTH>(add, (const T *)a.residual + at);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            v[i] = affine.of(v[i], i);
            if (a.residual != nullptr)
                v[i] += add[i];
            if (a.relu)
                v[i] = v[i] <= 0.0f ? 0.0f : v[i];
        }
        store<WIDTH>((T *)a.y + at, v);
    }
};

template <typename T, int WIDTH>
static enum status batch_norm_apply_launch(const struct k_batch_norm *a, bool running, void *stream)
{
    const struct columns s = columns_of(a->rows, a->c, WIDTH);
    const bool flat = is_aligned(a->gamma) && is_aligned(a->beta);
    const bool saved = running ? is_aligned(a->running_mean) && is_aligned(a->running_var)
                               : is_aligned(a->mean) && is_aligned(a->rstd);
    const struct apply_columns<T, WIDTH> f = {
        *a, flat &&saved, running, {}
    };
    return launch_columns<WIDTH, 0>(&s, f, nullptr, stream);
}

template <typename T, int WIDTH>
static enum status batch_norm_forward_launch(const struct k_batch_norm *a, void *stream)
{
    const struct columns s = columns_of(a->rows, a->c, WIDTH);
    const struct statistics_columns<T, WIDTH> f = {
        (const T *)a->x, a->c, {}
    };
    float *const partials = (float *)a->scratch;
    enum status st = launch_columns<WIDTH, 2>(&s, f, partials, stream);
    if (st == ST_OK)
        st = launch(batch_norm_statistics_kernel<T>, dim3((unsigned)((a->c + 31) / 32)),
                    dim3(32 * JOIN_DOWN), 0, stream, *a, s, partials);
    return st == ST_OK ? batch_norm_apply_launch<T, WIDTH>(a, false, stream) : st;
}

static bool batch_norm_is_valid(const struct k_batch_norm *a)
{
    return a->rows >= 1 && a->c >= 1 && is_aligned(a->x) && is_aligned(a->residual) &&
           is_aligned(a->y) && is_aligned(a->scratch);
}

enum status k_batch_norm_forward(const struct k_batch_norm *args, void *stream)
{
    if (!batch_norm_is_valid(args) || (args->mean_sum == nullptr) != (args->var_sum == nullptr))
        return ST_INVALID;
    return with_type(args->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int WIDTH = WIDTH_OF<T, T>;
        return args->c % WIDTH == 0 ? batch_norm_forward_launch<T, WIDTH>(args, stream)
                                    : batch_norm_forward_launch<T, 1>(args, stream);
    });
}

enum status k_batch_norm_apply(const struct k_batch_norm *args, void *stream)
{
    if (!batch_norm_is_valid(args))
        return ST_INVALID;
    return with_type(args->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int WIDTH = WIDTH_OF<T, T>;
        return args->c % WIDTH == 0 ? batch_norm_apply_launch<T, WIDTH>(args, true, stream)
                                    : batch_norm_apply_launch<T, 1>(args, true, stream);
    });
}

/* Source of the gradient g. */
template <typename T, int WIDTH> struct gradient_source {
    struct k_batch_norm_grad a;
    bool aligned;
    struct cuda_norm_affine<WIDTH> affine;

    __device__ __forceinline__ void read(int64_t column)
    {
        affine.read(a.mean, a.rstd, a.gamma, a.beta, column, aligned);
    }
    /* g and x of WIDTH elements. */
    __device__ __forceinline__ void at(int64_t at, float *g, float *x) const
    {
        float v[WIDTH];
        load<WIDTH>(g, (const T *)a.dy + at);
        load<WIDTH>(x, (const T *)a.x + at);
        if (a.dy2 != nullptr) {
            load<WIDTH>(v, (const T *)a.dy2 + at);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                g[i] += v[i];
        }
        if (!a.relu)
            return;
        if (a.y != nullptr)
            load<WIDTH>(v, (const T *)a.y + at);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float y = a.y != nullptr ? v[i] : affine.of(x[i], i);
            g[i] = y <= 0.0f ? 0.0f : g[i];
        }
    }
};

template <typename T, int WIDTH> struct gradient_columns {
    struct gradient_source<T, WIDTH> source;

    __device__ __forceinline__ void begin(int64_t column, int64_t)
    {
        source.read(column);
    }
    __device__ __forceinline__ void row(int64_t row, int64_t column, float (&sum)[2][WIDTH])
    {
        const int64_t at = row * source.a.c + column;
        float g[WIDTH], x[WIDTH];
        source.at(at, g, x);
        if (source.a.dresidual != nullptr)
            store<WIDTH>((T *)source.a.dresidual + at, g);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            sum[0][i] += g[i];
            sum[1][i] += g[i] * (x[i] - source.affine.mean[i]);
        }
    }
};

/* dgamma, dbeta, and means [2][c]: Σ g / M and Σ g·(x - mean) / M. */
static __global__ void __launch_bounds__(32 * JOIN_DOWN)
    batch_norm_gradient_kernel(struct k_batch_norm_grad a, int64_t slices, const float *partials,
                               float *means)
{
    SHARED_ARRAY(double, shared, 2 * JOIN_DOWN * 32);
    const int x = (int)threadIdx.x % 32, y = (int)threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.x * 32 + x;
    double sum[2] = { 0.0, 0.0 };
#pragma unroll 4
    for (int64_t i = y; i < slices && column < a.c; i += JOIN_DOWN) {
        sum[0] += (double)partials[i * 2 * a.c + column];
        sum[1] += (double)partials[(i * 2 + 1) * a.c + column];
    }
    double *const first = shared + y * 32 + x, *const second = first + JOIN_DOWN * 32;
    *first = sum[0];
    *second = sum[1];
    for (int half = JOIN_DOWN / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half) {
            *first += first[half * 32];
            *second += second[half * 32];
        }
    }
    if (y != 0 || column >= a.c)
        return;
    const double rstd = (double)a.rstd[column], rows = (double)a.rows;
    const float dbeta = (float)*first, dgamma = (float)(*second * rstd);
    means[column] = (float)(*first / rows);
    means[a.c + column] = (float)(*second * rstd * rstd / rows);
    if (a.dgamma != nullptr)
        a.dgamma[column] = a.accumulate_gamma ? a.dgamma[column] + dgamma : dgamma;
    if (a.dbeta != nullptr)
        a.dbeta[column] = a.accumulate_beta ? a.dbeta[column] + dbeta : dbeta;
}

template <typename T, int WIDTH> struct input_columns {
    struct gradient_source<T, WIDTH> source;
    const float *means;
    float constant[WIDTH], by_x[WIDTH];

    __device__ __forceinline__ void begin(int64_t column, int64_t)
    {
        source.read(column);
        load_flat<WIDTH>(constant, means + column, false);
        load_flat<WIDTH>(by_x, means + source.a.c + column, false);
    }
    template <typename Sums>
    __device__ __forceinline__ void row(int64_t row, int64_t column, Sums &)
    {
        const int64_t at = row * source.a.c + column;
        float g[WIDTH], x[WIDTH], add[WIDTH] = {};
        source.at(at, g, x);
        if (source.a.dx_add != nullptr)
            load<WIDTH>(add, (const T *)source.a.dx_add + at);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float centred = x[i] - source.affine.mean[i];
            g[i] = source.affine.scale[i] * (g[i] - constant[i] - centred * by_x[i]) + add[i];
        }
        store<WIDTH>((T *)source.a.dx + at, g);
    }
};

/* The two passes over the tensors use the same g: as it is stored, if it is. */
template <typename T, int WIDTH>
static enum status batch_norm_backward_launch(const struct k_batch_norm_grad *a, void *stream)
{
    const struct columns s = columns_of(a->rows, a->c, WIDTH);
    const bool aligned =
        is_aligned(a->gamma) && is_aligned(a->beta) && is_aligned(a->mean) && is_aligned(a->rstd);
    float *const partials = (float *)a->scratch;
    float *const means = partials + (int64_t)s.slices * 2 * a->c;
    const struct gradient_columns<T, WIDTH> sums = {
        {
            *a, aligned, {}
        }
    };
    struct input_columns<T, WIDTH> input = {
        { *a, aligned, {} }, means, {}, {}
    };
    enum status st = launch_columns<WIDTH, 2>(&s, sums, partials, stream);
    if (st == ST_OK)
        st = launch(batch_norm_gradient_kernel, dim3((unsigned)((a->c + 31) / 32)),
                    dim3(32 * JOIN_DOWN), 0, stream, *a, (int64_t)s.slices, partials, means);
    if (st != ST_OK || a->dx == nullptr)
        return st;
    if (a->dresidual != nullptr) {
        input.source.a.dy = a->dresidual;
        input.source.a.dy2 = nullptr;
        input.source.a.relu = false;
    }
    return launch_columns<WIDTH, 0>(&s, input, nullptr, stream);
}

size_t k_batch_norm_scratch(int64_t rows, int64_t c)
{
    return columns_scratch(rows, c, 2) + 2 * (size_t)c * sizeof(float);
}

enum status k_batch_norm_backward(const struct k_batch_norm_grad *args, void *stream)
{
    const struct k_batch_norm_grad *const a = args;
    if (a->rows < 1 || a->c < 1 || !is_aligned(a->x) || !is_aligned(a->dy) || !is_aligned(a->dy2) ||
        !is_aligned(a->y) || !is_aligned(a->dx_add) || !is_aligned(a->dx) ||
        !is_aligned(a->dresidual) || !is_aligned(a->scratch) ||
        (a->dresidual != nullptr && a->dresidual == a->dx))
        return ST_INVALID;
    return with_type(a->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int WIDTH = WIDTH_OF<T, T>;
        return a->c % WIDTH == 0 ? batch_norm_backward_launch<T, WIDTH>(a, stream)
                                 : batch_norm_backward_launch<T, 1>(a, stream);
    });
}
