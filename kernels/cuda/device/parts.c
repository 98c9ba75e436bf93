/* Device memory in parts. */
#include "kernels/cuda/device/parts.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

#define DRIVER_VERSION 10020 /* CUDA 10.2, where these functions are new */

/* ---- the driver ---- */

static const struct entry {
    const char *name;
    size_t at; /* in struct cuda_driver */
} entries[] = {
    { "cuDeviceGet", offsetof(struct cuda_driver, device_get) },
    { "cuDeviceGetAttribute", offsetof(struct cuda_driver, get_attribute) },
    { "cuMemGetAllocationGranularity", offsetof(struct cuda_driver, get_granularity) },
    { "cuMemAddressReserve", offsetof(struct cuda_driver, reserve) },
    { "cuMemAddressFree", offsetof(struct cuda_driver, address_free) },
    { "cuMemCreate", offsetof(struct cuda_driver, create) },
    { "cuMemRelease", offsetof(struct cuda_driver, release) },
    { "cuMemMap", offsetof(struct cuda_driver, map) },
    { "cuMemSetAccess", offsetof(struct cuda_driver, set_access) },
    { "cuMemUnmap", offsetof(struct cuda_driver, unmap) },
};

static bool find(struct cuda_driver *driver, const struct entry *entry)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(
        entry->name, &function, DRIVER_VERSION, cudaEnableDefault, &result);
    memcpy((char *)driver + entry->at, &function, sizeof(function));
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess && function != NULL;
}

void cuda_driver_open(struct cuda_driver *driver, int ordinal)
{
    CUdevice device = 0;
    int supported = 0;
    size_t granularity = 0;
    memset(driver, 0, sizeof(*driver));
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        if (!find(driver, &entries[i])) {
            (void)cudaGetLastError(); /* not sticky: the next call is not to see it */
            return;
        }
    }
    if (driver->device_get(&device, ordinal) != CUDA_SUCCESS ||
        driver->get_attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                              device) != CUDA_SUCCESS ||
        supported == 0)
        return;
    driver->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    driver->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    driver->properties.location.id = device;
    if (driver->get_granularity(&granularity, &driver->properties,
                                CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS)
        driver->granularity = granularity;
}

/* ---- parts ---- */

static size_t round_up(size_t bytes, size_t granule)
{
    return (bytes + granule - 1) / granule * granule;
}

/* The granules of the parts. out: [count] */
static size_t merge(size_t granule, const struct memory_part *parts, size_t count,
                    struct memory_part *out)
{
    size_t merged = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t first = parts[i].first / granule * granule;
        const size_t end = round_up(parts[i].first + parts[i].bytes, granule);
        struct memory_part *last = merged > 0 ? &out[merged - 1] : NULL;
        if (parts[i].bytes == 0)
            continue;
        if (last == NULL || first > last->first + last->bytes) {
            out[merged++] = (struct memory_part){ first, end - first };
        } else if (end > last->first + last->bytes) {
            last->bytes = end - last->first;
        }
    }
    return merged;
}

/* The mapping alone holds the memory: unmapping frees it. */
static CUresult map_part(const struct cuda_driver *driver, CUdeviceptr at, size_t bytes,
                         const char **out_what)
{
    const CUmemAccessDesc access = { .location = driver->properties.location,
                                     .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemGenericAllocationHandle handle = 0;
    *out_what = "device memory";
    CUresult error = driver->create(&handle, bytes, &driver->properties, 0);
    if (error != CUDA_SUCCESS)
        return error;
    *out_what = "cuMemMap";
    error = driver->map(at, bytes, 0, handle, 0);
    (void)driver->release(handle);
    if (error != CUDA_SUCCESS)
        return error;
    *out_what = "cuMemSetAccess";
    error = driver->set_access(at, bytes, &access, 1);
    if (error != CUDA_SUCCESS)
        (void)driver->unmap(at, bytes);
    return error;
}

CUresult cuda_parts_take(const struct cuda_driver *driver, size_t bytes,
                         const struct memory_part *parts, size_t count, struct cuda_parts *out,
                         const char **out_what)
{
    const size_t granule = driver->granularity;
    *out_what = "addresses of device memory";
    if (bytes > SIZE_MAX - granule)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        CHECK(parts[i].first <= bytes && parts[i].bytes <= bytes - parts[i].first);
    struct cuda_parts taken = { .bytes = round_up(bytes == 0 ? 1 : bytes, granule),
                                .mapped = calloc(count + 1, sizeof(*taken.mapped)) };
    if (taken.mapped == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t wanted = merge(granule, parts, count, taken.mapped);
    CUresult error = driver->reserve(&taken.address, taken.bytes, 0, 0, 0);
    while (error == CUDA_SUCCESS && taken.count < wanted) {
        const struct memory_part *part = &taken.mapped[taken.count];
        error = map_part(driver, taken.address + part->first, part->bytes, out_what);
        taken.count += error == CUDA_SUCCESS;
    }
    if (error != CUDA_SUCCESS) {
        cuda_parts_give_back(driver, &taken);
        return error;
    }
    *out = taken;
    return CUDA_SUCCESS;
}

void cuda_parts_give_back(const struct cuda_driver *driver, struct cuda_parts *parts)
{
    if (parts->count > 0)
        (void)cudaDeviceSynchronize();
    for (size_t i = 0; i < parts->count; i++)
        (void)driver->unmap(parts->address + parts->mapped[i].first, parts->mapped[i].bytes);
    if (parts->address != 0)
        (void)driver->address_free(parts->address, parts->bytes);
    free(parts->mapped);
    memset(parts, 0, sizeof(*parts));
}
