/* The things that a job waits for, beside the slots that place_workers counted. */
#include "server/coord/queue/waiting.h"

#include <string.h>

#include "server/coord/node_health.h"

/* Adds the nodes that could take the job, had it not failed on them. */
static void add_failed(const struct coord_job *job, struct reason *reason)
{
    const struct fsm_fault *cause = &job->m.cause;
    const bool told = cause->kind == FSM_FAULT_USER && cause->of_node;
    struct reason before = *reason, where;
    if (exclusion_count(&job->m.exclusions, EXCLUSION_FAILED) == 0)
        return;
    exclusion_name(&job->m.exclusions, EXCLUSION_FAILED, &where);
    reason_set(reason, "%.200s; it keeps away from where it failed, %.150s%s%.150s", before.text,
               where.text, told ? ": " : "", told ? cause->message : "");
}

/* Adds slots that are held by processes that were killed and don't die: these may be what is
 * missing. */
static void note_strays(const struct coord *coord, struct reason *reason)
{
    size_t count = 0;
    for (size_t i = 0; i < coord->node_count; i++)
        count += coord->nodes[i]->silent ? 0 : coord->nodes[i]->stray_count;
    if (count == 0)
        return;
    struct reason all;
    reason_set(&all, "%.400s; %zu slot%s held by a process that was killed and is not gone",
               reason->text, count, count == 1 ? " is" : "s are each");
    *reason = all;
}

/* Adds the nodes that don't count, as they leave, have just left, or are kept free. */
static void note_leaving(const struct coord *coord, struct reason *reason)
{
    size_t count = 0;
    for (size_t i = 0; i < coord->node_count; i++)
        count += !coord_node_takes(coord->nodes[i]) && coord_node_in_reach(coord, coord->nodes[i]);
    if (count == 0)
        return;
    struct reason before = *reason;
    reason_set(reason, "%.400s; %zu %s drained or %s left", before.text, count,
               count == 1 ? "node is" : "nodes are", count == 1 ? "has" : "have");
}

/* Returns the slots of that kind on a node. */
static uint32_t slots_of(const struct coord_node *node, const char *device)
{
    const bool gpus = strcmp(device, COORD_GPU_DEVICE) == 0;
    return (strcmp(node->device, device) == 0 ? node->slots : 0) + (gpus ? node->gpu_count : 0);
}

static bool is_lost(const struct coord_node *node)
{
    return node->known && node->silent && coord_node_takes(node) && !coord_node_cut_off(node);
}

/* Adds the nodes that are lost: they count until they come back, or are drained. */
static void note_lost(const struct coord *coord, const char *device, struct reason *reason)
{
    const struct coord_node *one = NULL;
    uint32_t slots = 0;
    size_t count = 0;
    for (size_t i = 0; i < coord->node_count; i++) {
        const struct coord_node *node = coord->nodes[i];
        const uint32_t some = is_lost(node) ? slots_of(node, device) : 0;
        one = some > 0 ? node : one;
        count += some > 0;
        slots += some;
    }
    struct reason before = *reason;
    if (count == 1) {
        reason_set(reason, "%.300s; node %.100s, which has %u of them, is lost", before.text,
                   one->name, slots);
    } else if (count > 1) {
        reason_set(reason, "%.300s; %zu nodes, which have %u of them, are lost", before.text, count,
                   slots);
    }
}

/* Adds a node of the job's last generation, as the journal has it, that has not come back. */
static void note_missing(struct coord *coord, const struct coord_job *job, struct reason *reason)
{
    const char *name = NULL;
    for (uint32_t i = 0; i < job->m.size && name == NULL && job->m.generation > 0; i++) {
        const struct coord_node *node = coord_node_at(coord, job->m.ranks[i].node);
        if (node == NULL || (!node->known && coord_node_forgotten(coord, node->name) == 0))
            name = job->m.ranks[i].node;
    }
    struct reason before = *reason;
    if (name != NULL && name[0]) {
        reason_set(reason, "%.300s; node %.100s, where it ran, has not come back", before.text,
                   name);
    }
}

static void note_broken(const struct coord *coord, const char *device, struct reason *reason)
{
    size_t count = 0;
    for (size_t i = 0; i < coord->node_count; i++) {
        const struct coord_node *node = coord->nodes[i];
        for (uint32_t g = 0; g < node->gpu_count && !node->silent; g++)
            count += node->gpus[g].problem[0] != 0;
    }
    struct reason before = *reason;
    if (count > 0 && strcmp(device, COORD_GPU_DEVICE) == 0) {
        reason_set(reason, "%.400s; %zu GPU%s of no use", before.text, count,
                   count == 1 ? " is" : "s are");
    }
}

void coord_explain_wait(struct coord *coord, const struct coord_job *job, struct reason *reason)
{
    const char *device = jobspec_device_word(job->spec->workers.device);
    add_failed(job, reason);
    note_lost(coord, device, reason);
    note_missing(coord, job, reason);
    note_broken(coord, device, reason);
    note_strays(coord, reason);
    note_leaving(coord, reason);
}
