#include "agent/telemetry/nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* A driver need not have what only tells how a GPU is; `other` is a later name of the same. */
static const struct {
    const char *name, *other;
    size_t offset;
    bool required;
} functions[] = {
    { "nvmlInit_v2", NULL, offsetof(struct nvml, init), true },
    { "nvmlShutdown", NULL, offsetof(struct nvml, shutdown), true },
    { "nvmlDeviceGetCount_v2", NULL, offsetof(struct nvml, count), true },
    { "nvmlDeviceGetHandleByIndex_v2", NULL, offsetof(struct nvml, handle), true },
    { "nvmlDeviceGetUUID", NULL, offsetof(struct nvml, uuid), true },
    { "nvmlDeviceGetCudaComputeCapability", NULL, offsetof(struct nvml, capability), true },
    { "nvmlSystemGetDriverVersion", NULL, offsetof(struct nvml, driver_version), false },
    { "nvmlDeviceGetName", NULL, offsetof(struct nvml, name), false },
    { "nvmlDeviceGetMemoryInfo", NULL, offsetof(struct nvml, memory), false },
    { "nvmlDeviceGetTemperature", NULL, offsetof(struct nvml, temperature), false },
    { "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons",
      offsetof(struct nvml, throttling), false },
    { "nvmlDeviceGetUtilizationRates", NULL, offsetof(struct nvml, utilization), false },
    { "nvmlDeviceGetPowerUsage", NULL, offsetof(struct nvml, power), false },
    { "nvmlDeviceGetTotalEccErrors", NULL, offsetof(struct nvml, ecc), false },
    { "nvmlEventSetCreate", NULL, offsetof(struct nvml, events_new), false },
    { "nvmlDeviceRegisterEvents", NULL, offsetof(struct nvml, events_register), false },
    { "nvmlEventSetWait_v2", NULL, offsetof(struct nvml, events_wait), false },
    { "nvmlEventSetFree", NULL, offsetof(struct nvml, events_free), false },
};

static void *find_function(void *library, size_t i)
{
    void *function = dlsym(library, functions[i].name);
    return function == NULL && functions[i].other != NULL ? dlsym(library, functions[i].other)
                                                          : function;
}

enum status nvml_open(const char *path, struct nvml *out)
{
    struct nvml nvml = { .library = dlopen(path != NULL ? path : "libnvidia-ml.so.1", RTLD_NOW) };
    if (nvml.library == NULL)
        return ST_NOT_FOUND;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = find_function(nvml.library, i);
        if (function == NULL && functions[i].required) {
            (void)dlclose(nvml.library);
            return ST_VERSION;
        }
        memcpy((char *)&nvml + functions[i].offset, &function, sizeof(function));
    }
    if (nvml.events_register == NULL || nvml.events_wait == NULL || nvml.events_free == NULL)
        nvml.events_new = NULL;
    if (nvml.init() != NVML_OK) {
        (void)dlclose(nvml.library);
        return ST_DEVICE;
    }
    *out = nvml;
    return ST_OK;
}

void nvml_close(struct nvml *nvml)
{
    (void)nvml->shutdown();
    (void)dlclose(nvml->library);
    *nvml = (struct nvml){ .library = NULL };
}
