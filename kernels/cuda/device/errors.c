/*
 * Errors of CUDA, cuBLASLt and cuDNN as statuses, and the line for a person that goes with them.
 */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "kernels/cuda/device/cuda.h"

/* Keeps the first sticky error: what comes after it is an echo. place: NULL for words of ours. */
static void errors_keep(struct backend *backend, bool sticky, const char *what, const char *place,
                        const char *text)
{
    CHECK(pthread_mutex_lock(&backend->lock) == 0);
    if (!backend->broken) {
        reason_set(&backend->why, place != NULL ? "GPU %d: %s: %s (%s)" : "GPU %d: %s: %s",
                   backend->ordinal, what, text, place);
        backend->broken = sticky;
    }
    CHECK(pthread_mutex_unlock(&backend->lock) == 0);
}

enum status cuda_status_at(struct backend *backend, cudaError_t error, const char *what,
                           const char *place)
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
    errors_keep(backend, st == ST_DEVICE, what, place, cudaGetErrorString(error));
    return st;
}

/* Keeps an error of a library and returns its status. refused: the library refused the
 * arguments. */
static enum status library_status(struct backend *backend, bool refused, bool memory,
                                  const char *what, const char *place, const char *text)
{
    refused = refused || (backend->capturing && !memory);
    errors_keep(backend, !memory && !refused, what, place, text);
    if (refused)
        return ST_INVALID;
    return memory ? ST_NO_MEMORY : ST_DEVICE;
}

enum status cuda_lt_status_at(struct backend *backend, cublasStatus_t error, const char *what,
                              const char *place)
{
    if (error == CUBLAS_STATUS_SUCCESS)
        return ST_OK;
    const bool refused =
        error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE;
    return library_status(backend, refused, error == CUBLAS_STATUS_ALLOC_FAILED, what, place,
                          cublasLtGetStatusString(error));
}

bool cuda_dnn_lacks_memory(cudnnStatus_t error)
{
    return error == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
           error == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

enum status cuda_dnn_status_at(struct backend *backend, cudnnStatus_t error, const char *what,
                               const char *place)
{
    if (error == CUDNN_STATUS_SUCCESS)
        return ST_OK;
    const int code = (int)error;
    const bool refused =
        code >= (int)CUDNN_STATUS_BAD_PARAM && code < (int)CUDNN_STATUS_INTERNAL_ERROR;
    return library_status(backend, refused, cuda_dnn_lacks_memory(error), what, place,
                          cudnnGetErrorString(error));
}

enum status cuda_launched_at(struct backend *backend, enum status st, const char *what,
                             const char *place)
{
    if (st == ST_OK && backend->waits)
        return cuda_status_at(backend, cudaDeviceSynchronize(), what, place);
    if (st != ST_DEVICE || backend->broken)
        return st;
    /* The launch's own error, which it left where it was. */
    const cudaError_t error = cudaPeekAtLastError();
    if (error != cudaSuccess)
        return cuda_status_at(backend, error, what, place);
    errors_keep(backend, true, what, place, status_string(st));
    return st;
}

enum status cuda_refuse(struct backend *backend, enum status st, const char *why)
{
    errors_keep(backend, st == ST_DEVICE, why, NULL, status_string(st));
    return st;
}

enum status cuda_enter(struct backend *backend)
{
    return CUDA_STATUS(backend, cudaSetDevice(backend->ordinal), "cudaSetDevice");
}
