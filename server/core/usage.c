/* The resources that workers and machines use, as agents see it, and how much of what they could do
 * they do. */
#include <math.h>
#include <string.h>

#include "server/core/internal.h"

#define FLOPS_MAX 1e24 /* from outside: beyond it is no number of operations */

static double flops_of(double said)
{
    return said > 0 && said < FLOPS_MAX ? said : 0;
}

void core_take_told(struct core_job *job, uint32_t rank, const Cairn__V1__Progress *progress)
{
    struct core_told *told = &job->ranks[rank].told;
    *told = (struct core_told){ .generation = job->m.generation,
                                .peak_flops = flops_of(progress->peak_flops),
                                .counts = progress->traffic != NULL };
    if (progress->traffic) {
        told->sent_bytes = progress->traffic->sent_bytes;
        told->received_bytes = progress->traffic->received_bytes;
    }
    if (flops_of(progress->step_flops) > 0)
        job->step_flops = progress->step_flops;
}

const struct core_told *core_told(const struct core_job *job, uint32_t rank)
{
    const struct core_told *told = &job->ranks[rank].told;
    return told->generation > 0 && told->generation == job->m.generation ? told : NULL;
}

double core_mfu(const struct core_job *job)
{
    const struct machine *m = &job->m;
    double peak_flops = 0;
    if (m->state != MACHINE_RUNNING && m->state != MACHINE_SAVING)
        return (double)NAN;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct core_told *told = core_told(job, i);
        if (!told || told->peak_flops == 0)
            return (double)NAN;
        peak_flops += told->peak_flops;
    }
    return pace_mfu(&job->pace, m->generation, job->step_flops, peak_flops);
}

/* ---- what agents see ---- */

static void take_worker(const struct core_node *node, const Cairn__V1__TrainerUsage *row)
{
    for (struct core_rank *rank = node->ranks; rank && row->ref && row->usage; rank = rank->next) {
        const struct machine_rank *of = &rank->job->m.ranks[core_rank_number(rank)];
        if (of->birth != row->ref->generation || of->number != row->ref->rank ||
            strcmp(rank->job->id, row->ref->job) != 0)
            continue;
        rank->usage =
            (struct core_usage){ .birth = of->birth, .number = of->number, .message = *row->usage };
        rank->usage.message.base.n_unknown_fields = 0; /* they are the beat's */
        rank->usage.message.base.unknown_fields = NULL;
        return;
    }
}

void core_take_usage(struct core_node *node, const Cairn__V1__AgentBeat *beat)
{
    if (!beat->usage)
        return;
    node->usage_known = true;
    node->usage = *beat->usage;
    node->usage.base.n_unknown_fields = 0;
    node->usage.base.unknown_fields = NULL;
    for (size_t i = 0; i < beat->n_trainers && i < LIMIT_SLOTS; i++)
        take_worker(node, beat->trainers[i]);
}

static bool is_heard(const struct core_node *node)
{
    return node && node->conn && !node->silent;
}

const Cairn__V1__NodeUsage *core_node_usage(const struct core_node *node)
{
    return node->usage_known && is_heard(node) ? &node->usage : NULL;
}

const Cairn__V1__WorkerUsage *core_usage(const struct core_job *job, uint32_t rank)
{
    const struct core_rank *seat = &job->ranks[rank];
    const struct machine_rank *of = &job->m.ranks[rank];
    const bool known = seat->usage.birth > 0 && seat->usage.birth == of->birth &&
                       seat->usage.number == of->number && machine_alive_rank(&job->m, rank);
    return known && is_heard(seat->node) ? &seat->usage.message : NULL;
}
