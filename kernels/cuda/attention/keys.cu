/*
 * How many keys of each sample are seen: a warp per sample looks for the last token that isn't 0.
 */
#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/own/reduce.cuh"

#define KEYS_THREADS 32

static __global__ void __launch_bounds__(KEYS_THREADS)
    attention_keys_kernel(const int32_t *tokens, int count, int32_t *keys)
{
    const int32_t *const sample = tokens + (int64_t)blockIdx.x * count;
    int last = 1;
    for (int t = (int)threadIdx.x; t < count; t += KEYS_THREADS) {
        if (sample[t] != 0)
            last = t + 1;
    }
    /* A float has all integers up to CUDA_ATTENTION_TOKENS_MAX. */
    const float most = lanes_max<KEYS_THREADS>((float)last);
    if (threadIdx.x == 0)
        keys[blockIdx.x] = (int32_t)most;
}

enum status cuda_attention_keys(const struct cuda_attention *shape, const int32_t *tokens,
                                int32_t *keys, void *stream)
{
    if (!cuda_attention_supported(shape))
        return ST_INVALID;
    return launch(attention_keys_kernel, dim3((unsigned)shape->samples), dim3(KEYS_THREADS), 0,
                  stream, tokens, (int)shape->tokens, keys);
}
