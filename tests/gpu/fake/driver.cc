/*
 * The driver's virtual memory management over mmap: addresses without memory can't be touched, nor
 * can memory whose access wasn't set. What the driver refuses is refused: granules that are no
 * whole ones, ranges that overlap, unmapping a part of a mapping, freeing addresses that are still
 * mapped. Unmapping waits for nobody: who did not wait finds the memory gone.
 */
#include <cstring>
#include <cuda.h>
#include <sys/mman.h>

#include "tests/gpu/fake/runtime.h"

#define GRANULE ((size_t)2 << 20)

static CUresult enter(const char *function)
{
    const int fault = fake_fault(function);
    return (CUresult)(fake.sticky != cudaSuccess ? (int)fake.sticky : fault);
}

static char *pointer_of(CUdeviceptr at)
{
    return reinterpret_cast<char *>((uintptr_t)at);
}

static CUresult device_get(CUdevice *out, int ordinal)
{
    const held lock(fake.lock);
    *out = ordinal;
    return enter("cuDeviceGet");
}

static CUresult get_attribute(int *out, CUdevice_attribute attribute, CUdevice device)
{
    const held lock(fake.lock);
    if (attribute != CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
        device >= fake.devices)
        return CUDA_ERROR_INVALID_VALUE;
    *out = fake.parts;
    return enter("cuDeviceGetAttribute");
}

static bool is_of_device(const CUmemLocation &location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
           location.id < fake.devices;
}

static CUresult get_granularity(size_t *out, const CUmemAllocationProp *properties,
                                CUmemAllocationGranularity_flags option)
{
    const held lock(fake.lock);
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || !is_of_device(properties->location) ||
        option != CU_MEM_ALLOC_GRANULARITY_MINIMUM)
        return CUDA_ERROR_INVALID_VALUE;
    *out = GRANULE;
    return enter("cuMemGetAllocationGranularity");
}

/* ---- addresses ---- */

static CUresult address_reserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish,
                                unsigned long long flags)
{
    const held lock(fake.lock);
    const CUresult error = enter("cuMemAddressReserve");
    if (error != CUDA_SUCCESS)
        return error;
    if (size == 0 || size % GRANULE != 0 || alignment != 0 || wish != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *base = mmap(nullptr, size + GRANULE, PROT_NONE, how, -1, 0);
    if (base == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    char *begin = static_cast<char *>(base);
    begin += (GRANULE - (uintptr_t)begin % GRANULE) % GRANULE;
    fake.reservations[begin] = { base, size };
    fake_object(1);
    *out = (CUdeviceptr)(uintptr_t)begin;
    return CUDA_SUCCESS;
}

/* The mapping that has a byte of [at, at + size); end: none. */
static std::map<char *, struct mapping>::iterator mapping_in(const char *at, size_t size)
{
    auto entry = fake.mappings.begin();
    while (entry != fake.mappings.end() &&
           (entry->first >= at + size || entry->first + entry->second.size <= at))
        ++entry;
    return entry;
}

static bool is_reserved(const char *at, size_t size)
{
    for (const auto &entry : fake.reservations) {
        if (at >= entry.first && at + size <= entry.first + entry.second.size)
            return true;
    }
    return false;
}

static CUresult address_free(CUdeviceptr address, size_t size)
{
    const held lock(fake.lock);
    const CUresult error = enter("cuMemAddressFree");
    const auto entry = fake.reservations.find(pointer_of(address));
    if (entry == fake.reservations.end() || entry->second.size != size ||
        mapping_in(entry->first, size) != fake.mappings.end())
        return CUDA_ERROR_INVALID_VALUE;
    (void)munmap(entry->second.base, size + GRANULE);
    fake.reservations.erase(entry);
    fake_object(-1);
    return error;
}

/* ---- memory ---- */

/* Memory lives as long as somebody holds its handle, or a mapping. */
static void forget_if_unused(unsigned long long id)
{
    const auto entry = fake.handles.find(id);
    if (entry->second.held || entry->second.mapped)
        return;
    fake.used -= entry->second.size;
    fake.handles.erase(entry);
    fake_object(-1);
}

static CUresult create(CUmemGenericAllocationHandle *out, size_t size,
                       const CUmemAllocationProp *properties, unsigned long long flags)
{
    const held lock(fake.lock);
    const CUresult error = enter("cuMemCreate");
    if (error != CUDA_SUCCESS)
        return error;
    if (size == 0 || size % GRANULE != 0 || flags != 0 || !is_of_device(properties->location) ||
        properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > fake.memory || fake.used > fake.memory - size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fake.used += size;
    *out = ++fake.last_handle;
    fake.handles[*out] = { size, true, false };
    fake_object(1);
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    const held lock(fake.lock);
    const CUresult error = enter("cuMemRelease");
    const auto entry = fake.handles.find(handle);
    if (entry == fake.handles.end() || !entry->second.held)
        return CUDA_ERROR_INVALID_VALUE;
    entry->second.held = false;
    forget_if_unused(handle);
    return error;
}

static CUresult map(CUdeviceptr address, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    const held lock(fake.lock);
    const CUresult error = enter("cuMemMap");
    if (error != CUDA_SUCCESS)
        return error;
    char *at = pointer_of(address);
    const auto entry = fake.handles.find(handle);
    if (entry == fake.handles.end() || entry->second.mapped || entry->second.size != size ||
        offset != 0 || flags != 0 || address % GRANULE != 0 || !is_reserved(at, size) ||
        mapping_in(at, size) != fake.mappings.end())
        return CUDA_ERROR_INVALID_VALUE;
    entry->second.mapped = true;
    fake.mappings[at] = { size, handle };
    return CUDA_SUCCESS;
}

/* Filled with a pattern: who needs zeros must write them. */
static CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                           size_t count)
{
    const held lock(fake.lock);
    const CUresult error = enter("cuMemSetAccess");
    if (error != CUDA_SUCCESS)
        return error;
    char *at = pointer_of(address);
    const auto entry = fake.mappings.find(at);
    if (entry == fake.mappings.end() || entry->second.size != size || count != 1 ||
        !is_of_device(access->location) || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (mprotect(at, size, PROT_READ | PROT_WRITE) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(at, 0xa5, size);
    fake.regions[at] = { nullptr, size, false };
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t size)
{
    const held lock(fake.lock);
    const CUresult error = enter("cuMemUnmap");
    const auto entry = fake.mappings.find(pointer_of(address));
    if (entry == fake.mappings.end() || entry->second.size != size)
        return CUDA_ERROR_INVALID_VALUE;
    (void)madvise(entry->first, size, MADV_DONTNEED);
    (void)mprotect(entry->first, size, PROT_NONE);
    const unsigned long long handle = entry->second.handle;
    fake.regions.erase(entry->first);
    fake.mappings.erase(entry);
    fake.handles[handle].mapped = false;
    forget_if_unused(handle);
    return error;
}

void forget_parts()
{
    for (const auto &entry : fake.reservations)
        (void)munmap(entry.second.base, entry.second.size + GRANULE);
    fake.reservations.clear();
    fake.mappings.clear();
    fake.handles.clear();
}

/* ---- how the runtime gives them ---- */

template <typename function> static void *entry_of(function *pointer)
{
    return reinterpret_cast<void *>(pointer);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    static const std::map<std::string, void *> entries = {
        { "cuDeviceGet", entry_of(device_get) },
        { "cuDeviceGetAttribute", entry_of(get_attribute) },
        { "cuMemGetAllocationGranularity", entry_of(get_granularity) },
        { "cuMemAddressReserve", entry_of(address_reserve) },
        { "cuMemAddressFree", entry_of(address_free) },
        { "cuMemCreate", entry_of(create) },
        { "cuMemRelease", entry_of(release) },
        { "cuMemMap", entry_of(map) },
        { "cuMemSetAccess", entry_of(set_access) },
        { "cuMemUnmap", entry_of(unmap) },
    };
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaGetDriverEntryPointByVersion");
    if (error != cudaSuccess)
        return error;
    const auto entry = entries.find(symbol);
    const bool known = entry != entries.end() && version == 10020 && flags == cudaEnableDefault;
    *out = known ? entry->second : nullptr;
    *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
