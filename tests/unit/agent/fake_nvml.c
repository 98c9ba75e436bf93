/*
 * NVML with two GPUs that are not there, for tests. Files in FAKE_NVML_DIR make them sick:
 *   xid      "GPU XID\n": that event happens, once
 *   ecc      "GPU COUNT\n": uncorrected errors of it
 *   hang     every call that asks for a value waits while the file is there
 *   shut     "GPU 0\n": that GPU can't be opened
 * With FAKE_NVML_BARE it is a driver that has only what we can't do without.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/telemetry/nvml.h"

#define GPUS 2

#define EXPORT __attribute__((visibility("default")))

static char devices[GPUS];

static int path_of(const char *name, char *out, size_t capacity)
{
    const char *dir = getenv("FAKE_NVML_DIR");
    return dir != NULL && snprintf(out, capacity, "%s/%s", dir, name) < (int)capacity;
}

static int read_two(const char *name, unsigned *gpu, unsigned long long *value)
{
    char path[512];
    if (!path_of(name, path, sizeof(path)))
        return 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    int found = fscanf(file, "%u %llu", gpu, value);
    (void)fclose(file);
    return found == 2;
}

static unsigned index_of(const void *device)
{
    return (unsigned)((const char *)device - devices);
}

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetCount_v2(unsigned *out);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out);
EXPORT int nvmlDeviceGetUUID(const void *device, char *out, unsigned capacity);
EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);

int nvmlInit_v2(void)
{
    return NVML_OK;
}

int nvmlShutdown(void)
{
    return NVML_OK;
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = GPUS;
    return NVML_OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    unsigned gpu = 0;
    unsigned long long none = 0;
    *out = &devices[index];
    return read_two("shut", &gpu, &none) && gpu == index ? 999 : NVML_OK;
}

int nvmlDeviceGetUUID(const void *device, char *out, unsigned capacity)
{
    (void)snprintf(out, capacity, "GPU-fake-%u", index_of(device));
    return NVML_OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    (void)device;
    *major = 9;
    *minor = 0;
    return NVML_OK;
}

#ifndef FAKE_NVML_BARE

static char events;

static void wait_while_it_hangs(void)
{
    char path[512];
    while (path_of("hang", path, sizeof(path)) && access(path, F_OK) == 0)
        (void)poll(NULL, 0, 10);
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned capacity);
EXPORT int nvmlDeviceGetName(void *device, char *out, unsigned capacity);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *out);
EXPORT int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out);
EXPORT int nvmlDeviceGetUtilizationRates(const void *device, struct nvml_utilization *out);
EXPORT int nvmlDeviceGetPowerUsage(const void *device, unsigned *out_mw);
EXPORT int nvmlDeviceGetTotalEccErrors(const void *device, unsigned kind, unsigned since,
                                       unsigned long long *out);
EXPORT int nvmlEventSetCreate(void **out);
EXPORT int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set);
EXPORT int nvmlEventSetWait_v2(void *set, struct nvml_event *out, unsigned timeout_ms);
EXPORT int nvmlEventSetFree(void *set);

int nvmlSystemGetDriverVersion(char *out, unsigned capacity)
{
    (void)snprintf(out, capacity, "580.00");
    return NVML_OK;
}

int nvmlDeviceGetName(void *device, char *out, unsigned capacity)
{
    (void)device;
    (void)snprintf(out, capacity, "NVIDIA Fake");
    return NVML_OK;
}

int nvmlDeviceGetMemoryInfo(void *device, struct nvml_memory *out)
{
    (void)device;
    wait_while_it_hangs();
    *out = (struct nvml_memory){ .total = 8ull << 30, .free = 7ull << 30, .used = 1ull << 30 };
    return NVML_OK;
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *out)
{
    (void)device;
    (void)sensor;
    *out = 41;
    return NVML_OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *out)
{
    (void)device;
    *out = 0x1; /* idle */
    return NVML_OK;
}

int nvmlDeviceGetUtilizationRates(const void *device, struct nvml_utilization *out)
{
    *out = (struct nvml_utilization){ .gpu = 97, .memory = 41 };
    return index_of(device) == 0 ? NVML_OK : 3; /* not supported, as where it is in parts */
}

int nvmlDeviceGetPowerUsage(const void *device, unsigned *out_mw)
{
    *out_mw = 310500;
    return index_of(device) == 0 ? NVML_OK : 3;
}

int nvmlDeviceGetTotalEccErrors(const void *device, unsigned kind, unsigned since,
                                unsigned long long *out)
{
    unsigned gpu = 0;
    unsigned long long count = 0;
    (void)kind;
    (void)since;
    *out = read_two("ecc", &gpu, &count) && gpu == index_of(device) ? count : 0;
    return NVML_OK;
}

int nvmlEventSetCreate(void **out)
{
    *out = &events;
    return NVML_OK;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    (void)device;
    (void)types;
    (void)set;
    return NVML_OK;
}

int nvmlEventSetWait_v2(void *set, struct nvml_event *out, unsigned timeout_ms)
{
    char path[512];
    unsigned gpu = 0;
    unsigned long long xid = 0;
    (void)set;
    for (unsigned waited = 0; waited < timeout_ms; waited += 10) {
        if (read_two("xid", &gpu, &xid) && gpu < GPUS && path_of("xid", path, sizeof(path)) &&
            remove(path) == 0) {
            *out =
                (struct nvml_event){ .device = &devices[gpu], .type = NVML_EVENT_XID, .data = xid };
            return NVML_OK;
        }
        (void)poll(NULL, 0, 10);
    }
    return NVML_TIMEOUT;
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    return NVML_OK;
}

#endif
