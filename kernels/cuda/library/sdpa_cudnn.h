/*
 * Attention by cuDNN's graphs instead of our own kernels: the same tensors and the same semantics
 * (kernels/cuda/attention/attention.h), of shapes without `keys`.
 *
 * These functions are in the module only where the build finds cudnn_frontend.h; elsewhere each is
 * NULL. Which of the two computes is a table by capability and D, never a measurement: our own
 * kernels everywhere, unless the build says CAIRN_SDPA=cudnn. The implementation's name is a pin.
 *
 * Bits:   the backward pass asks for cuDNN's deterministic algorithm. What cuDNN's heuristic picks
 *         depends on its version, the frontend's and the device, and all of them are pins; so is
 *         the plan that it picked.
 * Thread: the one that uses the handle, whose stream each call sets.
 */
#pragma once

#include "kernels/cuda/attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SDPA_OPTIONAL __attribute__((weak))

struct sdpa_cudnn; /* the two graphs of one shape, built for one handle */

/* Whether the table names cuDNN on a device of that capability (major · 10 + minor). */
SDPA_OPTIONAL bool sdpa_cudnn_chosen(const struct cuda_attention *shape, int capability);

/*
 * Builds both graphs, or the forward one only without `training`. Takes seconds.
 *
 * Memory: `handle` (a cudnnHandle_t) is borrowed until sdpa_cudnn_free
 * Errors: ST_INVALID    a shape or a device that cuDNN does not take, or no handle
 *         ST_NO_MEMORY  host or device
 */
MUST_CHECK SDPA_OPTIONAL enum status sdpa_cudnn_new(void *handle,
                                                    const struct cuda_attention *shape,
                                                    bool training, struct sdpa_cudnn **out);
SDPA_OPTIONAL void sdpa_cudnn_free(struct sdpa_cudnn *sdpa);

/* Returns the implementation, for pins: "cudnn-sdpa", the frontend's version, and the plan of each
 * graph by cuDNN's name, which has its engine. Lives as long as sdpa. */
SDPA_OPTIONAL const char *sdpa_cudnn_implementation(const struct sdpa_cudnn *sdpa);

/* Device memory that a call of forward or backward needs. */
SDPA_OPTIONAL size_t sdpa_cudnn_workspace_bytes(const struct sdpa_cudnn *sdpa);

/*
 * Both launch on `stream` (a cudaStream_t). lse is not written unless `training`.
 * Errors: ST_DEVICE
 */
MUST_CHECK SDPA_OPTIONAL enum status sdpa_cudnn_forward(struct sdpa_cudnn *sdpa, const void *qkv,
                                                        void *out, float *lse, void *workspace,
                                                        void *stream);
struct sdpa_cudnn_grad {
    const void *qkv, *out, *dout;
    const float *lse;
    void *dqkv;
};
MUST_CHECK SDPA_OPTIONAL enum status sdpa_cudnn_backward(struct sdpa_cudnn *sdpa,
                                                         const struct sdpa_cudnn_grad *args,
                                                         void *workspace, void *stream);

#ifdef __cplusplus
}
#endif
