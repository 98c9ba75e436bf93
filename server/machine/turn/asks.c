/* The requests of people: to a job to pause, resume, stop, be killed, save; to all jobs to drain;
 * to a checkpoint to be removed or read. */
#include "common/check.h"
#include "server/machine/internal.h"

const char *machine_asker(const char *by)
{
    return by ? by : "the user";
}

/* Adds the request to the job's history, before what comes of it. */
static void tell_asked(struct machine_turn *t, const char *what)
{
    machine_tell(t, what, "asked by %s", machine_asker(t->ev->by));
}

/* True if the request changes where the job goes: repeating it is not worth telling. */
static bool is_news(const struct machine *m, enum machine_intent intent, enum machine_state to)
{
    const bool ends = machine_state_final(m->state) || machine_state_final(m->ending.to);
    return !ends && m->state != to && m->ending.to != to && m->intent != intent;
}

/* Brings a job to rest that waits for its next generation: at once, or when those are gone that
 * were kept for it. */
static void end_or_rest(struct machine_turn *t, enum machine_state to)
{
    if (machine_holds(t->m)) {
        machine_end_generation(t, to, false);
    } else {
        machine_rest(t, to);
    }
}

/* Has the job's trainers, if there are any, save and leave, and the job go to `to`. */
static enum status ask_to_leave(struct machine_turn *t, enum machine_intent intent,
                                enum machine_state to)
{
    struct machine *m = t->m;
    switch (m->state) {
    case MACHINE_QUEUED:
    case MACHINE_PLACING:
        end_or_rest(t, to);
        return ST_OK;
    case MACHINE_FORMING:
        if (machine_goes_on(m)) { /* the workers save first what they trained */
            m->intent = intent;
            m->dirty = true;
        } else {
            machine_end_generation(t, to, false);
        }
        return ST_OK;
    case MACHINE_RECOVERING:
        if (!machine_ends(m)) {
            end_or_rest(t, to);
        } else if (m->ending.parks && intent != MACHINE_INTENT_DRAIN) {
            m->intent = intent; /* the next generation saves first; a coordinator that goes down
                                 * forms none */
        } else if (m->ending.parks) {
            machine_end_generation(t, to, false);
        } else if (m->ending.to == MACHINE_RECOVERING) {
            m->ending.to = to;
        }
        m->dirty = true;
        return ST_OK;
    case MACHINE_RUNNING:
    case MACHINE_SAVING:
        if (machine_ends(m)) {
            if (!machine_state_final(m->ending.to))
                m->ending.to = to;
            m->dirty = true;
            return ST_OK;
        }
        if (m->intent == MACHINE_INTENT_NONE && m->state == MACHINE_RUNNING)
            machine_announce(t, true);
        m->intent = intent;
        m->state = MACHINE_SAVING;
        m->dirty = true;
        return ST_OK;
    case MACHINE_PAUSED:
        if (to == MACHINE_STOPPED)
            machine_rest(t, to);
        return ST_OK;
    case MACHINE_NONE:
    case MACHINE_SUCCEEDED:
    case MACHINE_FAILED:
    case MACHINE_STOPPED:
    case MACHINE_KILLED:
        break;
    }
    return ST_REFUSED;
}

static enum status ask_kill(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (machine_state_final(m->state))
        return ST_REFUSED;
    if (!machine_alive(m)) {
        tell_asked(t, "kill");
        machine_rest(t, MACHINE_KILLED);
        return ST_OK;
    }
    if (m->ending.to != MACHINE_KILLED) {
        tell_asked(t, "kill");
        machine_end_generation(t, MACHINE_KILLED, false);
    }
    return ST_OK;
}

static enum status ask_save(struct machine_turn *t)
{
    if (t->m->state != MACHINE_RUNNING)
        return ST_REFUSED;
    tell_asked(t, "save");
    machine_announce(t, false);
    return ST_OK;
}

static enum status ask_resume(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (m->state != MACHINE_PAUSED && m->state != MACHINE_STOPPED)
        return ST_REFUSED;
    m->state = MACHINE_QUEUED;
    m->ended_wall = 0;
    m->budget.streak = 0;
    m->budget.barren = 0;
    m->budget.own = 0;
    m->budget.used = 0;
    shun_clear(&m->shunned); /* the person may have put them right */
    m->suspect_count = 0;
    m->retry_at = 0;
    m->probed = false; /* the store may have been changed meanwhile */
    machine_set_reason(m, "%s", "");
    tell_asked(t, "resumed");
    machine_act(t, MACHINE_ACT_SCHEDULE);
    return ST_OK;
}

static enum status ask_pause(struct machine_turn *t)
{
    if (is_news(t->m, MACHINE_INTENT_PAUSE, MACHINE_PAUSED))
        tell_asked(t, "pause");
    return ask_to_leave(t, MACHINE_INTENT_PAUSE, MACHINE_PAUSED);
}

static enum status ask_stop(struct machine_turn *t)
{
    if (is_news(t->m, MACHINE_INTENT_STOP, MACHINE_STOPPED))
        tell_asked(t, "stop");
    return ask_to_leave(t, MACHINE_INTENT_STOP, MACHINE_STOPPED);
}

/* Returns where a drained job goes. A request that came before holds, also if the coordinator goes
 * down before that is done. */
static enum machine_state drained_state(const struct machine *m)
{
    bool goes_on = m->ending.to == MACHINE_RECOVERING && m->intent == MACHINE_INTENT_STOP;
    if (machine_ends(m) && !goes_on)
        return m->ending.to;
    bool asked = m->intent == MACHINE_INTENT_PAUSE || m->intent == MACHINE_INTENT_STOP;
    return asked ? machine_intended(m->intent) : MACHINE_QUEUED;
}

static enum status ask_drain(struct machine_turn *t)
{
    struct machine *m = t->m;
    enum machine_state to = drained_state(m);
    if (m->state == MACHINE_QUEUED || m->state == MACHINE_PAUSED || machine_state_final(m->state) ||
        to == MACHINE_PAUSED || to == MACHINE_STOPPED)
        return ST_OK;
    if (is_news(m, MACHINE_INTENT_DRAIN, MACHINE_QUEUED))
        machine_tell(t, "down", "the coordinator goes down, asked by %s", machine_asker(t->ev->by));
    return ask_to_leave(t, MACHINE_INTENT_DRAIN, MACHINE_QUEUED);
}

/* Ends the trainers. A stop that has not saved yet is to save first what was trained, as after a
 * crash. */
static enum status ask_drain_now(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (!machine_alive(m) || machine_ends_hard(m))
        return ST_OK;
    bool unsaved = !machine_ends(m) && m->intent == MACHINE_INTENT_STOP;
    if (unsaved) {
        machine_tell(t, "recovering",
                     "the coordinator goes down before the job has saved: when it is up again, the "
                     "job saves what was trained, then it stops");
    }
    machine_end_generation(t, unsaved ? MACHINE_RECOVERING : drained_state(m), false);
    return ST_OK;
}

/* Removes a checkpoint. Refused is the one that the job would go on from, unless its store is away,
 * and one that others are read through, or may be. */
static enum status ask_remove_ckpt(struct machine_turn *t)
{
    struct machine *m = t->m;
    const struct machine_ckpt *newest = machine_newest(m);
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct machine_ckpt *ckpt = &m->catalog[i - 1];
        if (ckpt->step != t->ev->remove_ckpt.step)
            continue;
        if (ckpt->state == MACHINE_CKPT_REMOVING && !ckpt->removing) { /* the removal failed */
            machine_remove_ckpt(t, ckpt);
            return ST_OK;
        }
        if (ckpt->state != MACHINE_CKPT_GOOD)
            continue;
        bool restored = ckpt->step == m->restore.step && ckpt->generation == m->restore.generation;
        bool needed = (ckpt == newest && !m->store_away) || (restored && machine_alive(m));
        if (!machine_state_final(m->state) && needed)
            return ST_REFUSED;
        if (machine_is_parent(m, ckpt) || machine_is_base(m, ckpt))
            return ST_REFUSED;
        machine_remove_ckpt(t, ckpt);
        machine_tell(t, "removed", "the checkpoint of step %llu, asked by %s",
                     (unsigned long long)ckpt->step, machine_asker(t->ev->by));
        return ST_OK;
    }
    return ST_NOT_FOUND;
}

/* Has a checkpoint read. A damaged one is set aside already; one that is being removed is none any
 * more. */
static enum status ask_check_ckpt(struct machine_turn *t)
{
    struct machine_ckpt *ckpt =
        machine_ckpt_at(t->m, t->ev->check_ckpt.step, t->ev->check_ckpt.generation);
    if (!ckpt || ckpt->state == MACHINE_CKPT_REMOVING)
        return ST_NOT_FOUND;
    if (ckpt->state == MACHINE_CKPT_GOOD)
        machine_ask_verify(t, ckpt);
    return ST_OK;
}

static enum status ask_set(struct machine_turn *t)
{
    struct machine *m = t->m;
    const uint32_t asked = t->ev->set.workers;
    const uint32_t least = m->config.min_follows ? 1 : m->config.min;
    if (machine_state_final(m->state) || asked < least || asked > m->config.most)
        return ST_REFUSED;
    if (asked == m->config.ranks)
        return ST_OK;
    machine_tell(t, "set", "%u workers from now on, not %u%s; asked by %s", asked, m->config.ranks,
                 t->ev->set.evens ? ", with even shares" : "", machine_asker(t->ev->by));
    m->config.ranks = asked;
    if (m->config.min_follows)
        m->config.min = asked;
    m->resizes = m->config.restarts;
    m->dirty = true;
    if (m->state == MACHINE_PLACING)
        machine_unplace(t);
    machine_act(t, MACHINE_ACT_SCHEDULE);
    return ST_OK;
}

enum status machine_ask(struct machine_turn *t)
{
#define ASK(kind) [(kind)-MACHINE_EV_FIRST_ASK]
    static enum status (*const asks[])(struct machine_turn *) = {
        ASK(MACHINE_EV_PAUSE) = ask_pause,
        ASK(MACHINE_EV_RESUME) = ask_resume,
        ASK(MACHINE_EV_STOP) = ask_stop,
        ASK(MACHINE_EV_KILL) = ask_kill,
        ASK(MACHINE_EV_SAVE) = ask_save,
        ASK(MACHINE_EV_DRAIN) = ask_drain,
        ASK(MACHINE_EV_DRAIN_NOW) = ask_drain_now,
        ASK(MACHINE_EV_REMOVE_CKPT) = ask_remove_ckpt,
        ASK(MACHINE_EV_CHECK_CKPT) = ask_check_ckpt,
        ASK(MACHINE_EV_SET) = ask_set,
    };
#undef ASK
    CHECK(t->ev->kind >= MACHINE_EV_FIRST_ASK);
    return asks[t->ev->kind - MACHINE_EV_FIRST_ASK](t);
}
