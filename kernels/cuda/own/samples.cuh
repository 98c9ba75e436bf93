/*
 * Sums over the samples of a gradient, in their order.
 */
#pragma once

#include "kernels/cuda/own/vector.cuh"

/* to[i] (+)= Σ over n of dout[n·width + i]; elements from `known` on are zero. */
template <typename T, int WIDTH> struct sample_sums {
    const T *dout;
    float *to;
    int64_t n, width, known;
    bool accumulate, aligned;

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        float sum[N] = {}, v[N];
        if (i < known) {
            for (int64_t s = 0; s < n; s++) {
                load<N>(v, dout + s * width + i);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sum[k] += v[k];
            }
        }
        if (accumulate) {
            load_flat<N>(v, to + i, aligned);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
        store_flat<N>(to + i, sum, aligned);
    }
};
