/*
 * Errors of CUDA, cuBLASLt and cuDNN as statuses, and the line for a person that goes with them.
 */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "kernels/cuda/device/cuda.h"

/* Keeps the first sticky error: what comes after it is an echo. */
static void errors_keep(struct backend *backend, bool sticky, const char *what, const char *text)
{
    CHECK(pthread_mutex_lock(&backend->lock) == 0);
    if (!backend->broken) {
        reason_set(&backend->why, "GPU %d: %s: %s", backend->ordinal, what, text);
        backend->broken = sticky;
    }
    CHECK(pthread_mutex_unlock(&backend->lock) == 0);
}

enum status cuda_status(struct backend *backend, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return ST_OK;
    enum status st = ST_DEVICE;
    if (error == cudaErrorMemoryAllocation) {
        st = ST_NO_MEMORY;
    } else if ((error >= cudaErrorStreamCaptureUnsupported &&
                error <= cudaErrorStreamCaptureWrongThread) ||
               error == cudaErrorGraphExecUpdateFailure) {
        st = ST_INVALID;
    }
    if (st != ST_DEVICE)
        (void)cudaGetLastError(); /* not sticky: cleared for the next call */
    errors_keep(backend, st == ST_DEVICE, what, cudaGetErrorString(error));
    return st;
}

enum status cuda_lt_status(struct backend *backend, cublasStatus_t error, const char *what)
{
    if (error == CUBLAS_STATUS_SUCCESS)
        return ST_OK;
    const bool memory = error == CUBLAS_STATUS_ALLOC_FAILED;
    const bool refused =
        error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE;
    errors_keep(backend, !memory && !refused, what, cublasLtGetStatusString(error));
    if (refused)
        return ST_INVALID;
    return memory ? ST_NO_MEMORY : ST_DEVICE;
}

static bool dnn_refuses(cudnnStatus_t error)
{
    const int code = (int)error;
    return code >= (int)CUDNN_STATUS_BAD_PARAM && code < (int)CUDNN_STATUS_INTERNAL_ERROR;
}

enum status cuda_dnn_status(struct backend *backend, cudnnStatus_t error, const char *what)
{
    if (error == CUDNN_STATUS_SUCCESS)
        return ST_OK;
    const bool memory = error == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                        error == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    errors_keep(backend, !memory && !dnn_refuses(error), what, cudnnGetErrorString(error));
    if (dnn_refuses(error))
        return ST_INVALID;
    return memory ? ST_NO_MEMORY : ST_DEVICE;
}

enum status cuda_launched(struct backend *backend, enum status st, const char *what)
{
    if (st == ST_OK)
        return ST_OK;
    /* The launch's own text, where there is one. */
    if (st == ST_DEVICE && cuda_status(backend, cudaGetLastError(), what) != ST_OK)
        return ST_DEVICE;
    return cuda_refuse(backend, st, what);
}

enum status cuda_refuse(struct backend *backend, enum status st, const char *why)
{
    errors_keep(backend, st == ST_DEVICE, why, status_string(st));
    return st;
}

enum status cuda_enter(struct backend *backend)
{
    return cuda_status(backend, cudaSetDevice(backend->ordinal), "cudaSetDevice");
}
