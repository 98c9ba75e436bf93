/*
 * Checks a shape, chooses the kernels by it alone, and launches them.
 */
#include <math.h>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/call.h"

static bool is_half(enum dtype dtype)
{
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

/* Tensor cores: a row of a head is whole 16-byte pieces, and there is a kernel of that width. */
static bool uses_mma(const struct cuda_attention *shape)
{
    const int dim = shape->dim;
    return is_half(shape->dtype) && (dim == 32 || dim == 64 || dim == 96 || dim == 128);
}

bool cuda_attention_supported(const struct cuda_attention *shape)
{
    if (shape->samples < 1 || shape->samples > CUDA_ATTENTION_SAMPLES_MAX || shape->tokens < 1 ||
        shape->tokens > CUDA_ATTENTION_TOKENS_MAX)
        return false;
    if (shape->heads < 1 || shape->heads > CUDA_ATTENTION_HEADS_MAX || shape->dim < 1 ||
        shape->dim > CUDA_ATTENTION_DIM_MAX)
        return false;
    /* A kernel's offsets within a sample, one tile beyond it, are of type int. */
    if ((shape->tokens + 128) * 3 * shape->heads * shape->dim > INT32_MAX)
        return false;
    return is_half(shape->dtype) || shape->dtype == DTYPE_F32;
}

size_t cuda_attention_shared_bytes(const struct cuda_attention *shape, bool training)
{
    return uses_mma(shape) ? ATTENTION_MMA_SHARED_MAX
                           : attention_plain_shared_bytes(shape, training);
}

const char *cuda_attention_implementation(const struct cuda_attention *shape)
{
    if (!uses_mma(shape))
        return "plain";
    switch (shape->dim) {
    case 32:
        return "flash-mma-32";
    case 64:
        return "flash-mma-64";
    case 96:
        return "flash-mma-96";
    default:
        return "flash-mma-128";
    }
}

size_t cuda_attention_lse_bytes(const struct cuda_attention *shape)
{
    return (size_t)shape->samples * (size_t)shape->heads * (size_t)shape->tokens * sizeof(float);
}

size_t cuda_attention_scratch_bytes(const struct cuda_attention *shape)
{
    return cuda_attention_lse_bytes(shape); /* delta */
}

static struct attention_call attention_call_of(const struct cuda_attention *shape, const void *qkv)
{
    struct attention_call call = {};
    call.qkv = qkv;
    call.tokens = (int)shape->tokens;
    call.heads = shape->heads;
    call.dim = shape->dim;
    call.scale = (float)(1.0 / sqrt((double)shape->dim));
    call.bidirectional = shape->bidirectional;
    call.keys = shape->keys;
    return call;
}

enum status cuda_attention_forward(const struct cuda_attention *shape, const void *qkv, void *out,
                                   float *lse, void *stream)
{
    if (!cuda_attention_supported(shape))
        return ST_INVALID;
    struct attention_call call = attention_call_of(shape, qkv);
    call.result = out;
    call.lse = lse;
    return uses_mma(shape) ? attention_mma_forward(shape, call, stream)
                           : attention_plain_forward(shape, call, stream);
}

enum status cuda_attention_backward(const struct cuda_attention *shape, const void *qkv,
                                    const void *out, const float *lse, const void *dout, void *dqkv,
                                    void *scratch, void *stream)
{
    if (!cuda_attention_supported(shape))
        return ST_INVALID;
    struct attention_call call = attention_call_of(shape, qkv);
    call.out = out;
    call.dout = dout;
    call.result = dqkv;
    call.lse = (float *)lse; /* only read */
    call.delta = (float *)scratch;
    return uses_mma(shape) ? attention_mma_backward(shape, call, stream)
                           : attention_plain_backward(shape, call, stream);
}
