/*
 * The top layer of the machine: one event, past the fence to its handler, and the checks that
 * follow every event. It also makes new jobs, and resumes those that were read from the journal.
 */
#include <stdlib.h>

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/corruption.h"
#include "server/jobfsm/ctx.h"
#include "server/jobfsm/elastic.h"
#include "server/jobfsm/failure_policy.h"
#include "server/jobfsm/handlers/divergence.h"
#include "server/jobfsm/handlers/exits.h"
#include "server/jobfsm/handlers/generation_start.h"
#include "server/jobfsm/handlers/liveness.h"
#include "server/jobfsm/handlers/load_balance.h"
#include "server/jobfsm/handlers/progress.h"
#include "server/jobfsm/handlers/requests.h"
#include "server/jobfsm/handlers/spare_orders.h"
#include "server/jobfsm/park.h"
#include "server/jobfsm/retention.h"
#include "server/jobfsm/save.h"
#include "server/jobfsm/save_abort.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

/* ---- a job ---- */

static bool is_cut_well(const struct fsm_config *config, uint32_t most)
{
    bool well = config->stages <= LIMIT_STAGES;
    for (uint32_t s = 0; well && config->stages > 1 && s < config->stages; s++)
        well = config->widths[s] >= 1 && config->widths[s] <= config->lanes;
    return well && (config->stages <= 1 || most <= (uint64_t)config->stages * config->lanes);
}

/* Sets what a program has no use for to what means none. */
static void forget_lanes(struct fsm_config *config)
{
    config->lanes = config->stages = 0;
    config->owns = config->on_device = false;
    config->shares = FSM_SHARES_EVEN;
    config->audited = config->lanes_audited = config->states_audited = 0;
}

/* Does the same for what a job has no use for of which nothing is saved. */
static void forget_saves(struct fsm_config *config)
{
    config->delta = config->every_auto = false;
    config->keep_last = config->keep_best = config->keep_every = 0;
    config->best_metric = FSM_METRIC_NONE;
    config->every_ms = 0;
}

enum status fsm_init(struct fsm *m, const char *id, const struct fsm_config *config, int64_t now,
                     int64_t wall)
{
    const uint32_t most = config->most > 0 ? config->most : config->ranks;
    if (config->ranks < 1 || config->ranks > most || most > LIMIT_RANKS ||
        config->min > config->ranks || config->spares > LIMIT_RANKS || !is_cut_well(config, most))
        return ST_INVALID;
    struct fsm_rank *ranks = calloc((size_t)most + config->spares, sizeof(*ranks));
    if (ranks == NULL)
        return ST_NO_MEMORY;
    *m = (struct fsm){ .config = *config,
                       .state = FSM_QUEUED,
                       .dirty = true,
                       .submitted_wall = wall,
                       .accounts.at = now,
                       .ranks = ranks,
                       .size = config->ranks,
                       .count = config->ranks };
    m->config.most = most;
    m->config.program = config->program || config->saves_nothing;
    if (m->config.program)
        forget_lanes(&m->config);
    if (m->config.saves_nothing)
        forget_saves(&m->config);
    m->config.min_follows = config->min == 0;
    if (config->min == 0)
        m->config.min = config->ranks;
    if (m->config.silent_ms == 0)
        m->config.silent_ms = FSM_SILENT_MS;
    fsm_text(m->id, sizeof(m->id), id);
    m->gone_count = m->size;
    for (uint32_t i = 0; i < fsm_capacity(m); i++) {
        ranks[i].gone = true;
        ranks[i].number = i;
    }
    fsm_cut(m);
    return ST_OK;
}

void fsm_release(struct fsm *m)
{
    free(m->ranks);
    free(m->catalog);
    free(m->copies);
    free(m->restore.holders);
    exclusion_release(&m->exclusions);
    *m = (struct fsm){ 0 };
}

/* ---- the end of a generation ---- */

/* The job goes on once nothing of the old generation can act any more (invariant 4). */
static void close_generation(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!fsm_ends(m) || !fsm_all_left(m))
        return;
    fsm_saves_end(t);
    bool waits = m->ending.to != FSM_KILLED && m->ending.to != FSM_FAILED;
    if (waits && fsm_saves_busy(m))
        return;
    enum fsm_state to = m->ending.to;
    /* A save that was committed while the generation ended may have been of the last step. */
    if (to != FSM_KILLED && fsm_final_committed(m))
        to = FSM_SUCCEEDED;
    /* The last step's checkpoint may have been read back meanwhile and found damaged: the job goes
     * on from the one before. */
    bool lost = m->total_steps > 0 && m->intent != FSM_INTENT_FINISH && !fsm_final_committed(m);
    if (to == FSM_SUCCEEDED && lost)
        to = FSM_RECOVERING;
    if (to != FSM_RECOVERING && !fsm_all_gone(m)) { /* no generation follows */
        fsm_end_generation(t, to, false);
        return;
    }
    if (to != FSM_RECOVERING && fsm_spares_live(m) > 0) {
        fsm_dismiss_spares(t);
        return;
    }
    fsm_recovery_end(t, to);
    fsm_act(t, FSM_ACT_GEN_END);
    if (to == FSM_RECOVERING) {
        fsm_keep(t);
        FSM_MOVE(m, FSM_RECOVERING);
        FSM_GEN_MOVED(m);
        m->dirty = true;
        fsm_act(t, FSM_ACT_SCHEDULE);
        return;
    }
    fsm_enter_idle(t, to);
}

/* Called after every event. */
static void end_turn(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    close_generation(t);
    FSM_GEN_MOVED(m);
    /* A killed or failed job doesn't wait for its saves: they go whenever their folders show up. */
    if (fsm_state_final(m->state))
        fsm_saves_end(t);
    fsm_recovery_tick(t);
    fsm_read_back_tick(t);
    fsm_sweep(t);
    CHECK(!fsm_state_final(m->state) ||
          (fsm_all_gone(m) && fsm_spares_live(m) == 0)); /* invariant 5 */
    CHECK(!fsm_ends(m) || fsm_alive(m));
}

/* ---- what the scheduler, agents and trainers say ---- */

static void on_waiting(struct fsm_ctx *t)
{
    if (fsm_wants_slots(t->m, t->now))
        fsm_set_reason(t->m, "%s", t->ev->waiting.reason);
}

static void on_node(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const bool forgot = t->ev->node.renewed && fsm_unsuspect(m, t->ev->node.name);
    if (!exclusion_renew(&m->exclusions, t->ev->node.name, t->ev->node.agent) && !forgot)
        return;
    m->dirty = true;
    fsm_act(t, FSM_ACT_SCHEDULE);
}

static void on_note(struct fsm_ctx *t)
{
    fsm_emit_event(t, t->ev->note.what, "%s", t->ev->note.message);
}

static void on_started(struct fsm_ctx *t)
{
    struct fsm_rank *rank = &t->m->ranks[t->ev->rank];
    rank->started = true;
    rank->missing_at = 0;
    rank->pid = t->ev->started.pid;
}

static void on_missing(struct fsm_ctx *t)
{
    struct fsm_rank *rank = &t->m->ranks[t->ev->rank];
    if (!rank->gone && rank->missing_at == 0)
        rank->missing_at = t->now;
}

static void on_agent(struct fsm_ctx *t)
{
    struct fsm_rank *rank = &t->m->ranks[t->ev->rank];
    const enum fsm_agent was = rank->agent;
    const char *saw = t->ev->agent.saw;
    rank->agent = t->ev->agent.state;
    if (rank->agent == was || rank->gone)
        return;
    switch (rank->agent) {
    case FSM_AGENT_HEARD:
        fsm_rank_heard(t, t->ev->rank);
        if (was != FSM_AGENT_DOUBTED)
            fsm_emit_event(t, "agent", "the agent of node %s is back", rank->node);
        return;
    case FSM_AGENT_DOUBTED:
        return;
    case FSM_AGENT_SILENT:
        fsm_emit_event(t, "agent",
                       "the agent of node %s is silent; the job runs on unsupervised%s%s",
                       rank->node, saw[0] ? "; " : "", saw);
        return;
    case FSM_AGENT_CUT_OFF:
        fsm_emit_event(t, "agent",
                       "node %s is not heard, but others reach it: the coordinator's way to it is "
                       "broken; %s",
                       rank->node, saw);
    }
}

static void on_session_lost(struct fsm_ctx *t)
{
    struct fsm_rank *rank = &t->m->ranks[t->ev->rank];
    rank->session = false;
    rank->lost_at = t->now;
}

static void on_progress(struct fsm_ctx *t)
{
    fsm_note_progress(t, &t->m->ranks[t->ev->rank]);
}

/* Fails the job, as the path of a save, or of a checkpoint, is too long: the job can't save what it
 * trains. */
static void fail_by_path(struct fsm_ctx *t)
{
    struct fsm_fault fault = { .kind = FSM_FAULT_USER,
                               .rank = FSM_ALL_RANKS,
                               .step = fsm_step_now(t->m) };
    fsm_text(fault.message, sizeof(fault.message), t->ev->answer.message);
    fsm_handle_fault(t, &fault);
}

static void on_store(struct fsm_ctx *t)
{
    static void (*const handle[FSM_TASK_COUNT])(struct fsm_ctx * t) = {
        [FSM_TASK_PROBE] = fsm_on_probed,       [FSM_TASK_FOLDER] = fsm_on_folder_done,
        [FSM_TASK_CHECK] = fsm_on_check_done,   [FSM_TASK_PUBLISH] = fsm_on_publish_done,
        [FSM_TASK_DROP] = fsm_on_drop_done,     [FSM_TASK_REMOVE] = fsm_on_remove_done,
        [FSM_TASK_VERIFY] = fsm_on_verify_done, [FSM_TASK_QUARANTINE] = fsm_on_quarantine_done,
        [FSM_TASK_SWEEP] = fsm_on_sweep_done,
    };
    CHECK(t->ev->answer.task < FSM_TASK_COUNT);
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
    void (*handle)(struct fsm_ctx *t);
} events[FSM_EV_FIRST_ASK] = {
    [FSM_EV_TICK] = { CORE, NULL },
    [FSM_EV_PLACED] = { CORE, fsm_on_placed },
    [FSM_EV_WAITING] = { CORE, on_waiting },
    [FSM_EV_STORE] = { CORE, on_store },
    [FSM_EV_NOWHERE] = { CORE, fsm_on_nowhere },
    [FSM_EV_NODE] = { CORE, on_node },
    [FSM_EV_LEAVING] = { CORE, fsm_on_leaving },
    [FSM_EV_NOTE] = { CORE, on_note },
    [FSM_EV_PATH] = { CORE, fsm_on_path },
    [FSM_EV_SPARE] = { CORE, fsm_on_spare },
    [FSM_EV_STARTED] = { FLEET, on_started },
    [FSM_EV_MISSING] = { FLEET, on_missing },
    [FSM_EV_EXITED] = { FLEET, fsm_on_exited },
    [FSM_EV_AGENT] = { FLEET, on_agent },
    [FSM_EV_HELLO] = { TRAINER, fsm_on_hello },
    [FSM_EV_SESSION_LOST] = { FLEET, on_session_lost },
    [FSM_EV_READY] = { TRAINER, fsm_on_ready },
    [FSM_EV_PROGRESS] = { TRAINER, on_progress },
    [FSM_EV_FAULT] = { TRAINER, fsm_on_fault },
    [FSM_EV_FINISHED] = { TRAINER, fsm_on_finished },
    [FSM_EV_SAVE_BEGIN] = { TRAINER, fsm_on_save_begin },
    [FSM_EV_SAVE_REPORT] = { TRAINER, fsm_on_save_report },
    [FSM_EV_SAVE_FAILED] = { TRAINER, fsm_on_save_failed },
    [FSM_EV_SAVE_PASSED] = { TRAINER, fsm_on_save_passed },
    [FSM_EV_SAVE_WANTED] = { TRAINER, fsm_on_save_wanted },
    [FSM_EV_READ_BACK] = { TRAINER, fsm_on_read_back },
    [FSM_EV_PARKED] = { TRAINER, fsm_on_parked },
};

static bool is_of_saves(enum fsm_event_kind kind)
{
    return kind == FSM_EV_SAVE_BEGIN || kind == FSM_EV_SAVE_REPORT || kind == FSM_EV_SAVE_FAILED ||
           kind == FSM_EV_SAVE_PASSED || kind == FSM_EV_READ_BACK;
}

/* True if an event changes nothing: agents and trainers of another generation said it (invariant
 * 2). The same holds for what was under way from workers that are gone, once the generation is over
 * and others are kept; and of saves, where nothing is saved. */
static bool is_fenced(const struct fsm *m, const struct fsm_event *ev)
{
    if (ev->kind >= FSM_EV_FIRST_ASK || events[ev->kind].sender == CORE)
        return false;
    if (m->config.saves_nothing && is_of_saves(ev->kind))
        return true;
    return ev->generation != m->generation || ev->rank >= m->count || !fsm_alive(m) ||
           (fsm_has_waiting(m) && m->ranks[ev->rank].gone);
}

/* True if the rules of silence, which are about all ranks, are to be checked. A trainer's message
 * is a sign of life and makes none of them true, and thousands of these come in a second: they are
 * checked now and then. */
static bool looks_at_all(const struct fsm *m, const struct fsm_event *event)
{
    return event->kind >= FSM_EV_FIRST_ASK || events[event->kind].sender != TRAINER ||
           event->now - m->watched_at >= FSM_LOOK_MS;
}

enum status fsm_apply(struct fsm *m, const struct fsm_event *event, struct fsm_actions *out)
{
    CHECK(event->kind <= FSM_EV_SET);
    out->count = 0;
    struct fsm_ctx t = { .m = m, .ev = event, .out = out, .now = event->now, .wall = event->wall };
    if (is_fenced(m, event))
        return ST_OK;
    fsm_recovery_book(&t);
    fsm_account(m, event->now);
    if (event->kind >= FSM_EV_FIRST_ASK) {
        enum status st = fsm_ask(&t);
        if (st != ST_OK)
            return st;
    } else {
        if (events[event->kind].sender == TRAINER)
            fsm_hear(&t);
        if (fsm_is_spare(m, event->rank)) {
            fsm_on_spare_event(&t);
        } else if (events[event->kind].handle != NULL) {
            events[event->kind].handle(&t);
        }
    }
    const bool looks = looks_at_all(m, event);
    m->watched_at = looks ? event->now : m->watched_at;
    fsm_watch_spares(&t);
    fsm_watch(&t, looks);
    if (fsm_is_vacated(m))
        fsm_unplace(&t);
    fsm_saves_tick(&t);
    fsm_due_tick(&t);
    fsm_damage_tick(&t);
    fsm_audit_tick(&t);
    fsm_resize_tick(&t);
    if (looks)
        fsm_lanes_tick(&t);
    end_turn(&t);
    if (event->kind < FSM_EV_FIRST_ASK && events[event->kind].sender != CORE)
        fsm_worker_moved(m, event->rank);
    return ST_OK;
}

void fsm_resume(struct fsm *m, int64_t now, int64_t wall, struct fsm_actions *out)
{
    out->count = 0;
    struct fsm_ctx t = { .m = m, .out = out, .now = now, .wall = wall };
    fsm_recovery_resume(&t);
    exclusion_resume(&m->exclusions, wall);
    m->accounts.at = now;
    m->watched_at = now;
    m->grace_until = now + FSM_GRACE_MS;
    m->started_at = now;
    m->progress_at = m->ran_from = now;
    m->replay_until = m->step_max;
    if (m->state == FSM_PLACING)
        FSM_MOVE(m, m->generation == 0 ? FSM_QUEUED : FSM_RECOVERING);
    m->gen = fsm_gen(m);
    for (uint32_t i = 0; i < m->count; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        if (!fsm_alive(m))
            fsm_rank_gone(m, i);
        rank->heard_at = m->grace_until; /* leases count from then */
        rank->counter_at = m->grace_until;
        rank->saving_at = m->grace_until;
        rank->step = m->restore.step;
        rank->ended_at = now;
    }
    m->stepped_at = 0;
    m->spares.again_at = now;
    /* Workers that were told to go without a save have their time anew, whatever follows. */
    bool gently = fsm_ends(m) && (m->ending.to != FSM_RECOVERING || m->config.saves_nothing) &&
                  m->ending.to != FSM_FAILED && m->ending.to != FSM_KILLED;
    m->ending.survivors_until = m->grace_until + FSM_KEEP_MS;
    if (m->ending.parks) {
        /* An outage that goes on is known only once all have been silent. */
        m->ending.hard_at = m->grace_until + m->config.silent_ms + FSM_PARK_MS + m->config.grace_ms;
        fsm_park_again(&t);
    } else if (gently) {
        m->ending.hard_at = now + fsm_leave_ms(m);
    } else if (fsm_ends(m)) {
        m->ending.ended_at = now;
        m->ending.again_at = now + FSM_END_AGAIN_MS;
        fsm_act(&t, FSM_ACT_END);
    }
    m->gen = fsm_gen(m); /* who parks has time anew */
    fsm_saves_resume(&t);
    fsm_due_resume(&t);
    fsm_catalog_resume(&t);
    if (!fsm_state_final(m->state))
        fsm_act(&t, FSM_ACT_SCHEDULE);
    end_turn(&t);
}

void fsm_restored(struct fsm *m)
{
    if (fsm_state_final(m->state) || m->generation == 0)
        return;
    m->generation += FSM_RESTORE_GAP;
    m->restore.memory_from = m->generation;
    for (uint32_t i = 0; i < m->count; i++) { /* whoever is there was born before */
        m->ranks[i].birth = m->generation;
        if (fsm_is_spare(m, i))
            fsm_rank_gone(m, i);
    }
    m->restore.live = false;
    m->restore.decided = m->restore.decided && m->state != FSM_FORMING;
    m->dirty = true;
}

void fsm_abandon(struct fsm *m, int64_t wall, const char *by, struct fsm_actions *out)
{
    out->count = 0;
    struct fsm_ctx t = { .m = m, .out = out, .wall = wall };
    m->gen = fsm_gen(m);
    fsm_emit_event(&t, "kill", "asked by %s", fsm_asker(by));
    if (fsm_alive(m))
        fsm_act(&t, FSM_ACT_GEN_END);
    for (uint32_t i = 0; i < m->count; i++)
        fsm_rank_gone(m, i);
    fsm_enter_idle(&t, FSM_KILLED);
}

/* ---- time that counts against nobody ---- */

void fsm_excuse(struct fsm *m, int64_t ms)
{
    if (!fsm_alive(m))
        return;
    m->started_at += ms;
    m->ran_from += ms;
    m->ending.ended_at += ms;
    m->ending.survivors_until += ms;
    m->ending.hard_at += m->ending.parks && m->ending.hard_at != 0 ? ms : 0;
    m->stepped_at += m->stepped_at != 0 ? ms : 0;
    m->spares.ready_at += m->spares.ready_at != 0 ? ms : 0;
    m->balance.slow_at += ms;
    m->awaits_saves_at += m->awaits_saves_at != 0 ? ms : 0;
    m->awaits_asked_at += ms;
    m->due.exit_at += m->due.exit_at != 0 ? ms : 0;
    for (int i = 0; i < FSM_SAVES_MAX; i++)
        m->saves[i].since += ms;
    for (uint32_t i = 0; i < m->count; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        rank->heard_at += ms;
        rank->counter_at += ms;
        rank->saving_at += ms;
        if (rank->lost_at != 0)
            rank->lost_at += ms;
        if (rank->missing_at != 0)
            rank->missing_at += ms;
    }
}

void fsm_extend_grace(struct fsm *m, int64_t ms)
{
    for (uint32_t i = 0; fsm_alive(m) && i < m->count; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        rank->heard_at += rank->heard_at >= m->grace_until ? ms : 0;
        rank->counter_at += rank->counter_at >= m->grace_until ? ms : 0;
        rank->saving_at += rank->saving_at >= m->grace_until ? ms : 0;
    }
    m->grace_until += m->grace_until != 0 ? ms : 0;
    m->ending.hard_at += m->ending.parks && m->ending.hard_at != 0 ? ms : 0;
    m->ending.survivors_until += ms;
}
