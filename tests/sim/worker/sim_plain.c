/*
 * Jobs of which Cairn saves nothing, in worlds that have them (--plain): a worker runs a program
 * that ends by itself, each at its own time, and fails now and then. What is promised: the store is
 * never asked, nothing is restored, who is told to go has time for it, a pause ends PAUSED, and the
 * job has succeeded when all programs of one generation have ended well.
 */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "server/coord/coord.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/worker/sim_trainer.h"

#define GRACE_MS  4000
#define STEP_MS   50
#define RUN_MS    60000 /* at most */
#define APART_MS  3000  /* two programs of a generation end, at most */
#define MEET_MS   45000
#define BUDGET    3 /* in every third job; others never fail by it */
#define NO_BUDGET 10000

/* ---- the world ---- */

/* Plain jobs follow from the seed alone, last of all: other worlds stay as they were. */
void sim_plain_begin(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->job_count && sim->options.plain; i++) {
        struct sim_job *job = &sim->jobs[i];
        const uint64_t chance = sim_state(60 + i, sim->options.seed);
        if (chance % 4 == 0)
            continue;
        job->plain = true;
        job->says_steps = chance / 4 % 2 == 0;
        job->run_ms = 2000 + (int64_t)(chance / 8 % RUN_MS);
        job->budget = chance / 8 / RUN_MS % 3 == 0 ? BUDGET : NO_BUDGET;
        job->every = 1;
        job->every_ms = 0;
        job->total = job->stages = 0;
        job->audit_every = 0;
        job->spares = 0;
        job->by_speed = job->owns = job->delta = false;
    }
}

void sim_plain_print(const struct sim_job *job, uint32_t index, const char *fewer, char *out,
                     size_t capacity)
{
    (void)snprintf(out, capacity,
                   "name: job%u\n"
                   "command: {run: [program], grace: %d ms, restart: {budget: %u}}\n"
                   "workers: {count: %u%s}\n",
                   index, GRACE_MS, job->budget, job->ranks, fewer);
}

/* ---- a worker ---- */

static void form(struct sim *sim, struct sim_trainer *t)
{
    const struct sim_job *job = &sim->jobs[t->view.start.job];
    struct session_assignment plan;
    if (sim->now - t->stage_since < (int64_t)(300 + t->view.rank * 10))
        return;
    CHECK(session_fsm_assignment(&t->fsm, &plan) == ST_OK);
    if (plan.restore[0] || plan.restore_step > 0 || plan.memory.generation > 0 ||
        plan.live_source_count > 0)
        sim_fail(sim, "%s g%u w%u is to restore something", t->id, t->view.start.generation,
                 t->view.start.number);
    if (job->user_error) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__USER, "job.yaml:3:1: this can't run");
        return;
    }
    if (sim_node_flaw(sim, t->view.node) == SIM_HAS_NO_DATA) {
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__USER, SIM_FLAW);
        return;
    }
    if (!sim_meets(sim, t, "workers")) {
        if (sim->now - t->stage_since > MEET_MS)
            sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__FORMATION,
                              "the workers did not find each other");
        return;
    }
    const struct session_ready ready = { .pins = SIM_PLAIN_PINS };
    CHECK(session_fsm_ready(&t->fsm, &ready) == ST_OK);
    t->view.ready = true;
    t->view.step = 0;
    t->ends_at = sim->now + job->run_ms + (int64_t)sim_below(sim, APART_MS);
    t->stage = TRAINING;
    t->stage_since = sim->now;
    t->progress.phase = "running";
}

static void run(struct sim *sim, struct sim_trainer *t)
{
    const struct sim_job *job = &sim->jobs[t->view.start.job];
    t->progress.counter++; /* the worker lives */
    if (job->says_steps && sim->now - t->stage_since >= STEP_MS) {
        t->progress.step = ++t->view.step;
        t->stage_since = sim->now;
    }
    if (sim->chaos && sim_chance(sim, 1) && sim_chance(sim, 500)) {
        const bool outside = sim_chance(sim, 300);
        sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__PROCESS_GONE,
                          outside ? SIM_OUTSIDE : "the program exited with code 1");
        return;
    }
    if (sim->now < t->ends_at)
        return;
    session_fsm_finished(&t->fsm, t->view.step);
    t->view.finished = true;
    t->waits = sim_chance(sim, 500);
    t->stage = SETTLING;
    t->stage_since = sim->now;
    sim_say(sim, "trainer %s g%u w%u: its program has ended%s", t->id, t->view.start.generation,
            t->view.start.number, t->waits ? ", and it waits" : "");
}

bool sim_plain_run(struct sim *sim, struct sim_trainer *t)
{
    if (!sim->jobs[t->view.start.job].plain || t->stage == JOINING)
        return false;
    const int64_t ago = sim->now - t->stage_since;
    if (t->stage == FORMING)
        form(sim, t);
    else if (t->stage == TRAINING)
        run(sim, t);
    else if (t->stage == SETTLING && t->waits)
        t->progress.counter++;
    else if (t->stage == SETTLING && ago > 100)
        sim_trainer_leave(sim, t, SIM_EXIT, 0);
    else if (t->stage == WAITING_OVER && ago > 200)
        sim_trainer_leave(sim, t, SIM_EXIT, 1);
    else if (t->stage == ENDING && sim->now >= t->ends_at)
        sim_trainer_leave(sim, t, SIM_EXIT, 4);
    return true;
}

int64_t sim_plain_end_ms(struct sim *sim)
{
    return (int64_t)sim_below(sim, sim_chance(sim, 300) ? GRACE_MS : 200);
}

bool sim_plain_over(struct sim *sim, struct sim_trainer *t)
{
    if (!sim->jobs[t->view.start.job].plain || (t->stage != TRAINING && t->stage != PARKING))
        return false; /* it has no program */
    t->ends_at = sim_chance(sim, 50) ? INT64_MAX : sim->now + sim_plain_end_ms(sim);
    t->stage = ENDING;
    return true;
}

/* ---- promises ---- */

void sim_plain_check_task(struct sim *sim, const char *id)
{
    const int job = sim_job_at(sim, id);
    if (job >= 0 && sim->jobs[job].plain)
        sim_fail(sim, "%s: nothing is saved of it, and the store is asked", id);
}

void sim_plain_check_end(struct sim *sim, struct coord *coord, const Cairn__V1__TrainerRef *ref)
{
    const int job = sim_job_at(sim, ref->job);
    const struct coord_job *of = coord_loaded(coord, ref->job);
    if (job < 0 || !sim->jobs[job].plain || of == NULL || sim->group_max > 1)
        return;
    const uint32_t at = fsm_find_number(&of->m, ref->rank, of->m.size);
    if (at != FSM_ALL_RANKS && of->m.ranks[at].birth == ref->generation &&
        fsm_gen(&of->m) == FSM_GEN_LEAVING)
        sim_fail(sim, "%s: worker %u is to leave by itself, and is ended", ref->job, ref->rank);
}

void sim_plain_asked(struct sim *sim, uint32_t index, const struct fsm *m)
{
    struct sim_job *known = &sim->jobs[index];
    if (!known->plain || fsm_state_final(m->state) || fsm_state_final(m->ending.to))
        return;
    known->pauses = true;
    known->pause_in = m->generation;
    known->pause_by = sim->crashes;
}

void sim_plain_check_told(struct sim *sim, uint32_t index, const struct fsm *m)
{
    if (sim->jobs[index].plain && fsm_gen(m) == FSM_GEN_ENDING)
        sim_fail(sim, "%s: generation %u is told to go, and its programs have no time", m->id,
                 m->generation);
}

/* What was asked of a coordinator that died since may be forgotten. */
static void check_pause(struct sim *sim, struct sim_job *known, const struct fsm *m)
{
    if (known->pause_by != sim->crashes || m->state == FSM_PAUSED || fsm_state_final(m->state))
        known->pauses = false;
    if (known->pauses && (m->generation > known->pause_in || m->state == FSM_QUEUED))
        sim_fail(sim, "%s was to be paused, and is %s, with generation %u after %u", known->id,
                 fsm_state_name(m->state), m->generation, known->pause_in);
}

/* All programs of one generation have ended well. */
static void check_success(struct sim *sim, uint32_t index, const struct fsm *m)
{
    for (uint32_t r = 0; r < m->size; r++) {
        bool ended = false;
        for (size_t i = 0; i < sim->trainer_count && !ended; i++) {
            const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
            ended = view->start.job == index && view->start.generation == m->generation &&
                    view->rank == r && view->finished;
        }
        if (!ended)
            sim_fail(sim, "%s succeeded, and the program of rank %u did not", m->id, r);
    }
}

void sim_plain_look(struct sim *sim, uint32_t index, const struct coord_job *of)
{
    struct sim_job *known = &sim->jobs[index];
    const struct fsm *m = &of->m;
    if (!known->plain)
        return;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        if (m->saves[i].state != FSM_SAVE_FREE)
            sim_fail(sim, "%s: nothing is saved of it, and it has a save", m->id);
    }
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++) {
        if (m->due.announced[i].step != 0)
            sim_fail(sim, "%s: nothing is saved of it, and a save is announced", m->id);
    }
    if (m->catalog_count > 0 || m->restore.step > 0 || m->restore.live || m->balance.by_speed)
        sim_fail(sim, "%s: nothing is saved of it, and it goes on from something", m->id);
    check_pause(sim, known, m);
    if (m->state == FSM_SUCCEEDED && !known->succeeded)
        check_success(sim, index, m);
    known->succeeded = m->state == FSM_SUCCEEDED;
}
