/*
 * Spares, and jobs whose number of workers changes: in half of the worlds. What a spare does until
 * it waits for a seat; users that ask for other numbers; and what is promised of all this: plans
 * are complete, a set number holds, nobody is ended for no reason, and a job comes to its number.
 */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "server/coord/coord.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/worker/sim_trainer.h"

#define WORLDS      500   /* per mille of them */
#define SET_GAP_MS  16000 /* twice the mean time between two numbers that are asked for */
#define MIND_MS     3000  /* until a user changes their mind */
#define HURT_GAP_MS 12000
#define BUILD_MS    2000
#define SLOW_MS     25000 /* some take so long */
#define CALM_MS     30000 /* so long ago something was done to a spare: it had its time */
#define COMES_MS    60000 /* a job that is short of workers, or has too many, has another size */
#define CROWD_MS    15000 /* those that are too many are told to go; they may write for 10 s */

/* ---- a spare ---- */

static void build(struct sim *sim, struct sim_trainer *t)
{
    const struct sim_job *job = &sim->jobs[t->view.start.job];
    char pins[SIM_PINS_BYTES];
    t->progress.counter++;
    if (sim->now < t->built_at)
        return;
    if (job->user_error) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__USER, "job.yaml:3:1: this can't run");
        return;
    }
    if (sim_node_flaw(sim, t->view.node) == SIM_HAS_NO_DATA) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__USER, SIM_FLAW);
        return;
    }
    if (job->plain || job->program) {
        (void)snprintf(pins, sizeof(pins), "%s", SIM_PLAIN_PINS);
    } else {
        sim_trainer_pins(sim, t, pins);
    }
    struct session_ready ready = {
        .total_steps = job->total, .steps_per_epoch = 10, .save_every = job->every, .pins = pins
    };
    if (job->program) /* it isn't started yet, so nobody knows */
        ready = (struct session_ready){ .pins = pins };
    CHECK(session_fsm_ready(&t->fsm, &ready) == ST_OK);
    session_fsm_parked(&t->fsm, &(struct session_parked){ .step = 0 });
    t->stage = PARKED;
    t->view.parked = true;
    sim_say(sim, "spare %s w%u is ready", t->id, t->view.start.number);
}

bool sim_spare_run(struct sim *sim, struct sim_trainer *t)
{
    if (!t->view.start.spare || t->stage == PARKED)
        return false;
    if (t->stage == JOINING && t->fsm.assigned != NULL) {
        if (!t->fsm.assigned->plan->spare)
            sim_fail(sim, "%s w%u is a spare, and has the plan of a rank", t->id,
                     t->view.start.number);
        const uint64_t ms = sim_chance(sim, 60) ? SLOW_MS : BUILD_MS;
        t->stage = BUILDING;
        t->built_at = sim->now + 200 + (int64_t)sim_below(sim, ms);
        t->progress.phase = "spare";
    } else if (t->stage == BUILDING) {
        build(sim, t);
    } else if (t->stage == WAITING_OVER && sim->now - t->stage_since > 10000) {
        sim_trainer_leave(sim, t, SIM_EXIT, 1);
    }
    return true;
}

/* ---- the world ---- */

/* Counted in sim->sets, but where nobody heard of it, or it was refused. */
static void set_workers(struct sim *sim, uint32_t index, uint32_t count)
{
    struct coordinator *c = sim->coordinator;
    struct sim_job *known = &sim->jobs[index];
    struct coord_job *job;
    struct reason reason;
    if (!known->is_set || !known->submitted || known->asked != 0 || !sim_coordinator_up(sim) ||
        sim->now < c->frozen_until || coord_find(c->coord, known->id, &job) != ST_OK)
        return;
    const enum status st = coord_set_workers(c->coord, job, count, NULL, &reason);
    sim_end_group(sim);
    if (st != ST_OK)
        return;
    sim_say(sim, "%s is to have %u workers%s", known->id, count,
            c->coord != NULL ? "" : ": no answer");
    sim->sets++;
    known->set_at = sim->now;
    known->asked = c->coord != NULL ? 0 : count;
    known->ranks = c->coord != NULL ? count : known->ranks;
}

/* number: of the job, and how many it had before. */
static void set_back(struct sim *sim, void *arg, uint64_t number)
{
    (void)arg;
    if (sim->now < sim->options.chaos_ms)
        set_workers(sim, (uint32_t)(number / 16), (uint32_t)(number % 16));
}

/* In half of the worlds a user who asked for more changes their mind: workers are on their way then
 * that nobody needs any more. Of the seed alone. */
static void set_some(struct sim *sim, void *arg, uint64_t number)
{
    const uint32_t index = (uint32_t)sim_below(sim, sim->job_count);
    const uint32_t count = 1 + (uint32_t)sim_below(sim, SIM_RANKS);
    const uint32_t had = sim->jobs[index].ranks;
    const uint64_t sets = sim->sets;
    if (sim->now >= sim->options.chaos_ms)
        return;
    sim_at(sim, 1 + (int64_t)sim_below(sim, SET_GAP_MS), set_some, arg, number);
    set_workers(sim, index, count);
    if (sim->sets > sets && count > had && sim_state(40, sim->options.seed) % 2 == 0)
        sim_at(sim, 1 + (int64_t)sim_below(sim, MIND_MS), set_back, NULL, index * 16 + had);
}

/* Hurts a spare, in calm worlds: whatever becomes of it, the generation is none the worse. A spare
 * that hangs is noticed after a while; where nodes are cut off it might take a seat before. */
static void hurt_spare(struct sim *sim, void *arg, uint64_t number)
{
    const uint64_t what = sim_below(sim, 3);
    struct sim_trainer *some = NULL;
    uint32_t seen = 0;
    if (sim->now >= sim->options.chaos_ms)
        return;
    sim_at(sim, 1 + (int64_t)sim_below(sim, HURT_GAP_MS), hurt_spare, arg, number);
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.spare && view->exit == SIM_RUNS && sim_below(sim, ++seen) == 0)
            some = sim->trainers[i];
    }
    if (some == NULL)
        return;
    sim->faults++;
    if (what == 0)
        sim_trainer_kill(sim, some, sim_chance(sim, 500) ? 9 : 11);
    else if (what == 1 && !sim->breaks_control)
        sim_trainer_hang(sim, some);
    else
        sim_trainer_cut(sim, some);
}

/* The choices depend on the seed alone, so other worlds stay as they were. */
void sim_spare_begin(struct sim *sim)
{
    const bool calm = sim->options.calm;
    sim->resizes = sim_state(4, sim->options.seed) % 1000 < WORLDS;
    sim->lanes = sim->options.seed % 3 == 0 ? SIM_RANKS : SIM_LANES;
    if (!sim->resizes)
        return;
    for (uint32_t i = 0; i < sim->job_count; i++) {
        struct sim_job *job = &sim->jobs[i];
        uint64_t chance = sim_state(5 + i, sim->options.seed);
        job->spares = (uint32_t)(chance % 10 < 3 ? 0 : chance % 10 < 7 ? 1 : 2);
        chance /= 10;
        job->min = calm || chance % 2 == 0 ? job->ranks : 1 + (uint32_t)(chance / 2 % job->ranks);
        job->floor = job->min < job->ranks ? job->min : 0;
        chance /= 100;
        job->is_set = !calm && chance % 10 < 6;
        if (chance / 10 % 4 == 0)
            job->total *= 4;
    }
    sim_at(sim, (int64_t)sim_below(sim, SET_GAP_MS), calm ? hurt_spare : set_some, NULL, 0);
}

/* ---- plans ---- */

static bool is_one_ready(const struct fsm *m)
{
    bool ready = false;
    for (uint32_t i = m->size; i < m->count; i++)
        ready = ready || (m->ranks[i].parked && !m->ranks[i].gone && !m->ranks[i].ended);
    return ready;
}

static void note_formed(const struct sim *sim, struct sim_job *known, const struct fsm *m)
{
    if (known->formed_in == m->generation)
        return;
    known->formed_in = m->generation;
    known->formed_at = sim->now;
}

void sim_spare_check_plan(struct sim *sim, struct coord *fsm, uint32_t job,
                          const Cairn__V1__Plan *plan)
{
    struct sim_job *known = &sim->jobs[job];
    const struct coord_job *of = coord_loaded(fsm, plan->job);
    uint32_t lanes = 0;
    for (size_t i = 0; i < plan->n_shares; i++)
        lanes += plan->shares[i];
    const size_t stages = plan->n_stages > 0 ? plan->n_stages : 1;
    const bool well = known->plain || known->program || lanes == sim->lanes * stages;
    if (plan->n_shares != plan->size || !well || plan->rank >= plan->size)
        sim_fail(sim, "%s: a plan for rank %u of %u has %zu shares with %u lanes", plan->job,
                 plan->rank, plan->size, plan->n_shares, lanes);
    const uint32_t cut = plan->size < known->stages ? plan->size : known->stages;
    if (stages != (cut > 1 ? cut : 1)) {
        sim_fail(sim, "%s: a plan of generation %u for %u workers%s has %zu stages", plan->job,
                 plan->generation, plan->size, plan->spare ? ", of a spare," : "", stages);
    }
    if (plan->spare || of == NULL || of->m.generation != plan->generation)
        return;
    const struct fsm *m = &of->m;
    note_formed(sim, known, m);
    if (known->planned == plan->generation && known->size != plan->size)
        sim_fail(sim, "%s: generation %u has %u ranks, and had %u", plan->job, plan->generation,
                 plan->size, known->size);
    if (plan->size < known->floor)
        sim_fail(sim, "%s: generation %u has %u workers, at least %u are to be", plan->job,
                 plan->generation, plan->size, known->floor);
    if (known->planned != plan->generation)
        sim->resized += known->planned != 0 && known->size != plan->size;
    known->planned = plan->generation;
    known->size = plan->size;
    if (m->state == FSM_FORMING && sim->group_max == 1 && m->size < m->config.ranks &&
        is_one_ready(m) && m->spares.ready_at > 0 && m->spares.ready_at < known->formed_at &&
        known->set_at < known->formed_at)
        sim_fail(sim, "%s: generation %u has %u of %u workers, and a spare is ready", plan->job,
                 m->generation, m->size, m->config.ranks);
}

/* ---- what holds at any time ---- */

/* What a user was told that it is set is so, whatever became of the coordinator. */
static void check_set(struct sim *sim, struct sim_job *known, const struct fsm *m)
{
    if (known->asked != 0 && m->config.ranks == known->asked)
        known->ranks = known->asked;
    known->asked = 0;
    if (m->config.ranks != known->ranks)
        sim_fail(sim, "%s: it is to have %u workers, and the coordinator knows of %u", known->id,
                 known->ranks, m->config.ranks);
}

static void check_numbers(struct sim *sim, const struct fsm *m)
{
    for (uint32_t i = 1; i < m->count; i++) {
        const uint32_t at = fsm_find_number(m, m->ranks[i].number, i);
        if (!m->ranks[i].gone && at != FSM_ALL_RANKS)
            sim_fail(sim, "%s: two of its workers are number %u", m->id, m->ranks[i].number);
    }
}

static uint32_t count_staying(const struct fsm *m)
{
    uint32_t staying = 0;
    for (uint32_t i = 0; i < m->count; i++)
        staying += !m->ranks[i].gone && !m->ranks[i].ended;
    return staying;
}

/* True if the job trains and goes on with that, and its coordinator is there and hears all of
 * it. */
static bool is_steady(const struct sim *sim, const struct fsm *m)
{
    bool leaves = m->due.moves;
    for (uint32_t i = 0; i < m->size; i++)
        leaves = leaves || !m->ranks[i].session;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++)
        leaves = leaves || (m->due.announced[i].step > 0 && m->due.announced[i].exit);
    return sim_coordinator_runs(sim) && m->state == FSM_RUNNING && !fsm_ends(m) &&
           m->intent == FSM_INTENT_NONE && !leaves && !m->config.restarts &&
           sim->now > m->grace_until;
}

/* Another job waits for slots, and is served before spares are. */
static bool others_wait(const struct sim *sim)
{
    bool wait = false;
    for (uint32_t i = 0; i < sim->job_count; i++) {
        const struct coord_job *of = coord_loaded(sim->coordinator->coord, sim->jobs[i].id);
        wait = wait || !sim->jobs[i].submitted ||
               (of != NULL && (of->m.state == FSM_QUEUED || of->m.state == FSM_PLACING ||
                               of->m.state == FSM_RECOVERING));
    }
    return wait;
}

static bool slot_is_free(struct sim *sim)
{
    bool is_free = false;
    for (uint32_t n = 0; n < sim->node_count; n++) {
        uint32_t used = 0;
        for (size_t i = 0; i < sim->trainer_count; i++) {
            const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
            used += view->node == sim->nodes[n] && view->exit == SIM_RUNS;
        }
        is_free = is_free || (used < sim->slots && sim_node_serves(sim, sim->nodes[n]));
    }
    return is_free;
}

/* A job that has too few or too many workers, and all that it takes for another size, has it. */
static void check_size(struct sim *sim, struct sim_job *known, const struct fsm *m)
{
    const bool steady = !sim->chaos && is_steady(sim, m) && m->size != m->config.ranks &&
                        sim->now > sim->clear_since + 1000 &&
                        (known->plain || m->step_max > m->replay_until); /* spares start after
                                                                          * a step */
    const bool more = m->size < m->config.ranks;
    if (!steady || (more && (sim->cuts > 0 || m->exclusions.count > 0 || m->spares.retry_at != 0 ||
                             others_wait(sim) || !slot_is_free(sim))))
        known->short_since = sim->now;
    else if (sim->now - known->short_since > COMES_MS)
        sim_fail(sim, "%s: generation %u has %u workers, of %u, for %lld ms", known->id,
                 m->generation, m->size, m->config.ranks,
                 (long long)(sim->now - known->short_since));
}

/* True if a save has been under way for longer than it takes: a planned change waits for it. */
static bool waits_for_store(const struct sim *sim, const struct fsm *m)
{
    bool waits = false;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        const bool has = save->state == FSM_SAVE_OPENING ||
                         (save->state > FSM_SAVE_COLLECTING && save->state != FSM_SAVE_COMMITTED &&
                          save->state != FSM_SAVE_DROPPED);
        waits = waits || (has && sim->now - save->since > 1000);
    }
    return waits;
}

static void check_crowd(struct sim *sim, struct sim_job *known, const struct fsm *m)
{
    /* One more to replace a slow one. */
    const uint32_t most = m->config.ranks + m->config.spares + (m->balance.slow > 0);
    if (!is_steady(sim, m) || count_staying(m) <= most || waits_for_store(sim, m))
        known->crowd_since = sim->now;
    else if (sim->now - known->crowd_since > CROWD_MS)
        sim_fail(sim, "%s: generation %u has %u processes, and is to have %u", known->id,
                 m->generation, count_staying(m), most);
}

/* Something was done to it, or to the way to it, or it can't be of use. */
static bool had_trouble(struct sim *sim, const struct sim_trainer_view *view)
{
    const int64_t since = sim->now - CALM_MS;
    const uint32_t node = sim_node_index(view->node);
    return view->exit != SIM_RUNS || view->hung || view->data != 0 || view->disturbed_at > since ||
           sim->jobs[view->start.job].user_error || sim_node_flaw(sim, view->node) != SIM_NO_FLAW ||
           sim_node_leaves(view->node) || sim->unheard_until[node] > since ||
           sim->deaf_until[node] > since || sim->coordinator->unplugged_until > since ||
           sim->coordinator->frozen_until > since; /* it hears late of a node that leaves */
}

/* Spares that the job has no use for any more: not without a reason. */
static void check_dismissed(struct sim *sim, uint32_t index, const struct fsm *m)
{
    for (uint32_t i = m->size; i < m->count; i++) {
        const struct sim_trainer_view *found =
            m->ranks[i].ended && !m->ranks[i].gone ? sim_process(sim, index, m, i, true) : NULL;
        struct sim_trainer_view *view = (struct sim_trainer_view *)found;
        if (view == NULL || view->dismissed)
            continue;
        view->dismissed = true;
        if (sim->group_max > 1 || m->ranks[i].ended_at != sim->now ||
            sim->jobs[index].formed_at == sim->now)
            continue; /* what was the case then is not known any more */
        const bool goes_on = (m->state == FSM_RUNNING || m->state == FSM_FORMING) && !fsm_ends(m) &&
                             m->intent == FSM_INTENT_NONE;
        if (view->start.spare && goes_on && sim->cuts == 0 && !had_trouble(sim, view) &&
            !sim_audit_drained(sim, sim_node_index(view->node)) &&
            count_staying(m) < m->config.ranks + m->config.spares)
            sim_fail(sim, "%s: spare %u is ended for no reason", m->id, m->ranks[i].number);
    }
}

/* No generation ends by what becomes of a spare. */
static void check_cause(struct sim *sim, const struct fsm *m)
{
    const struct fsm_fault *cause = &m->cause;
    if (fsm_ends(m) && cause->kind != FSM_FAULT_NONE && fsm_is_spare(m, cause->rank))
        sim_fail(sim, "%s: generation %u ends by its spare %u: %s", m->id, m->generation,
                 m->ranks[cause->rank].number, cause->message);
}

void sim_spare_look(struct sim *sim, uint32_t index, const struct coord_job *of)
{
    struct sim_job *known = &sim->jobs[index];
    const struct fsm *m = &of->m;
    note_formed(sim, known, m);
    check_set(sim, known, m);
    check_numbers(sim, m);
    check_cause(sim, m);
    check_size(sim, known, m);
    check_crowd(sim, known, m);
    check_dismissed(sim, index, m);
}
