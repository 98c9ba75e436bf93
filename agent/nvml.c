#include "agent/nvml.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    { "nvmlInit_v2", offsetof(struct nvml, init) },
    { "nvmlShutdown", offsetof(struct nvml, shutdown) },
    { "nvmlSystemGetDriverVersion", offsetof(struct nvml, driver_version) },
    { "nvmlDeviceGetCount_v2", offsetof(struct nvml, count) },
    { "nvmlDeviceGetHandleByIndex_v2", offsetof(struct nvml, handle) },
    { "nvmlDeviceGetName", offsetof(struct nvml, name) },
    { "nvmlDeviceGetUUID", offsetof(struct nvml, uuid) },
    { "nvmlDeviceGetMemoryInfo", offsetof(struct nvml, memory) },
    { "nvmlDeviceGetCudaComputeCapability", offsetof(struct nvml, capability) },
    { "nvmlDeviceGetTemperature", offsetof(struct nvml, temperature) },
    { "nvmlDeviceGetCurrentClocksThrottleReasons", offsetof(struct nvml, throttling) },
    { "nvmlDeviceGetTotalEccErrors", offsetof(struct nvml, ecc) },
    { "nvmlEventSetCreate", offsetof(struct nvml, events_new) },
    { "nvmlDeviceRegisterEvents", offsetof(struct nvml, events_register) },
    { "nvmlEventSetWait_v2", offsetof(struct nvml, events_wait) },
    { "nvmlEventSetFree", offsetof(struct nvml, events_free) },
};

enum status nvml_open(const char *path, struct nvml *out)
{
    struct nvml nvml = { .library = dlopen(path != NULL ? path : "libnvidia-ml.so.1", RTLD_NOW) };
    if (nvml.library == NULL)
        return ST_NOT_FOUND;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dlsym(nvml.library, functions[i].name);
        if (function == NULL) {
            (void)dlclose(nvml.library);
            return ST_VERSION;
        }
        memcpy((char *)&nvml + functions[i].offset, &function, sizeof(function));
    }
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
