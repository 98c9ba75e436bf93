/* The ops of the text models: none of them is on the CPU yet. */
#include "kernels/cpu/cpu.h"

#define CPU_MISSING(lower)                                                                         \
    enum status cpu_##lower##_prepare(struct backend *backend, const struct op_spec *spec,         \
                                      struct kernel **out_kernel, struct kernel_info *out_info)    \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)spec;                                                                                \
        (void)out_kernel;                                                                          \
        (void)out_info;                                                                            \
        return ST_INVALID;                                                                         \
    }                                                                                              \
    enum status cpu_##lower##_forward(struct backend *backend, struct kernel *kernel,              \
                                      const struct op_buffers *buffers, struct stream *stream)     \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)kernel;                                                                              \
        (void)buffers;                                                                             \
        (void)stream;                                                                              \
        return ST_INVALID;                                                                         \
    }                                                                                              \
    enum status cpu_##lower##_backward(struct backend *backend, struct kernel *kernel,             \
                                       const struct op_buffers *buffers, struct stream *stream)    \
    {                                                                                              \
        return cpu_##lower##_forward(backend, kernel, buffers, stream);                            \
    }

CPU_MISSING(gelu)
CPU_MISSING(dropout)
CPU_MISSING(layer_norm)
CPU_MISSING(embedding)
CPU_MISSING(attention)
