/*
 * The runtime's memory and devices.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/gpu/fake/runtime.h"

/* --- memory --------------------------------------------------------------------------------- */

/* Filled with a pattern: who needs zeros must write them. Aligned to 256 and to no more. */
static cudaError_t take(void **out, size_t size, bool pinned)
{
    if (size > fake.memory || (!pinned && fake.used > fake.memory - size))
        return runtime_leave(cudaErrorMemoryAllocation);
    char *base = static_cast<char *>(malloc(size + 1024));
    if (base == nullptr)
        return runtime_leave(cudaErrorMemoryAllocation);
    char *memory = base + 512 - (uintptr_t)base % 512 + 256;
    memset(memory, 0xa5, size);
    fake.regions[memory] = { base, size, pinned };
    (pinned ? fake.pinned : fake.used) += size;
    *out = memory;
    return cudaSuccess;
}

/* The region that an address lies in; NULL: memory of the host. */
static const struct region *region_of(const void *address)
{
    auto after = fake.regions.upper_bound(static_cast<const char *>(address));
    if (after == fake.regions.begin())
        return nullptr;
    --after;
    const size_t offset = (size_t)(static_cast<const char *>(address) - after->first);
    return offset < after->second.size ? &after->second : nullptr;
}

/* All work is done before memory goes. */
static cudaError_t give_back(void *memory, bool pinned)
{
    if (memory == nullptr)
        return cudaSuccess;
    const auto region = fake.regions.find(static_cast<char *>(memory));
    if (region == fake.regions.end() || region->second.pinned != pinned ||
        region->second.base == nullptr)
        return runtime_leave(cudaErrorInvalidValue);
    for (CUstream_st *stream : fake.streams)
        drain(stream);
    (pinned ? fake.pinned : fake.used) -= region->second.size;
    free(region->second.base);
    fake.regions.erase(region);
    return cudaSuccess;
}

void forget_memory()
{
    for (const auto &entry : fake.regions)
        free(entry.second.base);
    fake.regions.clear();
    forget_parts();
    fake.used = fake.pinned = 0;
}

/* In thread-local mode a capture forbids its thread to allocate; the step thread alone captures. */
static bool somebody_captures()
{
    for (CUstream_st *stream : fake.streams) {
        if (stream->capturing && stream->thread == std::this_thread::get_id())
            return spoils(stream);
    }
    return false;
}

static cudaError_t allocate(const char *function, void **out, size_t size, bool pinned)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter(function);
    if (error != cudaSuccess)
        return error;
    if (somebody_captures())
        return runtime_leave(cudaErrorStreamCaptureUnsupported);
    return take(out, size, pinned);
}

cudaError_t cudaMalloc(void **out, size_t size)
{
    return allocate("cudaMalloc", out, size, false);
}

cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags)
{
    (void)flags;
    return allocate("cudaMallocManaged", out, size, false);
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    (void)flags;
    return allocate("cudaHostAlloc", out, size, true);
}

cudaError_t cudaFree(void *memory)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaFree");
    const cudaError_t freed = give_back(memory, false);
    return error != cudaSuccess ? error : freed;
}

cudaError_t cudaFreeHost(void *memory)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaFreeHost");
    const cudaError_t freed = give_back(memory, true);
    return error != cudaSuccess ? error : freed;
}

static cudaError_t set_memory(const char *function, void *to, int value, size_t size,
                              cudaStream_t handle)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter(function);
    if (error != cudaSuccess)
        return error;
    const struct region *region = region_of(to);
    if (region == nullptr || region->pinned)
        return runtime_leave(cudaErrorInvalidValue);
    fake_enqueue(handle, [=] { memset(to, value, size); });
    return cudaSuccess;
}

/* On the legacy stream, which waits for none of the others: all of them are non-blocking. */
cudaError_t cudaMemset(void *to, int value, size_t size)
{
    return set_memory("cudaMemset", to, value, size, nullptr);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t handle)
{
    return set_memory("cudaMemsetAsync", to, value, size, handle);
}

/* Memory that is neither the device's nor pinned is read or written before the call returns. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t handle)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaMemcpyAsync");
    if (error != cudaSuccess)
        return error;
    CUstream_st *stream = stream_of(handle);
    const struct region *source = region_of(from), *target = region_of(to);
    if ((source == nullptr || target == nullptr) && spoils(stream))
        return runtime_leave(cudaErrorStreamCaptureUnsupported);
    if ((kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyHostToDevice) &&
        (target == nullptr || target->pinned))
        return runtime_leave(cudaErrorInvalidValue);
    if ((kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDeviceToHost) &&
        (source == nullptr || source->pinned))
        return runtime_leave(cudaErrorInvalidValue);
    if (source == nullptr) {
        const char *bytes = static_cast<const char *>(from);
        const std::vector<char> staged(bytes, bytes + size);
        fake_enqueue(stream, [=] { memcpy(to, staged.data(), size); });
    } else {
        fake_enqueue(stream, [=] { memmove(to, from, size); });
    }
    if (target == nullptr)
        drain(stream);
    return cudaSuccess;
}

/* --- devices -------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *out)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaGetDeviceCount");
    if (error != cudaSuccess)
        return error;
    if (fake.count_error != cudaSuccess)
        return runtime_leave(fake.count_error);
    *out = fake.devices;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaGetDeviceProperties");
    if (error != cudaSuccess)
        return error;
    if (ordinal < 0 || ordinal >= fake.devices)
        return runtime_leave(cudaErrorInvalidDevice);
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "Fake \"GPU\"");
    out->major = fake.capability / 10;
    out->minor = fake.capability % 10;
    out->multiProcessorCount = 132;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaSetDevice");
    if (error != cudaSuccess)
        return error;
    return ordinal < 0 || ordinal >= fake.devices ? runtime_leave(cudaErrorInvalidDevice)
                                                  : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_total)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaMemGetInfo");
    if (error != cudaSuccess)
        return error;
    *out_free = fake.memory - fake.used;
    *out_total = fake.memory;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *out)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaDriverGetVersion");
    *out = fake.driver;
    return error;
}

cudaError_t cudaRuntimeGetVersion(int *out)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaRuntimeGetVersion");
    *out = CUDART_VERSION;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    const held lock(fake.lock);
    const cudaError_t error = fake.last;
    fake.last = fake.sticky;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    const held lock(fake.lock);
    return fake.last;
}

/* What a block may have, if it asks: by NVIDIA's table of compute capabilities. */
static int shared_bytes(int capability)
{
    if (capability >= 90)
        return 227 * 1024;
    return (capability == 80 ? 163 : 99) * 1024;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int ordinal)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaDeviceGetAttribute");
    if (error != cudaSuccess)
        return error;
    if (ordinal < 0 || ordinal >= fake.devices)
        return runtime_leave(cudaErrorInvalidDevice);
    if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin)
        return runtime_leave(cudaErrorInvalidValue);
    *out = shared_bytes(fake.capability);
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorInvalidDeviceFunction:
        return "invalid device function";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    default:
        return "another error";
    }
}
