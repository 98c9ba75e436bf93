/*
 * The CUDA backend: its table, opening and closing, streams and events.
 *
 * Denormals: our own kernels flush them to zero (-ftz=true); cuBLASLt and cuDNN do what they do.
 *            The pins say "flush".
 * Errors:    most CUDA errors are sticky: after one nothing can be trusted, and every later call
 *            fails, too. They are ST_DEVICE, and the process must be replaced.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device/cuda.h"

static enum status ask_shared_memory(struct backend *backend)
{
    int most = 0;
    enum status st = CUDA_STATUS(
        backend,
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, backend->ordinal),
        "cudaDeviceGetAttribute");
    backend->shared_max = (size_t)most;
    return st;
}

static enum status open_libraries(struct backend *backend, const char *stored)
{
    const bool known = stored != NULL && cuda_pins_same_libraries(stored);
    enum status st = choices_init(&backend->choices, known ? stored : NULL);
    if (st == ST_OK)
        st = CUDA_LT_STATUS(backend, cublasLtCreate(&backend->lt), "cublasLtCreate");
    if (st == ST_OK)
        st = CUDA_DNN_STATUS(backend, cudnnCreate(&backend->cudnn), "cudnnCreate");
    return st;
}

static void cuda_close(struct backend *backend)
{
    if (backend == NULL)
        return;
    (void)cudaSetDevice(backend->ordinal);
    cuda_graphs_release(backend);
    cuda_memory_release(backend);
    if (backend->cudnn != NULL)
        (void)cudnnDestroy(backend->cudnn);
    if (backend->lt != NULL)
        (void)cublasLtDestroy(backend->lt);
    choices_release(&backend->choices);
    (void)pthread_mutex_destroy(&backend->lock);
    free(backend);
}

/* A variable of the environment that is set, and to something else than 0. */
static bool is_switched_on(const char *variable)
{
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0' && strcmp(value, "0") != 0;
}

static enum status cuda_open(const struct backend_options *options, struct backend **out)
{
    struct reason reason;
    struct module_device device;
    enum status st = cuda_device(options->ordinal, &device, &reason);
    if (st != ST_OK)
        return st;
    if (device.capability < MODULE_CAPABILITY_MIN)
        return ST_REFUSED;
    struct backend *backend = calloc(1, sizeof(*backend));
    if (backend == NULL)
        return ST_NO_MEMORY;
    backend->ordinal = options->ordinal;
    backend->managed = options->managed;
    backend->device = device;
    backend->waits = is_switched_on("CAIRN_CUDA_SYNC");
    backend->legacy = is_switched_on("CAIRN_CUDNN_LEGACY");
    backend->eager = backend->waits || is_switched_on("CAIRN_CUDA_EAGER");
    if (pthread_mutex_init(&backend->lock, NULL) != 0) {
        free(backend);
        return ST_NO_MEMORY;
    }
    st = cuda_enter(backend);
    if (st == ST_OK) {
        cuda_driver_open(&backend->driver, backend->ordinal);
        st = ask_shared_memory(backend);
    }
    if (st == ST_OK)
        st = open_libraries(backend, options->choices);
    if (st == ST_OK)
        st = cuda_faults_open(backend);
    if (st != ST_OK) {
        cuda_close(backend);
        return st;
    }
    *out = backend;
    return ST_OK;
}

static enum status cuda_stream_new(struct backend *backend, struct stream **out)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    struct stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return ST_NO_MEMORY;
    st = CUDA_STATUS(backend, cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking),
                     "cudaStreamCreate");
    if (st != ST_OK) {
        free(stream);
        return st;
    }
    *out = stream;
    return ST_OK;
}

static void cuda_stream_free(struct backend *backend, struct stream *stream)
{
    if (stream == NULL)
        return;
    (void)cudaSetDevice(backend->ordinal); /* if the device is lost, the process's end frees all */
    (void)cudaStreamDestroy(stream->handle);
    free(stream);
}

static enum status cuda_event_new(struct backend *backend, bool timed, struct event **out)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    struct event *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return ST_NO_MEMORY;
    const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
    st = CUDA_STATUS(backend, cudaEventCreateWithFlags(&event->handle, flags), "cudaEventCreate");
    if (st != ST_OK) {
        free(event);
        return st;
    }
    *out = event;
    return ST_OK;
}

static void cuda_event_free(struct backend *backend, struct event *event)
{
    if (event == NULL)
        return;
    (void)cudaSetDevice(backend->ordinal);
    (void)cudaEventDestroy(event->handle);
    free(event);
}

static enum status cuda_event_record(struct backend *backend, struct event *e,
                                     struct stream *stream)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    return CUDA_STATUS(backend, cudaEventRecord(e->handle, cuda_stream(stream)), "cudaEventRecord");
}

static enum status cuda_event_wait(struct backend *backend, struct event *e, struct stream *stream)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    return CUDA_STATUS(backend, cudaStreamWaitEvent(cuda_stream(stream), e->handle, 0),
                       "cudaStreamWaitEvent");
}

static enum status cuda_event_query(struct backend *backend, struct event *e)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    const cudaError_t error = cudaEventQuery(e->handle);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* it is no error */
        return ST_AGAIN;
    }
    st = CUDA_STATUS(backend, error, "cudaEventQuery");
    return st == ST_OK ? cuda_faults_check(backend) : st;
}

static enum status cuda_event_elapsed(struct backend *backend, struct event *begin,
                                      struct event *end, int64_t *out_us)
{
    float ms = 0;
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    const cudaError_t error = cudaEventElapsedTime(&ms, begin->handle, end->handle);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* it is no error */
        return ST_AGAIN;
    }
    *out_us = (int64_t)(1e3 * (double)ms);
    return CUDA_STATUS(backend, error, "cudaEventElapsedTime");
}

static enum status cuda_stream_sync(struct backend *backend, struct stream *stream)
{
    enum status st = cuda_enter(backend);
    if (st == ST_OK) {
        st = CUDA_STATUS(backend, cudaStreamSynchronize(cuda_stream(stream)),
                         "cudaStreamSynchronize");
    }
    return st == ST_OK ? cuda_faults_check(backend) : st;
}

static void *cuda_stream_native(struct stream *stream)
{
    return cuda_stream(stream);
}

static enum status cuda_refresh(struct backend *backend, struct kernel *kernel,
                                const float *const param[OP_PARAM_MAX], void *cache,
                                struct stream *stream)
{
    if (kernel->refresh == NULL)
        return ST_OK;
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    cuda_range_push("refresh");
    st = kernel->refresh(backend, kernel, param, cache, cuda_stream(stream));
    cuda_range_pop();
    return st;
}

static void cuda_kernel_free(struct backend *backend, struct kernel *kernel)
{
    (void)backend; /* descriptors are host memory */
    if (kernel == NULL)
        return;
    if (kernel->release != NULL)
        kernel->release(kernel);
    free(kernel);
}

static const char *cuda_why(const struct backend *backend)
{
    return backend->why.text;
}

/* --- ops ------------------------------------------------------------------------------------ */

/* The three functions of each op. What is the same for all comes around them: the device is made
 * the thread's, and profilers see a range. */
static const struct {
    const char *forward_name, *backward_name;
    enum status (*prepare)(struct backend *backend, const struct op_spec *spec,
                           struct kernel **out_kernel, struct kernel_info *out_info);
    enum status (*forward)(struct backend *backend, struct kernel *kernel,
                           const struct op_buffers *buffers, cudaStream_t stream);
    enum status (*backward)(struct backend *backend, struct kernel *kernel,
                            const struct op_buffers *buffers, cudaStream_t stream);
} ops[OP_COUNT] = {
#define OP_PARTS(upper, lower, in, params, stats)                                                  \
    [OP_##upper] = { #lower, #lower " gradient", cuda_op_##lower##_prepare,                        \
                     cuda_op_##lower##_forward, cuda_op_##lower##_backward },
    OP_LIST(OP_PARTS)
#undef OP_PARTS
};

static enum status op_prepare(struct backend *backend, const struct op_spec *spec,
                              struct kernel **out_kernel, struct kernel_info *out_info)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    if (spec->op >= OP_COUNT)
        return ST_INVALID;
    return ops[spec->op].prepare(backend, spec, out_kernel, out_info);
}

static enum status op_forward(struct backend *backend, struct kernel *kernel,
                              const struct op_buffers *buffers, struct stream *stream)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    cuda_range_push(ops[kernel->spec.op].forward_name);
    st = ops[kernel->spec.op].forward(backend, kernel, buffers, cuda_stream(stream));
    cuda_range_pop();
    return st;
}

static enum status op_backward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers, struct stream *stream)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    cuda_range_push(ops[kernel->spec.op].backward_name);
    st = ops[kernel->spec.op].backward(backend, kernel, buffers, cuda_stream(stream));
    cuda_range_pop();
    return st;
}

#define OP_ROW(upper, lower, in, params, stats)                                                    \
    [OP_##upper] = { op_prepare, op_forward, op_backward },

const struct backend_table *backend_cuda(void)
{
    static const struct backend_table table = {
        .name = "cuda",
        .open = cuda_open,
        .close = cuda_close,
        .alloc = cuda_alloc,
        .alloc_parts = cuda_alloc_parts,
        .free = cuda_free,
        .free_parts = cuda_free_parts,
        .alloc_host = cuda_alloc_host,
        .free_host = cuda_free_host,
        .stream_new = cuda_stream_new,
        .stream_free = cuda_stream_free,
        .event_new = cuda_event_new,
        .event_free = cuda_event_free,
        .event_record = cuda_event_record,
        .event_wait = cuda_event_wait,
        .event_query = cuda_event_query,
        .event_elapsed = cuda_event_elapsed,
        .stream_sync = cuda_stream_sync,
        .stream_native = cuda_stream_native,
        .capture_begin = cuda_capture_begin,
        .capture_end = cuda_capture_end,
        .replay = cuda_replay,
        .op = { OP_LIST(OP_ROW) },
        .refresh = cuda_refresh,
        .reformat = cuda_reformat,
        .sum = cuda_sum,
        .kernel_free = cuda_kernel_free,
        .vector = {
            .add = cuda_vector_add,
            .copy = cuda_vector_copy,
            .fill = cuda_vector_fill,
            .square_sums = cuda_vector_square_sums,
            .checksums = cuda_vector_checksums,
            .sgd = cuda_vector_sgd,
            .adamw = cuda_vector_adamw,
            .lion = cuda_vector_lion,
            .lamb = cuda_vector_lamb,
        },
        .pins = cuda_pins,
        .why = cuda_why,
        .range_push = cuda_range_push,
        .range_pop = cuda_range_pop,
    };
    return &table;
}
