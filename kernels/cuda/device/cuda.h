/*
 * Inside the CUDA backend, host side: the open device, its errors, the common part of its kernels,
 * and where each op is made.
 *
 * An op's file defines its own kernel struct with `struct kernel base` first. Own kernels are
 * launched through k.h and attention.h, products through product.h, convolutions through cuDNN.
 *
 * Thread: the step thread computes (cuDNN's handle is its own); copies, events and waiting may be
 *         done by other threads on streams of their own.
 */
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cuda/device/choice.h"
#include "kernels/module.h"

#define CUDA_ALIGN         256 /* of regions within scratch and caches */
#define CUDA_GRAPHS_MAX    1024
#define CUDA_REGIONS_MAX   4096 /* alloc and alloc_host together */
#define CUDA_WORKSPACE_MAX (32u << 20)

struct stream {
    cudaStream_t handle;
};

struct event {
    cudaEvent_t handle;
};

/* What alloc gave and what the driver gave: the former is aligned to 4096 bytes. */
struct region {
    void *memory, *base;
    bool pinned;
};

struct backend {
    int ordinal;
    bool managed;
    struct module_device device;
    cublasLtHandle_t lt;
    cudnnHandle_t cudnn;
    struct choices choices; /* algorithms, by key */
    cudaGraphExec_t graphs[CUDA_GRAPHS_MAX];
    int graph_count;
    pthread_mutex_t lock; /* regions, why */
    struct region regions[CUDA_REGIONS_MAX];
    size_t region_count;
    uint32_t *fault;               /* on the device: enum k_fault of wrong data */
    volatile uint32_t *fault_seen; /* pinned: what it was when last fetched */
    char why[LIMIT_REASON];
    bool broken; /* why is the first sticky error */
};

struct kernel {
    struct op_spec spec;
    /* NULL: the kernel has no cache. */
    enum status (*refresh)(struct backend *backend, struct kernel *kernel,
                           const float *const param[OP_PARAM_MAX], void *cache,
                           cudaStream_t stream);
    void (*release)(struct kernel *kernel); /* all but the struct itself; may be NULL */
};

/* Makes the device the calling thread's; by each entry. */
MUST_CHECK enum status cuda_enter(struct backend *backend);

static inline cudaStream_t cuda_stream(const struct stream *stream)
{
    return stream == NULL ? NULL : stream->handle;
}

static inline size_t cuda_align(size_t bytes)
{
    return (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
}

/* The first aligned byte of a scratch region that was asked for with CUDA_ALIGN to spare. */
static inline char *cuda_scratch(void *scratch)
{
    const uintptr_t over = (uintptr_t)scratch % CUDA_ALIGN;
    return (char *)scratch + (over == 0 ? 0 : CUDA_ALIGN - over);
}

/* Windows of a convolution or pool along one side of this many pixels; 0: none fits. */
static inline int64_t cuda_windows(int64_t pixels, const struct op_attr *attr)
{
    const int64_t room = pixels + 2 * (int64_t)attr->pad - attr->kernel;
    return room < 0 ? 0 : room / attr->stride + 1;
}

/*
 * The status of an error, with its text and `what` failed kept for backend->why.
 * ST_NO_MEMORY: the device or the host is full, nothing is lost; ST_INVALID: a capture was not
 * possible; ST_DEVICE: everything else, and the process must be replaced.
 */
MUST_CHECK enum status cuda_status(struct backend *backend, cudaError_t error, const char *what);
MUST_CHECK enum status cuda_lt_status(struct backend *backend, cublasStatus_t error,
                                      const char *what);
MUST_CHECK enum status cuda_dnn_status(struct backend *backend, cudnnStatus_t error,
                                       const char *what);
/* Passes on what a launch function returned, with its text kept. */
MUST_CHECK enum status cuda_launched(struct backend *backend, enum status st, const char *what);

/* Keeps a line for backend->why, and returns the status given. */
MUST_CHECK enum status cuda_refuse(struct backend *backend, enum status st, const char *why);

cudaDataType_t cuda_type(enum dtype dtype);   /* f32, bf16, f16 */
cudnnDataType_t cudnn_type(enum dtype dtype); /* the same */
enum dtype cuda_math_dtype(enum math math);   /* of a product's operands in memory */

/* Dtype is float32, bfloat16 or float16. */
bool cuda_dtype_is_floating(enum dtype dtype);

/* A tensor of 4 dims with the channels innermost, bytes filled in. */
struct tensor cuda_nhwc(enum dtype dtype, const int64_t dims[4]);

/* backend_cuda.c's helpers in other files. */
enum status cuda_alloc(struct backend *backend, size_t bytes, void **out);
void cuda_free(struct backend *backend, void *memory);
void cuda_memory_release(struct backend *backend); /* all that is left */
enum status cuda_alloc_host(struct backend *backend, size_t bytes, void **out);
void cuda_free_host(struct backend *backend, void *memory);
/* Wrong data (labels, tokens): kernels set bits, ops fetch the word behind them, and whoever waits
 * for a stream or an event sees it. ST_INVALID then, until the backend is closed. */
enum status cuda_faults_open(struct backend *backend);
enum status cuda_faults_fetch(struct backend *backend, cudaStream_t stream);
enum status cuda_faults_check(struct backend *backend);
enum status cuda_capture_begin(struct backend *backend, struct stream *stream);
enum status cuda_capture_end(struct backend *backend, struct stream *stream, int *out_graph);
enum status cuda_replay(struct backend *backend, int graph, struct stream *stream);
void cuda_graphs_release(struct backend *backend);
enum status cuda_pins(struct backend *backend, struct buf *out);
enum status cuda_reformat(struct backend *backend, const struct tensor *from, const void *in,
                          const struct tensor *to, void *out, struct stream *stream);
enum status cuda_sum(struct backend *backend, const struct tensor *tensor, const void *x,
                     const void *y, void *out, struct stream *stream);
enum status cuda_vector_add(struct backend *b, float *out, const float *x, const float *y, size_t n,
                            struct stream *s);
enum status cuda_vector_copy(struct backend *b, void *to, const void *from, size_t bytes,
                             struct stream *s);
enum status cuda_vector_fill(struct backend *b, float *out, float value, size_t n,
                             struct stream *s);
enum status cuda_vector_square_sums(struct backend *b, double *out, const float *x, size_t n,
                                    struct stream *s);
enum status cuda_vector_sgd(struct backend *b, float *param, float *momentum, const float *grad,
                            size_t n, const struct sgd_args *args, struct stream *s);
enum status cuda_vector_adamw(struct backend *b, float *param, float *m, float *v,
                              const float *grad, size_t n, const struct adamw_args *args,
                              struct stream *s);
void cuda_range_push(const char *name);
void cuda_range_pop(void);

/* Devices as the driver sees them; module.h. */
enum status cuda_device_count(int *out_count, char reason[LIMIT_REASON]);
enum status cuda_device(int ordinal, struct module_device *out, char reason[LIMIT_REASON]);

const struct backend_table *backend_cuda(void);

/* cuda_op_conv2d_prepare, …: the table's three functions of each op. */
#define CUDA_OP(upper, lower, in, params, stats)                                                   \
    enum status cuda_op_##lower##_prepare(struct backend *backend, const struct op_spec *spec,     \
                                          struct kernel **out_kernel,                              \
                                          struct kernel_info *out_info);                           \
    enum status cuda_op_##lower##_forward(struct backend *backend, struct kernel *kernel,          \
                                          const struct op_buffers *buffers, cudaStream_t stream);  \
    enum status cuda_op_##lower##_backward(struct backend *backend, struct kernel *kernel,         \
                                           const struct op_buffers *buffers, cudaStream_t stream);
OP_LIST(CUDA_OP)
#undef CUDA_OP
