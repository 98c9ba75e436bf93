/*
 * Walks over [rows, c] in which a thread keeps its columns: sums of each column, in two stages
 * whose shape is fixed, and loops without sums.
 *
 *   grid      groups (of columns) × slices (of rows)
 *   block     across × down threads; thread (x, y) has WIDTH neighbouring columns, and of the
 *             block's slice the rows y, y + down, …
 *   stage 1   columns_kernel: each block's sums to scratch, [slices][sums][c]
 *   stage 2   columns_finish: the sums over the slices
 */
#pragma once

#include "kernels/cuda/own/reduce.cuh"

#define COLUMNS_THREADS 256
#define COLUMNS_BLOCKS  1024 /* as many as a large device runs at once, about; part of the bits */

struct columns {
    int64_t rows, c, slice; /* slice: rows of a block */
    int across, down;
    unsigned groups, slices;
};

static inline struct columns columns_of(int64_t rows, int64_t c, int width)
{
    struct columns s = { rows, c, 0, 1, 0, 0, 0 };
    while (s.across < 32 && (int64_t)s.across * width < c)
        s.across *= 2;
    s.down = COLUMNS_THREADS / s.across;
    const int64_t span = (int64_t)s.across * width;
    s.groups = (unsigned)((c + span - 1) / span);
    const int64_t wanted = s.groups < COLUMNS_BLOCKS ? COLUMNS_BLOCKS / s.groups : 1;
    const int64_t unit = (int64_t)s.down * 4; /* a thread has four rows of a slice at least */
    s.slice = ((rows + wanted - 1) / wanted + unit - 1) / unit * unit;
    s.slices = (unsigned)((rows + s.slice - 1) / s.slice);
    return s;
}

/* Bytes of scratch for `sums` per column, whatever the width. */
static inline size_t columns_scratch(int64_t rows, int64_t c, int sums)
{
    size_t most = 0;
    for (int width = 1; width <= 8; width *= 2) {
        const struct columns s = columns_of(rows, c, width);
        const size_t bytes = (size_t)s.slices * (size_t)sums * (size_t)c * sizeof(float);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/*
 *   f.begin(column, first)       before a thread's first row; first: that of the slice
 *   f.row(row, column, sum)      adds WIDTH columns of one row to sum[SUMS][WIDTH]
 *
 * Without sums (SUMS 0) partials is NULL.
 */
template <int WIDTH, int SUMS, typename F>
static __global__ void __launch_bounds__(COLUMNS_THREADS)
    columns_kernel(struct columns s, F f, float *partials)
{
    const int x = (int)threadIdx.x % s.across, y = (int)threadIdx.x / s.across;
    const int64_t column = ((int64_t)blockIdx.x * s.across + x) * WIDTH;
    const int64_t first = blockIdx.y * s.slice;
    const int64_t end = first + s.slice < s.rows ? first + s.slice : s.rows;
    float sum[SUMS > 0 ? SUMS : 1][WIDTH] = {};
    if (column < s.c) {
        f.begin(column, first);
#pragma unroll 4
        for (int64_t row = first + y; row < end; row += s.down)
            f.row(row, column, sum);
    }
    if constexpr (SUMS > 0) {
        SHARED_ARRAY(float, shared, SUMS *COLUMNS_THREADS *WIDTH);
        const int span = s.across * WIDTH;
#pragma unroll
        for (int k = 0; k < SUMS; k++) {
#pragma unroll
            for (int i = 0; i < WIDTH; i++)
                shared[(k * s.down + y) * span + x * WIDTH + i] = sum[k][i];
        }
        __syncthreads();
        for (int at = (int)threadIdx.x; at < SUMS * span; at += COLUMNS_THREADS) {
            const int k = at / span, i = at % span;
            const int64_t to = (int64_t)blockIdx.x * span + i;
            float total = 0.0f;
            for (int d = 0; d < s.down; d++)
                total += shared[(k * s.down + d) * span + i];
            if (to < s.c)
                partials[((int64_t)blockIdx.y * SUMS + k) * s.c + to] = total;
        }
    }
}

template <int WIDTH, int SUMS, typename F>
static inline enum status launch_columns(const struct columns *s, const F &f, float *partials,
                                         void *stream)
{
    if (s->slices > 65535)
        return ST_INVALID;
    return launch(columns_kernel<WIDTH, SUMS, F>, dim3(s->groups, s->slices), dim3(COLUMNS_THREADS),
                  0, stream, *s, f, partials);
}

/*
 * out[k] (+)= the sums over count of partials [count][sums][c], k < sums <= 2. An out may be NULL.
 */
struct columns_outputs {
    float *out[2];
    bool accumulate[2];
    int sums;
};
enum status columns_finish(const float *partials, int64_t count, int64_t c,
                           const struct columns_outputs *outputs, void *stream);
