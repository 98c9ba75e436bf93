/*
 * Attention in float32 without tensor cores: any type, any D up to 256. The algorithms and the
 * walks over tiles are those of forward.cu and backward.cu.
 *
 * A block of 16×16 threads owns ROWS rows (queries; for dk and dv keys) and takes ROWS rows of the
 * other side at a time. ROWS is 64, or 32 where 64 rows would not fit. Tiles lie in shared memory
 * as float32, with zeros beyond D and beyond T. Thread (y, x) has
 *
 *   scores    rows y + 16·i, columns x + 16·j
 *   results   rows y + 16·i, columns 4·x … 4·x + 3 of each 64
 */
#include <math.h>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/own/reduce.cuh"

#define PLAIN_THREADS 256
#define ROW_LANES     16 /* that share a row of scores */

/* WIDTH: D rounded up, 64, 128 or 256. Pitches are an odd number of float4: no bank conflicts. */
template <int WIDTH> struct plain {
    static constexpr int ROWS = WIDTH > 128 ? 32 : 64, EACH = ROWS / 16, SIXTYFOURS = WIDTH / 64;
    static constexpr int PITCH = WIDTH + 4, SCORES = ROWS + 4;
    static constexpr int TILE = ROWS * PITCH;         /* floats */
    static constexpr int BLOCKS = WIDTH > 64 ? 1 : 2; /* of a multiprocessor, by shared memory */
    static constexpr size_t bytes(int tiles)
    {
        return (size_t)(tiles * TILE + ROWS * SCORES) * sizeof(float);
    }
};

/* A thread's part of ROWS × D results. */
template <int WIDTH> struct result {
    float at[plain<WIDTH>::EACH][plain<WIDTH>::SIXTYFOURS][4];
};

/* Matrix of one head: element (row, column) is at first + (row·stride + column). */
struct matrix {
    int64_t first;
    int stride;
};

struct plain_head {
    struct matrix q, k, v, out; /* in qkv and dqkv; in out and dout */
    int64_t statistics;
    int keys; /* that anybody sees */
};

static __device__ __forceinline__ struct plain_head
plain_head_of_block(const struct attention_call &call)
{
    const int64_t sample = blockIdx.z, index = blockIdx.y;
    const int width = call.heads * call.dim;
    struct plain_head head;
    head.q.stride = head.k.stride = head.v.stride = 3 * width;
    head.q.first = sample * call.tokens * 3 * width + index * call.dim;
    head.k.first = head.q.first + width;
    head.v.first = head.k.first + width;
    head.out.first = sample * call.tokens * width + index * call.dim;
    head.out.stride = width;
    head.statistics = (sample * call.heads + index) * call.tokens;
    head.keys = keys_of_block(call);
    return head;
}

template <enum dtype TYPE>
static __device__ __forceinline__ float element_load(const void *from, int64_t at)
{
    if constexpr (TYPE == DTYPE_F32)
        return ((const float *)from)[at];
    else
        return unpack_halfs<TYPE>(((const uint16_t *)from)[at]).x;
}

template <enum dtype TYPE>
static __device__ __forceinline__ void element_store(void *to, int64_t at, float value)
{
    if constexpr (TYPE == DTYPE_F32)
        ((float *)to)[at] = value;
    else
        ((uint16_t *)to)[at] = (uint16_t)(pack_halfs<TYPE>(value, 0.0f) & 0xffff);
}

/* Rows [first, first + ROWS) of a matrix to shared memory. */
template <enum dtype TYPE, int WIDTH>
static __device__ __forceinline__ void rows_load(float *to, const void *from, struct matrix matrix,
                                                 int first, const struct attention_call &call)
{
    const int lane = (int)threadIdx.x & 31;
    for (int row = (int)threadIdx.x >> 5; row < plain<WIDTH>::ROWS; row += PLAIN_THREADS / 32) {
        const int64_t at = matrix.first + (first + row) * matrix.stride;
        for (int column = lane; column < WIDTH; column += 32) {
            const bool there = first + row < call.tokens && column < call.dim;
            to[row * plain<WIDTH>::PITCH + column] =
                there ? element_load<TYPE>(from, at + column) : 0.0f;
        }
    }
}

/* c = own · otherᵀ */
template <int WIDTH>
static __device__ __forceinline__ void scores(float (&c)[plain<WIDTH>::EACH][plain<WIDTH>::EACH],
                                              const float *own, const float *other, int dim)
{
    constexpr int EACH = plain<WIDTH>::EACH, PITCH = plain<WIDTH>::PITCH;
    const float *left = own + (threadIdx.x >> 4) * PITCH;
    const float *right = other + (threadIdx.x & 15) * PITCH;
#pragma unroll
    for (int i = 0; i < EACH * EACH; i++)
        c[i / EACH][i % EACH] = 0.0f;
    for (int d = 0; d < dim; d += 4) { /* zeros lie behind dim */
        float4 a[EACH], b[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            a[i] = *(const float4 *)(left + i * 16 * PITCH + d);
            b[i] = *(const float4 *)(right + i * 16 * PITCH + d);
        }
#pragma unroll
        for (int i = 0; i < EACH * EACH; i++) {
            const float4 x = a[i / EACH], y = b[i % EACH];
            float &sum = c[i / EACH][i % EACH];
            sum = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
        }
    }
}

/* result += p · other. p: what scores_put left in shared memory. */
template <int WIDTH>
static __device__ __forceinline__ void product_plain(struct result<WIDTH> &result, const float *p,
                                                     const float *other)
{
    using shape = plain<WIDTH>;
    const float *left = p + (threadIdx.x >> 4) * shape::SCORES;
    const float *right = other + (threadIdx.x & 15) * 4;
#pragma unroll 4
    for (int k = 0; k < shape::ROWS; k++) {
        float4 b[shape::SIXTYFOURS];
#pragma unroll
        for (int j = 0; j < shape::SIXTYFOURS; j++)
            b[j] = *(const float4 *)(right + k * shape::PITCH + j * 64);
#pragma unroll
        for (int i = 0; i < shape::EACH; i++) {
            const float a = left[i * 16 * shape::SCORES + k];
#pragma unroll
            for (int j = 0; j < shape::SIXTYFOURS; j++) {
                result.at[i][j][0] = fmaf(a, b[j].x, result.at[i][j][0]);
                result.at[i][j][1] = fmaf(a, b[j].y, result.at[i][j][1]);
                result.at[i][j][2] = fmaf(a, b[j].z, result.at[i][j][2]);
                result.at[i][j][3] = fmaf(a, b[j].w, result.at[i][j][3]);
            }
        }
    }
}

template <int WIDTH>
static __device__ __forceinline__ void
scores_put(float *p, const float (&c)[plain<WIDTH>::EACH][plain<WIDTH>::EACH])
{
    constexpr int EACH = plain<WIDTH>::EACH;
    float *to = p + (threadIdx.x >> 4) * plain<WIDTH>::SCORES + (threadIdx.x & 15);
#pragma unroll
    for (int i = 0; i < EACH * EACH; i++)
        to[i / EACH * 16 * plain<WIDTH>::SCORES + i % EACH * 16] = c[i / EACH][i % EACH];
}

template <int WIDTH>
static __device__ __forceinline__ void clear_plain(struct result<WIDTH> &result)
{
    using shape = plain<WIDTH>;
#pragma unroll
    for (int i = 0; i < shape::EACH * shape::SIXTYFOURS * 4; i++)
        result.at[i / (shape::SIXTYFOURS * 4)][i / 4 % shape::SIXTYFOURS][i % 4] = 0.0f;
}

/* Writes the block's rows, each times its factor, as far as they are below T. */
template <enum dtype TYPE, int WIDTH>
static __device__ __forceinline__ void result_store(void *to, struct matrix matrix,
                                                    const struct result<WIDTH> &result,
                                                    const float (&factor)[plain<WIDTH>::EACH],
                                                    int first, const struct attention_call &call)
{
    using shape = plain<WIDTH>;
#pragma unroll
    for (int i = 0; i < shape::EACH; i++) {
        const int row = first + (int)(threadIdx.x >> 4) + i * 16;
#pragma unroll
        for (int j = 0; j < shape::SIXTYFOURS * 4; j++) {
            const int column = j / 4 * 64 + (int)(threadIdx.x & 15) * 4 + j % 4;
            if (row < call.tokens && column < call.dim)
                element_store<TYPE>(to, matrix.first + (row * matrix.stride + column),
                                    result.at[i][j / 4][j % 4] * factor[i]);
        }
    }
}

/* Brings the running values up to the scores, which become exp(score - the new maximum). row,
 * column: of the thread's first score. keys: of the sample. */
template <int WIDTH>
static __device__ __forceinline__ void
softmax_plain(float (&c)[plain<WIDTH>::EACH][plain<WIDTH>::EACH], struct result<WIDTH> &result,
              float (&maxima)[plain<WIDTH>::EACH], float (&sums)[plain<WIDTH>::EACH], int row,
              int column, const struct attention_call &call, int keys)
{
    using shape = plain<WIDTH>;
#pragma unroll
    for (int i = 0; i < shape::EACH; i++) {
        const int seen = keys_seen(call, keys, row + i * 16);
        float max = maxima[i], sum = 0.0f;
#pragma unroll
        for (int j = 0; j < shape::EACH; j++) {
            c[i][j] = column + j * 16 >= seen ? -INFINITY : c[i][j] * call.scale;
            max = fmaxf(max, c[i][j]);
        }
        max = lanes_max<ROW_LANES>(max);
#pragma unroll
        for (int j = 0; j < shape::EACH; j++) {
            c[i][j] = expf(c[i][j] - max);
            sum += c[i][j];
        }
        const float before = expf(maxima[i] - max);
        sums[i] = sums[i] * before + lanes_sum<ROW_LANES>(sum);
        maxima[i] = max;
#pragma unroll
        for (int j = 0; j < shape::SIXTYFOURS * 4; j++)
            result.at[i][j / 4][j % 4] *= before;
    }
}

template <enum dtype TYPE, int WIDTH>
static __global__ void __launch_bounds__(PLAIN_THREADS, plain<WIDTH>::BLOCKS)
    attention_plain_forward_kernel(const struct attention_call call)
{
    using shape = plain<WIDTH>;
    SHARED_DYNAMIC(float, q);
    float *const other = q + shape::TILE, *const p = other + shape::TILE;
    const struct plain_head head = plain_head_of_block(call);
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * shape::ROWS;
    const int row = first + (int)(threadIdx.x >> 4), x = (int)threadIdx.x & 15;
    struct result<WIDTH> result;
    float maxima[shape::EACH], sums[shape::EACH];
    clear_plain(result);
#pragma unroll
    for (int i = 0; i < shape::EACH; i++) {
        maxima[i] = -INFINITY;
        sums[i] = 0.0f;
    }
    rows_load<TYPE, WIDTH>(q, call.qkv, head.q, first, call);
    const int end = keys_seen(call, head.keys, first + shape::ROWS - 1);
    for (int key = 0; key < end; key += shape::ROWS) {
        float c[shape::EACH][shape::EACH];
        rows_load<TYPE, WIDTH>(other, call.qkv, head.k, key, call);
        __syncthreads();
        scores<WIDTH>(c, q, other, call.dim);
        softmax_plain<WIDTH>(c, result, maxima, sums, row, key + x, call, head.keys);
        scores_put<WIDTH>(p, c);
        __syncthreads(); /* k was read */
        rows_load<TYPE, WIDTH>(other, call.qkv, head.v, key, call);
        __syncthreads();
        product_plain<WIDTH>(result, p, other);
        __syncthreads(); /* v and p were read */
    }
    float factor[shape::EACH];
#pragma unroll
    for (int i = 0; i < shape::EACH; i++) {
        factor[i] = 1.0f / sums[i];
        if (x == 0 && row + i * 16 < call.tokens)
            call.lse[head.statistics + row + i * 16] = maxima[i] + logf(sums[i]);
    }
    result_store<TYPE, WIDTH>(call.result, head.out, result, factor, first, call);
}

/* delta, a warp per query. */
template <enum dtype TYPE>
static __global__ void __launch_bounds__(PLAIN_THREADS)
    attention_plain_delta_kernel(const struct attention_call call)
{
    const struct plain_head head = plain_head_of_block(call);
    const int lane = (int)threadIdx.x & 31;
    const int row = (int)(blockIdx.x * (PLAIN_THREADS / 32) + (threadIdx.x >> 5));
    const int64_t at = head.out.first + row * head.out.stride;
    float sum = 0.0f;
    if (row < call.tokens) {
        for (int column = lane; column < call.dim; column += 32)
            sum = fmaf(element_load<TYPE>(call.out, at + column),
                       element_load<TYPE>(call.dout, at + column), sum);
    }
    sum = lanes_sum<32>(sum);
    if (lane == 0 && row < call.tokens)
        call.delta[head.statistics + row] = sum;
}

/* A query's lse or delta; 0 from T on, where q and dout are 0, too. */
static __device__ __forceinline__ float statistic(const float *from, int64_t first, int row,
                                                  int tokens)
{
    return row < tokens ? from[first + row] : 0.0f;
}

/* dk and dv of the block's keys. */
template <enum dtype TYPE, int WIDTH>
static __global__ void __launch_bounds__(PLAIN_THREADS, plain<WIDTH>::BLOCKS)
    attention_plain_keys_kernel(const struct attention_call call)
{
    using shape = plain<WIDTH>;
    constexpr int EACH = shape::EACH;
    SHARED_DYNAMIC(float, k);
    float *const v = k + shape::TILE, *const q = v + shape::TILE, *const dout = q + shape::TILE;
    float *const p = dout + shape::TILE;
    const struct plain_head head = plain_head_of_block(call);
    const int first = (int)blockIdx.x * shape::ROWS, x = (int)threadIdx.x & 15;
    const int row = first + (int)(threadIdx.x >> 4);
    struct result<WIDTH> dk, dv;
    clear_plain(dk);
    clear_plain(dv);
    rows_load<TYPE, WIDTH>(k, call.qkv, head.k, first, call);
    rows_load<TYPE, WIDTH>(v, call.qkv, head.v, first, call);
    const int begin = call.bidirectional ? 0 : first;
    for (int query = begin; query < call.tokens; query += shape::ROWS) {
        float c[EACH][EACH], d[EACH][EACH];
        rows_load<TYPE, WIDTH>(q, call.qkv, head.q, query, call);
        rows_load<TYPE, WIDTH>(dout, call.dout, head.out, query, call);
        __syncthreads();
        scores<WIDTH>(c, k, q, call.dim);
        scores<WIDTH>(d, v, dout, call.dim);
#pragma unroll
        for (int i = 0; i < EACH * EACH; i++) {
            const int column = query + x + i % EACH * 16;
            const float lse = statistic(call.lse, head.statistics, column, call.tokens);
            const float delta = statistic(call.delta, head.statistics, column, call.tokens);
            float &score = c[i / EACH][i % EACH], &value = d[i / EACH][i % EACH];
            score = row + i / EACH * 16 >= keys_seen(call, head.keys, column)
                        ? 0.0f
                        : expf(fmaf(score, call.scale, -lse));
            value = score * (value - delta);
        }
        scores_put<WIDTH>(p, c);
        __syncthreads();
        product_plain<WIDTH>(dv, p, dout);
        __syncthreads();
        scores_put<WIDTH>(p, d);
        __syncthreads();
        product_plain<WIDTH>(dk, p, q);
        __syncthreads();
    }
    float factor[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        factor[i] = call.scale;
    result_store<TYPE, WIDTH>(call.result, head.k, dk, factor, first, call);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        factor[i] = 1.0f;
    result_store<TYPE, WIDTH>(call.result, head.v, dv, factor, first, call);
}

/* dq of the block's queries. */
template <enum dtype TYPE, int WIDTH>
static __global__ void __launch_bounds__(PLAIN_THREADS, plain<WIDTH>::BLOCKS)
    attention_plain_queries_kernel(const struct attention_call call)
{
    using shape = plain<WIDTH>;
    constexpr int EACH = shape::EACH;
    SHARED_DYNAMIC(float, q);
    float *const dout = q + shape::TILE, *const k = dout + shape::TILE, *const v = k + shape::TILE;
    float *const p = v + shape::TILE;
    const struct plain_head head = plain_head_of_block(call);
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * shape::ROWS;
    const int row = first + (int)(threadIdx.x >> 4), x = (int)threadIdx.x & 15;
    struct result<WIDTH> dq;
    float lse[EACH], delta[EACH], factor[EACH];
    clear_plain(dq);
    rows_load<TYPE, WIDTH>(q, call.qkv, head.q, first, call);
    rows_load<TYPE, WIDTH>(dout, call.dout, head.out, first, call);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        lse[i] = statistic(call.lse, head.statistics, row + i * 16, call.tokens);
        delta[i] = statistic(call.delta, head.statistics, row + i * 16, call.tokens);
        factor[i] = call.scale;
    }
    const int end = keys_seen(call, head.keys, first + shape::ROWS - 1);
    for (int key = 0; key < end; key += shape::ROWS) {
        float c[EACH][EACH], d[EACH][EACH];
        rows_load<TYPE, WIDTH>(k, call.qkv, head.k, key, call);
        rows_load<TYPE, WIDTH>(v, call.qkv, head.v, key, call);
        __syncthreads();
        scores<WIDTH>(c, q, k, call.dim);
        scores<WIDTH>(d, dout, v, call.dim);
#pragma unroll
        for (int i = 0; i < EACH * EACH; i++) {
            const int y = i / EACH, column = key + x + i % EACH * 16;
            float &score = c[y][i % EACH], &value = d[y][i % EACH];
            score = column >= keys_seen(call, head.keys, row + y * 16)
                        ? 0.0f
                        : expf(fmaf(score, call.scale, -lse[y]));
            value = score * (value - delta[y]);
        }
        scores_put<WIDTH>(p, d);
        __syncthreads();
        product_plain<WIDTH>(dq, p, k);
        __syncthreads();
    }
    result_store<TYPE, WIDTH>(call.result, head.q, dq, factor, first, call);
}

size_t attention_plain_shared_bytes(const struct cuda_attention *shape, bool backward)
{
    const int tiles = backward ? 4 : 2;
    if (shape->dim <= 64)
        return plain<64>::bytes(tiles);
    return shape->dim <= 128 ? plain<128>::bytes(tiles) : plain<256>::bytes(tiles);
}

template <int WIDTH> static dim3 plain_grid(const struct cuda_attention *shape)
{
    const int64_t rows = plain<WIDTH>::ROWS;
    return dim3((unsigned)((shape->tokens + rows - 1) / rows), (unsigned)shape->heads,
                (unsigned)shape->samples);
}

template <enum dtype TYPE, int WIDTH>
static enum status plain_backward(const struct cuda_attention *shape,
                                  const struct attention_call &call, void *stream)
{
    const int64_t rows = PLAIN_THREADS / 32;
    const dim3 block(PLAIN_THREADS), grid = plain_grid<WIDTH>(shape);
    const dim3 all((unsigned)((shape->tokens + rows - 1) / rows), grid.y, grid.z);
    const size_t bytes = plain<WIDTH>::bytes(4);
    enum status st = launch(attention_plain_delta_kernel<TYPE>, all, block, 0, stream, call);
    if (st != ST_OK)
        return st;
    st = launch(attention_plain_keys_kernel<TYPE, WIDTH>, grid, block, bytes, stream, call);
    if (st != ST_OK)
        return st;
    return launch(attention_plain_queries_kernel<TYPE, WIDTH>, grid, block, bytes, stream, call);
}

template <enum dtype TYPE, int WIDTH>
static enum status plain_launch(const struct cuda_attention *shape,
                                const struct attention_call &call, bool backward, void *stream)
{
    if (backward)
        return plain_backward<TYPE, WIDTH>(shape, call, stream);
    return launch(attention_plain_forward_kernel<TYPE, WIDTH>, plain_grid<WIDTH>(shape),
                  dim3(PLAIN_THREADS), plain<WIDTH>::bytes(2), stream, call);
}

template <enum dtype TYPE>
static enum status plain_of_width(const struct cuda_attention *shape,
                                  const struct attention_call &call, bool backward, void *stream)
{
    if (shape->dim <= 64)
        return plain_launch<TYPE, 64>(shape, call, backward, stream);
    if (shape->dim <= 128)
        return plain_launch<TYPE, 128>(shape, call, backward, stream);
    return plain_launch<TYPE, 256>(shape, call, backward, stream);
}

static enum status plain_of_type(const struct cuda_attention *shape,
                                 const struct attention_call &call, bool backward, void *stream)
{
    if (shape->dtype == DTYPE_F32)
        return plain_of_width<DTYPE_F32>(shape, call, backward, stream);
    if (shape->dtype == DTYPE_BF16)
        return plain_of_width<DTYPE_BF16>(shape, call, backward, stream);
    return plain_of_width<DTYPE_F16>(shape, call, backward, stream);
}

enum status attention_plain_forward(const struct cuda_attention *shape,
                                    const struct attention_call &call, void *stream)
{
    return plain_of_type(shape, call, false, stream);
}

enum status attention_plain_backward(const struct cuda_attention *shape,
                                     const struct attention_call &call, void *stream)
{
    return plain_of_type(shape, call, true, stream);
}
