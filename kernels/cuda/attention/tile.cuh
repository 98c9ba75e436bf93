/*
 * Code that the kernels on tensor cores share: the place of a block's head, tiles of its rows in
 * shared memory, and products of tiles by one warp (mma.cuh has the fragments).
 *
 * A block is ATTENTION_WARPS warps. Each warp owns M·16 rows of the block's result. The block walks
 * over the rows of the other side, KEYS or ROWS at a time, in two stages: while the warps work on
 * one, all threads copy the next.
 *
 * A tile is rows of one head, D halfs each, PITCH bytes apart:
 *
 *   row 0   | piece 0 | piece 1 | … | piece D/8 - 1 | unused |       a piece: 16 bytes, 8 halfs
 *   row 1   | piece 0 | …
 *
 * The unused piece makes the number of pieces per row odd. So the eight rows that ldmatrix reads at
 * once lie in distinct banks, for every D, and each address is a constant away from the lane's
 * first.
 */
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/mma.cuh"
#include "kernels/cuda/own/reduce.cuh"

#define ATTENTION_WARPS   4
#define ATTENTION_THREADS (ATTENTION_WARPS * 32)

/* The number of this thread's warp. (By a shuffle: so the compiler knows that it is one value.) */
static __device__ __forceinline__ int warp_of_thread(void)
{
    return __shfl_sync(FULL_WARP, (int)threadIdx.x >> 5, 0);
}

/* PITCH: bytes from row to row. */
template <int D> struct tile {
    static constexpr int PIECES = D / 8, PITCH = D * 2 + 16;
};

/*
 * Position of one head of one sample, by blockIdx (y, z). Rows of out and dout are `width` = H·D
 * elements apart, those of q, k, v and dqkv 3·width. Offsets of rows are 32 bits wide.
 */
struct head {
    const uint16_t *q, *k, *v, *dout; /* row 0; dout is of no use in forward */
    int64_t result;     /* dq's row 0 in dqkv; dk's is `width` further, dv's 2·width */
    int64_t out;        /* row 0 in out */
    int64_t statistics; /* row 0 in lse and delta */
    int width, tokens;
    int keys; /* that anybody sees */
};

template <int D>
static __device__ __forceinline__ struct head head_of_block(const struct attention_call &call)
{
    const int64_t sample = blockIdx.z, index = blockIdx.y;
    struct head head;
    head.tokens = call.tokens;
    head.keys = keys_of_block(call);
    head.width = call.heads * D;
    head.result = sample * call.tokens * 3 * head.width + index * D;
    head.out = sample * call.tokens * head.width + index * D;
    head.statistics = (sample * call.heads + index) * call.tokens;
    head.q = (const uint16_t *)call.qkv + head.result;
    head.k = head.q + head.width;
    head.v = head.k + head.width;
    head.dout = (const uint16_t *)call.dout + head.out;
    return head;
}

/* Begins to copy rows [first, first + ROWS) of a matrix; rows from `limit` on become zeros. */
template <int D, int ROWS>
static __device__ __forceinline__ void tile_load(shared_address to, const uint16_t *from,
                                                 int stride, int first, int limit)
{
    constexpr int PIECES = tile<D>::PIECES, EACH = ROWS * PIECES / ATTENTION_THREADS;
    static_assert(ROWS * PIECES % ATTENTION_THREADS == 0, "every thread copies as many pieces");
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int at = (int)threadIdx.x + i * ATTENTION_THREADS;
        const int row = at / PIECES, piece = at % PIECES;
        copy_16(to + row * tile<D>::PITCH + piece * 16, from + ((first + row) * stride + piece * 8),
                first + row < limit);
    }
}

/*
 * Where load_matrices reads a 16×16 block of a tile: this lane's row of the four 8×8 matrices, in
 * bytes from the block's first row. lane_down and lane_along number the matrices
 *
 *   lane_down    0 2    out: an a of the block; transposed: two b side by side, of the block's rows
 *                1 3
 *   lane_along   0 1    out: two b side by side, of the block's rows as columns (b = rowsᵀ)
 *                2 3
 */
template <int D> static __device__ __forceinline__ int lane_down(int lane)
{
    return (lane & 15) * tile<D>::PITCH + (lane >> 4) * 16;
}

template <int D> static __device__ __forceinline__ int lane_along(int lane)
{
    return ((lane & 7) + (lane >> 4 << 3)) * tile<D>::PITCH + ((lane >> 3) & 1) * 16;
}

/* a of M·16 rows, all D columns, for a warp that holds them. rows: with lane_down added. */
template <int D, int M>
static __device__ __forceinline__ void fragments_load(uint32_t (&a)[D / 16][M][4],
                                                      shared_address rows)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(a[k][m], rows + m * 16 * tile<D>::PITCH + k * 32);
    }
}

/* c += a · rowsᵀ, over D. rows: the first of 8·N, with lane_along added. */
template <enum dtype TYPE, int D, int M, int N>
static __device__ __forceinline__ void
product_held(float (&c)[M][N][4], const uint32_t (&a)[D / 16][M][4], shared_address rows)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];
            load_matrices(b, rows + n * 8 * tile<D>::PITCH + k * 32);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<TYPE>(c[m][n], a[k][m], b[0], b[1]);
                mma<TYPE>(c[m][n + 1], a[k][m], b[2], b[3]);
            }
        }
    }
}

/* Like product_held, with a in shared memory. own: the first of its M·16 rows, with lane_down
 * added. */
template <enum dtype TYPE, int D, int M, int N>
static __device__ __forceinline__ void product_read(float (&c)[M][N][4], shared_address own,
                                                    shared_address rows)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(a[m], own + m * 16 * tile<D>::PITCH + k * 32);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];
            load_matrices(b, rows + n * 8 * tile<D>::PITCH + k * 32);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<TYPE>(c[m][n], a[m], b[0], b[1]);
                mma<TYPE>(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* c += p · rows. p: a of 16·K columns. rows: the first of 16·K, with lane_down added. */
template <enum dtype TYPE, int D, int M, int K>
static __device__ __forceinline__ void
product_add(float (&c)[M][D / 8][4], const uint32_t (&p)[M][K][4], shared_address rows)
{
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, rows + k * 16 * tile<D>::PITCH + n * 16);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma<TYPE>(c[m][n], p[m][k], b[0], b[1]);
                mma<TYPE>(c[m][n + 1], p[m][k], b[2], b[3]);
            }
        }
    }
}

/* c of 8·N columns, rounded, as a of the next product. */
template <enum dtype TYPE, int M, int N>
static __device__ __forceinline__ void fragments_round(uint32_t (&p)[M][N / 2][4],
                                                       const float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            p[m][n / 2][n % 2 * 2] = pack_halfs<TYPE>(c[m][n][0], c[m][n][1]);
            p[m][n / 2][n % 2 * 2 + 1] = pack_halfs<TYPE>(c[m][n][2], c[m][n][3]);
        }
    }
}

template <int M, int N> static __device__ __forceinline__ void fragments_clear(float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[m][n][i] = 0.0f;
        }
    }
}

/* A distance from any query to any key that is no cause to mask: attention is bidirectional. */
#define ATTENTION_FAR (1 << 30)

/* Scores of keys (columns) after their query (row), and from `limit` on, become -infinity. row,
 * column: of c[0][0][0]. */
template <int M, int N>
static __device__ __forceinline__ void mask_after(float (&c)[M][N][4], int row, int column,
                                                  int limit)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = column + n * 8 + (i & 1);
                if (at > row + m * 16 + (i >> 1) * 8 || at >= limit)
                    c[m][n][i] = -INFINITY;
            }
        }
    }
}

/*
 * Writes a warp's M·16 rows, each times its factor, to the rows of a matrix from `first` on, as far
 * as they are below `limit`. factor[m][0] is of row g, [1] of row g + 8. They go by way of `own`,
 * the warp's rows of a tile that nobody else reads any more, so that whole pieces are written.
 */
template <enum dtype TYPE, int D, int M>
static __device__ __forceinline__ void rows_store(const float (&c)[M][D / 8][4],
                                                  const float (&factor)[M][2], unsigned char *own,
                                                  uint16_t *to, int stride, int first, int limit)
{
    constexpr int PITCH = tile<D>::PITCH, PIECES = tile<D>::PIECES;
    const int lane = (int)threadIdx.x & 31;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; m++) {
        unsigned char *row = own + (m * 16 + (lane >> 2)) * PITCH + (lane & 3) * 4;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float low = factor[m][0], high = factor[m][1];
            *(uint32_t *)(row + n * 16) = pack_halfs<TYPE>(c[m][n][0] * low, c[m][n][1] * low);
            *(uint32_t *)(row + n * 16 + 8 * PITCH) =
                pack_halfs<TYPE>(c[m][n][2] * high, c[m][n][3] * high);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < M * 16 * PIECES / 32; i++) {
        const int at = lane + i * 32, row = at / PIECES, piece = at % PIECES;
        if (first + row < limit) {
            *(uint4 *)(to + ((first + row) * stride + piece * 8)) =
                *(const uint4 *)(own + row * PITCH + piece * 16);
        }
    }
}
