/*
 * Pipelines, in some of the worlds: each worker has the state of its stage. What is promised: a
 * generation goes on from that only where every stage has somebody who has it, those who have it
 * are where it is needed, and nobody leaves its stage for one who is new in it.
 */
#include <stdio.h>

#include "common/check.h"
#include "server/coord/coord.h"
#include "session/fsm.h"
#include "tests/sim/sim.h"

/* The choices depend on the seed alone, so other worlds stay as they were. In a pipeline wrong
 * results aren't looked for lane by lane, so worlds with a wrong worker have none. */
void sim_stages_begin(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->job_count && sim->wrong == SIM_WRONG_NOTHING; i++) {
        struct sim_job *job = &sim->jobs[i];
        const uint64_t chance = sim_state(30 + i, sim->options.seed);
        if (chance % 3 != 0 || job->ranks < 2)
            continue;
        job->stages = 2 + (uint32_t)(chance / 3 % (job->ranks - 1));
        job->by_speed = job->owns = false;
        job->audit_every = 0;
    }
}

void sim_stages_print(const struct sim_job *job, char *out, size_t capacity)
{
    size_t used = 0;
    (void)snprintf(out, capacity, "zero: %d", job->owns);
    for (uint32_t s = 0; s < job->stages; s++) {
        const uint32_t workers = job->ranks / job->stages + (s < job->ranks % job->stages);
        const int size =
            snprintf(out + used, capacity - used, "%s{workers: %u}%s", s == 0 ? "stages: [" : ", ",
                     workers, s + 1 == job->stages ? "]" : "");
        CHECK(size > 0 && (size_t)size < capacity - used);
        used += (size_t)size;
    }
}

uint32_t sim_stages_of(const struct session_assignment *plan, uint32_t rank)
{
    uint32_t stage = 0;
    for (uint32_t end = 0; stage < plan->stage_count; stage++) {
        end += plan->stages[stage].workers;
        if (rank < end)
            break;
    }
    return stage;
}

void sim_stages_take(struct sim_trainer_view *view, const struct session_assignment *plan)
{
    view->part = sim_stages_of(plan, view->rank);
    view->parts = plan->stage_count;
}

void sim_stages_check_live(struct sim *sim, const struct sim_trainer_view *view,
                           const struct session_assignment *plan)
{
    const uint32_t stage = sim_stages_of(plan, view->rank);
    bool has_source = false;
    for (size_t i = 0; i < plan->live_source_count; i++) {
        const uint32_t rank = plan->live_sources[i];
        const uint32_t of = sim_stages_of(plan, rank);
        const struct sim_trainer_view *source =
            sim_member(sim, view->start.job, plan->generation, rank);
        has_source = has_source || of == stage;
        if (source != NULL && (source->parts != plan->stage_count || source->part != of))
            sim_fail(sim,
                     "%s: rank %u of generation %u is to have stage %u of %u, and has %u of %u",
                     plan->job, rank, plan->generation, of, plan->stage_count, source->part,
                     source->parts);
    }
    if (!has_source)
        sim_fail(sim, "%s: nobody in generation %u has stage %u", plan->job, plan->generation,
                 stage);
}

static const struct sim_trainer_view *at(const struct sim *sim, uint32_t job, const struct fsm *m,
                                         uint32_t rank)
{
    return sim_worker(sim, job, m->generation, m->ranks[rank].number);
}

/* True if the rank's worker came with the state of that stage, of as many stages as there are
 * now. */
static bool came_with(const struct sim *sim, uint32_t job, const struct fsm *m, uint32_t rank,
                      uint32_t stage)
{
    const struct sim_trainer_view *view = at(sim, job, m, rank);
    return view != NULL && view->complete && view->parts == fsm_stages(m) && view->part == stage;
}

/* Before the first of them has the state of its new stage. */
void sim_stages_check_seats(struct sim *sim, uint32_t job, const struct fsm *m)
{
    if (fsm_stages(m) < 2)
        return;
    for (uint32_t r = 0; r < m->size; r++) {
        const struct sim_trainer_view *view = at(sim, job, m, r);
        if (view == NULL || view->ready)
            return;
    }
    for (uint32_t r = 0; r < m->size; r++) {
        const struct sim_trainer_view *view = at(sim, job, m, r);
        if (!came_with(sim, job, m, r, view->part) || view->part == m->ranks[r].stage)
            continue;
        for (uint32_t other = 0; other < m->size; other++) {
            if (m->ranks[other].stage == view->part && !came_with(sim, job, m, other, view->part))
                sim_fail(
                    sim, "%s: worker %u in generation %u has stage %u, and worker %u sits there",
                    m->id, view->start.number, m->generation, view->part, m->ranks[other].number);
        }
    }
}
