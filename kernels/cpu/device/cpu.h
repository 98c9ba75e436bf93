/*
 * Inside the CPU backend: the device, the common part of its kernels, and where each op is made.
 *
 * An op's file defines its own kernel struct with `struct kernel base` first. Loops over elements
 * live in loops_*.c (loops.h), which are compiled once per instruction set; everything else is
 * compiled for the base architecture.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/backend.h"
#include "kernels/cpu/loops/loops.h"

#define CPU_ALIGN 64

struct dnn;

struct backend {
    struct dnn *dnn;
    struct loops loops;
    int threads; /* of oneDNN */
    int block;   /* channels per block of FORMAT_BLOCKED: 16 or 8 */
    bool amx;    /* bfloat16 tiles may be used */
};

struct kernel {
    struct op_spec spec;
    /* NULL: the kernel has no cache. */
    enum status (*refresh)(struct backend *backend, struct kernel *kernel,
                           const float *const param[OP_PARAM_MAX], void *cache);
    void (*release)(struct kernel *kernel); /* all but the struct itself; may be NULL */
};

/* The thread's floating-point mode and thread count; called by each entry that computes. */
void cpu_enter(const struct backend *backend);

static inline size_t cpu_align(size_t bytes)
{
    return (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
}

/* Channels of one block in this format: 1 for plain. */
int cpu_block(const struct backend *backend, const struct tensor *tensor);

/* A float32 tensor of 4 dims in the given format, bytes filled in. */
struct tensor cpu_tensor(const struct backend *backend, enum format format, const int64_t dims[4]);

/* What most ops ask: in[0] is float32 with `ndim` dims >= 1; blocked only with 4. */
bool cpu_input_is_valid(const struct op_spec *spec, int ndim);

/* A bfloat16 tensor with the channels innermost, and whether a tensor is one. */
struct tensor cpu_nhwc(const int64_t dims[4]);
bool cpu_is_nhwc(const struct tensor *tensor);

/* in[0] is such a tensor, or what cpu_input_is_valid takes with 4 dims. */
bool cpu_image_is_valid(const struct op_spec *spec);

/* The loops of a format's block. */
const struct norm_loops *cpu_norm_loops(const struct backend *backend, const struct tensor *tensor);
const struct pool_loops *cpu_pool_loops(const struct backend *backend, const struct tensor *tensor);

/* Copies between plain, nhwc and blocked, float32 and bfloat16, of the same dims. */
void cpu_reformat(const struct backend *backend, const struct tensor *from, const void *in,
                  const struct tensor *to, void *out);

/* cpu_conv2d_prepare, …: the table's three functions of each op. */
#define CPU_OP(upper, lower, in, params, stats)                                                    \
    enum status cpu_##lower##_prepare(struct backend *backend, const struct op_spec *spec,         \
                                      struct kernel **out_kernel, struct kernel_info *out_info);   \
    enum status cpu_##lower##_forward(struct backend *backend, struct kernel *kernel,              \
                                      const struct op_buffers *buffers, struct stream *stream);    \
    enum status cpu_##lower##_backward(struct backend *backend, struct kernel *kernel,             \
                                       const struct op_buffers *buffers, struct stream *stream);
OP_LIST(CPU_OP)
#undef CPU_OP

MUST_CHECK enum status cpu_pins(struct backend *backend, struct buf *out);
