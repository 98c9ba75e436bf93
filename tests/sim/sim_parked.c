/*
 * Workers that go on in the next generation: what they bring along is used, and each rank is one
 * process.
 */
#include "common/check.h"
#include "server/core/core.h"
#include "tests/sim/sim.h"

const struct sim_trainer_view *sim_member(const struct sim *sim, uint32_t job, uint32_t generation,
                                          uint32_t rank)
{
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job == job && view->start.generation == generation &&
            view->start.rank == rank && view->exit == SIM_RUNS)
            return view;
    }
    return NULL;
}

void sim_parked_check(struct sim *sim, struct core *core, uint32_t job, const Cairn__V1__Plan *plan)
{
    const struct core_job *of = core_loaded(core, plan->job);
    const uint64_t start =
        plan->live ? plan->live->step : (plan->memory ? plan->memory->step : plan->restore_step);
    for (uint32_t r = 0; r < plan->size; r++) {
        const struct sim_trainer_view *view = sim_member(sim, job, plan->generation, r);
        if (!view || !view->whole || view->ready || view->computed_by >= plan->generation)
            continue;
        const uint32_t age = plan->generation - view->computed_by;
        if (view->step > start && age < 64 && (of->m.ran >> age & 1))
            sim_fail(sim, "%s: generation %u starts from step %llu, but rank %u has step %llu",
                     plan->job, plan->generation, (unsigned long long)start, r,
                     (unsigned long long)view->step);
    }
    if (plan->live && start < sim->jobs[job].acked && plan->generation > sim->jobs[job].acked_by)
        sim_fail(sim, "%s: generation %u goes on from step %llu, but step %llu was acknowledged",
                 plan->job, plan->generation, (unsigned long long)start,
                 (unsigned long long)sim->jobs[job].acked);
}

bool sim_live_restore(struct sim *sim, const struct sim_trainer_view *view,
                      const struct session_assignment *plan)
{
    bool is_source = false;
    for (size_t i = 0; i < plan->live_source_count; i++) {
        const uint32_t rank = plan->live_sources[i];
        const struct sim_trainer_view *source =
            sim_member(sim, view->start.job, plan->generation, rank);
        if (!source)
            return false;
        is_source = is_source || rank == view->start.rank;
        if (!source->ready && (!source->whole || source->step != plan->live_step))
            sim_fail(sim, "%s: rank %u of generation %u is to have step %llu, and has %llu%s",
                     plan->job, rank, plan->generation, (unsigned long long)plan->live_step,
                     (unsigned long long)source->step, source->whole ? "" : ", not whole");
    }
    sim->live_restores += !is_source;
    return true;
}
