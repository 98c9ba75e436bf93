/*
 * The top layer of the machine: one event, past the fence to its handler, and the checks that
 * follow every event. It also makes new jobs, and resumes those that were read from the journal.
 */
#include <signal.h>
#include <stdlib.h>

#include "common/check.h"
#include "server/machine/internal.h"

/* ---- a job ---- */

static bool is_cut_well(const struct machine_config *config, uint32_t most)
{
    bool well = config->stages <= LIMIT_STAGES;
    for (uint32_t s = 0; well && config->stages > 1 && s < config->stages; s++)
        well = config->widths[s] >= 1 && config->widths[s] <= config->lanes;
    return well && (config->stages <= 1 || most <= (uint64_t)config->stages * config->lanes);
}

enum status machine_init(struct machine *m, const char *id, const struct machine_config *config,
                         int64_t now, int64_t wall)
{
    const uint32_t most = config->most > 0 ? config->most : config->ranks;
    if (config->ranks < 1 || config->ranks > most || most > LIMIT_RANKS ||
        config->min > config->ranks || config->spares > LIMIT_RANKS || !is_cut_well(config, most))
        return ST_INVALID;
    struct machine_rank *ranks = calloc((size_t)most + config->spares, sizeof *ranks);
    if (!ranks)
        return ST_NO_MEMORY;
    *m = (struct machine){ .config = *config,
                           .state = MACHINE_QUEUED,
                           .dirty = true,
                           .submitted_wall = wall,
                           .accounts.at = now,
                           .ranks = ranks,
                           .size = config->ranks,
                           .count = config->ranks };
    m->config.most = most;
    m->config.min_follows = config->min == 0;
    if (config->min == 0)
        m->config.min = config->ranks;
    if (m->config.silent_ms == 0)
        m->config.silent_ms = MACHINE_SILENT_MS;
    machine_text(m->id, sizeof m->id, id);
    m->gone_count = m->size;
    for (uint32_t i = 0; i < machine_capacity(m); i++) {
        ranks[i].gone = true;
        ranks[i].number = i;
    }
    machine_cut(m);
    return ST_OK;
}

void machine_release(struct machine *m)
{
    free(m->ranks);
    free(m->catalog);
    free(m->copies);
    free(m->restore.holders);
    shun_release(&m->shunned);
    *m = (struct machine){ 0 };
}

/* ---- the end of a generation ---- */

/* The job goes on once nothing of the old generation can act any more (invariant 4). */
static void close_generation(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (!machine_ends(m) || !machine_all_left(m))
        return;
    machine_saves_end(t);
    bool waits = m->ending.to != MACHINE_KILLED && m->ending.to != MACHINE_FAILED;
    if (waits && machine_saves_busy(m))
        return;
    enum machine_state to = m->ending.to;
    /* A save that was committed while the generation ended may have been of the last step. */
    if (to != MACHINE_KILLED && machine_final_committed(m))
        to = MACHINE_SUCCEEDED;
    /* The last step's checkpoint may have been read back meanwhile and found damaged: the job goes
     * on from the one before. */
    bool lost =
        m->total_steps > 0 && m->intent != MACHINE_INTENT_FINISH && !machine_final_committed(m);
    if (to == MACHINE_SUCCEEDED && lost)
        to = MACHINE_RECOVERING;
    if (to != MACHINE_RECOVERING && !machine_all_gone(m)) { /* no generation follows */
        machine_end_generation(t, to, false);
        return;
    }
    if (to != MACHINE_RECOVERING && machine_spares_live(m) > 0) {
        machine_dismiss_spares(t);
        return;
    }
    machine_recovery_end(t, to);
    machine_act(t, MACHINE_ACT_GEN_END);
    if (to == MACHINE_RECOVERING) {
        m->state = MACHINE_RECOVERING;
        machine_keep(t);
        m->dirty = true;
        machine_act(t, MACHINE_ACT_SCHEDULE);
        return;
    }
    machine_rest(t, to);
}

/* Called after every event. */
static void end_turn(struct machine_turn *t)
{
    const struct machine *m = t->m;
    close_generation(t);
    /* A killed or failed job doesn't wait for its saves: they go whenever their folders show up. */
    if (machine_state_final(m->state))
        machine_saves_end(t);
    machine_recovery_tick(t);
    machine_read_back_tick(t);
    machine_sweep(t);
    CHECK(!machine_state_final(m->state) ||
          (machine_all_gone(m) && machine_spares_live(m) == 0)); /* invariant 5 */
    CHECK(!machine_ends(m) || machine_alive(m));
}

/* ---- what the scheduler, agents and trainers say ---- */

static void on_waiting(struct machine_turn *t)
{
    if (machine_wants_slots(t->m, t->now))
        machine_set_reason(t->m, "%s", t->ev->waiting.reason);
}

static void on_node(struct machine_turn *t)
{
    struct machine *m = t->m;
    const bool forgot = t->ev->node.renewed && machine_unsuspect(m, t->ev->node.name);
    if (!shun_renew(&m->shunned, t->ev->node.name, t->ev->node.agent) && !forgot)
        return;
    m->dirty = true;
    machine_act(t, MACHINE_ACT_SCHEDULE);
}

static void on_note(struct machine_turn *t)
{
    machine_tell(t, t->ev->note.what, "%s", t->ev->note.message);
}

/* Reports a fault. If it names no rank, its reporter is blamed. Three kinds blame nobody: failed
 * communication (another rank failed), different bits (either rank may be wrong), and a sum that
 * isn't finite (all ranks share it). */
static void report_fault(struct machine_turn *t, const struct machine_fault *reported)
{
    struct machine_fault fault = *reported;
    const bool of_all = fault.kind == MACHINE_FAULT_COMMUNICATION ||
                        fault.kind == MACHINE_FAULT_WRONG || fault.kind == MACHINE_FAULT_NUMERIC;
    if (fault.rank == MACHINE_ALL_RANKS && !of_all)
        fault.rank = t->ev->rank;
    machine_report_fault(t, &fault);
}

/* True if the process was killed by SIGKILL or its like, which we didn't send: somebody or
 * something outside did. */
static bool is_outside(const struct machine_exited *exited)
{
    bool killed =
        exited->how == MACHINE_EXIT_SIGNAL && (exited->code == SIGHUP || exited->code == SIGINT ||
                                               exited->code == SIGKILL || exited->code == SIGTERM);
    return killed || exited->how == MACHINE_EXIT_UNKNOWN;
}

static void on_exited(struct machine_turn *t)
{
    struct machine *m = t->m;
    struct machine_rank *rank = &m->ranks[t->ev->rank];
    const struct machine_exited *exited = &t->ev->exited;
    if (rank->gone)
        return;
    machine_rank_gone(m, t->ev->rank);
    rank->started = true;
    rank->session = false;
    m->dirty = true;
    if (exited->step > rank->step && (m->total_steps == 0 || exited->step <= m->total_steps))
        rank->step = exited->step; /* its last words */
    if (exited->phase)
        machine_text(rank->phase, sizeof rank->phase, exited->phase);
    bool finished = rank->finished || exited->finished || exited->how == MACHINE_EXIT_FINISHED;
    rank->finished = finished;
    if (m->ending.to == MACHINE_RECOVERING && m->cause.kind == MACHINE_FAULT_HANG &&
        m->cause.rank == t->ev->rank) { /* its agent read its flight recorder */
        machine_tell(t, "culprit", "rank %u on node %s: %.440s", t->ev->rank, rank->node,
                     exited->message);
    }
    if (machine_ends(m) || (finished && exited->how != MACHINE_EXIT_SIGNAL))
        return;
    if (exited->fault) {
        report_fault(t, exited->fault);
        return;
    }
    struct machine_fault fault = {
        .kind = exited->how == MACHINE_EXIT_OOM ? MACHINE_FAULT_MEMORY : MACHINE_FAULT_PROCESS,
        .rank = t->ev->rank,
        .step = rank->step,
        .outside = is_outside(exited),
        .of_node = exited->how == MACHINE_EXIT_SPAWN_FAILED,
    };
    machine_text(fault.phase, sizeof fault.phase, rank->phase);
    machine_text(fault.message, sizeof fault.message, exited->message);
    machine_report_fault(t, &fault);
}

/* Ranks of a job without a known end leave by themselves once it is over; the job is done when all
 * of them did. (Other jobs end by their last commit.) */
static void on_finished(struct machine_turn *t)
{
    struct machine *m = t->m;
    struct machine_rank *rank = &m->ranks[t->ev->rank];
    rank->finished = true;
    if (t->ev->finished.step > rank->step)
        rank->step = t->ev->finished.step;
    if (machine_ends(m) || machine_holds(m) || m->total_steps != 0 ||
        m->intent != MACHINE_INTENT_NONE)
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].finished)
            return;
    }
    machine_end_generation(t, MACHINE_SUCCEEDED, true);
}

static void on_fault(struct machine_turn *t)
{
    report_fault(t, t->ev->fault);
}

static void on_started(struct machine_turn *t)
{
    struct machine_rank *rank = &t->m->ranks[t->ev->rank];
    rank->started = true;
    rank->missing_at = 0;
    rank->pid = t->ev->started.pid;
}

static void on_missing(struct machine_turn *t)
{
    struct machine_rank *rank = &t->m->ranks[t->ev->rank];
    if (!rank->gone && rank->missing_at == 0)
        rank->missing_at = t->now;
}

static void on_agent(struct machine_turn *t)
{
    struct machine_rank *rank = &t->m->ranks[t->ev->rank];
    const enum machine_agent was = rank->agent;
    const char *saw = t->ev->agent.saw;
    rank->agent = t->ev->agent.state;
    if (rank->agent == was || rank->gone)
        return;
    switch (rank->agent) {
    case MACHINE_AGENT_HEARD:
        machine_rank_heard(t, t->ev->rank);
        if (was != MACHINE_AGENT_DOUBTED)
            machine_tell(t, "agent", "the agent of node %s is back", rank->node);
        return;
    case MACHINE_AGENT_DOUBTED:
        return;
    case MACHINE_AGENT_SILENT:
        machine_tell(t, "agent", "the agent of node %s is silent; the job runs on unsupervised%s%s",
                     rank->node, saw[0] ? "; " : "", saw);
        return;
    case MACHINE_AGENT_CUT_OFF:
        machine_tell(t, "agent",
                     "node %s is not heard, but others reach it: the coordinator's way to it is "
                     "broken; %s",
                     rank->node, saw);
    }
}

static void on_session_lost(struct machine_turn *t)
{
    struct machine_rank *rank = &t->m->ranks[t->ev->rank];
    rank->session = false;
    rank->lost_at = t->now;
}

static void on_progress(struct machine_turn *t)
{
    machine_note_progress(t, &t->m->ranks[t->ev->rank]);
}

/* Fails the job, as the path of a save, or of a checkpoint, is too long: the job can't save what it
 * trains. */
static void fail_by_path(struct machine_turn *t)
{
    struct machine_fault fault = { .kind = MACHINE_FAULT_USER,
                                   .rank = MACHINE_ALL_RANKS,
                                   .step = machine_step_now(t->m) };
    machine_text(fault.message, sizeof fault.message, t->ev->answer.message);
    machine_fail(t, &fault);
}

static void on_store(struct machine_turn *t)
{
    static void (*const handle[MACHINE_TASK_COUNT])(struct machine_turn * t) = {
        [MACHINE_TASK_PROBE] = machine_on_probed,
        [MACHINE_TASK_FOLDER] = machine_on_folder_done,
        [MACHINE_TASK_CHECK] = machine_on_check_done,
        [MACHINE_TASK_PUBLISH] = machine_on_publish_done,
        [MACHINE_TASK_DROP] = machine_on_drop_done,
        [MACHINE_TASK_REMOVE] = machine_on_remove_done,
        [MACHINE_TASK_VERIFY] = machine_on_verify_done,
        [MACHINE_TASK_QUARANTINE] = machine_on_quarantine_done,
        [MACHINE_TASK_SWEEP] = machine_on_sweep_done,
    };
    CHECK(t->ev->answer.task < MACHINE_TASK_COUNT);
    handle[t->ev->answer.task](t);
    if (t->ev->answer.status == ST_TOO_LONG) /* no later try goes better */
        fail_by_path(t);
}

/* ---- dispatch ---- */

/* The sender of an event, which decides what is checked first: agents and trainers may be of an
 * older generation, and a trainer that sends anything is not silent. */
enum sender { CORE, FLEET, TRAINER };

static const struct {
    enum sender sender;
    void (*handle)(struct machine_turn *t);
} events[MACHINE_EV_FIRST_ASK] = {
    [MACHINE_EV_TICK] = { CORE, NULL },
    [MACHINE_EV_PLACED] = { CORE, machine_on_placed },
    [MACHINE_EV_WAITING] = { CORE, on_waiting },
    [MACHINE_EV_STORE] = { CORE, on_store },
    [MACHINE_EV_NOWHERE] = { CORE, machine_on_nowhere },
    [MACHINE_EV_NODE] = { CORE, on_node },
    [MACHINE_EV_LEAVING] = { CORE, machine_on_leaving },
    [MACHINE_EV_NOTE] = { CORE, on_note },
    [MACHINE_EV_PATH] = { CORE, machine_on_path },
    [MACHINE_EV_SPARE] = { CORE, machine_on_spare },
    [MACHINE_EV_STARTED] = { FLEET, on_started },
    [MACHINE_EV_MISSING] = { FLEET, on_missing },
    [MACHINE_EV_EXITED] = { FLEET, on_exited },
    [MACHINE_EV_AGENT] = { FLEET, on_agent },
    [MACHINE_EV_HELLO] = { TRAINER, machine_on_hello },
    [MACHINE_EV_SESSION_LOST] = { FLEET, on_session_lost },
    [MACHINE_EV_READY] = { TRAINER, machine_on_ready },
    [MACHINE_EV_PROGRESS] = { TRAINER, on_progress },
    [MACHINE_EV_FAULT] = { TRAINER, on_fault },
    [MACHINE_EV_FINISHED] = { TRAINER, on_finished },
    [MACHINE_EV_SAVE_BEGIN] = { TRAINER, machine_on_save_begin },
    [MACHINE_EV_SAVE_REPORT] = { TRAINER, machine_on_save_report },
    [MACHINE_EV_SAVE_FAILED] = { TRAINER, machine_on_save_failed },
    [MACHINE_EV_SAVE_PASSED] = { TRAINER, machine_on_save_passed },
    [MACHINE_EV_SAVE_WANTED] = { TRAINER, machine_on_save_wanted },
    [MACHINE_EV_READ_BACK] = { TRAINER, machine_on_read_back },
    [MACHINE_EV_PARKED] = { TRAINER, machine_on_parked },
};

/* True if an event changes nothing: agents and trainers of another generation said it (invariant
 * 2). The same holds for what was under way from workers that are gone, once the generation is over
 * and others are kept. */
static bool is_fenced(const struct machine *m, const struct machine_event *ev)
{
    if (ev->kind >= MACHINE_EV_FIRST_ASK || events[ev->kind].sender == CORE)
        return false;
    return ev->generation != m->generation || ev->rank >= m->count || !machine_alive(m) ||
           (machine_holds(m) && m->ranks[ev->rank].gone);
}

/* True if the rules of silence, which are about all ranks, are to be checked. A trainer's message
 * is a sign of life and makes none of them true, and thousands of these come in a second: they are
 * checked now and then. */
static bool looks_at_all(const struct machine *m, const struct machine_event *event)
{
    return event->kind >= MACHINE_EV_FIRST_ASK || events[event->kind].sender != TRAINER ||
           event->now - m->watched_at >= MACHINE_LOOK_MS;
}

enum status machine_apply(struct machine *m, const struct machine_event *event,
                          struct machine_actions *out)
{
    CHECK(event->kind <= MACHINE_EV_SET);
    out->count = 0;
    struct machine_turn t = {
        .m = m, .ev = event, .out = out, .now = event->now, .wall = event->wall
    };
    if (is_fenced(m, event))
        return ST_OK;
    machine_recovery_book(&t);
    machine_account(m, event->now);
    if (event->kind >= MACHINE_EV_FIRST_ASK) {
        enum status st = machine_ask(&t);
        if (st != ST_OK)
            return st;
    } else {
        if (events[event->kind].sender == TRAINER)
            machine_hear(&t);
        if (machine_is_spare(m, event->rank)) {
            machine_on_spare_event(&t);
        } else if (events[event->kind].handle) {
            events[event->kind].handle(&t);
        }
    }
    const bool looks = looks_at_all(m, event);
    m->watched_at = looks ? event->now : m->watched_at;
    machine_watch_spares(&t);
    machine_watch(&t, looks);
    if (machine_is_vacated(m))
        machine_unplace(&t);
    machine_saves_tick(&t);
    machine_due_tick(&t);
    machine_damage_tick(&t);
    machine_audit_tick(&t);
    machine_resize_tick(&t);
    if (looks)
        machine_lanes_tick(&t);
    end_turn(&t);
    return ST_OK;
}

void machine_resume(struct machine *m, int64_t now, int64_t wall, struct machine_actions *out)
{
    out->count = 0;
    struct machine_turn t = { .m = m, .out = out, .now = now, .wall = wall };
    machine_recovery_resume(&t);
    shun_resume(&m->shunned, wall);
    m->accounts.at = now;
    m->watched_at = now;
    m->grace_until = now + MACHINE_GRACE_MS;
    m->started_at = now;
    m->progress_at = now;
    m->replay_until = m->step_max;
    if (m->state == MACHINE_PLACING)
        m->state = m->generation == 0 ? MACHINE_QUEUED : MACHINE_RECOVERING;
    for (uint32_t i = 0; i < m->count; i++) {
        struct machine_rank *rank = &m->ranks[i];
        if (!machine_alive(m))
            machine_rank_gone(m, i);
        rank->heard_at = m->grace_until; /* leases count from then */
        rank->counter_at = m->grace_until;
        rank->saving_at = m->grace_until;
        rank->step = m->restore.step;
        rank->ended_at = now;
    }
    m->stepped_at = 0;
    m->spares.again_at = now;
    bool gently = machine_ends(m) && m->ending.to != MACHINE_RECOVERING &&
                  m->ending.to != MACHINE_FAILED && m->ending.to != MACHINE_KILLED;
    m->ending.kept_until = m->grace_until + MACHINE_KEEP_MS;
    if (m->ending.parks) {
        /* An outage that goes on is known only once all have been silent. */
        m->ending.hard_at = m->grace_until + m->config.silent_ms + MACHINE_PARK_MS;
        machine_park_again(&t);
    } else if (gently) {
        m->ending.hard_at = now + MACHINE_LEAVE_MS;
    } else if (machine_ends(m)) {
        m->ending.ended_at = now;
        m->ending.again_at = now + MACHINE_END_AGAIN_MS;
        machine_act(&t, MACHINE_ACT_END);
    }
    machine_saves_resume(&t);
    machine_due_resume(&t);
    machine_catalog_resume(&t);
    if (!machine_state_final(m->state))
        machine_act(&t, MACHINE_ACT_SCHEDULE);
    end_turn(&t);
}

void machine_restored(struct machine *m)
{
    if (machine_state_final(m->state) || m->generation == 0)
        return;
    m->generation += MACHINE_RESTORE_GAP;
    m->restore.memory_from = m->generation;
    for (uint32_t i = 0; i < m->count; i++) { /* whoever is there was born before */
        m->ranks[i].birth = m->generation;
        if (machine_is_spare(m, i))
            machine_rank_gone(m, i);
    }
    m->restore.live = false;
    m->restore.decided = m->restore.decided && m->state != MACHINE_FORMING;
    m->dirty = true;
}

void machine_abandon(struct machine *m, int64_t wall, const char *by, struct machine_actions *out)
{
    out->count = 0;
    struct machine_turn t = { .m = m, .out = out, .wall = wall };
    machine_tell(&t, "kill", "asked by %s", machine_asker(by));
    if (machine_alive(m))
        machine_act(&t, MACHINE_ACT_GEN_END);
    for (uint32_t i = 0; i < m->count; i++)
        machine_rank_gone(m, i);
    machine_rest(&t, MACHINE_KILLED);
}

/* ---- time that counts against nobody ---- */

void machine_excuse(struct machine *m, int64_t ms)
{
    if (!machine_alive(m))
        return;
    m->started_at += ms;
    m->ending.ended_at += ms;
    m->ending.kept_until += ms;
    m->ending.hard_at += m->ending.parks && m->ending.hard_at != 0 ? ms : 0;
    m->stepped_at += m->stepped_at != 0 ? ms : 0;
    m->spares.ready_at += m->spares.ready_at != 0 ? ms : 0;
    m->balance.slow_at += ms;
    m->awaits_saves_at += m->awaits_saves_at != 0 ? ms : 0;
    m->awaits_asked_at += ms;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++)
        m->saves[i].since += ms;
    for (uint32_t i = 0; i < m->count; i++) {
        struct machine_rank *rank = &m->ranks[i];
        rank->heard_at += ms;
        rank->counter_at += ms;
        rank->saving_at += ms;
        if (rank->lost_at != 0)
            rank->lost_at += ms;
        if (rank->missing_at != 0)
            rank->missing_at += ms;
    }
}

void machine_extend_grace(struct machine *m, int64_t ms)
{
    for (uint32_t i = 0; machine_alive(m) && i < m->count; i++) {
        struct machine_rank *rank = &m->ranks[i];
        rank->heard_at += rank->heard_at >= m->grace_until ? ms : 0;
        rank->counter_at += rank->counter_at >= m->grace_until ? ms : 0;
        rank->saving_at += rank->saving_at >= m->grace_until ? ms : 0;
    }
    m->grace_until += m->grace_until != 0 ? ms : 0;
    m->ending.hard_at += m->ending.parks && m->ending.hard_at != 0 ? ms : 0;
    m->ending.kept_until += ms;
}
