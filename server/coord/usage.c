/* The resources that workers and machines use, as agents see it, and how much of what they could do
 * they do. */
#include "server/coord/usage.h"

#include <math.h>
#include <string.h>

#define FLOPS_MAX 1e24 /* from outside: beyond it is no number of operations */

static double flops_of(double said)
{
    return said > 0 && said < FLOPS_MAX ? said : 0;
}

void coord_note_rank_report(struct coord_job *job, uint32_t rank,
                            const Cairn__V1__Progress *progress)
{
    struct coord_rank_report *report = &job->ranks[rank].report;
    *report = (struct coord_rank_report){ .generation = job->m.generation,
                                          .peak_flops = flops_of(progress->peak_flops),
                                          .counts = progress->traffic != NULL };
    if (progress->traffic != NULL) {
        report->sent_bytes = progress->traffic->sent_bytes;
        report->received_bytes = progress->traffic->received_bytes;
    }
    if (flops_of(progress->step_flops) > 0)
        job->step_flops = progress->step_flops;
}

const struct coord_rank_report *coord_rank_report(const struct coord_job *job, uint32_t rank)
{
    const struct coord_rank_report *report = &job->ranks[rank].report;
    return report->generation > 0 && report->generation == job->m.generation ? report : NULL;
}

double coord_mfu(const struct coord_job *job)
{
    const struct fsm *m = &job->m;
    double peak_flops = 0;
    if (m->state != FSM_RUNNING && m->state != FSM_SAVING)
        return (double)NAN;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct coord_rank_report *report = coord_rank_report(job, i);
        if (report == NULL || report->peak_flops == 0)
            return (double)NAN;
        peak_flops += report->peak_flops;
    }
    return throughput_mfu(&job->throughput, m->generation, job->step_flops, peak_flops);
}

/* ---- what agents see ---- */

static void take_worker(const struct coord_node *node, const Cairn__V1__TrainerUsage *row)
{
    for (struct coord_rank *rank = node->ranks;
         rank != NULL && row->ref != NULL && row->usage != NULL; rank = rank->next) {
        const struct fsm_rank *of = &rank->job->m.ranks[coord_rank_number(rank)];
        if (of->birth != row->ref->generation || of->number != row->ref->rank ||
            strcmp(rank->job->id, row->ref->job) != 0)
            continue;
        rank->usage = (struct coord_usage){ .birth = of->birth,
                                            .number = of->number,
                                            .message = *row->usage };
        rank->usage.message.base.n_unknown_fields = 0; /* they are the beat's */
        rank->usage.message.base.unknown_fields = NULL;
        return;
    }
}

void coord_take_usage(struct coord_node *node, const Cairn__V1__AgentBeat *beat)
{
    if (beat->usage == NULL)
        return;
    node->usage_known = true;
    node->usage = *beat->usage;
    node->usage.base.n_unknown_fields = 0;
    node->usage.base.unknown_fields = NULL;
    for (size_t i = 0; i < beat->n_trainers && i < LIMIT_SLOTS; i++)
        take_worker(node, beat->trainers[i]);
}

static bool is_heard(const struct coord_node *node)
{
    return node != NULL && node->conn != NULL && !node->silent;
}

const Cairn__V1__NodeUsage *coord_node_usage(const struct coord_node *node)
{
    return node->usage_known && is_heard(node) ? &node->usage : NULL;
}

const Cairn__V1__WorkerUsage *coord_usage(const struct coord_job *job, uint32_t rank)
{
    const struct coord_rank *own = &job->ranks[rank];
    const struct fsm_rank *of = &job->m.ranks[rank];
    const bool known = own->usage.birth > 0 && own->usage.birth == of->birth &&
                       own->usage.number == of->number && fsm_alive_rank(&job->m, rank);
    return known && is_heard(own->node) ? &own->usage.message : NULL;
}
