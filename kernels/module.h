/*
 * Devices whose code is loaded at run time: `device: cuda` is cairn-cuda.so, a shared object that
 * exports one function and links what a machine without GPUs doesn't have. So one build serves
 * machines with and without GPUs.
 *
 * The file is $CAIRN_CUDA_MODULE if that is set, else cairn-cuda.so next to the running program,
 * else in ../lib/cairn or ../lib seen from there.
 *
 * Thread: any. Memory: a loaded module stays for the life of the process.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"
#include "kernels/backend.h"

struct comm_table; /* comm/comm.h; kernels doesn't know it */

/* Rises with every change of a table or a struct that program and module share. */
#define MODULE_ABI    9u
#define MODULE_SYMBOL "cairn_cuda_module"

#define MODULE_CAPABILITY_MIN LIMIT_CUDA_CAPABILITY

/* A device as its driver describes it. */
struct module_device {
    char name[LIMIT_NAME];
    int capability;      /* major · 10 + minor */
    int processors;      /* multiprocessors */
    int driver, runtime; /* CUDA versions: major · 1000 + minor · 10 */
    uint64_t memory_bytes, free_bytes;
};

/* The table that the shared object exports, const for its life. */
struct module {
    uint32_t abi;                     /* stays the first member for ever */
    uint32_t size_bytes, table_bytes; /* of this struct and of struct backend_table */
    const char *name;                 /* "cuda" */
    const char *version;              /* of the project */
    const struct backend_table *backend;
    const struct comm_table *comm; /* between devices; NULL: it was built without */
    /* ST_NOT_FOUND: no driver, or no device. */
    enum status (*device_count)(int *out_count, struct reason *reason);
    enum status (*device)(int ordinal, struct module_device *out, struct reason *reason);
};

typedef const struct module *module_entry(void);

/*
 * Loads the module of a device kind and checks that the device can be used. On failure `reason`
 * says what is missing and what to do: the file, one of the libraries that it links, the driver, a
 * device, or the capability of the device.
 *
 * Errors: ST_INVALID    no such kind of device ("cpu" is none: it needs no module)
 *         ST_NOT_FOUND  the module, a library, the driver or the device is missing
 *         ST_REFUSED    the device is too old
 *         ST_VERSION    the module belongs to another build
 */
MUST_CHECK enum status module_load(const char *device, int ordinal, const struct module **out,
                                   struct reason *reason);
