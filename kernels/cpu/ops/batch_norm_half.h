/*
 * batch_norm of bfloat16 tensors with the channels innermost, by batch_norm.c's formulas. Each
 * direction reads memory twice. Statistics and sums are float32 in chunks of rows, double over
 * them.
 *
 * Saved (floats): mean, r = 1 / √(variance + eps), one each per channel.
 */
#pragma once

#include "kernels/cpu/device/cpu.h"

/* Sets saved_bytes, scratch_bytes and implementation. */
void batch_norm_half_info(const struct op_spec *spec, struct kernel_info *info);
void batch_norm_half_forward(const struct backend *backend, const struct op_spec *spec,
                             const struct op_buffers *buffers);
void batch_norm_half_backward(const struct backend *backend, const struct op_spec *spec,
                              const struct op_buffers *buffers);
