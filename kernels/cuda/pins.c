/*
 * Pins of this backend, on which its bits depend, as members of a JSON object.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/device/cuda.h"

/* The device's name as JSON can hold it: what isn't printable, or a quote, becomes '?'. */
static void gpu_name(char out[LIMIT_NAME], const char *name)
{
    size_t i = 0;
    for (; name[i] != '\0' && i < LIMIT_NAME - 1; i++) {
        const bool plain = name[i] >= ' ' && name[i] <= '~' && name[i] != '"' && name[i] != '\\';
        out[i] = name[i];
        if (!plain)
            out[i] = '?';
    }
    out[i] = '\0';
}

/* "cublaslt":…,"cudnn":… */
static void print_libraries(char *out, size_t size)
{
    (void)snprintf(out, size, "\"cublaslt\":%zu,\"cudnn\":%zu,", cublasLtGetVersion(),
                   cudnnGetVersion());
}

bool cuda_pins_same_libraries(const char *stored)
{
    char libraries[80];
    print_libraries(libraries, sizeof(libraries));
    return strstr(stored, libraries) != NULL;
}

enum status cuda_pins(struct backend *backend, struct buf *out)
{
    const struct module_device *device = &backend->device;
    char name[LIMIT_NAME], libraries[80];
    gpu_name(name, device->name);
    print_libraries(libraries, sizeof(libraries));
    enum status st = buf_printf(
        out,
        "\"cuda\":{\"gpu\":\"%s\",\"capability\":%d,\"processors\":%d,\"driver\":%d,\"runtime\":%d,"
        "%s\"denormals\":\"flush\",\"algorithms\":",
        name, device->capability, device->processors, device->driver, device->runtime, libraries);
    if (st == ST_OK)
        st = choices_print(&backend->choices, out);
    return st == ST_OK ? buf_append_text(out, "}") : st;
}
