/* Users of the simulated coordinator, what they ask, and the promises made to them. */
#include <stdio.h>
#include <string.h>

#include "server/coord/coord.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_coordinator.h"

#define GRACE_MS   10000  /* of a coordinator that was just started */
#define HANGING_MS 400000 /* until the next save is due, and then until a rank is called stuck */

/* ---- users ---- */

void sim_coordinator_submit(struct sim *sim, uint32_t index)
{
    struct coordinator *c = sim->coordinator;
    struct sim_job *job = &sim->jobs[index];
    char text[768], parallel[128], key[32], every[32], audits[32] = "none", fewer[48] = "";
    struct reason reason;
    if (c->coord == NULL || job->submitted || sim->now < c->frozen_until)
        return;
    (void)snprintf(every, sizeof(every), "%lld ms", (long long)job->every_ms);
    if (job->every > 0)
        (void)snprintf(every, sizeof(every), "%llu steps", (unsigned long long)job->every);
    if (sim->resizes)
        (void)snprintf(fewer, sizeof(fewer), ", min: %u, spares: %u", job->min, job->spares);
    if (sim->resizes && (job->plain || job->program))
        (void)snprintf(fewer, sizeof(fewer), ", min: %u", job->min);
    if (job->audit_every > 0)
        (void)snprintf(audits, sizeof(audits), "%llu steps", (unsigned long long)job->audit_every);
    sim_stages_print(job, parallel, sizeof(parallel));
    (void)snprintf(text, sizeof(text),
                   "name: job%u\nmodel: {arch: mlp, classes: 10}\n"
                   "data: {train: {format: synthetic, samples: 1000}}\n"
                   "train: {duration: %llu steps, global_batch: 64, lanes: %u, optimizer: {name: "
                   "sgd, lr: 0.1}, seed: 1}\n"
                   "workers: {count: %u%s%s}\n"
                   "parallel: {%s}\n"
                   "checkpoint: {every: %s, delta: %s, store: /store, keep: {last: %d, every: "
                   "%d steps, best: {metric: loss, n: 1}}}\n"
                   "audit: {every: %s, checksum: %llu steps}\n",
                   index, (unsigned long long)job->total, sim->lanes, job->ranks, fewer,
                   job->by_speed ? ", shares: auto" : "", parallel, every,
                   job->delta ? "true" : "false", SIM_KEEP_LAST, SIM_KEEP_EVERY, audits,
                   (unsigned long long)job->checksum_every);
    if (job->plain)
        sim_plain_print(job, index, fewer, text, sizeof(text));
    if (job->program)
        sim_program_print(job, index, fewer, every, text, sizeof(text));
    static struct jobspec spec;
    struct buf errors;
    buf_init(&errors, 65536);
    if (jobspec_parse(text, strlen(text), "sim", "/", NULL, 0, &spec, &errors) != ST_OK)
        sim_fail(sim, "the simulated job file: %s", errors.data);
    buf_release(&errors);
    (void)snprintf(key, sizeof(key), "key%u", index);
    struct coord_job *made;
    enum status st = coord_submit(c->coord, &spec, text, key, NULL, &made, &reason);
    if (st == ST_OK) /* it may come into the journal without an answer: the same key finds it */
        (void)snprintf(job->id, sizeof(job->id), "%s", made->id);
    sim_end_group(sim);
    job->submitted = st == ST_OK && c->coord != NULL;
}

static struct coord_job *job_of(struct sim *sim, uint32_t index)
{
    struct coord_job *job;
    struct coordinator *c = sim->coordinator;
    if (c->coord == NULL || !sim->jobs[index].submitted)
        return NULL;
    if (coord_find(c->coord, sim->jobs[index].id, &job) != ST_OK)
        sim_fail(sim, "job %s was acknowledged and is forgotten", sim->jobs[index].id);
    return job;
}

/* Since this coordinator started, or the generation was formed. */
static bool is_heard(const struct fsm *m)
{
    for (uint32_t i = 0; i < m->size; i++) {
        if (m->ranks[i].joined)
            return true;
    }
    return false;
}

static void ask(struct sim *sim, uint32_t index, enum fsm_event_kind kind)
{
    struct coord_job *job = job_of(sim, index);
    if (job == NULL || sim->now < sim->coordinator->frozen_until)
        return;
    struct sim_job *known = &sim->jobs[index];
    /* Not where it is to be paused, and its workers are gone: it stops as a paused one does. Nor
     * before a coordinator that has started anew heard a worker: the step that it knows may be one
     * that was lost since (77077348). */
    const bool trains = (job->m.state == FSM_RUNNING || job->m.state == FSM_SAVING) &&
                        !fsm_ends(&job->m) && is_heard(&job->m);
    uint64_t step = trains && !known->stopped && !known->plain ? fsm_step_now(&job->m) : 0;
    if (kind == FSM_EV_PAUSE)
        sim_plain_asked(sim, index, &job->m);
    known->pauses = known->pauses && kind != FSM_EV_RESUME;
    enum status st = coord_ask(sim->coordinator->coord, job, kind, NULL);
    if (st == ST_OK)
        sim_say(sim, "%s is asked: %d", sim->jobs[index].id, (int)kind);
    if (st == ST_OK && trains && (kind == FSM_EV_PAUSE || kind == FSM_EV_STOP))
        sim_plain_check_told(sim, index, &job->m);
    if (st == ST_OK && kind == FSM_EV_KILL)
        known->killed = true;
    if (st == ST_OK && kind == FSM_EV_STOP) {
        known->stopped = true;
        known->stop_step = step; /* asked twice: at once */
    }
    sim_poll_core(sim);
}

/* `ckpt scrub` of one that it has. */
static void check_one(struct sim *sim, uint32_t index)
{
    struct coord_job *job = job_of(sim, index);
    if (job == NULL || job->m.catalog_count == 0 || sim->now < sim->coordinator->frozen_until)
        return;
    const struct fsm_ckpt *ckpt = &job->m.catalog[sim_below(sim, job->m.catalog_count)];
    enum status st = coord_check_ckpt(sim->coordinator->coord, job, ckpt->step, ckpt->generation);
    sim_say(sim, "%s: a checkpoint is checked: %s", sim->jobs[index].id, status_string(st));
    sim_poll_core(sim);
}

void sim_coordinator_chaos(struct sim *sim)
{
    uint32_t index = (uint32_t)sim_below(sim, sim->job_count);
    uint64_t what = sim_below(sim, 100);
    if (what < 20)
        ask(sim, index, FSM_EV_SAVE);
    else if (what < 30)
        check_one(sim, index);
    else if (what < 50)
        ask(sim, index, FSM_EV_PAUSE);
    else if (what < 90)
        ask(sim, index, FSM_EV_RESUME);
    else if (what < 93)
        ask(sim, index, FSM_EV_KILL);
    else if (what < 96)
        ask(sim, index, FSM_EV_STOP);
    else if (sim->coordinator->coord != NULL && sim_chance(sim, 300)) {
        coord_drain(sim->coordinator->coord, sim_chance(sim, 300), 0, NULL);
        sim_poll_core(sim);
    }
    if (sim->coordinator->coord != NULL && sim->coordinator->outputs_left < 0 &&
        sim_chance(sim, 100))
        sim->coordinator->outputs_left = 1 + (int64_t)sim_below(sim, 50);
}

/* Nobody waits any longer for nodes that don't come back. */
static void give_up(struct sim *sim, uint32_t index)
{
    const struct coord_job *job = job_of(sim, index);
    if (job == NULL || !sim_queue_is_hopeless(sim, job))
        return;
    sim->hopeless++;
    ask(sim, index, FSM_EV_KILL);
}

bool sim_coordinator_done(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (c->coord == NULL || sim->now < c->frozen_until)
        return false;
    c->outputs_left = -1;
    coord_drain_end(c->coord);
    sim_poll_core(sim);
    uint32_t hopeless = 0;
    for (uint32_t i = 0; i < sim->job_count; i++) {
        sim_coordinator_submit(sim, i);
        struct coord_job *job = job_of(sim, i);
        if (job == NULL)
            return false;
        if (job->m.state == FSM_PAUSED)
            ask(sim, i, FSM_EV_RESUME);
        const bool is_hopeless = sim_queue_is_hopeless(sim, job);
        hopeless += is_hopeless;
        if (!fsm_state_final(job->m.state) && !is_hopeless)
            return false;
    }
    for (uint32_t i = 0; hopeless > 0 && i < sim->job_count; i++)
        give_up(sim, i);
    return hopeless == 0;
}

/* ---- promises ---- */

/* How many of its workers have a saver that hangs: for good, it may be, which doesn't end with the
 * chaos; and how many have one that doesn't. */
static uint32_t savers_hang(const struct sim *sim, const struct sim_job *known, uint32_t *out_well)
{
    uint32_t hang = 0;
    *out_well = 0;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (&sim->jobs[view->start.job] != known || view->exit != SIM_RUNS || view->start.spare)
            continue;
        const bool hangs = sim->now < view->saver_hangs_until;
        hang += hangs;
        *out_well += !hangs;
    }
    return hang;
}

/* Checks that a generation whose savers hang, where others save, is ended: a job doesn't train on
 * without saves for ever. */
static void check_hanging(struct sim *sim, struct sim_job *known, uint32_t hang, uint32_t well)
{
    if (hang == 0 || well == 0) {
        known->hangs_since = 0;
    } else if (known->hangs_since == 0) {
        known->hangs_since = sim->now;
    } else if (sim->now - known->hangs_since > HANGING_MS) {
        sim_fail(sim, "%s: %u savers hang for %lld ms, %u don't, and it trains on", known->id, hang,
                 (long long)(sim->now - known->hangs_since), well);
    }
}

/* A job that trains undisturbed saves when it is time: no later than the slowest announcement,
 * store and workers together. Where a saver hangs it can't; that it ends all the same is checked
 * at the end. */
static void check_time(struct sim *sim, struct sim_job *known, const struct fsm *m)
{
    bool undisturbed = !sim->chaos && m->state == FSM_RUNNING && !fsm_ends(m) &&
                       m->intent == FSM_INTENT_NONE && sim->now >= sim->coordinator->frozen_until &&
                       sim->now >= sim->coordinator->unplugged_until;
    if (known->plain)
        return;
    uint32_t well, hang = savers_hang(sim, known, &well);
    if (!undisturbed)
        known->hangs_since = 0;
    else
        check_hanging(sim, known, hang, well);
    if (known->every_ms == 0 || !undisturbed || hang > 0) {
        known->saved_at = sim->now;
    } else if (sim->now - known->saved_at > known->every_ms + 30000) {
        sim_fail(sim, "%s: no checkpoint for %lld ms, one is due every %lld ms", known->id,
                 (long long)(sim->now - known->saved_at), (long long)known->every_ms);
    }
}

/* Returns how many workers a node has room for, but for slots of processes that can't die. */
static uint32_t room_of(const struct sim *sim, const struct sim_node *node)
{
    uint32_t stuck = 0;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        stuck += view->node == node && view->unkillable && view->exit == SIM_RUNS;
    }
    return stuck < sim->slots ? sim->slots - stuck : 0;
}

/* A node's flaw ends no job that other nodes, which are there, could have taken. */
static void check_flaw(struct sim *sim, struct sim_job *known, const struct fsm *m)
{
    if ((m->state != FSM_FAILED && m->ending.to != FSM_FAILED) || known->failed)
        return;
    known->failed = true; /* it is decided; its workers may take a while to go */
    uint32_t room = 0;
    for (uint32_t i = 0; i < sim->node_count; i++)
        room += sim_node_serves(sim, sim->nodes[i]) ? room_of(sim, sim->nodes[i]) : 0;
    if (strstr(m->reason, SIM_FLAW) != NULL && room >= m->config.min)
        sim_fail(sim, "%s failed by %s, but other nodes were there", known->id, m->reason);
}

/* Checks that no job fails by a path between two nodes: there is another path, or the job waits. */
static void check_path(struct sim *sim, const struct sim_job *known, const struct fsm *m)
{
    if (m->state == FSM_FAILED && m->cause.kind == FSM_FAULT_PATH)
        sim_fail(sim, "%s failed by a path: %s", known->id, m->reason);
}

/* Nobody trains on data that were edited. */
static void check_data(struct sim *sim, uint32_t index, const struct fsm *m)
{
    struct sim_job *known = &sim->jobs[index];
    known->ran = known->ran || m->started_wall != 0;
    for (size_t i = 0; m->state == FSM_RUNNING && i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job == index && view->start.generation == m->generation &&
            !view->start.spare && view->data != 0)
            sim_fail(sim, "%s: worker %u trains on other data", known->id, view->start.number);
    }
}

static void check_job(struct sim *sim, uint32_t index, struct coord_job *job)
{
    struct sim_job *known = &sim->jobs[index];
    const struct fsm *m = &job->m;
    check_time(sim, known, m);
    check_path(sim, known, m);
    check_flaw(sim, known, m);
    check_data(sim, index, m);
    sim_silence_check(sim, index, job);
    sim_hang_check(sim, index, job);
    sim_parked_look(sim, index, job);
    sim_spare_look(sim, index, job);
    sim_lanes_look(sim, index, job);
    sim_audit_look(sim, index, job);
    sim_plain_look(sim, index, job);
    sim_program_look(sim, index, job);
    if (m->generation < known->generation)
        sim_fail(sim, "%s: generation %u is known to agents, the coordinator knows %u", known->id,
                 known->generation, m->generation);
    for (uint32_t i = 0; i < m->count; i++) {
        if (m->ranks[i].heard_at > sim->now + GRACE_MS)
            sim_fail(sim, "%s: time of a coordinator that did not run is excused twice", known->id);
    }
    for (size_t i = 0; i < m->catalog_count; i++) {
        const struct fsm_ckpt *ckpt = &m->catalog[i];
        if (ckpt->state != FSM_CKPT_GOOD)
            continue;
        const struct sim_folder *folder = sim_folder_of(sim, index, ckpt->step, ckpt->generation);
        if (!folder->manifest)
            sim_fail(sim, "%s: the catalog has step %llu g%u, the store does not", known->id,
                     (unsigned long long)ckpt->step, ckpt->generation);
        if (folder->try_number != ckpt->try_number)
            sim_fail(sim, "%s: the catalog has try %u of step %llu, the store has %u", known->id,
                     ckpt->try_number, (unsigned long long)ckpt->step, folder->try_number);
        sim_store_check(sim, folder);
    }
}

/* No coordinator runs that could do anything about it, or the job ended. */
static void begin_anew(struct sim *sim, struct sim_job *known)
{
    known->saved_at = sim->now;
    known->parks_since = known->kept_since = sim->now;
    known->short_since = known->crowd_since = sim->now;
}

void sim_coordinator_check(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    for (uint32_t i = 0; !sim_coordinator_runs(sim) && i < sim->job_count; i++)
        begin_anew(sim, &sim->jobs[i]);
    if (c->coord != NULL && c->group_left > 0)
        return; /* what is not committed is nobody's promise */
    sim_silence_look(sim);
    if (c->coord != NULL)
        sim_queue_look(sim, c->coord);
    for (uint32_t i = 0; i < sim->job_count; i++) {
        struct coord_job *job = c->coord != NULL ? coord_loaded(c->coord, sim->jobs[i].id) : NULL;
        if (job != NULL && sim->jobs[i].submitted) {
            check_job(sim, i, job);
        } else {
            begin_anew(sim, &sim->jobs[i]);
        }
    }
}

void sim_coordinator_stuck(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->job_count; i++) {
        struct coord_job *job = job_of(sim, i);
        if (job == NULL || fsm_state_final(job->m.state) || sim_queue_is_hopeless(sim, job))
            continue;
        const struct fsm *m = &job->m;
        sim_fail(sim, "%s does not end: %s to %d, g%u step %llu/%llu intent %d reason '%s'",
                 job->id, fsm_state_name(m->state), (int)m->ending.to, m->generation,
                 (unsigned long long)fsm_step_now(m), (unsigned long long)m->total_steps,
                 (int)m->intent, m->reason);
    }
    sim_fail(sim, "trainers are left though all jobs ended");
}

/* What a job that was swept at its end leaves are checkpoints. */
static void check_leftovers(struct sim *sim, uint32_t index, const struct fsm *m)
{
    for (size_t i = 0; m->swept > m->generation && i < sim->folder_count; i++) {
        const struct sim_folder *folder = &sim->folders[i];
        if (folder->job == index && folder->there && !folder->manifest && !folder->late)
            sim_fail(sim, "%s leaves a folder without a manifest: step %llu g%u",
                     sim->jobs[index].id, (unsigned long long)folder->step, folder->generation);
    }
}

/* Whoever stops a job that trains keeps what it had trained, whatever fails before it is saved. */
static void check_stopped(struct sim *sim, const struct sim_job *known, const struct fsm *m)
{
    const struct fsm_ckpt *newest = fsm_newest(m);
    bool bad = false;
    for (size_t i = 0; i < m->catalog_count; i++)
        bad = bad || m->catalog[i].state != FSM_CKPT_GOOD;
    if (m->state == FSM_STOPPED && !bad && (newest != NULL ? newest->step : 0) < known->stop_step)
        sim_fail(sim, "%s: stopped at step %llu, saved are %llu", known->id,
                 (unsigned long long)known->stop_step,
                 (unsigned long long)(newest != NULL ? newest->step : 0));
}

void sim_coordinator_end(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->job_count; i++) {
        const struct sim_job *known = &sim->jobs[i];
        struct coord_job *job = job_of(sim, i);
        const struct fsm *m = &job->m;
        const bool wrong = sim->wrong != SIM_WRONG_NOTHING && m->cause.kind == FSM_FAULT_WRONG;
        const bool often = known->budget > 0 ? m->budget.own >= known->budget
                                             : m->budget.own >= 10 || m->budget.used >= 3;
        bool worn_out = m->state == FSM_FAILED && (often || wrong || known->user_error ||
                                                   strstr(m->reason, SIM_FLAW) != NULL);
        bool as_asked = (m->state == FSM_KILLED && known->killed) ||
                        (m->state == FSM_STOPPED && known->stopped);
        if (m->state == FSM_SUCCEEDED && !known->plain)
            sim_audit_end(sim, i, m);
        if (m->state != FSM_SUCCEEDED && !worn_out && !as_asked)
            sim_fail(sim, "%s ends %s: %s", known->id, fsm_state_name(m->state), m->reason);
        if (known->user_error && m->state == FSM_SUCCEEDED)
            sim_fail(sim, "%s succeeded with a user error", known->id);
        if (sim->options.calm && (m->state != FSM_SUCCEEDED || m->generation != 1 + known->cut_off))
            sim_fail(sim, "%s: %s after %u generations, %u cut off: %s", known->id,
                     fsm_state_name(m->state), m->generation, known->cut_off, m->cause.message);
        check_leftovers(sim, i, m);
        check_stopped(sim, known, m);
        sim_say(sim, "%s: %s after %u generations, %s", known->id, fsm_state_name(m->state),
                m->generation, m->reason);
    }
}
