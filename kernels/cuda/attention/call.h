/*
 * Between dispatch.cu, which checks a shape and chooses, and the files of the kernels. Those
 * launch; ST_DEVICE if a launch failed.
 */
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/own/launch.h"

#define CUDA_ATTENTION_SAMPLES_MAX 65535
#define CUDA_ATTENTION_HEADS_MAX   65535
#define CUDA_ATTENTION_TOKENS_MAX  (1 << 24)

/* Arguments of one call. Device pointers; void: of the shape's type. Pointers that a call does not
 * use are NULL. */
struct attention_call {
    const void *qkv, *out, *dout;
    void *result; /* out, or dqkv */
    float *lse;   /* written by forward, read by backward */
    float *delta; /* [N, H, T]: Σ over D of dout·out */
    int tokens, heads, dim;
    float scale; /* 1 / √D */
    bool bidirectional;
    const int32_t *keys; /* as cuda_attention has it */
};

/* Counts the keys that anybody sees in the block's sample. */
static __device__ __forceinline__ int keys_of_block(const struct attention_call &call)
{
    return call.keys == nullptr ? call.tokens : call.keys[blockIdx.z];
}

/* Counts the keys that a query sees, the first ones, of a sample with that many. */
static __device__ __forceinline__ int keys_seen(const struct attention_call &call, int keys,
                                                int query)
{
    return call.bidirectional || query >= keys ? keys : query + 1;
}

/* Most shared memory of a block of the tensor cores' kernels: on each GPU since 8.0 (CUDA
 * programming guide, compute capabilities). */
#define ATTENTION_MMA_SHARED_MAX (99 * 1024)

/* Tensor cores: D of 32, 64, 96, 128; bfloat16 or float16. */
MUST_CHECK enum status attention_mma_forward(const struct cuda_attention *shape,
                                             const struct attention_call &call, void *stream);
MUST_CHECK enum status attention_mma_backward(const struct cuda_attention *shape,
                                              const struct attention_call &call, void *stream);

/* Any D up to CUDA_ATTENTION_DIM_MAX, any type. */
MUST_CHECK enum status attention_plain_forward(const struct cuda_attention *shape,
                                               const struct attention_call &call, void *stream);
size_t attention_plain_shared_bytes(const struct cuda_attention *shape, bool backward);
MUST_CHECK enum status attention_plain_backward(const struct cuda_attention *shape,
                                                const struct attention_call &call, void *stream);
