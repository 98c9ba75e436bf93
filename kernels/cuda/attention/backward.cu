/*
 * Attention backward on tensor cores, without a sum across blocks: FlashAttention-2's algorithm 2
 * (Dao, arXiv 2307.08691), cut in two.
 *
 *   P  = exp(scale·q·kᵀ - lse)        delta = rowsum(dout ∘ out)
 *   dP = dout·vᵀ                      dv = Pᵀ·dout
 *   dS = P ∘ (dP - delta)             dk = scale·dSᵀ·q      dq = scale·dS·k
 *
 * Three kernels, one after the other. P and dS exist in registers only, and are computed twice.
 *
 *   attention_delta_kernel      writes delta
 *   attention_keys_kernel       a block owns keys and walks over the queries from the diagonal on
 *                               (where attention is bidirectional, over all of them);
 *                               it computes Pᵀ and dSᵀ, whose rows are its keys, so that what one
 *                               product leaves in registers is the left side of the next
 *   attention_queries_kernel    a block owns queries and walks over the keys up to the diagonal
 *
 * Queries from T on are zeros in q, dout, lse and delta: they add nothing.
 *
 * As nvcc 13.0 compiles them, without a spill; two blocks (8 warps) fit a multiprocessor:
 *
 *   D                            32     64     96    128
 *   registers  keys     sm_80   188    247    203    241
 *                       sm_90a  197    247    202    243
 *              queries  sm_80   180    240    184    228
 *                       sm_90a  181    240    186    225
 *   shared, KiB                41.0   73.0   52.5   68.5
 *
 * One writer per output has its price: seven products are computed where five would do. Expected,
 * not measured: at D = 64 the keys' kernel reads 48 fragments from shared memory for 128 mma, which
 * takes about as long as the mma on sm_90.
 */
#include "kernels/cuda/attention/tile.cuh"

static constexpr int SLICE = 32; /* rows of the other side that a warp takes at a time */
static constexpr int N = SLICE / 8;

/* In both kernels a warp owns M·16 rows of two matrices, and a stage is ROWS rows of two others,
 * with room for lse and delta of those rows. */
template <int D> struct backward {
    static constexpr int M = D > 64 ? 1 : 2;
    static constexpr int OWN = ATTENTION_WARPS * M * 16; /* keys, or queries, of a block */
    static constexpr int ROWS = D > 64 ? SLICE : 2 * SLICE;
    static constexpr int TILE = ROWS * tile<D>::PITCH;
    static constexpr int STAGE = 2 * TILE + 2 * ROWS * (int)sizeof(float);
    static constexpr int BYTES = 2 * OWN * tile<D>::PITCH + 2 * STAGE;
    static_assert(BYTES <= ATTENTION_MMA_SHARED_MAX, "each GPU has room for a block");
};

template <enum dtype TYPE>
static __device__ __forceinline__ float dot_halfs(uint32_t x, uint32_t y, float sum)
{
    const float2 left = unpack_halfs<TYPE>(x), right = unpack_halfs<TYPE>(y);
    return fmaf(left.y, right.y, fmaf(left.x, right.x, sum));
}

/* delta, four lanes per query. */
template <enum dtype TYPE, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    attention_delta_kernel(const struct attention_call call)
{
    const struct head head = head_of_block<D>(call);
    const int lane = (int)threadIdx.x & 3;
    const int row = (int)(blockIdx.x * (ATTENTION_THREADS / 4) + (threadIdx.x >> 2));
    float sum = 0.0f;
    if (row < head.tokens) {
        const int at = row * head.width + lane * 8;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const uint4 x = *(const uint4 *)((const uint16_t *)call.out + head.out + at + i * 32);
            const uint4 y = *(const uint4 *)(head.dout + at + i * 32);
            sum = dot_halfs<TYPE>(x.x, y.x, sum);
            sum = dot_halfs<TYPE>(x.y, y.y, sum);
            sum = dot_halfs<TYPE>(x.z, y.z, sum);
            sum = dot_halfs<TYPE>(x.w, y.w, sum);
        }
    }
    sum = lanes_sum<4>(sum);
    if (row < head.tokens && lane == 0)
        call.delta[head.statistics + row] = sum;
}

/* Begins to copy lse and delta of ROWS queries; those from `limit` on become zeros. */
template <int ROWS>
static __device__ __forceinline__ void statistics_load(shared_address to, const float *lse,
                                                       const float *delta, int first, int limit)
{
    static_assert(2 * ROWS <= ATTENTION_THREADS, "at most one element per thread");
    const int at = (int)threadIdx.x, row = first + at % ROWS;
    if (at < 2 * ROWS) {
        const bool there = row < limit;
        copy_4(to + at * 4, (at < ROWS ? lse : delta) + (there ? row : 0), there);
    }
}

/* Scores of keys (rows) after their query (columns) become -infinity, and those of the keys from
 * `limit` on: distance and limit count from the warp's first key. */
template <int M>
static __device__ __forceinline__ void mask_before(float (&c)[M][N][4], int distance, int limit)
{
    const int lane = (int)threadIdx.x & 31, column = (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = (lane >> 2) + m * 16 + (i >> 1) * 8;
                if (distance + row > column + n * 8 + (i & 1) || row >= limit)
                    c[m][n][i] = -INFINITY;
            }
        }
    }
}

/* A warp's keys with SLICE queries: adds to dv and dk. statistics: the queries' lse, and ROWS
 * further their delta. distance: the first key's number, less the first query's, or -ATTENTION_FAR.
 * limit: as in forward_tile. */
template <enum dtype TYPE, int D>
static __device__ __forceinline__ void
keys_slice(float (&dk)[backward<D>::M][D / 8][4], float (&dv)[backward<D>::M][D / 8][4],
           shared_address own, shared_address queries, const float *statistics, int distance,
           int limit, float scale)
{
    using shape = backward<D>;
    constexpr int M = shape::M;
    const int lane = (int)threadIdx.x & 31, column = (lane & 3) * 2;
    const shared_address douts = queries + shape::TILE;
    float p[M][N][4], ds[M][N][4];
    uint32_t half[M][N / 2][4];
    fragments_clear(p);
    product_read<TYPE, D>(p, own, queries + lane_along<D>(lane));
    if (distance > -M * 16 || limit < M * 16)
        mask_before<M>(p, distance, limit);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 lse = *(const float2 *)(statistics + column + n * 8);
#pragma unroll
        for (int i = 0; i < M * 4; i++) {
            const float shift = (i & 1 ? lse.y : lse.x) * LOG2_E;
            float &score = p[i >> 2][n][i & 3];
            score = exp2_approximate(fmaf(score, scale * LOG2_E, -shift));
        }
    }
    fragments_round<TYPE>(half, p);
    product_add<TYPE, D>(dv, half, douts + lane_down<D>(lane));
    fragments_clear(ds);
    product_read<TYPE, D>(ds, own + shape::OWN * tile<D>::PITCH, douts + lane_along<D>(lane));
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float2 delta = *(const float2 *)(statistics + shape::ROWS + column + n * 8);
#pragma unroll
        for (int i = 0; i < M * 4; i++) {
            float &value = ds[i >> 2][n][i & 3];
            value = p[i >> 2][n][i & 3] * (value - (i & 1 ? delta.y : delta.x));
        }
    }
    fragments_round<TYPE>(half, ds);
    product_add<TYPE, D>(dk, half, queries + lane_down<D>(lane));
}

/* Begins to copy the queries [first, first + ROWS): q, dout, lse, delta. */
template <int D>
static __device__ __forceinline__ void queries_load(shared_address to, const struct head &head,
                                                    const struct attention_call &call, int first)
{
    using shape = backward<D>;
    tile_load<D, shape::ROWS>(to, head.q, 3 * head.width, first, head.tokens);
    tile_load<D, shape::ROWS>(to + shape::TILE, head.dout, head.width, first, head.tokens);
    statistics_load<shape::ROWS>(to + 2 * shape::TILE, call.lse + head.statistics,
                                 call.delta + head.statistics, first, head.tokens);
}

template <enum dtype TYPE, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_keys_kernel(const struct attention_call call)
{
    using shape = backward<D>;
    constexpr int M = shape::M, PITCH = tile<D>::PITCH, TILES = 2 * shape::OWN * PITCH;
    SHARED_DYNAMIC(unsigned char, memory);
    const shared_address base = shared_address_of(memory);
    const struct head head = head_of_block<D>(call);
    const int lane = (int)threadIdx.x & 31, warp_row = warp_of_thread() * M * 16;
    const int first = (int)blockIdx.x * shape::OWN, row = first + warp_row;
    const shared_address own = base + warp_row * PITCH + lane_down<D>(lane);

    tile_load<D, shape::OWN>(base, head.k, 3 * head.width, first, head.tokens);
    tile_load<D, shape::OWN>(base + shape::OWN * PITCH, head.v, 3 * head.width, first, head.tokens);
    const int begin = call.bidirectional ? 0 : first;
    queries_load<D>(base + TILES, head, call, begin);
    copies_commit();

    float dk[M][D / 8][4], dv[M][D / 8][4];
    fragments_clear(dk);
    fragments_clear(dv);
    for (int query = begin, stage = 0; query < head.tokens; query += shape::ROWS, stage ^= 1) {
        copies_wait<0>();
        __syncthreads(); /* this stage is there; nobody reads the other one any more */
        if (query + shape::ROWS < head.tokens)
            queries_load<D>(base + TILES + (stage ^ 1) * shape::STAGE, head, call,
                            query + shape::ROWS);
        copies_commit();
        const int at = TILES + stage * shape::STAGE;
#pragma unroll 1
        for (int slice = 0; slice < shape::ROWS; slice += SLICE) {
            const float *statistics = (const float *)(memory + at + 2 * shape::TILE) + slice;
            const int distance = call.bidirectional ? -ATTENTION_FAR : row - query - slice;
            if (distance < SLICE)
                keys_slice<TYPE, D>(dk, dv, own, base + at + slice * PITCH, statistics, distance,
                                    head.keys - row, call.scale);
        }
    }
    float factor[M][2];
    uint16_t *const to = (uint16_t *)call.result + head.result + head.width;
#pragma unroll
    for (int m = 0; m < M; m++)
        factor[m][0] = factor[m][1] = call.scale;
    rows_store<TYPE, D, M>(dk, factor, memory + warp_row * PITCH, to, 3 * head.width, row,
                           head.tokens);
#pragma unroll
    for (int m = 0; m < M; m++)
        factor[m][0] = factor[m][1] = 1.0f;
    rows_store<TYPE, D, M>(dv, factor, memory + (shape::OWN + warp_row) * PITCH, to + head.width,
                           3 * head.width, row, head.tokens);
}

/* Values that a warp of the queries' kernel holds: [m][0] of row g, [1] of row g + 8. */
template <int D> struct queries {
    static constexpr int M = backward<D>::M;
    uint32_t q[D / 16][M][4], dout[D / 16][M][4];
    float shift[M][2]; /* lse to base 2 */
    float delta[M][2];
};

/* A warp's queries with SLICE keys: adds to dq. distance, limit: as in forward_tile. */
template <enum dtype TYPE, int D>
static __device__ __forceinline__ void
queries_slice(float (&dq)[backward<D>::M][D / 8][4], const struct queries<D> &held,
              shared_address keys, int distance, int limit, float scale)
{
    using shape = backward<D>;
    constexpr int M = shape::M;
    const int lane = (int)threadIdx.x & 31;
    float p[M][N][4], ds[M][N][4];
    fragments_clear(p);
    product_held<TYPE, D>(p, held.q, keys + lane_along<D>(lane));
    if (distance < SLICE || limit < SLICE)
        mask_after(p, distance + (lane >> 2), (lane & 3) * 2, limit);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < N * 4; i++) {
            float &score = p[m][i >> 2][i & 3];
            score = exp2_approximate(fmaf(score, scale * LOG2_E, -held.shift[m][i >> 1 & 1]));
        }
    }
    fragments_clear(ds);
    product_held<TYPE, D>(ds, held.dout, keys + shape::TILE + lane_along<D>(lane));
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < N * 4; i++) {
            float &value = ds[m][i >> 2][i & 3];
            value = p[m][i >> 2][i & 3] * (value - held.delta[m][i >> 1 & 1]);
        }
    }
    uint32_t half[M][N / 2][4];
    fragments_round<TYPE>(half, ds);
    product_add<TYPE, D>(dq, half, keys + lane_down<D>(lane));
}

template <int D>
static __device__ __forceinline__ void queries_hold(struct queries<D> &held, shared_address own,
                                                    const struct attention_call &call,
                                                    const struct head &head, int row)
{
    constexpr int M = backward<D>::M;
    fragments_load<D, M>(held.q, own);
    fragments_load<D, M>(held.dout, own + backward<D>::OWN * tile<D>::PITCH);
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + m * 16 + half * 8;
            const bool there = at < head.tokens;
            held.shift[m][half] = there ? call.lse[head.statistics + at] * LOG2_E : 0.0f;
            held.delta[m][half] = there ? call.delta[head.statistics + at] : 0.0f;
        }
    }
}

template <enum dtype TYPE, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_queries_kernel(const struct attention_call call)
{
    using shape = backward<D>;
    constexpr int M = shape::M, PITCH = tile<D>::PITCH, TILES = 2 * shape::OWN * PITCH;
    SHARED_DYNAMIC(unsigned char, memory);
    const shared_address base = shared_address_of(memory);
    const struct head head = head_of_block<D>(call);
    const int lane = (int)threadIdx.x & 31, warp_row = warp_of_thread() * M * 16;
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * shape::OWN, row = first + warp_row;

    tile_load<D, shape::OWN>(base, head.q, 3 * head.width, first, head.tokens);
    tile_load<D, shape::OWN>(base + shape::OWN * PITCH, head.dout, head.width, first, head.tokens);
    tile_load<D, shape::ROWS>(base + TILES, head.k, 3 * head.width, 0, head.tokens);
    tile_load<D, shape::ROWS>(base + TILES + shape::TILE, head.v, 3 * head.width, 0, head.tokens);
    copies_commit();

    struct queries<D> held;
    float dq[M][D / 8][4];
    fragments_clear(dq);
    const int last = keys_seen(call, head.keys, first + shape::OWN - 1);
    for (int key = 0, stage = 0; key < last; key += shape::ROWS, stage ^= 1) {
        const shared_address now = base + TILES + stage * shape::STAGE;
        copies_wait<0>();
        __syncthreads(); /* this stage is there; nobody reads the other one any more */
        if (key + shape::ROWS < last) {
            const shared_address next = base + TILES + (stage ^ 1) * shape::STAGE;
            const int from = key + shape::ROWS;
            tile_load<D, shape::ROWS>(next, head.k, 3 * head.width, from, head.tokens);
            tile_load<D, shape::ROWS>(next + shape::TILE, head.v, 3 * head.width, from,
                                      head.tokens);
        }
        copies_commit();
        if (key == 0)
            queries_hold<D>(held, base + warp_row * PITCH + lane_down<D>(lane), call, head,
                            row + (lane >> 2));
#pragma unroll 1
        for (int slice = 0; slice < shape::ROWS; slice += SLICE) {
            const int distance = call.bidirectional ? ATTENTION_FAR : row - key - slice;
            if (distance > -M * 16)
                queries_slice<TYPE, D>(dq, held, now + slice * PITCH, distance,
                                       head.keys - key - slice, call.scale);
        }
    }
    float factor[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
        factor[m][0] = factor[m][1] = call.scale;
    rows_store<TYPE, D, M>(dq, factor, memory + warp_row * PITCH,
                           (uint16_t *)call.result + head.result, 3 * head.width, row, head.tokens);
}

template <enum dtype TYPE, int D>
static enum status attention_backward_launch(const struct cuda_attention *shape,
                                             const struct attention_call &call, void *stream)
{
    const dim3 block(ATTENTION_THREADS);
    dim3 grid(1, (unsigned)call.heads, (unsigned)shape->samples);
    const int rows = ATTENTION_THREADS / 4, own = backward<D>::OWN;
    grid.x = (unsigned)((call.tokens + rows - 1) / rows);
    enum status st = launch(attention_delta_kernel<TYPE, D>, grid, block, 0, stream, call);
    if (st != ST_OK)
        return st;
    grid.x = (unsigned)((call.tokens + own - 1) / own);
    st = launch(attention_keys_kernel<TYPE, D>, grid, block, backward<D>::BYTES, stream, call);
    if (st != ST_OK)
        return st;
    return launch(attention_queries_kernel<TYPE, D>, grid, block, backward<D>::BYTES, stream, call);
}

template <enum dtype TYPE>
static enum status attention_backward_of_dim(const struct cuda_attention *shape,
                                             const struct attention_call &call, void *stream)
{
    switch (shape->dim) {
    case 32:
        return attention_backward_launch<TYPE, 32>(shape, call, stream);
    case 64:
        return attention_backward_launch<TYPE, 64>(shape, call, stream);
    case 96:
        return attention_backward_launch<TYPE, 96>(shape, call, stream);
    case 128:
        return attention_backward_launch<TYPE, 128>(shape, call, stream);
    default:
        return ST_INVALID;
    }
}

enum status attention_mma_backward(const struct cuda_attention *shape,
                                   const struct attention_call &call, void *stream)
{
    if (shape->dtype == DTYPE_BF16)
        return attention_backward_of_dim<DTYPE_BF16>(shape, call, stream);
    return attention_backward_of_dim<DTYPE_F16>(shape, call, stream);
}
