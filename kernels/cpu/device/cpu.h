/*
 * Inside the CPU backend: the open device, what all of its kernels have, helpers of the ops, and
 * the declarations of each op's three functions.
 *
 * An op's file defines its own kernel struct with `struct kernel base` first. Loops over elements
 * live in kernels/cpu/loops, compiled once per instruction set; Winograd and the products and
 * convolutions on AMX tiles are compiled for their instruction set; everything else is compiled for
 * the base architecture.
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
    int threads; /* of oneDNN, counted; our own loops have one */
    int block;   /* channels per block of FORMAT_BLOCKED: 16 with AVX-512, else 8 */
    bool amx;    /* products of bfloat16 on AMX tiles may be used */
};

struct kernel {
    struct op_spec spec;
    /* NULL: the kernel has no cache. */
    enum status (*refresh)(struct backend *backend, struct kernel *kernel,
                           const float *const param[OP_PARAM_MAX], void *cache);
    void (*release)(struct kernel *kernel); /* all but the struct itself; may be NULL */
};

/* Sets the calling thread's floating-point mode and oneDNN's number of threads. Each entry of the
 * table that computes calls it first. */
void cpu_enter(const struct backend *backend);
/* Returns the number of threads that a parallel region of this thread really gets. */
int cpu_team(const struct backend *backend);

static inline size_t cpu_align(size_t bytes)
{
    return (bytes + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
}

static inline size_t cpu_most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* A gradient or statistic: written, or added to what is there. */
static inline void cpu_put_sum(float *to, double value, bool accumulate)
{
    *to = accumulate ? *to + (float)value : (float)value;
}

/* Counts the real ones of the `width` channels from `channel` on: those beyond `channels` are
 * padding. */
static inline int64_t cpu_real_channels(int64_t channels, int64_t channel, int64_t width)
{
    const int64_t left = channels - channel;
    if (left < 0)
        return 0;
    return left < width ? left : width;
}

static inline bool cpu_is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16;
}

/* Channels per block of this tensor's format; plain: 1. */
int cpu_block(const struct backend *backend, const struct tensor *tensor);

/* A float32 tensor of 4 dims in the given format, bytes filled in. */
struct tensor cpu_tensor(const struct backend *backend, enum format format, const int64_t dims[4]);

/* Returns whether in[0] is what most ops need: float32, plain, `ndim` dims that are all >= 1; or
 * blocked, with 4 dims. */
bool cpu_input_is_valid(const struct op_spec *spec, int ndim);

/* bfloat16 tensors with the channels innermost: one of these dims, and whether `tensor` is one. */
struct tensor cpu_nhwc(const int64_t dims[4]);
bool cpu_is_nhwc(const struct tensor *tensor);

/* True if in[0] is an image: such a tensor, or one that cpu_input_is_valid takes with 4 dims. */
bool cpu_image_is_valid(const struct op_spec *spec);

/* The loops for a tensor's format: as wide as its blocks, or one channel at a time. */
const struct norm_loops *cpu_norm_loops(const struct backend *backend, const struct tensor *tensor);
const struct pool_loops *cpu_pool_loops(const struct backend *backend, const struct tensor *tensor);

/* Copies between formats (plain, NHWC, blocked) and dtypes (float32, bfloat16) of the same dims. */
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
