/*
 * Attention forward on tensor cores: FlashAttention-2's algorithm 1 (Dao, arXiv 2307.08691).
 *
 * A block owns 128 queries of one head, a warp 32 of them (Br), and walks over the keys, KEYS (Bc)
 * at a time, up to its last query. Scores, running maximum and sum of each row, and the result are
 * in registers; no score is in memory. exp is to the base 2, with the scale folded in.
 *
 *   keys      0     32    64    96    128         with KEYS = 32, of queries 64 … 191:
 *   warp 0    all   all   cut                       all   every query sees every key
 *   warp 1    all   all   all   cut                 cut   by the diagonal: scores are masked
 *   warp 2    all   all   all   all   cut                 beyond it the warp has nothing to do
 *
 * Where attention is bidirectional, each warp walks over all keys that anybody sees. Those behind
 * them are masked, as keys from T on, which are zeros. Blocks with the most keys start first.
 *
 * As nvcc 13.0 compiles it, without a spill; two blocks (8 warps) fit a multiprocessor:
 *
 *   D                   32    64    96   128
 *   registers  sm_80   176   247   213   250
 *              sm_90a  186   252   214   254
 *   shared, KiB         30    54    52    68
 *
 * Expected, not measured: at D = 64 a warp's tile is 128 mma, 32 ldmatrix, 68 exp and some 400
 * other instructions; two thirds of the peak on sm_80, for long sequences. On sm_90 mma.sync
 * reaches about 0.6 of wgmma's peak, and this kernel 0.6 of that.
 */
#include "kernels/cuda/attention/tile.cuh"

static constexpr int M = 2; /* a warp's rows / 16 */

template <int D> struct forward {
    static constexpr int QUERIES = ATTENTION_WARPS * M * 16;
    static constexpr int KEYS = D > 64 ? 32 : 64;
    static constexpr bool HELD = D <= 64; /* q stays in registers; else it is read for every tile */
    static constexpr int STAGE = KEYS * tile<D>::PITCH;
    static constexpr int BYTES = QUERIES * tile<D>::PITCH + 4 * STAGE;
    static_assert(BYTES <= ATTENTION_MMA_SHARED_MAX, "each GPU has room for a block");
};

/* Running values of a warp's rows over the keys so far: [m][0] of row g, [1] of row g + 8. */
template <int D> struct running {
    float out[M][D / 8][4]; /* Σ exp(scale·score - scale·max)·v */
    float max[M][2];        /* of the scores, not scaled */
    float sum[M][2];        /* Σ exp(scale·score - scale·max) of this lane's columns */
};

/*
 * Brings a warp's running values up to the scores c: max' = max(max, c), out and sum times
 * exp(scale·(max - max')), sum += Σ c, where c becomes exp(scale·(c - max')). `scale` has log2 e in
 * it.
 */
template <int D, int N>
static __device__ __forceinline__ void softmax_tile(struct running<D> &run, float (&c)[M][N][4],
                                                    float scale)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float max = run.max[m][half];
#pragma unroll
            for (int n = 0; n < N; n++)
                max = fmaxf(max, fmaxf(c[m][n][half * 2], c[m][n][half * 2 + 1]));
            max = lanes_max<4>(max);
            const float before = exp2_approximate((run.max[m][half] - max) * scale);
            const float shift = max * scale;
            float sum = run.sum[m][half] * before;
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; i++) {
                    c[m][n][i] = exp2_approximate(fmaf(c[m][n][i], scale, -shift));
                    sum += c[m][n][i];
                }
            }
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                run.out[m][n][half * 2] *= before;
                run.out[m][n][half * 2 + 1] *= before;
            }
            run.max[m][half] = max;
            run.sum[m][half] = sum;
        }
    }
}

/* Adds up the four lanes' sums of each row; writes lse; factor becomes 1 / sum. */
static __device__ __forceinline__ void softmax_end(float (&factor)[M][2], const float (&max)[M][2],
                                                   const float (&sums)[M][2], float scale,
                                                   float *lse, int rows_left)
{
    const int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = lanes_sum<4>(sums[m][half]);
            factor[m][half] = 1.0f / sum;
            const int row = m * 16 + half * 8 + (lane >> 2);
            if ((lane & 3) == 0 && row < rows_left)
                lse[row] = max[m][half] * scale + logf(sum);
        }
    }
}

/*
 * A warp with a tile of keys. distance: the number of its first query less that of the first key,
 * or ATTENTION_FAR. limit: how many keys from the first on anybody sees.
 */
template <enum dtype TYPE, int D, int HELD>
static __device__ __forceinline__ void
forward_tile(struct running<D> &run, const uint32_t (&held)[HELD][M][4], shared_address own,
             shared_address k, shared_address v, int distance, int limit, float scale)
{
    constexpr int N = forward<D>::KEYS / 8;
    const int lane = (int)threadIdx.x & 31;
    float c[M][N][4];
    fragments_clear(c);
    if constexpr (forward<D>::HELD)
        product_held<TYPE, D>(c, held, k + lane_along<D>(lane));
    else
        product_read<TYPE, D>(c, own, k + lane_along<D>(lane));
    if (distance < N * 8 || limit < N * 8)
        mask_after(c, distance + (lane >> 2), (lane & 3) * 2, limit);
    softmax_tile(run, c, scale * LOG2_E);
    uint32_t p[M][N / 2][4];
    fragments_round<TYPE>(p, c);
    product_add<TYPE, D>(run.out, p, v + lane_down<D>(lane));
}

template <enum dtype TYPE, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_forward_kernel(const struct attention_call call)
{
    using shape = forward<D>;
    constexpr int PITCH = tile<D>::PITCH;
    SHARED_DYNAMIC(unsigned char, memory);
    const shared_address q = shared_address_of(memory), k = q + shape::QUERIES * PITCH;
    const struct head head = head_of_block<D>(call);
    const int lane = (int)threadIdx.x & 31, warp_row = warp_of_thread() * M * 16;
    const int first = (int)(gridDim.x - 1 - blockIdx.x) * shape::QUERIES;
    const int row = first + warp_row; /* this warp's first */
    const shared_address own = q + warp_row * PITCH + lane_down<D>(lane);

    tile_load<D, shape::QUERIES>(q, head.q, 3 * head.width, first, head.tokens);
    tile_load<D, shape::KEYS>(k, head.k, 3 * head.width, 0, head.tokens);
    tile_load<D, shape::KEYS>(k + shape::STAGE, head.v, 3 * head.width, 0, head.tokens);
    copies_commit();

    struct running<D> run;
    fragments_clear(run.out);
#pragma unroll
    for (int m = 0; m < M; m++) {
        run.max[m][0] = run.max[m][1] = -INFINITY;
        run.sum[m][0] = run.sum[m][1] = 0.0f;
    }
    uint32_t held[shape::HELD ? D / 16 : 1][M][4];
    const int last = keys_seen(call, head.keys, first + shape::QUERIES - 1);
    for (int key = 0, stage = 0; key < last; key += shape::KEYS, stage ^= 1) {
        const shared_address now = k + stage * 2 * shape::STAGE;
        copies_wait<0>();
        __syncthreads(); /* this stage is there; nobody reads the other one any more */
        if (key + shape::KEYS < last) {
            const shared_address next = k + (stage ^ 1) * 2 * shape::STAGE;
            const int from = key + shape::KEYS;
            tile_load<D, shape::KEYS>(next, head.k, 3 * head.width, from, head.tokens);
            tile_load<D, shape::KEYS>(next + shape::STAGE, head.v, 3 * head.width, from,
                                      head.tokens);
        }
        copies_commit();
        if constexpr (shape::HELD) {
            if (key == 0)
                fragments_load<D, M>(held, own);
        }
        const int distance = call.bidirectional ? ATTENTION_FAR : row - key;
        if (distance > -M * 16)
            forward_tile<TYPE, D>(run, held, own, now, now + shape::STAGE, distance,
                                  head.keys - key, call.scale);
    }
    float factor[M][2];
    softmax_end(factor, run.max, run.sum, call.scale, call.lse + head.statistics + row,
                head.tokens - row);
    rows_store<TYPE, D, M>(run.out, factor, memory + warp_row * PITCH,
                           (uint16_t *)call.result + head.out, head.width, row, head.tokens);
}

template <enum dtype TYPE, int D>
static enum status attention_forward_launch(const struct cuda_attention *shape,
                                            const struct attention_call &call, void *stream)
{
    const int tiles = (call.tokens + forward<D>::QUERIES - 1) / forward<D>::QUERIES;
    return launch(attention_forward_kernel<TYPE, D>,
                  dim3((unsigned)tiles, (unsigned)call.heads, (unsigned)shape->samples),
                  dim3(ATTENTION_THREADS), forward<D>::BYTES, stream, call);
}

template <enum dtype TYPE>
static enum status attention_forward_of_dim(const struct cuda_attention *shape,
                                            const struct attention_call &call, void *stream)
{
    switch (shape->dim) {
    case 32:
        return attention_forward_launch<TYPE, 32>(shape, call, stream);
    case 64:
        return attention_forward_launch<TYPE, 64>(shape, call, stream);
    case 96:
        return attention_forward_launch<TYPE, 96>(shape, call, stream);
    case 128:
        return attention_forward_launch<TYPE, 128>(shape, call, stream);
    default:
        return ST_INVALID;
    }
}

enum status attention_mma_forward(const struct cuda_attention *shape,
                                  const struct attention_call &call, void *stream)
{
    if (shape->dtype == DTYPE_BF16)
        return attention_forward_of_dim<DTYPE_BF16>(shape, call, stream);
    return attention_forward_of_dim<DTYPE_F16>(shape, call, stream);
}
