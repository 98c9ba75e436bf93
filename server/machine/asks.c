/* What people ask of a job: pause, resume, stop, kill, save; and of all jobs: drain. */
#include "server/machine/internal.h"

static enum status ask_to_leave(struct jm_step *s, enum jm_intent intent, enum job_state to)
{
    struct job_machine *m = s->m;
    switch (m->state) {
    case JOB_QUEUED:
    case JOB_PLACING:
        jm_enter_final(s, to);
        return ST_OK;
    case JOB_FORMING:
        jm_end_generation(s, to, false);
        return ST_OK;
    case JOB_RECOVERING:
        if (m->end_to == JOB_NONE) {
            jm_enter_final(s, to);
        } else if (m->end_to == JOB_RECOVERING) {
            m->end_to = to;
        }
        m->dirty = true;
        return ST_OK;
    case JOB_RUNNING:
    case JOB_SAVING:
        if (m->end_to != JOB_NONE) {
            if (!job_state_final(m->end_to))
                m->end_to = to;
            m->dirty = true;
            return ST_OK;
        }
        if (m->intent == INTENT_NONE && m->state == JOB_RUNNING)
            jm_announce(s, true);
        m->intent = intent;
        m->state = JOB_SAVING;
        m->dirty = true;
        return ST_OK;
    case JOB_PAUSED:
        if (to == JOB_STOPPED)
            jm_enter_final(s, to);
        return ST_OK;
    case JOB_NONE:
    case JOB_SUCCEEDED:
    case JOB_FAILED:
    case JOB_STOPPED:
    case JOB_KILLED:
        break;
    }
    return ST_REFUSED;
}

static enum status ask_to_kill(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (job_state_final(m->state))
        return ST_REFUSED;
    if (!jm_alive(m)) {
        jm_enter_final(s, JOB_KILLED);
        return ST_OK;
    }
    if (m->end_to != JOB_KILLED) {
        jm_event(s, "kill", "asked by the user");
        jm_end_generation(s, JOB_KILLED, false);
    }
    return ST_OK;
}

static enum status on_save(struct jm_step *s)
{
    if (s->m->state != JOB_RUNNING)
        return ST_REFUSED;
    jm_announce(s, false);
    return ST_OK;
}

static enum status on_resume(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (m->state != JOB_PAUSED)
        return ST_REFUSED;
    m->state = JOB_QUEUED;
    m->streak = 0;
    m->barren = 0;
    m->budget_used = 0;
    m->retry_at = 0;
    m->probed = false; /* who knows what was done to the store meanwhile */
    jm_set_reason(m, "%s", "");
    jm_event(s, "resumed", "asked by the user");
    jm_act(s, ACT_SCHEDULE);
    return ST_OK;
}

static enum status on_pause(struct jm_step *s)
{
    return ask_to_leave(s, INTENT_PAUSE, JOB_PAUSED);
}

static enum status on_stop(struct jm_step *s)
{
    return ask_to_leave(s, INTENT_STOP, JOB_STOPPED);
}

/* What was asked of this job holds, also where the coordinator goes before it is done. */
static enum job_state leaves_for(const struct job_machine *m)
{
    if (m->end_to != JOB_NONE)
        return m->end_to;
    return m->intent == INTENT_PAUSE  ? JOB_PAUSED
           : m->intent == INTENT_STOP ? JOB_STOPPED
                                      : JOB_QUEUED;
}

static enum status on_drain(struct jm_step *s)
{
    struct job_machine *m = s->m;
    enum job_state to = leaves_for(m);
    if (m->state == JOB_QUEUED || m->state == JOB_PAUSED || job_state_final(m->state) ||
        to == JOB_PAUSED || to == JOB_STOPPED)
        return ST_OK;
    return ask_to_leave(s, INTENT_DRAIN, JOB_QUEUED);
}

static enum status on_drain_now(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (jm_alive(m) && (m->end_to == JOB_NONE || m->end_hard_at != 0))
        jm_end_generation(s, leaves_for(m), false);
    return ST_OK;
}

/* Not the one that the job would go on from, unless the store that it is in is gone; nor one that
 * others are read through. */
static enum status on_remove_ckpt(struct jm_step *s)
{
    struct job_machine *m = s->m;
    const struct jm_ckpt *newest = jm_newest(m);
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct jm_ckpt *ckpt = &m->catalog[i - 1];
        if (ckpt->step != s->ev->step)
            continue;
        if (ckpt->state == CKPT_REMOVING && !ckpt->removing) { /* the store failed to */
            jm_remove_ckpt(s, ckpt);
            return ST_OK;
        }
        if (ckpt->state != CKPT_GOOD)
            continue;
        bool restored = ckpt->step == m->restore_step && ckpt->generation == m->restore_generation;
        bool needed = (ckpt == newest && !m->store_away) || (restored && jm_alive(m));
        if (!job_state_final(m->state) && needed)
            return ST_REFUSED;
        if (jm_is_parent(m, ckpt) || jm_is_base(m, ckpt))
            return ST_REFUSED;
        jm_remove_ckpt(s, ckpt);
        jm_event(s, "removed", "the checkpoint of step %llu, asked by the user",
                 (unsigned long long)ckpt->step);
        return ST_OK;
    }
    return ST_NOT_FOUND;
}

/* What is damaged is set aside already; what is being removed is none any more. */
static enum status on_check_ckpt(struct jm_step *s)
{
    struct jm_ckpt *ckpt = jm_ckpt_at(s->m, s->ev->step, s->ev->of_generation);
    if (!ckpt || ckpt->state == CKPT_REMOVING)
        return ST_NOT_FOUND;
    if (ckpt->state == CKPT_GOOD)
        jm_ask_verify(s, ckpt);
    return ST_OK;
}

enum status jm_ask(struct jm_step *s)
{
    static enum status (*const asks[])(struct jm_step *) = {
        on_pause, on_resume,    on_stop,        ask_to_kill,   on_save,
        on_drain, on_drain_now, on_remove_ckpt, on_check_ckpt,
    };
    _Static_assert(sizeof asks / sizeof asks[0] == EV_CHECK_CKPT - EV_PAUSE + 1, "one per ask");
    return asks[s->ev->kind - EV_PAUSE](s);
}
