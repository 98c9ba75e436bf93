/*
 * Silence, judged: a node that lives isn't called lost while its generation gets on without the
 * coordinator's way to it, and one that died is given up within a bound.
 */
#include <string.h>

#include "server/coord/coord.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_coordinator.h"

#define FRESH_MS  2000 /* so long ago a step was reported: the generation gets on */
#define LATELY_MS 15000
#define START_MS  40000 /* of a coordinator: until everybody is judged */
/* A beat may be under way for 3 s; 5 s of silence; two rounds of probes of 3 s where answers are
 * late; the tick that follows. */
#define DEAD_MS 15000

void sim_silence_hear(struct sim *sim, const struct coord_job *job, uint32_t generation,
                      uint64_t step)
{
    const int index = sim_job_at(sim, job->id);
    if (index < 0 || generation != job->m.generation || fsm_ends(&job->m))
        return; /* or that it ends was decided before */
    struct sim_job *known = &sim->jobs[index];
    const uint64_t before = generation == known->stepped_in ? known->stepped : job->m.restore.step;
    if (step <= before)
        return;
    known->stepped_at = sim->now;
    known->stepped_in = generation;
    known->stepped = step;
}

/* Undisturbed: the coordinator runs for long, and one node that is there could be asked. */
void sim_silence_look(struct sim *sim)
{
    const struct coordinator *c = sim->coordinator;
    uint32_t serve = 0;
    for (uint32_t i = 0; i < sim->node_count; i++)
        serve += sim_node_serves(sim, sim->nodes[i]) && sim_control_away_ms(sim, i, true) == 0 &&
                 sim_control_away_ms(sim, i, false) == 0;
    if (!sim_coordinator_runs(sim) || sim->now < c->started_at + START_MS || serve == 0)
        sim->clear_since = sim->now;
    if (sim->now >= c->frozen_until && c->frozen_until > sim->clear_since)
        sim->clear_since = c->frozen_until; /* nothing was looked at meanwhile */
}

/* The way between its node and the coordinator is cut, or was until lately. */
static bool is_cut_off(const struct sim *sim, const char *name)
{
    const uint32_t node = (uint32_t)(name[strlen("node")] - '0');
    const int64_t since = sim->now - LATELY_MS;
    return sim->unheard_until[node] > since || sim->deaf_until[node] > since;
}

/* No worker of it died. */
static bool is_whole(const struct sim *sim, uint32_t index, const struct fsm *m)
{
    bool whole = true;
    for (uint32_t i = 0; whole && i < m->size; i++) {
        const struct sim_trainer_view *view = sim_process(sim, index, m, i, false);
        whole = view != NULL && view->exit == SIM_RUNS;
    }
    return whole;
}

/* Workers that get no further because one of them is cut off (those that save and leave, also after
 * the last step, or form, as far as the coordinator heard) may be ended; those that do get further
 * may not. */
static void check_end(struct sim *sim, uint32_t index, const struct fsm *m)
{
    struct sim_job *known = &sim->jobs[index];
    if (m->generation > known->judged + 1) { /* one was over before it was looked at */
        known->judged = m->generation - 1;
        known->cut_off += sim->breaks_control && known->stepped_in < known->judged;
    }
    bool cut_off = sim->breaks_control && known->stepped_in != m->generation;
    const bool ended = fsm_ends(m) || m->state == FSM_RECOVERING || m->state == FSM_QUEUED;
    if (!ended || m->ending.to == FSM_SUCCEEDED || m->cause.kind == FSM_FAULT_NONE ||
        known->judged == m->generation)
        return;
    known->judged = m->generation;
    for (uint32_t i = 0; i < m->size; i++)
        cut_off = cut_off || is_cut_off(sim, m->ranks[i].node);
    const uint32_t rank = m->cause.rank < m->size ? m->cause.rank : 0;
    const struct sim_trainer_view *view = sim_process(sim, index, m, rank, false);
    const bool silence = m->cause.kind == FSM_FAULT_NODE || m->cause.kind == FSM_FAULT_HANG;
    if (!cut_off || known->plain ||
        known->program) /* programs may finish steps without each other */
        return;
    known->cut_off++;
    if (silence && view != NULL && is_whole(sim, index, m) && !view->hung && (m->ran & 1) &&
        (view->woke_at == 0 || sim->now - view->woke_at >= FRESH_MS) &&
        known->stepped_in == m->generation && known->stepped < known->total &&
        sim->now - known->stepped_at < FRESH_MS)
        sim_fail(sim, "%s: rank %u lives, and generation %u gets on, and is ended: %s", known->id,
                 rank, m->generation, m->cause.message);
}

static void check_dead(struct sim *sim, uint32_t index, const struct fsm *m)
{
    for (uint32_t i = 0; !fsm_ends(m) && i < m->count; i++) {
        const struct sim_trainer_view *view = sim_process(sim, index, m, i, false);
        int64_t since = 0;
        if (m->ranks[i].gone || view == NULL || sim_node_up(view->node, &since))
            continue;
        since = since > sim->clear_since ? since : sim->clear_since;
        if (sim->now - since > DEAD_MS)
            sim_fail(sim, "%s: rank %u of generation %u died with its node %lld ms ago", m->id, i,
                     m->generation, (long long)(sim->now - since));
    }
}

void sim_silence_check(struct sim *sim, uint32_t job, const struct coord_job *of)
{
    check_end(sim, job, &of->m);
    check_dead(sim, job, &of->m);
}
