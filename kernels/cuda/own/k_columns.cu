/*
 * The second stage of columns.cuh's sums.
 */
#include "kernels/cuda/own/columns.cuh"

#define FINISH_DOWN 32

/* Thread (x, y) adds the partials y, y + 32, … of column x; a tree adds the 32. */
static __global__ void __launch_bounds__(32 * FINISH_DOWN)
    columns_finish_kernel(const float *partials, int64_t count, int64_t c,
                          struct columns_outputs outputs)
{
    SHARED_ARRAY(float, shared, FINISH_DOWN * 32);
    const int x = (int)threadIdx.x % 32, y = (int)threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.x * 32 + x;
    const int k = (int)blockIdx.y;
    float sum = 0.0f;
    if (column < c) {
        for (int64_t i = y; i < count; i += FINISH_DOWN)
            sum += partials[(i * outputs.sums + k) * c + column];
    }
    shared[y * 32 + x] = sum;
    for (int half = FINISH_DOWN / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half)
            shared[y * 32 + x] += shared[(y + half) * 32 + x];
    }
    float *const out = k == 0 ? outputs.out[0] : outputs.out[1];
    const bool accumulate = k == 0 ? outputs.accumulate[0] : outputs.accumulate[1];
    if (y == 0 && column < c && out != nullptr)
        out[column] = accumulate ? out[column] + shared[x] : shared[x];
}

enum status columns_finish(const float *partials, int64_t count, int64_t c,
                           const struct columns_outputs *outputs, void *stream)
{
    return launch(columns_finish_kernel, dim3((unsigned)((c + 31) / 32), (unsigned)outputs->sums),
                  dim3(32 * FINISH_DOWN), 0, stream, partials, count, c, *outputs);
}
