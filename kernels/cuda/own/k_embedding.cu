/*
 * Embedding: rows of a table by token, and their gradient, with one writer per row.
 *
 * Backward sorts the positions by token (sort.cuh) and cuts them into chunks of EMBEDDING_CHUNK:
 *
 *   tokens, sorted    3 3 5 5 5 5 | 5 5 5 5 5 5 | 5 7 7 8 8 9
 *   chunk             0             1             2
 *
 *   embedding_chunk_kernel   a block adds the rows of its chunk in order. A token that lies in one
 *                            chunk (3, 7, 8, 9) is written; of one that lies in several (5) each
 *                            chunk leaves a partial sum
 *   embedding_join_kernel    the block of the chunk where such a token begins (0) adds its partial
 *                            sums in order, and writes
 *
 * So a token, however frequent, is never more work for a block than one chunk, and one row per
 * chunk.
 */
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/samples.cuh"
#include "kernels/cuda/own/sort.cuh"
#include "kernels/cuda/own/vector.cuh"

#define EMBEDDING_THREADS 128
#define EMBEDDING_CHUNK   32 /* positions; part of the bits */

template <typename T, int WIDTH>
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_forward_kernel(struct k_embedding a, bool aligned)
{
    const int64_t row = blockIdx.x, t = row % a.t;
    const int32_t token = a.tokens[row];
    const bool valid = token >= 0 && token < a.vocab;
    if (!valid && threadIdx.x == 0)
        (void)atomicOr(a.fault, (unsigned)K_FAULT_TOKEN);
    for (int64_t c = (int64_t)threadIdx.x * WIDTH; c < a.c; c += EMBEDDING_THREADS * WIDTH) {
        float v[WIDTH] = {}, add[WIDTH];
        if (valid) {
            load_flat<WIDTH>(v, a.weight + token * a.c + c, aligned);
            if (a.position != nullptr) {
                load_flat<WIDTH>(add, a.position + t * a.c + c, aligned);
#pragma unroll
                for (int i = 0; i < WIDTH; i++)
                    v[i] += add[i];
            }
        }
        if (a.residual != nullptr) {
            load<WIDTH>(add, (const T *)a.residual + row * a.c + c);
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                v[i] += add[i];
        }
        store<WIDTH>((T *)a.out + row * a.c + c, v);
    }
}

enum status k_embedding_forward(const struct k_embedding *args, void *stream)
{
    const struct k_embedding *const a = args;
    const bool aligned = is_aligned(a->weight) && is_aligned(a->position);
    if (a->n < 1 || a->t < 1 || a->c < 1 || a->vocab < 1 || a->vocab >= INT32_MAX ||
        a->n > INT32_MAX / a->t || !is_aligned(a->out) || !is_aligned(a->residual))
        return ST_INVALID;
    const dim3 grid((unsigned)(a->n * a->t)), block(EMBEDDING_THREADS);
    return with_type(a->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        if (a->c % 4 == 0)
            return launch(embedding_forward_kernel<T, 4>, grid, block, 0, stream, *a, aligned);
        return launch(embedding_forward_kernel<T, 1>, grid, block, 0, stream, *a, false);
    });
}

/* Arguments of the kernels of the weight's gradient. */
struct token_sums {
    const uint32_t *keys;
    const int32_t *places;
    const void *dout;
    float *dweight;
    float *partials; /* [chunks][2][c]: of a token from the chunk before; of one that goes on */
    int64_t count, c, vocab;
    bool accumulate, aligned;
};

template <int WIDTH>
DEVICE_INLINE void embedding_add_row(const struct token_sums &s, uint32_t key, int64_t column,
                                     float *sum)
{
    float *const to = s.dweight + (int64_t)key * s.c + column;
    if (s.accumulate) {
        float before[WIDTH];
        load_flat<WIDTH>(before, to, s.aligned);
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sum[i] += before[i];
    }
    store_flat<WIDTH>(to, sum, s.aligned);
}

template <typename T, int WIDTH>
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_chunk_kernel(struct token_sums s)
{
    SHARED_ARRAY(uint32_t, keys, EMBEDDING_CHUNK + 2); /* with one neighbour at each end */
    SHARED_ARRAY(int32_t, places, EMBEDDING_CHUNK);
    const int64_t first = (int64_t)blockIdx.x * EMBEDDING_CHUNK;
    const int64_t rest = s.count - first;
    const int count = (int)(rest < EMBEDDING_CHUNK ? rest : EMBEDDING_CHUNK);
    const uint32_t nobody = 0xffffffffu;
    for (int i = (int)threadIdx.x; i < EMBEDDING_CHUNK + 2; i += EMBEDDING_THREADS) {
        const int64_t at = first + i - 1;
        keys[i] = at >= 0 && at < s.count ? s.keys[at] : nobody;
        if (i < count)
            places[i] = s.places[first + i];
    }
    __syncthreads();
    const int64_t column = ((int64_t)blockIdx.y * EMBEDDING_THREADS + threadIdx.x) * WIDTH;
    if (column >= s.c)
        return;
    float *const partial = s.partials + (int64_t)blockIdx.x * 2 * s.c + column;
    float sum[WIDTH] = {};
    bool came_in = keys[0] == keys[1];
    for (int i = 0; i < count; i++) {
        const uint32_t key = keys[i + 1];
        float v[WIDTH];
        if (key >= s.vocab) /* wrong tokens, as all that follow */
            return;
        load<WIDTH>(v, (const T *)s.dout + places[i] * s.c + column);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[k] += v[k];
        const bool ends = keys[i + 2] != key;
        if (!ends && i + 1 < count)
            continue;
        if (came_in)
            store<WIDTH>(partial, sum);
        else if (!ends)
            store<WIDTH>(partial + s.c, sum);
        else
            embedding_add_row<WIDTH>(s, key, column, sum);
        came_in = false;
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[k] = 0.0f;
    }
}

/* A block per chunk; it has work if a token begins there and goes on in the next chunk. */
template <int WIDTH>
static __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_join_kernel(struct token_sums s)
{
    const int64_t first = (int64_t)blockIdx.x * EMBEDDING_CHUNK, end = first + EMBEDDING_CHUNK;
    const int64_t column = ((int64_t)blockIdx.y * EMBEDDING_THREADS + threadIdx.x) * WIDTH;
    if (end >= s.count || column >= s.c)
        return;
    const uint32_t key = s.keys[end - 1];
    if (key >= s.vocab || s.keys[end] != key || (first > 0 && s.keys[first - 1] == key))
        return;
    const float *partial = s.partials + (int64_t)blockIdx.x * 2 * s.c + column;
    float sum[WIDTH], v[WIDTH];
    load<WIDTH>(sum, partial + s.c);
    for (int64_t at = end; at < s.count && s.keys[at] == key; at += EMBEDDING_CHUNK) {
        partial += 2 * s.c;
        load<WIDTH>(v, partial);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            sum[k] += v[k];
    }
    embedding_add_row<WIDTH>(s, key, column, sum);
}

static int64_t embedding_chunks(int64_t tokens)
{
    return (tokens + EMBEDDING_CHUNK - 1) / EMBEDDING_CHUNK;
}

size_t k_embedding_scratch(int64_t tokens, int64_t c, int64_t vocab)
{
    (void)vocab;
    return sort_layout(tokens, nullptr, nullptr) +
           (size_t)embedding_chunks(tokens) * 2 * (size_t)c * sizeof(float);
}

template <typename T, int WIDTH>
static enum status embedding_weight_gradient(const struct k_embedding_grad *a, void *stream)
{
    const int64_t count = a->n * a->t, span = EMBEDDING_THREADS * WIDTH;
    struct sorted memory;
    const size_t sorted_bytes = sort_layout(count, a->scratch, &memory);
    struct token_sums s = {
        nullptr, nullptr, a->dout,  a->dweight,           nullptr,
        count,   a->c,    a->vocab, a->accumulate_weight, is_aligned(a->dweight)
    };
    s.partials = (float *)((char *)a->scratch + sorted_bytes);
    const dim3 grid((unsigned)embedding_chunks(count), (unsigned)((a->c + span - 1) / span));
    const dim3 block(EMBEDDING_THREADS);
    enum status st = ST_OK;
    if (!a->accumulate_weight)
        st = k_vector_fill(a->dweight, 0.0f, (size_t)(a->vocab * a->c), stream);
    if (st == ST_OK)
        st = sort_tokens(a->tokens, count, a->vocab, &memory, &s.keys, &s.places, stream);
    if (st == ST_OK)
        st = launch(embedding_chunk_kernel<T, WIDTH>, grid, block, 0, stream, s);
    if (st == ST_OK)
        st = launch(embedding_join_kernel<WIDTH>, grid, block, 0, stream, s);
    return st;
}

template <typename T, int WIDTH>
static enum status embedding_position_gradient(const struct k_embedding_grad *a, void *stream)
{
    /* Rows beyond t are zero. */
    const struct sample_sums<T, WIDTH> f = {
        (const T *)a->dout, a->dposition, a->n, a->t * a->c, a->t * a->c, a->accumulate_position,
            is_aligned(a->dposition),
    };
    return launch_each<WIDTH>(a->positions * a->c, stream, f);
}

enum status k_embedding_backward(const struct k_embedding_grad *args, void *stream)
{
    const struct k_embedding_grad *const a = args;
    if (a->n < 1 || a->t < 1 || a->c < 1 || a->vocab < 1 || a->vocab >= INT32_MAX ||
        a->n > INT32_MAX / a->t || !is_aligned(a->dout) || !is_aligned(a->scratch) ||
        (a->dposition != nullptr && a->positions < a->t))
        return ST_INVALID;
    return with_type(a->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        const bool wide = a->c % 4 == 0;
        enum status st = ST_OK;
        if (a->dweight != nullptr)
            st = wide ? embedding_weight_gradient<T, 4>(a, stream)
                      : embedding_weight_gradient<T, 1>(a, stream);
        if (st == ST_OK && a->dposition != nullptr)
            st = wide ? embedding_position_gradient<T, 4>(a, stream)
                      : embedding_position_gradient<T, 1>(a, stream);
        return st;
    });
}
