#include "trainer/state/replica_group.h"

struct replica_group replica_group_of(const struct worker *worker, struct comm *world)
{
    const struct worker_group *group = &worker->group;
    return (struct replica_group){ .comm = worker->stage == NULL ? world : worker->comms.group,
                                   .first = group->first,
                                   .rank = group->rank,
                                   .size = group->size };
}

bool replica_group_has(const struct worker *worker, uint32_t buffer)
{
    const struct stage *stage = worker->stage;
    const bool owns = worker->ownership.options.owns || (stage != NULL && stage->options.owns);
    return !owns || optimizer_buffer_kind(worker->optimizer, buffer) != OPTIMIZER_MOMENT;
}
