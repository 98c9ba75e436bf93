/*
 * Workers that go on in the next generation: what they bring along is used, each rank is one
 * process, who counts as parked has parked, and who is kept is neither ended nor kept for ever.
 */
#include <string.h>

#include "common/check.h"
#include "server/core/core.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_coordinator.h"

#define PARKS_MS                                                                                   \
    45000 /* 5 s from Park to END, 15 s more for who does not die; the grace of a start */
#define KEPT_MS 45000 /* 30 s, and what a late coordinator excuses */

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

/* ---- who is kept ---- */

/* The process that the coordinator means by that rank: running; or NULL. */
static const struct sim_trainer_view *process_of(const struct sim *sim, uint32_t job,
                                                 const struct machine *m, uint32_t rank)
{
    for (size_t i = sim->trainer_count; i > 0; i--) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i - 1]);
        if (view->start.job == job && view->birth == m->ranks[rank].birth &&
            view->start.rank == rank && view->exit == SIM_RUNS)
            return view;
    }
    return NULL;
}

static bool is_keeping(const struct machine *m)
{
    return (m->state == MACHINE_RECOVERING || m->state == MACHINE_PLACING) && !machine_ends(m) &&
           machine_alive_rank(m, MACHINE_ALL_RANKS);
}

/* It is nobody's to end: its generation runs or forms, or it has parked and waits for the next. */
static bool is_wanted(const struct machine *m, uint32_t rank)
{
    const struct machine_rank *of = &m->ranks[rank];
    if (of->gone || of->ended || !machine_alive_rank(m, rank))
        return false;
    return m->ending.parks ? of->parked : !machine_ends(m);
}

void sim_parked_check_end(struct sim *sim, struct core *core, const Cairn__V1__TrainerRef *ref)
{
    const int index = sim_job_at(sim, ref->job);
    const struct core_job *of = core_loaded(core, ref->job);
    if (index < 0 || !of || sim->group_max > 1 || ref->rank >= of->m.config.ranks ||
        of->m.ranks[ref->rank].birth != ref->generation || !is_wanted(&of->m, ref->rank))
        return;
    const struct sim_trainer_view *view = process_of(sim, (uint32_t)index, &of->m, ref->rank);
    if (view && strcmp(of->m.ranks[ref->rank].node, sim_node_name(view->node)) == 0)
        sim_fail(sim, "%s: rank %u, born in generation %u, is ended for no reason", ref->job,
                 ref->rank, ref->generation);
}

void sim_parked_check_over(struct sim *sim, struct core *core, const struct sim_trainer_view *view)
{
    const struct core_job *of = core_loaded(core, sim->jobs[view->start.job].id);
    const uint32_t rank = view->start.rank;
    if (!of || sim->group_max > 1 || view->exit != SIM_RUNS || !view->parked ||
        of->m.ranks[rank].birth != view->birth || !is_wanted(&of->m, rank) ||
        view->start.generation + (of->m.state == MACHINE_FORMING) != of->m.generation)
        return;
    if (of->m.state == MACHINE_FORMING ? !of->m.ranks[rank].joined : is_keeping(&of->m))
        sim_fail(sim, "%s: rank %u of generation %u has parked, is kept, and is told to end",
                 of->m.id, rank, view->start.generation);
}

void sim_parked_check_member(struct sim *sim, const struct sim_trainer_view *view)
{
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *other = sim_trainer_view(sim->trainers[i]);
        if (other != view && other->exit == SIM_RUNS && other->start.job == view->start.job &&
            other->start.generation == view->start.generation &&
            other->start.rank == view->start.rank)
            sim_fail(sim, "%s: rank %u of generation %u is two processes",
                     sim->jobs[view->start.job].id, view->start.rank, view->start.generation);
    }
}

static bool parks_still(const struct machine *m)
{
    bool some = false;
    for (uint32_t i = 0; i < m->config.ranks; i++)
        some = some || (!m->ranks[i].gone && !m->ranks[i].parked);
    return some && m->ending.parks;
}

void sim_parked_look(struct sim *sim, uint32_t index, const struct core_job *of)
{
    struct sim_job *known = &sim->jobs[index];
    const struct machine *m = &of->m;
    const bool parks = m->ending.parks && m->state == MACHINE_RECOVERING;
    const bool keeps = is_keeping(m);
    if (!sim_coordinator_runs(sim) || !parks)
        known->parks_since = sim->now;
    if (!sim_coordinator_runs(sim) || !keeps)
        known->kept_since = sim->now;
    if (sim->now - known->parks_since > PARKS_MS && parks_still(m))
        sim_fail(sim, "%s: the workers of generation %u park for %lld ms", m->id, m->generation,
                 (long long)(sim->now - known->parks_since));
    if (sim->now - known->kept_since > KEPT_MS)
        sim_fail(sim, "%s: workers of generation %u are kept for %lld ms", m->id, m->generation,
                 (long long)(sim->now - known->kept_since));
    for (uint32_t i = 0; (parks || keeps) && i < m->config.ranks; i++) {
        const struct sim_trainer_view *view =
            m->ranks[i].parked && !m->ranks[i].gone ? process_of(sim, index, m, i) : NULL;
        if (view && !view->parked && view->start.generation == m->generation)
            sim_fail(sim, "%s: rank %u of generation %u counts as parked, and isn't", m->id, i,
                     m->generation);
    }
}
