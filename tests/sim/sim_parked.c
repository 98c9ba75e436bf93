/*
 * Workers that go on in the next generation: what they bring along is used, each rank is one
 * process, who counts as parked has parked, and who is kept is neither ended nor kept for ever.
 */
#include <string.h>

#include "common/check.h"
#include "server/coord/coord.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_coordinator.h"

#define PARKS_MS                                                                                   \
    45000 /* 5 s from Park to END, 15 s more for who does not die; the grace of a start */
#define KEPT_MS 60000 /* 30 s, 15 s for who does not die, and what a late coordinator excuses */

const struct sim_trainer_view *sim_member(const struct sim *sim, uint32_t job, uint32_t generation,
                                          uint32_t rank)
{
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job == job && view->start.generation == generation && view->rank == rank &&
            view->exit == SIM_RUNS)
            return view;
    }
    return NULL;
}

const struct sim_trainer_view *sim_worker(const struct sim *sim, uint32_t job, uint32_t generation,
                                          uint32_t number)
{
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job == job && view->start.generation == generation &&
            view->start.number == number && !view->start.spare && view->exit == SIM_RUNS)
            return view;
    }
    return NULL;
}

const struct sim_trainer_view *sim_process(const struct sim *sim, uint32_t job, const struct fsm *m,
                                           uint32_t index, bool runs)
{
    const struct fsm_rank *of = &m->ranks[index];
    for (size_t i = sim->trainer_count; i > 0; i--) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i - 1]);
        if (view->start.job == job && view->birth == of->birth &&
            view->start.number == of->number && strcmp(of->node, sim_node_name(view->node)) == 0 &&
            (!runs || view->exit == SIM_RUNS))
            return view;
    }
    return NULL;
}

/* What of the generation's workers could be gone on from. */
static const struct sim_trainer_view *brings(struct sim *sim, uint32_t job, const struct fsm *m,
                                             uint32_t rank)
{
    const struct sim_trainer_view *view =
        sim_worker(sim, job, m->generation, m->ranks[rank].number);
    if (view == NULL || !view->complete || view->ready || view->computed_by >= m->generation)
        return NULL;
    const uint32_t age = m->generation - view->computed_by;
    return age < 64 && (m->ran >> age & 1) ? view : NULL;
}

/* True if a worker of a pipeline has the part of the state that its stage needs; true outside of
 * pipelines. */
static bool sits_well(const struct sim *sim, uint32_t job, const struct fsm *m, uint32_t rank,
                      const struct sim_trainer_view *view)
{
    const uint32_t stages = fsm_stages(m);
    if (sim->jobs[job].stages == 0)
        return true;
    return view->parts == (stages > 1 ? stages : 0) && view->part == m->ranks[rank].stage;
}

/* Whether one has all of that step's state, or all parts of it are there. */
static bool is_there(struct sim *sim, uint32_t job, const struct fsm *m,
                     const struct sim_trainer_view *of)
{
    bool there[SIM_RANKS] = { false };
    uint32_t count = 0;
    for (uint32_t r = 0; r < m->size; r++) {
        const struct sim_trainer_view *view = brings(sim, job, m, r);
        if (view == NULL || view->step != of->step || view->parts != of->parts ||
            there[view->part] || !sits_well(sim, job, m, r, view))
            continue;
        there[view->part] = true;
        count++;
    }
    return count > 0 && count >= of->parts;
}

/* When a generation has fewer workers, those that go on have every step that a worker which is let
 * go was heard to have. */
static void check_let_go(struct sim *sim, uint32_t job, const struct fsm *m,
                         const Cairn__V1__Plan *plan, uint64_t start)
{
    for (size_t i = 0; m->generation == plan->generation && i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job != job || view->start.spare || !view->dismissed || !view->complete ||
            view->unkillable || view->hung || view->parts > 0 ||
            view->start.generation + 1 != plan->generation || view->step <= start ||
            view->computed_by != view->start.generation || !(m->ran & 2))
            continue;
        sim_fail(sim,
                 "%s: generation %u starts from step %llu, but worker %u had step %llu, and "
                 "was let go",
                 m->id, plan->generation, (unsigned long long)start, view->start.number,
                 (unsigned long long)view->step);
    }
}

void sim_parked_check(struct sim *sim, struct coord *coord, uint32_t job,
                      const Cairn__V1__Plan *plan)
{
    const struct coord_job *of = coord_loaded(coord, plan->job);
    const uint64_t start = plan->live != NULL
                               ? plan->live->step
                               : (plan->memory != NULL ? plan->memory->step : plan->restore_step);
    for (uint32_t r = 0; of->m.generation == plan->generation && r < plan->size; r++) {
        const struct sim_trainer_view *view = brings(sim, job, &of->m, r);
        if (view != NULL && view->step > start && is_there(sim, job, &of->m, view))
            sim_fail(sim, "%s: generation %u starts from step %llu, but rank %u has step %llu",
                     plan->job, plan->generation, (unsigned long long)start, r,
                     (unsigned long long)view->step);
    }
    if (of->m.generation == plan->generation)
        sim_stages_check_seats(sim, job, &of->m);
    if (plan->live != NULL) /* else all were ended, and a checkpoint may be damaged since */
        check_let_go(sim, job, &of->m, plan, start);
    if (plan->live != NULL && start < sim->jobs[job].acked &&
        plan->generation > sim->jobs[job].acked_by &&
        !sim_store_lost(sim, job, sim->jobs[job].acked))
        sim_fail(sim, "%s: generation %u goes on from step %llu, but step %llu was acknowledged",
                 plan->job, plan->generation, (unsigned long long)start,
                 (unsigned long long)sim->jobs[job].acked);
}

bool sim_live_restore(struct sim *sim, const struct sim_trainer_view *view,
                      const struct session_assignment *plan)
{
    bool is_source = false, first = true, there[SIM_RANKS] = { false };
    uint32_t parts = 0, count = 0;
    for (size_t i = 0; i < plan->live_source_count; i++) {
        const uint32_t rank = plan->live_sources[i];
        const struct sim_trainer_view *source =
            sim_member(sim, view->start.job, plan->generation, rank);
        if (source == NULL || source->unwinds)
            return false;
        is_source = is_source || rank == view->rank;
        if (!source->ready && (!source->complete || source->step != plan->live_step))
            sim_fail(sim, "%s: rank %u of generation %u is to have step %llu, and has %llu%s",
                     plan->job, rank, plan->generation, (unsigned long long)plan->live_step,
                     (unsigned long long)source->step, source->complete ? "" : ", not whole");
        first = first && !source->ready; /* who is has the part of its new rank by now */
        parts = source->parts;
        count += !there[source->part];
        there[source->part] = true;
    }
    if (first && count < parts)
        sim_fail(sim, "%s: generation %u goes on from step %llu with %u of %u parts", plan->job,
                 plan->generation, (unsigned long long)plan->live_step, count, parts);
    if (plan->stage_count > 0 && first)
        sim_stages_check_live(sim, view, plan);
    sim->live_restores += !is_source;
    return true;
}

/* ---- who is kept ---- */

static bool is_keeping(const struct fsm *m)
{
    return (m->state == FSM_RECOVERING || m->state == FSM_PLACING) && !fsm_ends(m) &&
           fsm_alive_rank(m, FSM_ALL_RANKS);
}

/* True if nobody may end the worker: its generation runs or forms, or it has parked and waits for
 * the next, or it is a spare. */
static bool is_wanted(const struct fsm *m, uint32_t index)
{
    const struct fsm_rank *of = &m->ranks[index];
    if (of->gone || of->ended || !fsm_alive_rank(m, index))
        return false;
    if (fsm_is_spare(m, index))
        return true;
    return m->ending.parks ? of->parked : !fsm_ends(m);
}

void sim_parked_check_end(struct sim *sim, struct coord *coord, const Cairn__V1__TrainerRef *ref)
{
    const int index = sim_job_at(sim, ref->job);
    const struct coord_job *of = coord_loaded(coord, ref->job);
    const uint32_t at = index >= 0 && of != NULL && sim->group_max == 1
                            ? fsm_find_number(&of->m, ref->rank, of->m.count)
                            : FSM_ALL_RANKS;
    if (at == FSM_ALL_RANKS || of->m.ranks[at].birth != ref->generation || !is_wanted(&of->m, at))
        return;
    const struct sim_trainer_view *view = sim_process(sim, (uint32_t)index, &of->m, at, true);
    if (view != NULL)
        sim_fail(sim, "%s: worker %u, born in generation %u, is ended for no reason", ref->job,
                 ref->rank, ref->generation);
}

void sim_parked_check_over(struct sim *sim, struct coord *coord,
                           const struct sim_trainer_view *view)
{
    const struct coord_job *of = coord_loaded(coord, sim->jobs[view->start.job].id);
    const uint32_t at =
        of != NULL ? fsm_find_number(&of->m, view->start.number, of->m.count) : FSM_ALL_RANKS;
    if (at == FSM_ALL_RANKS || sim->group_max > 1 || view->exit != SIM_RUNS || !view->parked ||
        of->m.ranks[at].birth != view->birth || !is_wanted(&of->m, at))
        return;
    const bool forms = of->m.state == FSM_FORMING && !fsm_is_spare(&of->m, at);
    if (!view->start.spare && view->start.generation + forms != of->m.generation)
        return;
    if (fsm_is_spare(&of->m, at) || (forms ? !of->m.ranks[at].joined : is_keeping(&of->m)))
        sim_fail(sim, "%s: worker %u of generation %u has parked, is kept, and is told to end",
                 of->m.id, view->start.number, view->start.generation);
}

void sim_parked_check_member(struct sim *sim, const struct sim_trainer_view *view)
{
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *other = sim_trainer_view(sim->trainers[i]);
        if (other == view || other->exit != SIM_RUNS || other->start.job != view->start.job ||
            other->start.generation != view->start.generation ||
            other->start.spare != view->start.spare)
            continue;
        if (other->start.number == view->start.number ||
            (view->rank != SIM_NO_RANK && other->rank == view->rank))
            sim_fail(sim, "%s: worker %u, rank %d, of generation %u is two processes",
                     sim->jobs[view->start.job].id, view->start.number, (int)view->rank,
                     view->start.generation);
    }
}

static bool parks_still(const struct fsm *m)
{
    bool some = false;
    for (uint32_t i = 0; i < m->size; i++)
        some = some || (!m->ranks[i].gone && !m->ranks[i].parked);
    return some && m->ending.parks;
}

/* A generation begins to train: none of its workers counts as further than it is. */
static void check_begins(struct sim *sim, uint32_t index, const struct fsm *m)
{
    struct sim_job *known = &sim->jobs[index];
    const bool trains = m->state == FSM_RUNNING || m->state == FSM_SAVING;
    if (!trains || known->trained_in == m->generation)
        return;
    known->trained_in = m->generation;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct sim_trainer_view *view = sim_member(sim, index, m->generation, i);
        if (view != NULL && m->ranks[i].step > view->step)
            sim_fail(sim, "%s: generation %u trains, and counts worker %u at step %llu, not %llu",
                     m->id, m->generation, m->ranks[i].number, (unsigned long long)m->ranks[i].step,
                     (unsigned long long)view->step);
    }
}

void sim_parked_look(struct sim *sim, uint32_t index, const struct coord_job *of)
{
    struct sim_job *known = &sim->jobs[index];
    const struct fsm *m = &of->m;
    const bool parks = m->ending.parks && m->state == FSM_RECOVERING;
    const bool keeps = is_keeping(m);
    check_begins(sim, index, m);
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
    for (uint32_t i = parks || keeps ? 0 : m->size; i < m->count; i++) {
        const struct sim_trainer_view *view =
            m->ranks[i].parked && !m->ranks[i].gone ? sim_process(sim, index, m, i, true) : NULL;
        if (view != NULL && !view->parked &&
            (view->start.generation == m->generation || i >= m->size))
            sim_fail(sim, "%s: worker %u in generation %u counts as parked, and isn't", m->id,
                     m->ranks[i].number, m->generation);
    }
}
