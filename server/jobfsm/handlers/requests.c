/* The requests of people: to a job to pause, resume, stop, be killed, save; to all jobs to drain;
 * to a checkpoint to be removed or read. */
#include "server/jobfsm/handlers/requests.h"

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/retention.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

const char *fsm_asker(const char *by)
{
    return by != NULL ? by : "the user";
}

/* Adds the request to the job's history, before what comes of it. */
static void emit_asked(struct fsm_ctx *t, const char *what)
{
    fsm_emit_event(t, what, "asked by %s", fsm_asker(t->ev->by));
}

/* True if the request changes where the job goes: repeating it is not worth telling. */
static bool is_news(const struct fsm *m, enum fsm_intent intent, enum fsm_state to)
{
    const bool ends = fsm_state_final(m->state) || fsm_state_final(m->ending.to);
    return !ends && m->state != to && m->ending.to != to && m->intent != intent;
}

/* Makes a job idle that waits for its next generation: at once, or when those are gone that
 * were kept for it. */
static void end_or_enter_idle(struct fsm_ctx *t, enum fsm_state to)
{
    if (fsm_has_waiting(t->m)) {
        fsm_end_generation(t, to, false);
    } else {
        fsm_enter_idle(t, to);
    }
}

/* True if the job is asked once more to go while its program, started anew, isn't ready yet, which
 * it may never be: then it goes at once, with what is saved. */
static bool is_asked_again(const struct fsm *m, enum fsm_intent intent)
{
    return m->config.program && m->intent == intent && intent != FSM_INTENT_DRAIN;
}

/* Has the job's trainers, if there are any, save and leave, and the job go to `to`. */
static enum status ask_to_leave(struct fsm_ctx *t, enum fsm_intent intent, enum fsm_state to)
{
    struct fsm *m = t->m;
    if (m->config.saves_nothing && fsm_alive(m)) {
        fsm_leave(t, to);
        return ST_OK;
    }
    switch (m->state) {
    case FSM_QUEUED:
    case FSM_PLACING:
        end_or_enter_idle(t, to);
        return ST_OK;
    case FSM_FORMING:
        if (fsm_has_survivors(m) &&
            !is_asked_again(m, intent)) { /* the workers save first what they trained */
            m->intent = intent;
            m->dirty = true;
        } else {
            fsm_end_generation(t, to, false);
        }
        return ST_OK;
    case FSM_RECOVERING:
        if (!fsm_ends(m)) {
            end_or_enter_idle(t, to);
        } else if (m->ending.parks && intent != FSM_INTENT_DRAIN) {
            m->intent = intent; /* the next generation saves first; a coordinator that goes down
                                 * forms none */
        } else if (m->ending.parks) {
            fsm_end_generation(t, to, false);
        } else if (m->ending.to == FSM_RECOVERING) {
            m->ending.to = to;
        }
        m->dirty = true;
        return ST_OK;
    case FSM_RUNNING:
    case FSM_SAVING:
        if (fsm_ends(m)) {
            if (!fsm_state_final(m->ending.to))
                m->ending.to = to;
            m->dirty = true;
            return ST_OK;
        }
        if (m->intent == FSM_INTENT_NONE && m->state == FSM_RUNNING)
            fsm_announce(t, true);
        m->intent = intent;
        FSM_MOVE(m, FSM_SAVING);
        m->dirty = true;
        return ST_OK;
    case FSM_PAUSED:
        if (to == FSM_STOPPED)
            fsm_enter_idle(t, to);
        return ST_OK;
    case FSM_NONE:
    case FSM_SUCCEEDED:
    case FSM_FAILED:
    case FSM_STOPPED:
    case FSM_KILLED:
        break;
    }
    return ST_REFUSED;
}

static enum status ask_kill(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (fsm_state_final(m->state))
        return ST_REFUSED;
    if (!fsm_alive(m)) {
        emit_asked(t, "kill");
        fsm_enter_idle(t, FSM_KILLED);
        return ST_OK;
    }
    if (m->ending.to != FSM_KILLED) {
        emit_asked(t, "kill");
        fsm_end_generation(t, FSM_KILLED, false);
    }
    return ST_OK;
}

static enum status ask_save(struct fsm_ctx *t)
{
    if (t->m->state != FSM_RUNNING || t->m->config.saves_nothing)
        return ST_REFUSED;
    emit_asked(t, "save");
    fsm_announce(t, false);
    return ST_OK;
}

static enum status ask_resume(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->state != FSM_PAUSED && m->state != FSM_STOPPED)
        return ST_REFUSED;
    FSM_MOVE(m, FSM_QUEUED);
    m->ended_wall = 0;
    m->budget.failures = 0;
    m->budget.no_progress = 0;
    m->budget.own = 0;
    m->budget.used = 0;
    exclusion_clear(&m->exclusions); /* the person may have put them right */
    m->suspect_count = 0;
    m->retry_at = 0;
    m->probed = false; /* the store may have been changed meanwhile */
    fsm_set_reason(m, "%s", "");
    emit_asked(t, "resumed");
    fsm_act(t, FSM_ACT_SCHEDULE);
    return ST_OK;
}

static enum status ask_pause(struct fsm_ctx *t)
{
    if (is_news(t->m, FSM_INTENT_PAUSE, FSM_PAUSED))
        emit_asked(t, "pause");
    return ask_to_leave(t, FSM_INTENT_PAUSE, FSM_PAUSED);
}

static enum status ask_stop(struct fsm_ctx *t)
{
    if (is_news(t->m, FSM_INTENT_STOP, FSM_STOPPED))
        emit_asked(t, "stop");
    return ask_to_leave(t, FSM_INTENT_STOP, FSM_STOPPED);
}

/* Returns where a drained job goes. A request that came before holds, also if the coordinator goes
 * down before that is done. */
static enum fsm_state drained_state(const struct fsm *m)
{
    bool goes_on = m->ending.to == FSM_RECOVERING && m->intent == FSM_INTENT_STOP;
    if (fsm_ends(m) && !goes_on)
        return m->ending.to;
    bool asked = m->intent == FSM_INTENT_PAUSE || m->intent == FSM_INTENT_STOP;
    return asked ? fsm_intended(m->intent) : FSM_QUEUED;
}

static enum status ask_drain(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    enum fsm_state to = drained_state(m);
    if (m->state == FSM_QUEUED || m->state == FSM_PAUSED || fsm_state_final(m->state) ||
        to == FSM_PAUSED || to == FSM_STOPPED)
        return ST_OK;
    if (is_news(m, FSM_INTENT_DRAIN, FSM_QUEUED))
        fsm_emit_event(t, "down", "the coordinator goes down, asked by %s", fsm_asker(t->ev->by));
    return ask_to_leave(t, FSM_INTENT_DRAIN, FSM_QUEUED);
}

/* Ends the trainers. A stop that has not saved yet is to save first what was trained, as after a
 * crash. */
static enum status ask_drain_now(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!fsm_alive(m) || fsm_gen(m) == FSM_GEN_ENDING)
        return ST_OK;
    bool unsaved = !fsm_ends(m) && m->intent == FSM_INTENT_STOP;
    if (unsaved) {
        fsm_emit_event(
            t, "recovering",
            "the coordinator goes down before the job has saved: when it is up again, the "
            "job saves what was trained, then it stops");
    }
    fsm_end_generation(t, unsaved ? FSM_RECOVERING : drained_state(m), false);
    return ST_OK;
}

/* Removes a checkpoint. Refused is the one that the job would go on from, unless its store is away,
 * and one that others are read through, or may be. */
static enum status ask_remove_ckpt(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const struct fsm_ckpt *newest = fsm_newest(m);
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct fsm_ckpt *ckpt = &m->catalog[i - 1];
        if (ckpt->step != t->ev->remove_ckpt.step)
            continue;
        if (ckpt->state == FSM_CKPT_REMOVING && !ckpt->removing) { /* the removal failed */
            fsm_remove_ckpt(t, ckpt);
            return ST_OK;
        }
        if (ckpt->state != FSM_CKPT_GOOD)
            continue;
        bool restored = ckpt->step == m->restore.step && ckpt->generation == m->restore.generation;
        bool needed = (ckpt == newest && !m->mark_mismatch) || (restored && fsm_alive(m));
        if (!fsm_state_final(m->state) && needed)
            return ST_REFUSED;
        if (fsm_is_parent(m, ckpt) || fsm_is_base(m, ckpt))
            return ST_REFUSED;
        fsm_remove_ckpt(t, ckpt);
        fsm_emit_event(t, "removed", "the checkpoint of step %llu, asked by %s",
                       (unsigned long long)ckpt->step, fsm_asker(t->ev->by));
        return ST_OK;
    }
    return ST_NOT_FOUND;
}

/* Has a checkpoint read. A damaged one is set aside already; one that is being removed is none any
 * more. */
static enum status ask_check_ckpt(struct fsm_ctx *t)
{
    struct fsm_ckpt *ckpt = fsm_ckpt_at(t->m, t->ev->check_ckpt.step, t->ev->check_ckpt.generation);
    if (ckpt == NULL || ckpt->state == FSM_CKPT_REMOVING)
        return ST_NOT_FOUND;
    if (ckpt->state == FSM_CKPT_GOOD)
        fsm_ask_verify(t, ckpt);
    return ST_OK;
}

static enum status ask_set(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const uint32_t asked = t->ev->set.workers;
    const uint32_t least = m->config.min_follows ? 1 : m->config.min;
    if (fsm_state_final(m->state) || asked < least || asked > m->config.most)
        return ST_REFUSED;
    if (asked == m->config.ranks)
        return ST_OK;
    fsm_emit_event(t, "set", "%u workers from now on, not %u%s; asked by %s", asked,
                   m->config.ranks, t->ev->set.evens ? ", with even shares" : "",
                   fsm_asker(t->ev->by));
    m->config.ranks = asked;
    if (m->config.min_follows)
        m->config.min = asked;
    m->resizes = m->config.restarts;
    m->dirty = true;
    if (m->state == FSM_PLACING)
        fsm_unplace(t);
    fsm_act(t, FSM_ACT_SCHEDULE);
    return ST_OK;
}

enum status fsm_ask(struct fsm_ctx *t)
{
#define ASK(kind) [(kind)-FSM_EV_FIRST_ASK]
    static enum status (*const asks[])(struct fsm_ctx *) = {
        ASK(FSM_EV_PAUSE) = ask_pause,
        ASK(FSM_EV_RESUME) = ask_resume,
        ASK(FSM_EV_STOP) = ask_stop,
        ASK(FSM_EV_KILL) = ask_kill,
        ASK(FSM_EV_SAVE) = ask_save,
        ASK(FSM_EV_DRAIN) = ask_drain,
        ASK(FSM_EV_DRAIN_NOW) = ask_drain_now,
        ASK(FSM_EV_REMOVE_CKPT) = ask_remove_ckpt,
        ASK(FSM_EV_CHECK_CKPT) = ask_check_ckpt,
        ASK(FSM_EV_SET) = ask_set,
    };
#undef ASK
    CHECK(t->ev->kind >= FSM_EV_FIRST_ASK);
    const size_t at = t->ev->kind - FSM_EV_FIRST_ASK;
    CHECK(at < sizeof(asks) / sizeof(asks[0]) && asks[at] != NULL);
    return asks[at](t);
}
