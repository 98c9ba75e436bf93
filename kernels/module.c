#include "kernels/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"

#define FILE_NAME "cairn-cuda.so"

#define INSTEAD "or set `device: cpu`"

static const char *const places[] = { "", "../lib/cairn/", "../lib/" };

/* The folder of the running program with its last slash; "" if that isn't known. */
static void program_folder(char folder[LIMIT_PATH])
{
    const ssize_t length = readlink("/proc/self/exe", folder, LIMIT_PATH - 1);
    folder[length < 0 ? 0 : length] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        folder[0] = '\0';
    } else {
        slash[1] = '\0';
    }
}

/* False: there is no such file. */
static bool module_find(char path[LIMIT_PATH])
{
    const char *named = getenv("CAIRN_CUDA_MODULE");
    if (named != NULL && named[0] != '\0') {
        const int length = snprintf(path, LIMIT_PATH, "%s", named);
        return length < LIMIT_PATH && access(path, R_OK) == 0;
    }
    char folder[LIMIT_PATH];
    program_folder(folder);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const int length = snprintf(path, LIMIT_PATH, "%s%s" FILE_NAME, folder, places[i]);
        if (length < LIMIT_PATH && access(path, R_OK) == 0)
            return true;
    }
    (void)snprintf(path, LIMIT_PATH, "%s" FILE_NAME, folder);
    return false;
}

static void say_not_opened(const char *path, struct reason *reason)
{
    const char *error = dlerror();
    if (error == NULL)
        error = "unknown error";
    /* The text of a missing library is "libX.so.N: cannot open shared object file: …". */
    const char *colon = strchr(error, ':');
    if (colon != NULL && strstr(error, "cannot open shared object file") != NULL) {
        reason_set(reason,
                   "device cuda: library %.*s is not installed, which %.200s needs: install the "
                   "CUDA 13 libraries (cuBLAS, cuDNN 9, NCCL) or add their folder to "
                   "LD_LIBRARY_PATH, " INSTEAD,
                   (int)(colon - error > 80 ? 80 : colon - error), error, path);
        return;
    }
    reason_set(reason, "device cuda: %.400s: reinstall the module, " INSTEAD, error);
}

static enum status module_open(const char *path, const struct module **out, struct reason *reason)
{
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) {
        say_not_opened(path, reason);
        return ST_NOT_FOUND;
    }
    module_entry *entry = NULL;
    void *symbol = dlsym(file, MODULE_SYMBOL);
    memcpy(&entry, &symbol, sizeof(entry)); /* ISO C has no cast from void * to a function */
    const struct module *module = entry == NULL ? NULL : entry();
    if (module == NULL || module->abi != MODULE_ABI || module->size_bytes != sizeof(*module) ||
        module->table_bytes != sizeof(*module->backend) ||
        strcmp(module->version, CAIRN_VERSION) != 0) {
        (void)dlclose(file);
        reason_set(reason,
                   "device cuda: %.300s belongs to another version: install trainer and module "
                   "from one build, " INSTEAD,
                   path);
        return ST_VERSION;
    }
    *out = module;
    return ST_OK;
}

static enum status module_check_device(const struct module *module, int ordinal,
                                       struct reason *reason)
{
    struct module_device device;
    enum status st = module->device(ordinal, &device, reason);
    if (st != ST_OK)
        return st;
    if (device.capability < MODULE_CAPABILITY_MIN) {
        reason_set(reason,
                   "device cuda: GPU %d (%.100s) has compute capability %d.%d, at least %d.%d "
                   "is needed: use a GPU of the Ampere generation or later, " INSTEAD,
                   ordinal, device.name, device.capability / 10, device.capability % 10,
                   MODULE_CAPABILITY_MIN / 10, MODULE_CAPABILITY_MIN % 10);
        return ST_REFUSED;
    }
    return ST_OK;
}

enum status module_load(const char *device, int ordinal, const struct module **out,
                        struct reason *reason)
{
    if (strcmp(device, "cuda") != 0) {
        reason_set(reason, "device %.100s: there is no such kind of device", device);
        return ST_INVALID;
    }
    char path[LIMIT_PATH];
    if (!module_find(path)) {
        reason_set(reason,
                   "device cuda: %.300s is not there: install the CUDA module (cairn built "
                   "with -DCAIRN_CUDA=ON), or set CAIRN_CUDA_MODULE, " INSTEAD,
                   path);
        return ST_NOT_FOUND;
    }
    const struct module *module = NULL;
    enum status st = module_open(path, &module, reason);
    if (st == ST_OK)
        st = module_check_device(module, ordinal, reason);
    if (st == ST_OK)
        *out = module;
    return st;
}
