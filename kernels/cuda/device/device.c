/*
 * Devices as the driver describes them, with a line for people where there is none.
 */
#include <stdio.h>

#include "kernels/cuda/device/cuda.h"

#define INSTEAD "or set `device: cpu`"

/* The driver's CUDA version; 0: there is no driver. */
static int driver_version(void)
{
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

static int runtime_version(void)
{
    int version = 0;
    return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : CUDART_VERSION;
}

enum status cuda_device_count(int *out_count, struct reason *reason)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    const int driver = driver_version(), runtime = runtime_version();
    if (error == cudaSuccess && count > 0) {
        *out_count = count;
        return ST_OK;
    }
    (void)cudaGetLastError();
    if (driver == 0) {
        reason_set(reason,
                   "device cuda: there is no NVIDIA driver here (libcuda.so.1): install one for "
                   "CUDA %d.%d or later, " INSTEAD,
                   runtime / 1000, runtime % 1000 / 10);
    } else if (error == cudaErrorInsufficientDriver) {
        reason_set(reason,
                   "device cuda: the NVIDIA driver is for CUDA %d.%d, %d.%d or later is needed: "
                   "update the driver, " INSTEAD,
                   driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    } else if (error == cudaSuccess || error == cudaErrorNoDevice) {
        reason_set(reason, "device cuda: the NVIDIA driver sees no GPU: see nvidia-smi and "
                           "CUDA_VISIBLE_DEVICES, " INSTEAD);
    } else {
        reason_set(reason,
                   "device cuda: the NVIDIA driver can't be used (%.200s): see nvidia-smi and "
                   "the kernel's log, " INSTEAD,
                   cudaGetErrorString(error));
    }
    return ST_NOT_FOUND;
}

enum status cuda_device(int ordinal, struct module_device *out, struct reason *reason)
{
    int count = 0;
    enum status st = cuda_device_count(&count, reason);
    if (st != ST_OK)
        return st;
    if (ordinal < 0 || ordinal >= count) {
        reason_set(reason,
                   "device cuda: GPU %d was asked for, but there are %d: use fewer workers per "
                   "node, see CUDA_VISIBLE_DEVICES, " INSTEAD,
                   ordinal, count);
        return ST_NOT_FOUND;
    }
    struct cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
    if (error == cudaSuccess)
        error = cudaSetDevice(ordinal);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        reason_set(reason,
                   "device cuda: GPU %d can't be used (%.200s): see nvidia-smi and the kernel's "
                   "log, " INSTEAD,
                   ordinal, cudaGetErrorString(error));
        return ST_NOT_FOUND;
    }
    struct module_device device = {
        .capability = properties.major * 10 + properties.minor,
        .processors = properties.multiProcessorCount,
        .driver = driver_version(),
        .runtime = runtime_version(),
        .memory_bytes = total_bytes,
        .free_bytes = free_bytes,
    };
    (void)snprintf(device.name, sizeof(device.name), "%.*s", (int)sizeof(device.name) - 1,
                   properties.name);
    *out = device;
    return ST_OK;
}
