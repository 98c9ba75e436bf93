/*
 * Device and pinned memory, and the word of faults.
 *
 * A region is aligned to 4096 bytes by us, not by the driver: 4096 bytes more are taken than asked
 * for, and the backend remembers what to give back. There are few regions at a time, at most
 * CUDA_REGIONS_MAX.
 *
 * One of which only parts are needed takes memory for those (parts.h). A managed one is taken
 * whole, since its pages come when they are touched; so is any where the device can't map parts.
 */
#include <string.h>

#include "common/check.h"
#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

#define PAGE      ((size_t)4096)
#define FEW_WORDS ((size_t)4096) /* bytes that a kernel stores in the host's memory */

static cudaError_t region_take(const struct backend *backend, bool pinned, size_t size, void **base)
{
    if (pinned)
        return cudaHostAlloc(base, size, cudaHostAllocPortable);
    if (backend->managed)
        return cudaMallocManaged(base, size, cudaMemAttachGlobal);
    return cudaMalloc(base, size);
}

static void region_give_back(struct backend *backend, struct cuda_region *region)
{
    if (region->base == NULL) {
        cuda_parts_give_back(&backend->driver, &region->parts);
    } else if (region->pinned) {
        (void)cudaFreeHost(region->base);
    } else {
        (void)cudaFree(region->base);
    }
}

static bool region_add(struct backend *backend, const struct cuda_region *region)
{
    CHECK(pthread_mutex_lock(&backend->lock) == 0);
    const bool room = backend->region_count < CUDA_REGIONS_MAX;
    if (room)
        backend->regions[backend->region_count++] = *region;
    CHECK(pthread_mutex_unlock(&backend->lock) == 0);
    return room;
}

/* Forgets a region and returns it. memory is NULL: it was not one of ours. */
static struct cuda_region region_remove(struct backend *backend, const void *memory)
{
    struct cuda_region region = { 0 };
    CHECK(pthread_mutex_lock(&backend->lock) == 0);
    for (size_t i = 0; i < backend->region_count && region.memory == NULL; i++) {
        if (backend->regions[i].memory == memory) {
            region = backend->regions[i];
            backend->regions[i] = backend->regions[--backend->region_count];
        }
    }
    CHECK(pthread_mutex_unlock(&backend->lock) == 0);
    return region;
}

/* Whether [memory, memory + bytes) lies in a region of that kind. */
static bool region_holds(struct backend *backend, const void *memory, size_t bytes, bool pinned)
{
    bool found = false;
    CHECK(pthread_mutex_lock(&backend->lock) == 0);
    for (size_t i = 0; i < backend->region_count && !found; i++) {
        const struct cuda_region *region = &backend->regions[i];
        const uintptr_t at = (uintptr_t)memory - (uintptr_t)region->memory;
        found = region->pinned == pinned && at < region->bytes && bytes <= region->bytes - at;
    }
    CHECK(pthread_mutex_unlock(&backend->lock) == 0);
    return found;
}

/* Zeroes the parts, which also makes their pages. Waits: the caller may use them on any stream. */
static enum status region_clear(struct backend *backend, const struct cuda_region *region,
                                const struct memory_part *parts, size_t count)
{
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < count; i++) {
        char *at = (char *)region->memory + parts[i].first;
        if (region->pinned) {
            memset(at, 0, parts[i].bytes);
        } else if (parts[i].bytes > 0) {
            st = CUDA_STATUS(backend, cudaMemset(at, 0, parts[i].bytes), "cudaMemset");
        }
    }
    if (st != ST_OK || region->pinned)
        return st;
    return CUDA_STATUS(backend, cudaStreamSynchronize(NULL), "cudaStreamSynchronize");
}

/* Takes the region over: remembered with its parts zeroed, or given back. */
static enum status region_finish(struct backend *backend, struct cuda_region *region,
                                 const struct memory_part *parts, size_t count, void **out)
{
    enum status st = region_clear(backend, region, parts, count);
    if (st == ST_OK && !region_add(backend, region))
        st = cuda_refuse(backend, ST_NO_MEMORY, "too many regions of memory");
    if (st != ST_OK) {
        region_give_back(backend, region);
        return st;
    }
    *out = region->memory;
    return ST_OK;
}

/* Allocates memory for all bytes, and zeroes the parts. */
static enum status alloc_whole(struct backend *backend, bool pinned, size_t bytes,
                               const struct memory_part *parts, size_t count, void **out)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    if (bytes > SIZE_MAX - 2 * PAGE)
        return ST_NO_MEMORY;
    const size_t size = bytes == 0 ? PAGE : bytes;
    struct cuda_region region = { .bytes = size, .pinned = pinned };
    st = CUDA_STATUS(backend, region_take(backend, pinned, size + PAGE, &region.base),
                     pinned ? "pinned memory" : "device memory");
    if (st != ST_OK)
        return st;
    const size_t over = (uintptr_t)region.base % PAGE;
    region.memory = (char *)region.base + (over == 0 ? 0 : PAGE - over);
    return region_finish(backend, &region, parts, count, out);
}

void cuda_free(struct backend *backend, void *memory)
{
    if (memory == NULL)
        return;
    struct cuda_region region = region_remove(backend, memory);
    CHECK(region.memory != NULL);
    (void)cudaSetDevice(backend->ordinal);
    region_give_back(backend, &region);
}

void cuda_memory_release(struct backend *backend)
{
    while (backend->region_count > 0)
        cuda_free(backend, backend->regions[0].memory);
}

enum status cuda_alloc(struct backend *backend, size_t bytes, void **out)
{
    const struct memory_part all = { 0, bytes };
    return alloc_whole(backend, false, bytes, &all, 1, out);
}

enum status cuda_alloc_parts(struct backend *backend, size_t bytes, const struct memory_part *parts,
                             size_t count, void **out)
{
    if (backend->managed || backend->driver.granularity == 0)
        return alloc_whole(backend, false, bytes, parts, count, out);
    struct cuda_region region = { .bytes = bytes, .pinned = false };
    const char *what = NULL;
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    const CUresult error =
        cuda_parts_take(&backend->driver, bytes, parts, count, &region.parts, &what);
    st = CUDA_STATUS(backend, (cudaError_t)error, what); /* the runtime has the driver's numbers */
    if (st != ST_OK)
        return st;
    memcpy(&region.memory, &region.parts.address, sizeof(region.memory)); /* as an address */
    return region_finish(backend, &region, region.parts.mapped, region.parts.count, out);
}

void cuda_free_parts(struct backend *backend, void *memory, size_t bytes)
{
    (void)bytes;
    cuda_free(backend, memory); /* a region knows how it was taken */
}

enum status cuda_alloc_host(struct backend *backend, size_t bytes, void **out)
{
    const struct memory_part all = { 0, bytes };
    return alloc_whole(backend, true, bytes, &all, 1, out);
}

void cuda_free_host(struct backend *backend, void *memory)
{
    cuda_free(backend, memory);
}

static bool is_few_words(struct backend *backend, void *to, const void *from, size_t bytes)
{
    return bytes <= FEW_WORDS &&
           ((uintptr_t)to | (uintptr_t)from | bytes) % sizeof(uint32_t) == 0 &&
           region_holds(backend, to, bytes, true) && region_holds(backend, from, bytes, false);
}

enum status cuda_copy(struct backend *backend, void *to, const void *from, size_t bytes,
                      cudaStream_t stream)
{
    if (is_few_words(backend, to, from, bytes)) {
        return CUDA_LAUNCHED(backend, k_vector_words(to, from, bytes / sizeof(uint32_t), stream),
                             "words");
    }
    return CUDA_STATUS(backend, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream),
                       "cudaMemcpyAsync");
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
    return cuda_copy(backend, (void *)backend->fault_seen, backend->fault, sizeof(uint32_t),
                     stream);
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
