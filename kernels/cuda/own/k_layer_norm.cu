/*
 * Layer norm, forward and backward.
 *
 *   xhat = (x - mean)·rstd               g = dy·gamma
 *   dx = rstd·(g - mean(g) - xhat·mean(g·xhat))      (means over the row)
 *   dgamma = Σ dy·xhat, dbeta = Σ dy                 (over the rows)
 *
 * With rms the mean and mean(g) count as 0, and there is no beta.
 *
 * A group of one or eight warps holds a row in registers: mean, sum of squared differences and
 * result take one read. Rows that don't fit, or whose length is no multiple of a vector, are read
 * three times by a block, out of L1.
 *
 * Backward: a block walks over its slice of the rows. A lane adds up dgamma and dbeta of its
 * columns in registers; the block's groups are added in order and written as partials.
 *
 * Source: Ba, Kiros, Hinton, arXiv 1607.06450, equation 4; rms: Zhang, Sennrich, arXiv 1910.07467,
 *         equation 4.
 */
#include "kernels/cuda/own/columns.cuh"
#include "kernels/cuda/own/k.h"

#define NORM_WARPS 8
/* The longest row that is held: */
#define NORM_NARROW      1024 /* by a warp, in forward */
#define NORM_NARROW_GRAD 768  /* by a warp, in backward */
#define NORM_MIDDLE      2048 /* by a block, 8 elements per thread */
#define NORM_WIDE        8192 /* by a block, 32 elements per thread */
/* The most slices in backward; part of the bits: */
#define NORM_BLOCKS     256 /* with a warp per row */
#define NORM_BLOCKS_ROW 512 /* with a block per row */

/* A lane's part of a row: v[k][i] is column (k·GROUP + lane)·WIDTH + i. */
template <int WIDTH, int CHUNKS, int GROUP> struct norm_row {
    float v[CHUNKS][WIDTH];

    template <typename T> __device__ __forceinline__ void read(const T *row, int lane, int64_t c)
    {
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const int64_t column = (int64_t)(k * GROUP + lane) * WIDTH;
            if (column < c) {
                load<WIDTH>(v[k], row + column);
            } else {
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    v[k][i] = 0.0f;
            }
        }
    }
};

template <typename X, typename Y, int CHUNKS, int WARPS>
static __global__ void __launch_bounds__(NORM_WARPS * 32)
    layer_norm_forward_kernel(struct k_layer_norm a, bool aligned)
{
    constexpr int WIDTH = WIDTH_OF<X, Y>, GROUP = WARPS * 32;
    SHARED_ARRAY(float, shared, 8);
    const int lane = (int)threadIdx.x % GROUP;
    const int64_t row = (int64_t)blockIdx.x * (NORM_WARPS / WARPS) + threadIdx.x / GROUP;
    if (row >= a.rows) /* only where a group is a warp, and then there are no barriers */
        return;
    struct norm_row<WIDTH, CHUNKS, GROUP> x;
    x.read((const X *)a.x + row * a.c, lane, a.c);
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum += x.v[k][i];
    }
    group_sum<WARPS, 1>(&sum, shared);
    const float mean = a.rms ? 0.0f : sum / (float)a.c;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float d = x.v[k][i] - mean;
            squares += (int64_t)(k * GROUP + lane) * WIDTH < a.c ? d * d : 0.0f;
        }
    }
    group_sum<WARPS, 1>(&squares, shared);
    const float rstd = 1.0f / sqrtf(squares / (float)a.c + a.eps);
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int64_t column = (int64_t)(k * GROUP + lane) * WIDTH;
        float gamma[WIDTH], beta[WIDTH] = {};
        if (column >= a.c)
            continue;
        load_flat<WIDTH>(gamma, a.gamma + column, aligned);
        if (!a.rms)
            load_flat<WIDTH>(beta, a.beta + column, aligned);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            x.v[k][i] = (x.v[k][i] - mean) * rstd * gamma[i] + beta[i];
        store<WIDTH>((Y *)a.y + row * a.c + column, x.v[k]);
    }
    if (lane == 0 && a.mean != nullptr) {
        a.mean[row] = mean;
        a.rstd[row] = rstd;
    }
}

/* Rows of any length: a block per row, an element at a time. */
template <typename X, typename Y>
static __global__ void __launch_bounds__(NORM_WARPS * 32)
    layer_norm_forward_any_kernel(struct k_layer_norm a)
{
    SHARED_ARRAY(float, shared, 8);
    const int64_t row = blockIdx.x;
    const X *const x = (const X *)a.x + row * a.c;
    Y *const y = (Y *)a.y + row * a.c;
    float sum = 0.0f, squares = 0.0f;
    for (int64_t i = threadIdx.x; i < a.c; i += NORM_WARPS * 32)
        sum += to_float(x[i]);
    group_sum<NORM_WARPS, 1>(&sum, shared);
    const float mean = a.rms ? 0.0f : sum / (float)a.c;
    for (int64_t i = threadIdx.x; i < a.c; i += NORM_WARPS * 32) {
        const float d = to_float(x[i]) - mean;
        squares += d * d;
    }
    group_sum<NORM_WARPS, 1>(&squares, shared);
    const float rstd = 1.0f / sqrtf(squares / (float)a.c + a.eps);
    for (int64_t i = threadIdx.x; i < a.c; i += NORM_WARPS * 32) {
        const float beta = a.rms ? 0.0f : a.beta[i];
        y[i] = from_float<Y>((to_float(x[i]) - mean) * rstd * a.gamma[i] + beta);
    }
    if (threadIdx.x == 0 && a.mean != nullptr) {
        a.mean[row] = mean;
        a.rstd[row] = rstd;
    }
}

template <typename X, typename Y>
static enum status layer_norm_forward_launch(const struct k_layer_norm *a, void *stream)
{
    constexpr int WIDTH = WIDTH_OF<X, Y>;
    const bool aligned = is_aligned(a->gamma) && (a->rms || is_aligned(a->beta));
    const dim3 block(NORM_WARPS * 32), each((unsigned)a->rows);
    if (a->c % WIDTH != 0 || a->c > NORM_WIDE)
        return launch(layer_norm_forward_any_kernel<X, Y>, each, block, 0, stream, *a);
    if (a->c <= NORM_NARROW) {
        const dim3 grid((unsigned)((a->rows + NORM_WARPS - 1) / NORM_WARPS));
        return launch(layer_norm_forward_kernel<X, Y, NORM_NARROW / 32 / WIDTH, 1>, grid, block, 0,
                      stream, *a, aligned);
    }
    if (a->c <= NORM_MIDDLE)
        return launch(layer_norm_forward_kernel<X, Y, NORM_MIDDLE / 256 / WIDTH, 8>, each, block, 0,
                      stream, *a, aligned);
    return launch(layer_norm_forward_kernel<X, Y, NORM_WIDE / 256 / WIDTH, 8>, each, block, 0,
                  stream, *a, aligned);
}

enum status k_layer_norm_forward(const struct k_layer_norm *args, void *stream)
{
    const struct k_layer_norm *const a = args;
    if (a->rows < 1 || a->rows > INT32_MAX || a->c < 1 || !is_aligned(a->x) || !is_aligned(a->y) ||
        (a->mean == nullptr) != (a->rstd == nullptr))
        return ST_INVALID;
    return with_types(a->x_dtype, a->y_dtype, [&](auto x, auto y) {
        return layer_norm_forward_launch<typename decltype(x)::type, typename decltype(y)::type>(
            a, stream);
    });
}

/* The slices into which backward cuts the rows, by the shape alone. */
struct norm_cut {
    int64_t slice; /* rows of a block */
    int64_t blocks;
};

static struct norm_cut norm_cut_of(int64_t rows, int64_t c)
{
    const int64_t most = c <= NORM_NARROW_GRAD ? NORM_BLOCKS : NORM_BLOCKS_ROW;
    const int64_t unit = c <= NORM_NARROW_GRAD ? NORM_WARPS : 1;
    struct norm_cut cut = { ((rows + most - 1) / most + unit - 1) / unit * unit, 0 };
    cut.blocks = (rows + cut.slice - 1) / cut.slice;
    return cut;
}

/* A lane's sums over rows, for its columns. */
template <int WIDTH, int CHUNKS> struct norm_sums {
    float gamma[CHUNKS][WIDTH], beta[CHUNKS][WIDTH];
};

/* Handles one row: x becomes xhat, g (which is dy) becomes dy·gamma. Returns the row's Σ g and Σ
 * g·xhat. */
template <int WARPS, int WIDTH, int CHUNKS, int GROUP>
DEVICE_INLINE float2 layer_norm_gradient_sums(const struct k_layer_norm_grad &a, int64_t row,
                                              int lane, struct norm_row<WIDTH, CHUNKS, GROUP> &x,
                                              struct norm_row<WIDTH, CHUNKS, GROUP> &g,
                                              struct norm_sums<WIDTH, CHUNKS> &total, bool aligned)
{
    SHARED_ARRAY(float, shared, 2 * 8);
    const float mean = a.mean[row], rstd = a.rstd[row];
    float sum[2] = { 0.0f, 0.0f };
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int64_t column = (int64_t)(k * GROUP + lane) * WIDTH;
        float gamma[WIDTH];
        if (column >= a.c)
            continue;
        load_flat<WIDTH>(gamma, a.gamma + column, aligned);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            x.v[k][i] = (x.v[k][i] - mean) * rstd;
            total.gamma[k][i] += g.v[k][i] * x.v[k][i];
            total.beta[k][i] += g.v[k][i];
            g.v[k][i] *= gamma[i];
            sum[0] += g.v[k][i];
            sum[1] += g.v[k][i] * x.v[k][i];
        }
    }
    group_sum<WARPS, 2>(sum, shared);
    return make_float2(sum[0], sum[1]);
}

/* to [2][c] = the sum of the block's groups, in order. */
template <int GROUPS, int WIDTH, int CHUNKS>
DEVICE_INLINE void write_partials(const struct norm_sums<WIDTH, CHUNKS> &total, int group, int lane,
                                  int64_t c, float *to)
{
    SHARED_ARRAY(float, sum, GROUPS > 1 ? 2 * NORM_NARROW_GRAD : 2);
    constexpr int GROUP = NORM_WARPS * 32 / GROUPS;
    for (int turn = 0; turn < GROUPS; turn++) {
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const int column = (k * GROUP + lane) * WIDTH;
            if (turn != group || column >= c)
                continue;
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                float gamma = total.gamma[k][i], beta = total.beta[k][i];
                if (turn > 0) {
                    gamma += sum[column + i];
                    beta += sum[NORM_NARROW_GRAD + column + i];
                }
                if (turn == GROUPS - 1) {
                    to[column + i] = gamma;
                    to[c + column + i] = beta;
                } else {
                    sum[column + i] = gamma;
                    sum[NORM_NARROW_GRAD + column + i] = beta;
                }
            }
        }
        __syncthreads();
    }
}

template <typename X, typename Y, int CHUNKS, int WARPS>
static __global__ void __launch_bounds__(NORM_WARPS * 32, WARPS == 1 ? 2 : 1)
    layer_norm_backward_kernel(struct k_layer_norm_grad a, struct norm_cut cut, float *partials,
                               bool aligned)
{
    constexpr int WIDTH = WIDTH_OF<X, Y>, GROUP = WARPS * 32, GROUPS = NORM_WARPS / WARPS;
    const int lane = (int)threadIdx.x % GROUP, group = (int)threadIdx.x / GROUP;
    const int64_t first = blockIdx.x * cut.slice;
    const int64_t end = first + cut.slice < a.rows ? first + cut.slice : a.rows;
    const float by = 1.0f / (float)a.c, by_mean = a.rms ? 0.0f : by;
    struct norm_sums<WIDTH, CHUNKS> total = {};
    for (int64_t row = first + group; row < end; row += GROUPS) {
        struct norm_row<WIDTH, CHUNKS, GROUP> x, g;
        x.read((const X *)a.x + row * a.c, lane, a.c);
        g.read((const Y *)a.dy + row * a.c, lane, a.c);
        const float2 sum = layer_norm_gradient_sums<WARPS>(a, row, lane, x, g, total, aligned);
        const float rstd = a.rstd[row];
#pragma unroll
        for (int k = 0; k < CHUNKS; k++) {
            const int64_t column = (int64_t)(k * GROUP + lane) * WIDTH;
            float add[WIDTH] = {};
            if (column >= a.c || a.dx == nullptr)
                continue;
            if (a.dx_add != nullptr)
                load<WIDTH>(add, (const X *)a.dx_add + row * a.c + column);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) {
                const float centred = g.v[k][i] - by_mean * sum.x - x.v[k][i] * (by * sum.y);
                g.v[k][i] = rstd * centred + add[i];
            }
            store<WIDTH>((X *)a.dx + row * a.c + column, g.v[k]);
        }
    }
    if (partials != nullptr)
        write_partials<GROUPS>(total, group, lane, a.c, partials + (int64_t)blockIdx.x * 2 * a.c);
}

/* Rows of any length: dx by a block per row; dgamma and dbeta by columns.cuh. */
template <typename X, typename Y>
static __global__ void __launch_bounds__(NORM_WARPS * 32)
    layer_norm_backward_any_kernel(struct k_layer_norm_grad a)
{
    SHARED_ARRAY(float, shared, 2 * 8);
    const int64_t row = blockIdx.x;
    const X *const x = (const X *)a.x + row * a.c;
    const Y *const dy = (const Y *)a.dy + row * a.c;
    const float mean = a.mean[row], rstd = a.rstd[row];
    const float by = 1.0f / (float)a.c, by_mean = a.rms ? 0.0f : by;
    float sum[2] = { 0.0f, 0.0f };
    for (int64_t i = threadIdx.x; i < a.c; i += NORM_WARPS * 32) {
        const float g = to_float(dy[i]) * a.gamma[i];
        sum[0] += g;
        sum[1] += g * ((to_float(x[i]) - mean) * rstd);
    }
    group_sum<NORM_WARPS, 2>(sum, shared);
    for (int64_t i = threadIdx.x; i < a.c; i += NORM_WARPS * 32) {
        const float g = to_float(dy[i]) * a.gamma[i], xhat = (to_float(x[i]) - mean) * rstd;
        float dx = rstd * (g - by_mean * sum[0] - xhat * (by * sum[1]));
        if (a.dx_add != nullptr)
            dx += to_float(((const X *)a.dx_add)[row * a.c + i]);
        ((X *)a.dx)[row * a.c + i] = from_float<X>(dx);
    }
}

template <typename X, typename Y> struct norm_columns {
    struct k_layer_norm_grad a;

    __device__ __forceinline__ void begin(int64_t, int64_t) {}
    __device__ __forceinline__ void row(int64_t row, int64_t column, float (&sum)[2][1])
    {
        const float dy = to_float(((const Y *)a.dy)[row * a.c + column]);
        const float x = to_float(((const X *)a.x)[row * a.c + column]);
        sum[0][0] += dy * ((x - a.mean[row]) * a.rstd[row]);
        sum[1][0] += dy;
    }
};

/* Enqueues dx and the partials. *out_partials: how many. */
template <typename X, typename Y>
static enum status layer_norm_backward_launch(const struct k_layer_norm_grad *a,
                                              int64_t *out_partials, void *stream)
{
    constexpr int WIDTH = WIDTH_OF<X, Y>;
    const bool aligned = is_aligned(a->gamma), sums = a->dgamma != nullptr || a->dbeta != nullptr;
    const dim3 block(NORM_WARPS * 32);
    float *const partials = sums ? (float *)a->scratch : nullptr;
    if (a->c % WIDTH != 0 || a->c > NORM_WIDE) {
        const struct columns s = columns_of(a->rows, a->c, 1);
        const struct norm_columns<X, Y> f = {
            *a
        };
        enum status st = ST_OK;
        *out_partials = s.slices;
        if (sums)
            st = launch_columns<1, 2>(&s, f, partials, stream); /* before dx, which may be x */
        if (st == ST_OK && a->dx != nullptr)
            st = launch(layer_norm_backward_any_kernel<X, Y>, dim3((unsigned)a->rows), block, 0,
                        stream, *a);
        return st;
    }
    const struct norm_cut cut = norm_cut_of(a->rows, a->c);
    const dim3 grid((unsigned)cut.blocks);
    *out_partials = cut.blocks;
    if (a->c <= NORM_NARROW_GRAD)
        return launch(layer_norm_backward_kernel<X, Y, NORM_NARROW_GRAD / 32 / WIDTH, 1>, grid,
                      block, 0, stream, *a, cut, partials, aligned);
    if (a->c <= NORM_MIDDLE)
        return launch(layer_norm_backward_kernel<X, Y, NORM_MIDDLE / 256 / WIDTH, 8>, grid, block,
                      0, stream, *a, cut, partials, aligned);
    return launch(layer_norm_backward_kernel<X, Y, NORM_WIDE / 256 / WIDTH, 8>, grid, block, 0,
                  stream, *a, cut, partials, aligned);
}

size_t k_layer_norm_scratch(int64_t rows, int64_t c)
{
    const size_t rowwise = (size_t)norm_cut_of(rows, c).blocks * 2 * (size_t)c * sizeof(float);
    const size_t columnwise = columns_scratch(rows, c, 2);
    return rowwise > columnwise ? rowwise : columnwise;
}

enum status k_layer_norm_backward(const struct k_layer_norm_grad *args, void *stream)
{
    const struct k_layer_norm_grad *const a = args;
    int64_t partials = 0;
    if (a->rows < 1 || a->rows > INT32_MAX || a->c < 1 || !is_aligned(a->x) || !is_aligned(a->dy) ||
        !is_aligned(a->dx) || !is_aligned(a->dx_add) || !is_aligned(a->scratch))
        return ST_INVALID;
    enum status st = with_types(a->x_dtype, a->y_dtype, [&](auto x, auto y) {
        return layer_norm_backward_launch<typename decltype(x)::type, typename decltype(y)::type>(
            a, &partials, stream);
    });
    if (st != ST_OK || (a->dgamma == nullptr && a->dbeta == nullptr))
        return st;
    const struct columns_outputs outputs = { { a->dgamma, a->dbeta },
                                             { a->accumulate_gamma, a->accumulate_beta },
                                             2 };
    return columns_finish((const float *)a->scratch, partials, a->c, &outputs, stream);
}
