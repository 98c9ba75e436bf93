/*
 * Ranks that hang in their own computation while their sessions talk on: the others wait for them
 * in the next reduction, and the one that is blamed must be one of them.
 */
#include <string.h>

#include "server/coord/coord.h"
#include "session/fsm.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_coordinator.h"

#define COMPUTE_MS 30 /* of a step, before its reduction */

void sim_hang_stall(struct sim *sim, struct sim_trainer_view *view)
{
    sim_say(sim, "trainer job%u g%u w%u is to hang in a step", view->start.job,
            view->start.generation, view->start.number);
    view->stalls_next = true;
}

bool sim_hang_computes(const struct sim_trainer_view *view, struct session_progress *progress,
                       int64_t ms)
{
    if (view->stalls)
        return false;
    if (ms >= COMPUTE_MS)
        progress->collectives |= 1;
    return true;
}

void sim_hang_stepped(struct sim *sim, struct sim_trainer_view *view,
                      struct session_progress *progress, bool trains)
{
    progress->collectives += progress->collectives % 2;
    if (!view->stalls_next || !trains)
        return;
    view->stalls = true;
    sim_say(sim, "trainer job%u g%u w%u hangs in step %llu", view->start.job,
            view->start.generation, view->start.number, (unsigned long long)view->step + 1);
}

/* The evidence is always right. Without any, whoever stopped first is blamed, as far as that was
 * heard. */
void sim_hang_check(struct sim *sim, uint32_t index, const struct coord_job *of)
{
    const struct fsm *m = &of->m;
    struct sim_job *known = &sim->jobs[index];
    if (m->cause.kind != FSM_FAULT_HANG || known->hang_judged == m->generation)
        return;
    known->hang_judged = m->generation;
    const bool evidence = strstr(m->cause.message, "has not come to") != NULL;
    bool stalled = false;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job != index || view->start.generation != m->generation ||
            view->rank == SIM_NO_RANK)
            continue;
        stalled = stalled || view->stalls;
        if (evidence && view->rank == m->cause.rank && !view->stalls && !view->was_hung &&
            !view->hung)
            sim_fail(sim, "%s: rank %u is blamed and kept nobody waiting: %s", known->id,
                     m->cause.rank, m->cause.message);
        sim->stalls_blamed += evidence && view->rank == m->cause.rank && view->stalls;
    }
    sim->stalls_missed += stalled && !evidence;
    if (stalled && !evidence)
        sim_say(sim, "%s: a hang without evidence: %s", known->id, m->cause.message);
}
