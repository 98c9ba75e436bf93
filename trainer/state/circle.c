#include "trainer/state/circle.h"

struct circle circle_of(const struct worker *worker, struct comm *world)
{
    const struct worker_group *group = &worker->group;
    return (struct circle){ .comm = worker->stage == NULL ? world : worker->comms.group,
                            .first = group->first,
                            .rank = group->rank,
                            .size = group->size };
}

bool circle_has(const struct worker *worker, uint32_t buffer)
{
    const struct stage *stage = worker->stage;
    const bool owns = worker->ownership.options.owns || (stage != NULL && stage->options.owns);
    return !owns || optimizer_buffer_kind(worker->optimizer, buffer) != OPTIMIZER_MOMENT;
}
