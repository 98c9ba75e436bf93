/*
 * Inside the CUDA backend, host side: the open device, its errors, and what its kernels (struct
 * kernel, one per op and shape) have in common.
 *
 * An op's file (kernels/cuda/ops) defines a struct of its own with `struct kernel base` first,
 * unless its kernel keeps nothing but the spec. It launches
 *
 *   our own device code   through kernels/cuda/own/k.h and kernels/cuda/attention/attention.h
 *   products              through kernels/cuda/library/product.h (cuBLASLt)
 *   convolutions          through kernels/cuda/library/conv.h (cuDNN)
 *
 * Thread: computing is the step thread's (cuDNN's handle belongs to it). Other threads may copy,
 *         record and wait, on streams of their own.
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
#include "kernels/cuda/device/parts.h"
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

/* memory: what alloc gave, aligned to 4096 bytes; base: what the driver gave, NULL for parts. */
struct cuda_region {
    void *memory, *base;
    size_t bytes; /* of memory */
    bool pinned;
    struct cuda_parts parts;
};

struct backend {
    int ordinal;
    bool managed;
    struct module_device device;
    size_t shared_max; /* bytes of shared memory that a block may have */
    struct cuda_driver driver;
    cublasLtHandle_t lt;
    cudnnHandle_t cudnn;
    struct choices choices; /* of algorithms */
    cudaGraphExec_t graphs[CUDA_GRAPHS_MAX];
    int graph_count;
    pthread_mutex_t lock; /* of regions, why and broken */
    struct cuda_region regions[CUDA_REGIONS_MAX];
    size_t region_count;
    uint32_t *fault;               /* on the device: bits of enum k_fault */
    volatile uint32_t *fault_seen; /* on the host, pinned: the same when last fetched */
    struct reason why;
    bool broken;       /* why has the first sticky error, and stays */
    bool eager, waits; /* CAIRN_CUDA_EAGER, CAIRN_CUDA_SYNC: docs/gpu.md */
    bool legacy;       /* CAIRN_CUDNN_LEGACY */
    bool capturing;    /* the step thread's */
};

struct kernel {
    struct op_spec spec;
    /* NULL: the kernel has no cache. */
    enum status (*refresh)(struct backend *backend, struct kernel *kernel,
                           const float *const param[OP_PARAM_MAX], void *cache,
                           cudaStream_t stream);
    /* Frees what the struct owns, but not the struct. NULL: it owns nothing. */
    void (*release)(struct kernel *kernel);
};

/* Makes a kernel that keeps nothing but its spec. NULL: no memory. */
struct kernel *cuda_kernel_new(const struct op_spec *spec);

/* Makes the device the calling thread's. Every function of the table begins with it. */
MUST_CHECK enum status cuda_enter(struct backend *backend);

static inline cudaStream_t cuda_stream(const struct stream *stream)
{
    return stream == NULL ? NULL : stream->handle;
}

static inline size_t cuda_align(size_t bytes)
{
    return (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
}

/* The first aligned byte of scratch whose size was given with CUDA_ALIGN to spare. */
static inline char *cuda_scratch(void *scratch)
{
    const uintptr_t over = (uintptr_t)scratch % CUDA_ALIGN;
    return (char *)scratch + (over == 0 ? 0 : CUDA_ALIGN - over);
}

/* The source's line, as text. */
#define CUDA_PLACE      __FILE_NAME__ ":" CUDA_TEXT(__LINE__)
#define CUDA_TEXT(x)    CUDA_TEXT_OF(x)
#define CUDA_TEXT_OF(x) #x

/*
 * A library's error as a status. Its text goes to backend->why, after `what`, which names the call,
 * and `place`, the line that made it.
 *
 * While a capture is on nothing runs, so what a library refuses then is the capture's fault: it is
 * ST_INVALID, and the same is run without one.
 *
 * Errors: ST_NO_MEMORY  the device or the host is full; nothing is lost
 *         ST_INVALID    a capture was not possible; of the libraries: the arguments are refused
 *         ST_DEVICE     everything else: the process must be replaced
 */
MUST_CHECK enum status cuda_status_at(struct backend *backend, cudaError_t error, const char *what,
                                      const char *place);
MUST_CHECK enum status cuda_lt_status_at(struct backend *backend, cublasStatus_t error,
                                         const char *what, const char *place);
MUST_CHECK enum status cuda_dnn_status_at(struct backend *backend, cudnnStatus_t error,
                                          const char *what, const char *place);
bool cuda_dnn_lacks_memory(cudnnStatus_t error); /* of the host or the device */
/*
 * Comes after each launch. st: of a k_ or attention function, or of a library's call. Where the
 * backend waits for each launch (CAIRN_CUDA_SYNC) it does so here.
 */
MUST_CHECK enum status cuda_launched_at(struct backend *backend, enum status st, const char *what,
                                        const char *place);

#define CUDA_STATUS(backend, error, what)     cuda_status_at(backend, error, what, CUDA_PLACE)
#define CUDA_LT_STATUS(backend, error, what)  cuda_lt_status_at(backend, error, what, CUDA_PLACE)
#define CUDA_DNN_STATUS(backend, error, what) cuda_dnn_status_at(backend, error, what, CUDA_PLACE)
#define CUDA_LAUNCHED(backend, st, what)      cuda_launched_at(backend, st, what, CUDA_PLACE)

/* Passes on a status of ours, with `why` for backend->why. */
MUST_CHECK enum status cuda_refuse(struct backend *backend, enum status st, const char *why);

/* float32, bfloat16 or float16. */
bool cuda_dtype_is_floating(enum dtype dtype);
/* A floating dtype as the libraries name it. */
cudaDataType_t cuda_type(enum dtype dtype);
cudnnDataType_t cudnn_type(enum dtype dtype);
/* The dtype of a product's operands in memory. */
enum dtype cuda_math_dtype(enum math math);
/* Returns the name of `math` in keys of choices: "f32", … */
const char *cuda_math_name(enum math math);

/* A tensor with the channels innermost, its bytes filled in. dims: N, C, H, W. */
struct tensor cuda_nhwc(enum dtype dtype, const int64_t dims[4]);

/* Functions of other files for the backend's table (kernels/cuda/backend_cuda.c). */
enum status cuda_alloc(struct backend *backend, size_t bytes, void **out);
enum status cuda_alloc_parts(struct backend *backend, size_t bytes, const struct memory_part *parts,
                             size_t count, void **out);
void cuda_free_parts(struct backend *backend, void *memory, size_t bytes);
void cuda_free(struct backend *backend, void *memory);
void cuda_memory_release(struct backend *backend); /* all that is left */
enum status cuda_alloc_host(struct backend *backend, size_t bytes, void **out);
void cuda_free_host(struct backend *backend, void *memory);
/*
 * A copy between memories, whichever they are. Few words from the device to pinned memory are
 * stored by a kernel: the device has one engine for copies to the host, and a snapshot of the state
 * keeps that for as long as it takes (1.5 GB: 27 ms on an H100), while the step would wait behind
 * it for its loss.
 */
enum status cuda_copy(struct backend *backend, void *to, const void *from, size_t bytes,
                      cudaStream_t stream);
/*
 * Wrong data (labels, tokens) is seen by the device first:
 *
 *   device code            sets bits of *fault
 *   cuda_faults_fetch      enqueues a copy of *fault to *fault_seen; the op does it after its
 *                          launch
 *   cuda_faults_check      after each wait for a stream or an event: ST_INVALID from then on,
 *                          until the backend is closed
 */
enum status cuda_faults_open(struct backend *backend);
enum status cuda_faults_fetch(struct backend *backend, cudaStream_t stream);
enum status cuda_faults_check(struct backend *backend);
enum status cuda_capture_begin(struct backend *backend, struct stream *stream);
enum status cuda_capture_end(struct backend *backend, struct stream *stream, int *out_graph);
enum status cuda_replay(struct backend *backend, int graph, struct stream *stream);
void cuda_graphs_release(struct backend *backend);
enum status cuda_pins(struct backend *backend, struct buf *out);
/* Whether pins are of the versions of cuBLASLt and cuDNN that are here: else what they say of
 * algorithms means nothing. */
bool cuda_pins_same_libraries(const char *stored);
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
enum status cuda_vector_square_sums(struct backend *b, double *out, const float *x,
                                    const uint64_t *begin, size_t n, struct stream *s);
enum status cuda_vector_checksums(struct backend *b, uint64_t *out, const float *x, size_t n,
                                  struct stream *s);
enum status cuda_vector_sgd(struct backend *b, float *param, float *momentum, const float *grad,
                            size_t n, const struct sgd_args *args, struct stream *s);
enum status cuda_vector_adamw(struct backend *b, float *param, float *m, float *v,
                              const float *grad, size_t n, const struct adamw_args *args,
                              struct stream *s);
enum status cuda_vector_lion(struct backend *b, float *param, float *m, const float *grad, size_t n,
                             const struct lion_args *args, struct stream *s);
enum status cuda_vector_lamb(struct backend *b, const float *param, float *m, float *v, float *grad,
                             size_t n, const struct adamw_args *args, struct stream *s);
void cuda_range_push(const char *name);
void cuda_range_pop(void);

/* Devices as the driver sees them (kernels/module.h). */
enum status cuda_device_count(int *out_count, struct reason *reason);
enum status cuda_device(int ordinal, struct module_device *out, struct reason *reason);

const struct backend_table *backend_cuda(void);

/* Each op's three functions: cuda_op_conv2d_prepare, cuda_op_conv2d_forward, … */
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
