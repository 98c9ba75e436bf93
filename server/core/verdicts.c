/* What is held against nodes: failures of jobs by their fault (server/fleet/record.h); and which of
 * them are not judged. */
#include <stdio.h>
#include <string.h>

#include "server/core/internal.h"

bool core_node_in_reach(const struct core *core, const struct core_node *node)
{
    return node->known && core_now(core) - node->heard_at < CORE_REACH_MS;
}

/* Another node of a device that this one has takes jobs: this one isn't the last of its kind. */
static bool has_another(const struct core *core, const struct core_node *node)
{
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *other = core->nodes[i];
        bool takes = other != node && other->known && !other->silent && core_node_takes(other) &&
                     !other->record.drained;
        bool same = core_node_has(other, node->device) ||
                    (node->gpu_count > 0 && core_node_has(other, CORE_GPU_DEVICE));
        if (takes && same)
            return true;
    }
    return false;
}

bool core_node_drained(struct core *core, const struct core_node *node)
{
    return node->record.drained && has_another(core, node);
}

void core_blame_node(struct core *core, struct core_job *job, uint32_t rank)
{
    struct core_node *node = core_node_at(core, job->m.ranks[rank].node);
    if (!node)
        return;
    bool due = fleet_blame(&node->record, job->id, core_now(core));
    core_node_moved(core, node);
    LOG_WARN(core->options.log, "%s failed on node %s, which may be the cause", job->id,
             node->name);
    if (!due || !has_another(core, node))
        return;
    node->record.drained = true;
    node->drain_told = false;
    core->drained_untold = true;
    LOG_WARN(core->options.log, "node %s is drained: %u different jobs failed there", node->name,
             node->record.count);
}

void core_clear_nodes(struct core *core, struct core_job *job)
{
    for (size_t i = 0; i < core->node_count; i++) {
        fleet_clear(&core->nodes[i]->record, job->id);
        core_node_moved(core, core->nodes[i]);
    }
    core->schedule_needed = true;
}

void core_verdicts_tick(struct core *core, struct core_node *node)
{
    if (!fleet_age(&node->record, core_now(core)))
        return;
    LOG_INFO(core->options.log, "node %s takes jobs again", node->name);
    core->schedule_needed = true;
}
