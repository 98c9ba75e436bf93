/*
 * Device memory in parts: addresses for all, memory for the parts alone, by the driver's virtual
 * memory management.
 *
 *                 |       |       |       |       |       |    granules, 2 MiB each
 *     asked for    . a a . . . . . . . . . . b b b b c . .     `.`: addresses alone
 *     mapped       A A A A . . . . . . . . B B B B B B B B     two pieces of memory
 *
 * The driver's functions are asked of the runtime: the module doesn't link libcuda, so that it can
 * be loaded where there is no driver.
 *
 * Thread: any; one at a time for one struct cuda_parts.
 */
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <stddef.h>

#include "kernels/backend.h"

/* The driver's functions for parts of memory; constant once open. */
struct cuda_driver {
    size_t granularity; /* bytes of a granule; 0: the device or its driver can't do it */
    CUmemAllocationProp properties;
    PFN_cuDeviceGet_v2000 device_get;
    PFN_cuDeviceGetAttribute_v2000 get_attribute;
    PFN_cuMemGetAllocationGranularity_v10020 get_granularity;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 address_free;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemUnmap_v10020 unmap;
};

struct cuda_parts {
    CUdeviceptr address;        /* begins a granule; 0: none */
    size_t bytes;               /* of addresses */
    struct memory_part *mapped; /* [count] ascending, whole granules; owned */
    size_t count;
};

/* Looks up the driver's functions. ordinal: the device, which is the thread's. A missing function
 * is no error. */
void cuda_driver_open(struct cuda_driver *driver, int ordinal);

/*
 * Reserves addresses and maps memory for the parts, not zeroed. parts: ascending, within bytes;
 * granularity isn't 0. If it fails, all is given back, and out_what names the call.
 * CUDA_ERROR_OUT_OF_MEMORY: of the device, the host or addresses.
 */
MUST_CHECK CUresult cuda_parts_take(const struct cuda_driver *driver, size_t bytes,
                                    const struct memory_part *parts, size_t count,
                                    struct cuda_parts *out, const char **out_what);
/* Waits for the device first: unmapping doesn't. */
void cuda_parts_give_back(const struct cuda_driver *driver, struct cuda_parts *parts);
