/*
 * Attention of packed heads, forward and backward, whose memory is linear in T.
 *
 *   out = softmax(q · kᵀ / √D, causal) · v    of every sample and head; bidirectional: not causal
 *
 * Half precision with D of 32, 64, 96 or 128 runs on tensor cores (mma.sync: sm_80 and later).
 * float32, and other D, run on plain kernels that compute in float32.
 *
 * Shapes: qkv, dqkv  [N, T, 3·H·D]: q of all heads, then k, then v; of each, head h is the columns
 *                    [h·D, (h + 1)·D)
 *         out, dout  [N, T, H·D]
 *         lse        [N, H, T] float32: log Σ exp(q·k/√D) over the keys; from forward to backward
 * Types:  bfloat16, float16 or float32, the same for all but lse. Products sum in float32; the
 *         softmax, and all that is kept from tile to tile, is float32.
 * Bits:   one writer per output, sums in a fixed order that depends on the shape alone. No atomics.
 * Memory: device pointers, aligned to 16 bytes, borrowed until the stream has passed the call.
 * Source: Dao, FlashAttention-2, algorithms 1 and 2, with the backward pass cut in two: one kernel
 *         owns dk and dv, one dq. That is seven products instead of five, but no sum across blocks.
 *
 * The names in this folder, and the paper's:
 *
 *   D, scale         d, 1/√d                  lse      L
 *   a warp's rows    Br                       delta    D = rowsum(dO ∘ O)
 *   KEYS, SLICE      Bc                       p, ds    P, dS (and dP before)
 *   running: max, sum, out                    m, l, O before the division by l
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/tensor.h"

#define CUDA_ATTENTION_DIM_MAX 256

struct cuda_attention {
    int64_t samples, tokens; /* N, T */
    int heads, dim;          /* H, D */
    enum dtype dtype;
    bool bidirectional;  /* each query sees all keys, not only those up to its own */
    const int32_t *keys; /* [N], device memory: a sample's keys that anybody sees, the first ones,
                            in 1..T; NULL: all. Looked at by the launches alone */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the shape is one that the calls below take. */
bool cuda_attention_supported(const struct cuda_attention *shape);

/* Shared memory that a block of what will run needs, at most; backward, too, if training. More than
 * the device lets a block have: it can't be launched. */
size_t cuda_attention_shared_bytes(const struct cuda_attention *shape, bool training);

/* The name of what will run, for pins: "flash-mma-64", "plain". */
const char *cuda_attention_implementation(const struct cuda_attention *shape);

/* Bytes of lse, and of backward's scratch (forward needs none). */
size_t cuda_attention_lse_bytes(const struct cuda_attention *shape);
size_t cuda_attention_scratch_bytes(const struct cuda_attention *shape);

/* Writes keys [N] of tokens [N, T]: those up to the last token that isn't 0, and at least one.
 * Launches on `stream`. */
MUST_CHECK enum status cuda_attention_keys(const struct cuda_attention *shape,
                                           const int32_t *tokens, int32_t *keys, void *stream);

/*
 * Launch on `stream` (a cudaStream_t).
 * Errors: ST_INVALID  not supported
 *         ST_DEVICE   a launch failed; the device must be considered lost
 */
MUST_CHECK enum status cuda_attention_forward(const struct cuda_attention *shape, const void *qkv,
                                              void *out, float *lse, void *stream);
MUST_CHECK enum status cuda_attention_backward(const struct cuda_attention *shape, const void *qkv,
                                               const void *out, const float *lse, const void *dout,
                                               void *dqkv, void *scratch, void *stream);

#ifdef __cplusplus
}
#endif
