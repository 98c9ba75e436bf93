/*
 * batch_norm of bfloat16 tensors with the channels innermost: the formulas of batch_norm.c in two
 * passes over memory each way. Statistics and sums are float32 in chunks, double over them.
 *
 * Saved (floats): mean, 1 / sqrt(variance + eps), one each per channel.
 */
#pragma once

#include "kernels/cpu/device/cpu.h"

/* Sets saved_bytes, scratch_bytes and implementation. */
void batch_norm_nhwc_info(const struct op_spec *spec, struct kernel_info *info);
void batch_norm_nhwc_forward(const struct backend *backend, const struct op_spec *spec,
                             const struct op_buffers *buffers);
void batch_norm_nhwc_backward(const struct backend *backend, const struct op_spec *spec,
                              const struct op_buffers *buffers);
