/*
 * Sums over the threads of a warp or block, in a fixed order; every thread gets the result.
 */
#pragma once

#include "kernels/cuda/own/vector.cuh"

/*
 * Butterflies: all lanes add the same pairs, so all get the same bits. Which lanes are paired first
 * is part of the bits:
 *
 *   warp_sum             16 apart, then 8, 4, 2, 1      the whole warp
 *   lanes_sum<LANES>     1 apart, then 2, 4, …          each group of LANES neighbours
 */
DEVICE_INLINE float warp_sum(float v)
{
#pragma unroll
    for (int bit = 16; bit > 0; bit >>= 1)
        v += __shfl_xor_sync(FULL_WARP, v, bit);
    return v;
}

template <int LANES> DEVICE_INLINE float lanes_sum(float v)
{
#pragma unroll
    for (int bit = 1; bit < LANES; bit *= 2)
        v += __shfl_xor_sync(FULL_WARP, v, bit);
    return v;
}

template <int LANES> DEVICE_INLINE float lanes_max(float v)
{
#pragma unroll
    for (int bit = 1; bit < LANES; bit *= 2)
        v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, bit));
    return v;
}

/* COUNT sums over each group of WARPS warps, by a block of 8 warps. shared: [COUNT][8]. */
template <int WARPS, int COUNT> DEVICE_INLINE void group_sum(float *v, float *shared)
{
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        v[k] = warp_sum(v[k]);
    if constexpr (WARPS > 1) {
        const int warp = (int)threadIdx.x / 32, first = warp / WARPS * WARPS;
        if (threadIdx.x % 32 == 0) {
            for (int k = 0; k < COUNT; k++)
                shared[k * 8 + warp] = v[k];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            v[k] = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                v[k] += shared[k * 8 + first + w];
        }
        __syncthreads();
    }
}
