/*
 * Convolutions by cuDNN, one direction at a time: by its graph interface where that has an engine
 * that this takes (conv_graph.c), else by the legacy C functions (conv_legacy.c).
 *
 * Bits: an engine, or algorithm, that adds in a fixed order and doesn't round more than its
 *       operands' type does. A graph's engine is kept under the convolution's key with its knobs
 *       (kernels/cuda/device/choice.h), and always made from these numbers, so that a resumed run
 *       makes the same.
 */
#pragma once

#include "kernels/cuda/library/conv_parts.h"

struct cuda_conv {
    struct conv_graph graph;
    struct conv_legacy legacy; /* where there is no plan */
};

/* Errors: ST_NOT_FOUND  cuDNN computes nothing of the kind as this wants it
 *         ST_NO_MEMORY  for the engine that it would take: another one has other bits */
MUST_CHECK enum status cuda_conv_init(struct backend *backend, const struct cuda_conv_spec *spec,
                                      struct cuda_conv *out);
void cuda_conv_release(struct cuda_conv *conv);
size_t cuda_conv_workspace(const struct cuda_conv *conv); /* bytes */
/* Whether it can add to what is there. */
bool cuda_conv_adds(const struct cuda_conv *conv);
/* "g", or the number of a legacy algorithm. A constant. */
const char *cuda_conv_name(const struct cuda_conv *conv);
/* The operands are aligned to 16 bytes. */
MUST_CHECK enum status cuda_conv_run(struct backend *backend, struct cuda_conv *conv,
                                     const struct cuda_conv_operands *operands,
                                     cudaStream_t stream);
