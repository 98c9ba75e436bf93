/*
 * conv2d in bfloat16. out is bfloat16, channels innermost (FORMAT_NHWC); in is that too, or float32
 * (images).
 *
 *   AMX, and amx.h takes the shape      by its tiles
 *   otherwise                           by the float32 kernel (conv.c), between conversions
 */
#pragma once

#include "kernels/cpu/device/cpu.h"

MUST_CHECK enum status conv_half_prepare(struct backend *backend, const struct op_spec *spec,
                                         struct kernel **out_kernel, struct kernel_info *out_info);
MUST_CHECK enum status conv_half_forward(struct backend *backend, struct kernel *kernel,
                                         const struct op_buffers *buffers);
MUST_CHECK enum status conv_half_backward(struct backend *backend, struct kernel *kernel,
                                          const struct op_buffers *buffers);
