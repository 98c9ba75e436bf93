/*
 * What we use of NVML, loaded at run time: no header and no library of it is needed to build.
 *
 * Names, signatures and values are those of NVIDIA's NVML API reference (ABI stable since R450).
 */
#pragma once

#include <stdint.h>

#include "common/status.h"

#define NVML_OK             0
#define NVML_TIMEOUT        10
#define NVML_EVENT_XID      0x8u
#define NVML_TEMPERATURE    0u /* the GPU's own sensor */
#define NVML_UNCORRECTED    1u
#define NVML_SINCE_BOOT     0u    /* counters that a reboot clears */
#define NVML_THROTTLE_POWER 0x80u /* hardware power brake */
#define NVML_THROTTLE_HEAT  0x60u /* software and hardware thermal slow-down */

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_utilization {
    unsigned gpu, memory; /* percent of the newest period in which something ran, was read */
};

struct nvml_event {
    void *device;
    unsigned long long type, data; /* data: the Xid */
    unsigned instance, compute;
};

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *out);
    int (*handle)(unsigned index, void **out);
    int (*uuid)(void *device, char *out, unsigned capacity);
    int (*capability)(void *device, int *major, int *minor);
    /* those below may be NULL; of events all four, or events_new is */
    int (*driver_version)(char *out, unsigned capacity);
    int (*name)(void *device, char *out, unsigned capacity);
    int (*memory)(void *device, struct nvml_memory *out);
    int (*temperature)(void *device, unsigned sensor, unsigned *out);
    int (*throttling)(void *device, unsigned long long *out);
    int (*utilization)(void *device, struct nvml_utilization *out);
    int (*power)(void *device, unsigned *out_mw);
    int (*ecc)(void *device, unsigned kind, unsigned since, unsigned long long *out);
    int (*events_new)(void **out);
    int (*events_register)(void *device, unsigned long long types, void *events);
    int (*events_wait)(void *events, struct nvml_event *out, unsigned timeout_ms);
    int (*events_free)(void *events);
};

/* path NULL: "libnvidia-ml.so.1". ST_NOT_FOUND: no such library, i.e. no driver; ST_VERSION: it
 * lacks a function that we can't do without; ST_DEVICE: it can't be initialised. */
MUST_CHECK enum status nvml_open(const char *path, struct nvml *out);
void nvml_close(struct nvml *nvml);
