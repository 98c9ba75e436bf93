/*
 * Workers of different speeds, in some of the worlds: what each says of its lanes; and what is
 * promised: lanes move for nobody who is as fast as the others, nor twice within a minute, but with
 * one that is left out, and they do move away from who is slow. That each lane is some rank's is
 * checked with every plan.
 */
#include "server/coord/coord.h"
#include "server/jobfsm/balance/balance.h"
#include "session/fsm.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_coordinator.h"

#define WORLDS    400   /* per mille of them */
#define LANE_US   40000 /* of a worker that nothing slows down */
#define CHANGE_MS 12000 /* twice the mean time between two changes of a speed */
#define MOVES_MS  60000 /* between two moves */
#define PATIENT_MS                                                                                 \
    40000 /* one that is slow for so long, with nothing in its way, has fewer lanes */
#define WORTH_US 12000000

/* ---- the world ---- */

static void change_some(struct sim *sim, void *arg, uint64_t number)
{
    struct sim_trainer_view *some = NULL;
    uint32_t seen = 0;
    if (sim->now >= sim->options.chaos_ms)
        return;
    sim_at(sim, 1 + (int64_t)sim_below(sim, CHANGE_MS), change_some, arg, number);
    for (size_t i = 0; i < sim->trainer_count; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->exit == SIM_RUNS && sim_below(sim, ++seen) == 0)
            some = view;
    }
    if (some == NULL)
        return;
    some->lane_us =
        some->lane_us > LANE_US ? LANE_US : (uint32_t)(LANE_US * (2 + sim_below(sim, 7)));
    sim->jobs[some->start.job].slowed = true;
    sim_say(sim, "trainer %s w%u takes %u us for a lane", sim->jobs[some->start.job].id,
            some->start.number, some->lane_us);
}

void sim_lanes_begin(struct sim *sim)
{
    const uint64_t chance = sim_state(6, sim->options.seed);
    for (uint32_t i = 0; i < sim->job_count; i++) {
        sim->jobs[i].by_speed = sim_state(7 + i, sim->options.seed) % 2 == 0;
        sim->jobs[i].owns = sim_state(11 + i, sim->options.seed) % 3 == 0;
    }
    if (chance % 1000 < WORLDS && !sim->options.calm)
        sim_at(sim, (int64_t)sim_below(sim, CHANGE_MS), change_some, NULL, 0);
}

uint32_t sim_lanes_speed(void)
{
    return LANE_US;
}

void sim_lanes_stepped(struct sim *sim, const struct sim_trainer_view *view,
                       struct session_fsm *fsm)
{
    const Cairn__V1__Plan *plan = fsm->assigned != NULL ? fsm->assigned->plan : NULL;
    if (plan == NULL || view->rank >= plan->n_shares)
        return;
    const uint32_t lanes = plan->shares[view->rank];
    const int64_t us = (int64_t)lanes * view->lane_us;
    session_fsm_note_lanes(fsm, lanes, us + us * (int64_t)sim_below(sim, 200) / 10000);
}

/* ---- what is promised ---- */

/* Microseconds of a step that other shares would save; 0: less than the coordinator cares for. */
static uint64_t gain_us(const struct sim *sim, uint32_t index, const struct coord_job *of)
{
    const struct fsm *m = &of->m;
    uint32_t us[SIM_RANKS], best[SIM_RANKS];
    struct jobspec_layout layout;
    if (m->size > SIM_RANKS || sim->jobs[index].stages > 0 || coord_layout(of, &layout) != ST_OK)
        return 0;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct sim_trainer_view *view = sim_member(sim, index, m->generation, i);
        if (view == NULL)
            return 0;
        us[i] = view->lane_us;
    }
    balance_lanes(us, m->size, sim->lanes, best);
    const uint64_t now_us = balance_step_us(us, layout.shares, m->size);
    const uint64_t best_us = balance_step_us(us, best, m->size);
    bool slow = sim->jobs[index].by_speed;
    for (uint32_t i = 0; i < m->size; i++)
        slow = slow || us[i] * 2ULL > balance_median(us, m->size) * 3ULL;
    return slow && best_us * 10 < now_us * 9 ? now_us - best_us : 0;
}

/* True if the job trains, and nothing keeps the coordinator from another generation. */
static bool is_steady(const struct sim *sim, const struct fsm *m)
{
    bool heard = true;
    for (uint32_t i = 0; i < m->size; i++)
        heard = heard && m->ranks[i].session;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++)
        heard = heard && (m->due.announced[i].step == 0 || !m->due.announced[i].exit);
    return heard && sim_coordinator_runs(sim) && m->state == FSM_RUNNING && !fsm_ends(m) &&
           m->intent == FSM_INTENT_NONE && !m->due.moves && !m->config.restarts &&
           sim->now > m->grace_until;
}

/* Nobody waits for ever for one that is slow. */
static void check_patience(struct sim *sim, uint32_t index, const struct coord_job *of)
{
    struct sim_job *known = &sim->jobs[index];
    const struct fsm *m = &of->m;
    const bool lately = known->moved_at != 0 && sim->now - known->moved_at < MOVES_MS;
    const uint64_t left = known->total > m->step_max ? known->total - m->step_max : 0;
    if (!known->slowed || known->program || lately || sim->cuts > 0 || !is_steady(sim, m) ||
        gain_us(sim, index, of) * left < WORTH_US)
        known->waits_since = sim->now;
    else if (sim->now - known->waits_since > PATIENT_MS)
        sim_fail(sim, "%s: generation %u waits for a slow worker for %lld ms", known->id,
                 m->generation, (long long)(sim->now - known->waits_since));
}

void sim_lanes_look(struct sim *sim, uint32_t index, const struct coord_job *of)
{
    struct sim_job *known = &sim->jobs[index];
    const struct fsm *m = &of->m;
    if (m->balance.due && known->moved_in != m->generation) {
        if (!known->slowed && sim->lanes % m->size == 0)
            sim_fail(sim, "%s: lanes of generation %u move, and all are equally fast", known->id,
                     m->generation);
        if (known->moved_in != 0 && sim->now - known->moved_at < MOVES_MS &&
            known->moved_by == sim->crashes && m->balance.replaced_at <= known->moved_at)
            sim_fail(sim, "%s: lanes move after %lld ms again", known->id,
                     (long long)(sim->now - known->moved_at));
        known->moved_in = m->generation;
        known->moved_by = sim->crashes;
        known->moved_at = sim->now;
        sim->moves++;
    }
    check_patience(sim, index, of);
}
