#include "server/machine/machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/machine/internal.h"

static const char *const state_names[] = { "JOB_STATE_UNSPECIFIED",
                                           "QUEUED",
                                           "PLACING",
                                           "FORMING",
                                           "RUNNING",
                                           "SAVING",
                                           "RECOVERING",
                                           "PAUSED",
                                           "SUCCEEDED",
                                           "FAILED",
                                           "STOPPED",
                                           "KILLED" };

const char *job_state_name(enum job_state state)
{
    return state_names[state];
}

bool job_state_final(enum job_state state)
{
    return state >= JOB_SUCCEEDED;
}

const char *jm_lost_name(enum jm_lost lost)
{
    static const char *const names[] = { "detect", "form", "restore", "replay", "stall", "wait" };
    return names[lost];
}

/* ---- actions ---- */

struct jm_action *jm_act(struct jm_step *s, enum jm_action_kind kind)
{
    CHECK(s->out->count < JM_ACTIONS_MAX);
    struct jm_action *act = &s->out->list[s->out->count++];
    *act = (struct jm_action){ .kind = kind, .rank = JM_ALL, .generation = s->m->generation };
    if (kind < JM_ACTION_FIRST_OUTSIDE)
        s->m->dirty = true;
    return act;
}

struct jm_action *jm_act_on(struct jm_step *s, enum jm_action_kind kind, uint64_t step,
                            uint32_t generation)
{
    struct jm_action *act = jm_act(s, kind);
    act->step = step;
    act->generation = generation;
    return act;
}

void jm_event(struct jm_step *s, const char *kind, const char *format, ...)
{
    struct jm_action *act = jm_act(s, ACT_EVENT);
    jm_text(act->text, sizeof act->text, kind);
    act->step = jm_step_now(s->m);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(act->message, sizeof act->message, format, args);
    va_end(args);
}

void jm_text(char *out, size_t capacity, const char *text)
{
    (void)snprintf(out, capacity, "%s", text ? text : "");
}

void jm_set_reason(struct job_machine *m, const char *format, ...)
{
    char text[LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (strcmp(text, m->reason) == 0)
        return;
    jm_text(m->reason, sizeof m->reason, text);
    m->dirty = true;
}

/* ---- life ---- */

enum status jm_init(struct job_machine *m, const char *id, const struct jm_config *config,
                    const struct job_event *at)
{
    if (config->ranks < 1 || config->ranks > LIMIT_RANKS)
        return ST_INVALID;
    struct jm_rank *ranks = calloc(config->ranks, sizeof *ranks);
    if (!ranks)
        return ST_NO_MEMORY;
    *m = (struct job_machine){ .config = *config,
                               .state = JOB_QUEUED,
                               .dirty = true,
                               .submitted_wall = at->wall,
                               .accounted_at = at->now,
                               .ranks = ranks };
    jm_text(m->id, sizeof m->id, id);
    for (uint32_t i = 0; i < config->ranks; i++)
        ranks[i].gone = true;
    return ST_OK;
}

void jm_release(struct job_machine *m)
{
    free(m->ranks);
    free(m->catalog);
    free(m->copies);
    *m = (struct job_machine){ 0 };
}

bool jm_alive(const struct job_machine *m)
{
    return m->state == JOB_FORMING || m->state == JOB_RUNNING || m->state == JOB_SAVING ||
           (m->state == JOB_RECOVERING && m->end_to != JOB_NONE);
}

bool jm_all_gone(const struct job_machine *m)
{
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        if (!m->ranks[i].gone)
            return false;
    }
    return true;
}

bool jm_alive_rank(const struct job_machine *m, uint32_t rank)
{
    if (rank != JM_ALL)
        return jm_alive(m) && !m->ranks[rank].gone;
    return jm_alive(m) && !jm_all_gone(m);
}

bool jm_holds_slot(const struct job_machine *m, uint32_t rank)
{
    if (m->state == JOB_PLACING)
        return true;
    return jm_alive(m) && !m->ranks[rank].gone;
}

bool jm_wants_slots(const struct job_machine *m, int64_t now)
{
    if (m->state == JOB_QUEUED)
        return now >= m->retry_at;
    return m->state == JOB_RECOVERING && m->end_to == JOB_NONE && now >= m->retry_at &&
           !jm_damage_pending(m);
}

uint64_t jm_step_now(const struct job_machine *m)
{
    if (m->state != JOB_RUNNING && m->state != JOB_SAVING)
        return m->state == JOB_FORMING ? m->restore_step : m->step_max;
    uint64_t step = m->restore_step;
    bool heard = false;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        heard = heard || m->ranks[i].joined;
        if (m->ranks[i].step > step)
            step = m->ranks[i].step;
    }
    return heard ? step : m->step_max;
}

const char *jm_health(const struct job_machine *m)
{
    if (m->state == JOB_RECOVERING)
        return "recovering";
    if (jm_alive(m)) {
        for (uint32_t i = 0; i < m->config.ranks; i++) {
            if (!m->ranks[i].gone && m->ranks[i].agent_silent)
                return "unsupervised";
        }
        if (m->window_until)
            return "degraded";
    }
    return m->state == JOB_FAILED ? "degraded" : "ok";
}

/* ---- ending ---- */

void jm_end_generation(struct jm_step *s, enum job_state to, bool gently)
{
    struct job_machine *m = s->m;
    bool again = m->end_to != JOB_NONE;
    m->end_to = to;
    m->dirty = true;
    m->window_until = 0;
    if (to == JOB_RECOVERING || to == JOB_FAILED) {
        m->state = JOB_RECOVERING;
    } else if (m->state == JOB_RUNNING) {
        m->state = JOB_SAVING;
    }
    if (gently) {
        m->end_hard_at = s->now + JM_LEAVE_MS;
        return;
    }
    if (again && m->end_hard_at == 0)
        return;
    m->end_hard_at = 0;
    m->ended_at = s->now;
    m->end_again_at = s->now + JM_END_AGAIN_MS;
    jm_text(jm_act(s, ACT_OVER)->message, LIMIT_REASON, "this generation has ended");
    jm_act(s, ACT_END);
}

void jm_enter_final(struct jm_step *s, enum job_state to)
{
    struct job_machine *m = s->m;
    m->state = to;
    m->end_to = JOB_NONE;
    m->intent = INTENT_NONE;
    m->dirty = true;
    m->retry_at = 0;
    if (job_state_final(to))
        m->ended_wall = s->ev->wall;
    if (to == JOB_SUCCEEDED) {
        const struct jm_ckpt *last = jm_newest(m);
        if (last)
            jm_text(m->final_digest, sizeof m->final_digest, last->digest);
        jm_set_reason(m, "%s", "");
    }
    static const char *const kinds[] = { "", "queued", "",          "",       "",        "",
                                         "", "paused", "succeeded", "failed", "stopped", "killed" };
    const struct jm_ckpt *ckpt = jm_newest(m);
    if (to == JOB_FAILED) {
        jm_event(s, kinds[to], "%s", m->reason);
    } else if (ckpt) {
        jm_event(s, kinds[to], "the newest checkpoint is of step %llu",
                 (unsigned long long)ckpt->step);
    } else {
        jm_event(s, kinds[to], "there is no checkpoint");
    }
    jm_act(s, ACT_FORGET); /* what is left of it is in the store */
    jm_act(s, ACT_SCHEDULE);
}

/* Goes on once nothing of the old generation can act any more (invariant 4). */
static void settle(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (m->end_to == JOB_NONE || !jm_all_gone(m))
        return;
    jm_saves_end(s);
    bool waits = m->end_to != JOB_KILLED && m->end_to != JOB_FAILED;
    if (waits && jm_saves_busy(m))
        return;
    enum job_state to = m->end_to;
    /* What was committed while the generation ended may have been the last step. */
    if (to != JOB_KILLED && jm_final_committed(m))
        to = JOB_SUCCEEDED;
    /* Read back meanwhile, it was damaged: on from the one before. */
    bool lost = m->total_steps > 0 && m->intent != INTENT_FINISH && !jm_final_committed(m);
    if (to == JOB_SUCCEEDED && lost)
        to = JOB_RECOVERING;
    jm_act(s, ACT_GEN_END);
    if (to == JOB_RECOVERING) {
        m->state = JOB_RECOVERING;
        m->end_to = JOB_NONE;
        m->dirty = true;
        jm_act(s, ACT_SCHEDULE);
        return;
    }
    jm_enter_final(s, to);
}

/* A killed or failed job doesn't wait for its saves: what isn't decided goes whenever it shows. */
static void end_event(struct jm_step *s)
{
    settle(s);
    if (job_state_final(s->m->state))
        jm_saves_end(s);
    jm_sweep(s);
}

static void on_exited(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_rank *rank = &m->ranks[s->ev->rank];
    const struct job_event *ev = s->ev;
    if (rank->gone)
        return;
    rank->gone = true;
    rank->started = true;
    rank->session = false;
    m->dirty = true;
    if (ev->step > rank->step)
        rank->step = ev->step; /* its last words */
    if (ev->phase)
        jm_text(rank->phase, sizeof rank->phase, ev->phase);
    bool finished = rank->finished || ev->finished || ev->exit == EXIT_FINISHED;
    rank->finished = finished;
    if (m->end_to != JOB_NONE || (finished && ev->exit != EXIT_SIGNAL))
        return;
    struct jm_fault fault = { .kind = FAULT_PROCESS, .rank = ev->rank, .step = rank->step };
    if (ev->fault) {
        fault = *ev->fault;
        if (fault.rank == JM_ALL && fault.kind != FAULT_COMMUNICATION)
            fault.rank = ev->rank;
        jm_fault_report(s, &fault);
        return;
    }
    jm_text(fault.phase, sizeof fault.phase, rank->phase);
    jm_text(fault.message, sizeof fault.message, ev->message);
    if (ev->exit == EXIT_OOM)
        fault.kind = FAULT_MEMORY;
    /* SIGHUP, SIGINT, SIGKILL, SIGTERM that we did not send come from outside. */
    fault.outside = ev->exit == EXIT_UNKNOWN ||
                    (ev->exit == EXIT_SIGNAL &&
                     (ev->code == 1 || ev->code == 2 || ev->code == 9 || ev->code == 15));
    jm_fault_report(s, &fault);
}

/* Every rank said that the plan told it to leave: the job is done, or what was asked is done. */
static void on_finished(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_rank *rank = &m->ranks[s->ev->rank];
    rank->finished = true;
    if (s->ev->step > rank->step)
        rank->step = s->ev->step;
    if (m->end_to != JOB_NONE || m->total_steps != 0 || m->intent != INTENT_NONE)
        return;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        if (!m->ranks[i].finished)
            return;
    }
    jm_end_generation(s, JOB_SUCCEEDED, true); /* a job without a known total */
}

/* ---- dispatch ---- */

static void on_trainer_fault(struct jm_step *s)
{
    struct jm_fault fault = *s->ev->fault;
    if (fault.rank == JM_ALL && fault.kind != FAULT_COMMUNICATION)
        fault.rank = s->ev->rank;
    jm_fault_report(s, &fault);
}

static void on_started(struct jm_step *s)
{
    struct jm_rank *rank = &s->m->ranks[s->ev->rank];
    rank->started = true;
    rank->missing_at = 0;
    rank->pid = s->ev->pid;
}

static void on_missing(struct jm_step *s)
{
    struct jm_rank *rank = &s->m->ranks[s->ev->rank];
    if (!rank->gone && rank->missing_at == 0)
        rank->missing_at = s->now;
}

static void on_agent(struct jm_step *s)
{
    struct jm_rank *rank = &s->m->ranks[s->ev->rank];
    if (rank->agent_silent != s->ev->flag && !rank->gone) {
        jm_event(s, "agent", "the agent of node %s %s", rank->node,
                 s->ev->flag ? "is silent; the job runs on unsupervised" : "is back");
    }
    rank->agent_silent = s->ev->flag;
}

static void on_session_lost(struct jm_step *s)
{
    struct jm_rank *rank = &s->m->ranks[s->ev->rank];
    rank->session = false;
    rank->lost_at = s->now;
}

static void on_waiting(struct jm_step *s)
{
    if (jm_wants_slots(s->m, s->now))
        jm_set_reason(s->m, "%s", s->ev->message);
}

static void on_progress(struct jm_step *s)
{
    jm_note_progress(s, &s->m->ranks[s->ev->rank]);
}

/* Who sends it decides what is checked before its handler is called. */
enum sender { CORE, FLEET, TRAINER };

static const struct {
    enum sender sender;
    void (*handle)(struct jm_step *s);
} events[EV_PAUSE] = {
    [EV_TICK] = { CORE, NULL },
    [EV_PLACED] = { CORE, jm_on_placed },
    [EV_WAITING] = { CORE, on_waiting },
    [EV_PROBED] = { CORE, jm_on_probed },
    [EV_STARTED] = { FLEET, on_started },
    [EV_MISSING] = { FLEET, on_missing },
    [EV_EXITED] = { FLEET, on_exited },
    [EV_AGENT] = { FLEET, on_agent },
    [EV_HELLO] = { TRAINER, jm_on_hello },
    [EV_SESSION_LOST] = { FLEET, on_session_lost },
    [EV_READY] = { TRAINER, jm_on_ready },
    [EV_PROGRESS] = { TRAINER, on_progress },
    [EV_FAULT] = { TRAINER, on_trainer_fault },
    [EV_FINISHED] = { TRAINER, on_finished },
    [EV_SAVE_BEGIN] = { TRAINER, jm_on_begin },
    [EV_SAVE_REPORT] = { TRAINER, jm_on_report },
    [EV_SAVE_FAILED] = { TRAINER, jm_on_failed },
    [EV_SAVE_PASSED] = { TRAINER, jm_on_passed },
    [EV_SAVE_WANTED] = { TRAINER, jm_on_wanted },
    [EV_FOLDER_DONE] = { CORE, jm_on_folder },
    [EV_CHECK_DONE] = { CORE, jm_on_checked },
    [EV_PUBLISH_DONE] = { CORE, jm_on_published },
    [EV_REMOVE_DONE] = { CORE, jm_on_removed },
    [EV_VERIFY_DONE] = { CORE, jm_on_verified },
    [EV_QUARANTINE_DONE] = { CORE, jm_on_quarantined },
    [EV_SWEEP_DONE] = { CORE, jm_on_swept },
};

/* What agents and trainers of another generation say changes nothing (invariant 2). */
static bool is_fenced(const struct job_machine *m, const struct job_event *ev)
{
    if (ev->kind >= EV_PAUSE || events[ev->kind].sender == CORE)
        return false;
    return ev->generation != m->generation || ev->rank >= m->config.ranks || !jm_alive(m);
}

enum status job_step(struct job_machine *m, const struct job_event *event, struct jm_actions *out)
{
    out->count = 0;
    struct jm_step s = { .m = m, .ev = event, .out = out, .now = event->now };
    if (is_fenced(m, event))
        return ST_OK;
    jm_account(m, event->now);
    if (event->kind >= EV_PAUSE) {
        enum status st = jm_ask(&s);
        if (st != ST_OK)
            return st;
    } else {
        if (events[event->kind].sender == TRAINER)
            m->ranks[event->rank].heard_at = event->now;
        if (events[event->kind].handle)
            events[event->kind].handle(&s);
    }
    m->watched_at = event->now;
    jm_watch(&s);
    jm_saves_tick(&s);
    end_event(&s);
    return ST_OK;
}

void jm_resume(struct job_machine *m, const struct job_event *at, struct jm_actions *out)
{
    out->count = 0;
    struct jm_step s = { .m = m, .ev = at, .out = out, .now = at->now };
    m->accounted_at = at->now;
    m->watched_at = at->now;
    m->grace_until = at->now + JM_GRACE_MS;
    m->started_at = at->now;
    m->running_since = at->now;
    m->progress_at = at->now;
    m->replay_until = m->step_max;
    if (m->state == JOB_PLACING)
        m->state = m->generation == 0 ? JOB_QUEUED : JOB_RECOVERING;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        struct jm_rank *rank = &m->ranks[i];
        if (!jm_alive(m))
            rank->gone = true;
        rank->heard_at = m->grace_until; /* leases count from then */
        rank->counter_at = m->grace_until;
        rank->step = m->restore_step;
    }
    bool gently = m->end_to != JOB_NONE && m->end_to != JOB_RECOVERING && m->end_to != JOB_FAILED &&
                  m->end_to != JOB_KILLED;
    if (gently) {
        m->end_hard_at = at->now + JM_LEAVE_MS;
    } else if (m->end_to != JOB_NONE) {
        m->ended_at = at->now;
        m->end_again_at = at->now + JM_END_AGAIN_MS;
        jm_act(&s, ACT_END);
    }
    jm_saves_resume(&s);
    jm_act(&s, ACT_SCHEDULE);
    end_event(&s);
}
