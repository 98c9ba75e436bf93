/* The GPUs of nodes: what their agents say of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/internal.h"

static void take_gpu(struct core *core, const struct core_node *node, size_t i,
                     const Cairn__V1__Gpu *from)
{
    struct core_gpu *to = &node->gpus[i];
    bool failed = from->problem[0] && !to->problem[0];
    (void)snprintf(to->name, sizeof to->name, "%.63s", from->name);
    (void)snprintf(to->uuid, sizeof to->uuid, "%.63s", from->uuid);
    (void)snprintf(to->driver, sizeof to->driver, "%.31s", from->driver);
    (void)snprintf(to->problem, sizeof to->problem, "%.127s", from->problem);
    to->capability = from->capability;
    to->temperature = from->temperature;
    to->memory_bytes = from->memory_bytes;
    to->memory_used_bytes = from->memory_used_bytes;
    to->ecc_errors = from->ecc_errors;
    to->throttled = from->throttled;
    if (failed) {
        LOG_WARN(core->options.log, "node %s: GPU %zu takes no more workers: %s", node->name, i,
                 to->problem);
    }
}

void core_take_gpus(struct core *core, struct core_node *node, Cairn__V1__Gpu *const *gpus,
                    size_t count)
{
    if (count > LIMIT_GPUS)
        count = LIMIT_GPUS;
    if (count != node->gpu_count) {
        struct core_gpu *more = calloc(count ? count : 1, sizeof *more);
        if (!more)
            return; /* the next beat tells it again */
        free(node->gpus);
        node->gpus = more;
        node->gpu_count = (uint32_t)count;
        core->schedule_needed = true;
    }
    for (size_t i = 0; i < count; i++)
        take_gpu(core, node, i, gpus[i]);
}

bool core_node_has(const struct core_node *node, const char *device)
{
    return strcmp(node->device, device) == 0 ||
           (node->gpu_count > 0 && strcmp(device, CORE_GPU_DEVICE) == 0);
}
