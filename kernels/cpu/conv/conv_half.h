/*
 * conv2d in bfloat16: out is bfloat16 with the channels innermost; in is that, or float32 (images).
 *
 * Where the processor has AMX and the table knows the shape, by conv_amx.h; else by the float32
 * kernel between conversions in scratch.
 */
#pragma once

#include "kernels/cpu/device/cpu.h"

MUST_CHECK enum status conv_half_prepare(struct backend *backend, const struct op_spec *spec,
                                         struct kernel **out_kernel, struct kernel_info *out_info);
MUST_CHECK enum status conv_half_forward(struct backend *backend, struct kernel *kernel,
                                         const struct op_buffers *buffers);
MUST_CHECK enum status conv_half_backward(struct backend *backend, struct kernel *kernel,
                                          const struct op_buffers *buffers);
