/*
 * Device and pinned memory, copies, and the word of faults.
 *
 * A region's alignment is ours, not the driver's: each is 4096 bytes longer than asked for, and the
 * backend remembers what to give back. Few regions live at a time (CUDA_REGIONS_MAX).
 */
#include <string.h>

#include "common/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/k.h"

#define PAGE 4096u

enum where { ON_DEVICE, ON_HOST };

static cudaError_t take(const struct backend *backend, enum where where, size_t size, void **base)
{
    if (where == ON_HOST)
        return cudaHostAlloc(base, size, cudaHostAllocPortable);
    if (backend->managed)
        return cudaMallocManaged(base, size, cudaMemAttachGlobal);
    return cudaMalloc(base, size);
}

static void give_back(enum where where, void *base)
{
    if (where == ON_HOST)
        (void)cudaFreeHost(base);
    else
        (void)cudaFree(base);
}

static bool region_add(struct backend *backend, const struct region *region)
{
    CHECK(pthread_mutex_lock(&backend->lock) == 0);
    const bool room = backend->region_count < CUDA_REGIONS_MAX;
    if (room)
        backend->regions[backend->region_count++] = *region;
    CHECK(pthread_mutex_unlock(&backend->lock) == 0);
    return room;
}

/* The base of a region, which is forgotten; NULL: not ours. */
static void *region_remove(struct backend *backend, const void *memory)
{
    void *base = NULL;
    CHECK(pthread_mutex_lock(&backend->lock) == 0);
    for (size_t i = 0; i < backend->region_count && base == NULL; i++) {
        if (backend->regions[i].memory == memory) {
            base = backend->regions[i].base;
            backend->regions[i] = backend->regions[--backend->region_count];
        }
    }
    CHECK(pthread_mutex_unlock(&backend->lock) == 0);
    return base;
}

/* Zeroed and touched. The fill is waited for: the memory may be used on any stream. */
static enum status clear(struct backend *backend, enum where where, void *memory, size_t bytes)
{
    if (where == ON_HOST) {
        memset(memory, 0, bytes);
        return ST_OK;
    }
    enum status st = cuda_status(backend, cudaMemset(memory, 0, bytes), "cudaMemset");
    if (st == ST_OK)
        st = cuda_status(backend, cudaStreamSynchronize(NULL), "cudaStreamSynchronize");
    return st;
}

static enum status alloc_at(struct backend *backend, enum where where, size_t bytes, void **out)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    if (bytes > SIZE_MAX - 2 * PAGE)
        return ST_NO_MEMORY;
    const size_t size = bytes == 0 ? PAGE : bytes;
    struct region region = { 0 };
    st = cuda_status(backend, take(backend, where, size + PAGE, &region.base),
                     where == ON_HOST ? "pinned memory" : "device memory");
    if (st != ST_OK)
        return st;
    const size_t over = (size_t)((uintptr_t)region.base % PAGE);
    region.memory = (char *)region.base + (over == 0 ? 0 : PAGE - over);
    st = clear(backend, where, region.memory, size);
    if (st == ST_OK && !region_add(backend, &region))
        st = cuda_refuse(backend, ST_NO_MEMORY, "too many regions of memory");
    if (st != ST_OK) {
        give_back(where, region.base);
        return st;
    }
    *out = region.memory;
    return ST_OK;
}

static void free_at(struct backend *backend, enum where where, void *memory)
{
    if (memory == NULL)
        return;
    void *base = region_remove(backend, memory);
    CHECK(base != NULL);
    if (cuda_enter(backend) == ST_OK)
        give_back(where, base);
}

enum status cuda_alloc(struct backend *backend, size_t bytes, void **out)
{
    return alloc_at(backend, ON_DEVICE, bytes, out);
}

void cuda_free(struct backend *backend, void *memory)
{
    free_at(backend, ON_DEVICE, memory);
}

enum status cuda_alloc_host(struct backend *backend, size_t bytes, void **out)
{
    return alloc_at(backend, ON_HOST, bytes, out);
}

void cuda_free_host(struct backend *backend, void *memory)
{
    free_at(backend, ON_HOST, memory);
}

enum status cuda_faults_open(struct backend *backend)
{
    void *device = NULL, *host = NULL;
    enum status st = cuda_alloc(backend, sizeof(uint32_t), &device);
    if (st == ST_OK)
        st = cuda_alloc_host(backend, sizeof(uint32_t), &host);
    if (st != ST_OK) {
        cuda_free(backend, device);
        return st;
    }
    backend->fault = device;
    backend->fault_seen = host;
    return ST_OK;
}

enum status cuda_faults_fetch(struct backend *backend, cudaStream_t stream)
{
    return cuda_status(backend,
                       cudaMemcpyAsync((void *)(uintptr_t)backend->fault_seen, backend->fault,
                                       sizeof(uint32_t), cudaMemcpyDeviceToHost, stream),
                       "cudaMemcpyAsync");
}

enum status cuda_faults_check(struct backend *backend)
{
    const uint32_t faults = backend->fault_seen == NULL ? 0 : *backend->fault_seen;
    if ((faults & K_FAULT_TOKEN) != 0)
        return cuda_refuse(backend, ST_INVALID, "the data has a token outside the vocabulary");
    if ((faults & K_FAULT_LABEL) != 0)
        return cuda_refuse(backend, ST_INVALID, "the data has a label outside the classes");
    return ST_OK;
}
