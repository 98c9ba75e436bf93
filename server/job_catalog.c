/* The checkpoints of a job: what was committed, read back, set aside, removed (design 8). */
#include <stdlib.h>
#include <string.h>

#include "server/job_internal.h"

enum status jm_catalog_add(struct job_machine *m, const struct jm_ckpt *ckpt)
{
    if (m->catalog_count >= JM_CATALOG_MAX)
        return ST_FULL;
    if (m->catalog_count == m->catalog_capacity) {
        size_t capacity = m->catalog_capacity ? 2 * m->catalog_capacity : 8;
        struct jm_ckpt *more = realloc(m->catalog, capacity * sizeof *more);
        if (!more)
            return ST_NO_MEMORY;
        m->catalog = more;
        m->catalog_capacity = capacity;
    }
    size_t at = m->catalog_count++;
    for (; at > 0; at--) { /* ascending by step, then generation */
        const struct jm_ckpt *before = &m->catalog[at - 1];
        if (before->step < ckpt->step ||
            (before->step == ckpt->step && before->generation < ckpt->generation))
            break;
        m->catalog[at] = m->catalog[at - 1];
    }
    m->catalog[at] = *ckpt;
    return ST_OK;
}

const struct jm_ckpt *jm_newest(const struct job_machine *m)
{
    for (size_t i = m->catalog_count; i > 0; i--) {
        if (m->catalog[i - 1].state == CKPT_GOOD)
            return &m->catalog[i - 1];
    }
    return NULL;
}

struct jm_ckpt *jm_ckpt_at(struct job_machine *m, uint64_t step, uint32_t generation)
{
    for (size_t i = 0; i < m->catalog_count; i++) {
        if (m->catalog[i].step == step && m->catalog[i].generation == generation)
            return &m->catalog[i];
    }
    return NULL;
}

const struct jm_ckpt *jm_find_ckpt(const struct job_machine *m, uint64_t step, uint32_t generation)
{
    for (size_t i = 0; i < m->catalog_count; i++) {
        if (m->catalog[i].step == step && m->catalog[i].generation == generation)
            return &m->catalog[i];
    }
    return NULL;
}

bool jm_final_committed(const struct job_machine *m)
{
    const struct jm_ckpt *newest = jm_newest(m);
    return newest && m->total_steps > 0 && newest->step >= m->total_steps;
}

static void ask_verify(struct jm_step *s, struct jm_ckpt *ckpt)
{
    if (ckpt->verifying)
        return;
    ckpt->verifying = true;
    jm_act_on(s, ACT_VERIFY, ckpt->step, ckpt->generation);
}

/* Removes what keep.last allows, once a newer one was read back. */
void jm_retain(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (m->config.keep_last == 0)
        return;
    uint64_t good = 0;
    struct jm_ckpt *newest = NULL;
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct jm_ckpt *ckpt = &m->catalog[i - 1];
        if (ckpt->state != CKPT_GOOD)
            continue;
        if (good++ == 0)
            newest = ckpt;
        if (good <= m->config.keep_last)
            continue;
        if (!newest->verified) {
            ask_verify(s, newest);
            return;
        }
        if (s->out->count > JM_ACTIONS_MAX / 2)
            return; /* the rest with the next commit */
        ckpt->state = CKPT_REMOVING;
        jm_act_on(s, ACT_CKPT_ROW, ckpt->step, ckpt->generation);
        jm_act_on(s, ACT_REMOVE, ckpt->step, ckpt->generation);
    }
}

void jm_on_verified(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_ckpt *ckpt = jm_ckpt_at(m, s->ev->step, s->ev->of_generation);
    if (!ckpt || ckpt->state != CKPT_GOOD)
        return;
    ckpt->verifying = false;
    bool restored = ckpt->step == m->restore_step && ckpt->generation == m->restore_generation;
    if (s->ev->status == ST_OK) {
        ckpt->verified = true;
        if (restored && m->damage_suspected) {
            m->damage_suspected = false;
            jm_event(s, "verified",
                     "the checkpoint of step %llu reads well here: the node that "
                     "reported damage is suspected",
                     (unsigned long long)ckpt->step);
            jm_act(s, ACT_SCHEDULE);
        }
        jm_retain(s);
        return;
    }
    bool damaged = status_scope(s->ev->status) == SCOPE_CHECKPOINT || s->ev->status == ST_NOT_FOUND;
    if (!damaged) { /* EIO and timeouts are no damage: asked again by jm_saves_tick */
        jm_set_reason(m, "waits for the checkpoint store: %.400s", s->ev->message);
        return;
    }
    ckpt->state = CKPT_QUARANTINING;
    ckpt->verified = false;
    if (restored) { /* the cause is out of the way: what follows is a new try, not a repetition */
        m->damage_suspected = false;
        m->budget_used = 0;
        m->barren = 0;
        m->streak = 0;
        m->retry_at = 0;
    }
    jm_event(s, "damaged", "the checkpoint of step %llu is set aside: %.380s",
             (unsigned long long)ckpt->step, s->ev->message);
    jm_act_on(s, ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    jm_act_on(s, ACT_QUARANTINE, ckpt->step, ckpt->generation);
    if (!jm_newest(m)) {
        jm_event(s, "restart", "no good checkpoint is left: training starts from the beginning");
    } else if (m->state == JOB_RUNNING) {
        jm_announce(s, false); /* a good newer one, soon */
    }
    jm_act(s, ACT_SCHEDULE);
}

void jm_on_quarantined(struct jm_step *s)
{
    struct jm_ckpt *ckpt = jm_ckpt_at(s->m, s->ev->step, s->ev->of_generation);
    if (!ckpt || ckpt->state != CKPT_QUARANTINING)
        return;
    ckpt->state = CKPT_BAD; /* also if the rename failed: it is never restored again */
    jm_act_on(s, ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    jm_act(s, ACT_SCHEDULE);
}

/* A worker found the restored checkpoint damaged: read it here before anything else. */
void jm_suspect_damage(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_ckpt *ckpt = jm_ckpt_at(m, m->restore_step, m->restore_generation);
    if (!ckpt || ckpt->state != CKPT_GOOD)
        return;
    m->damage_suspected = true;
    ask_verify(s, ckpt);
}

bool jm_damage_pending(const struct job_machine *m)
{
    if (m->damage_suspected)
        return true;
    for (size_t i = 0; i < m->catalog_count; i++) {
        if (m->catalog[i].state == CKPT_QUARANTINING)
            return true;
    }
    return false;
}

void jm_on_ckpt_removed(struct jm_step *s, struct jm_ckpt *ckpt)
{
    struct job_machine *m = s->m;
    if (s->ev->status != ST_OK)
        return; /* again after the next restart; it is un-published or still whole */
    size_t at = (size_t)(ckpt - m->catalog);
    m->catalog_count--;
    memmove(ckpt, ckpt + 1, (m->catalog_count - at) * sizeof *ckpt);
    jm_act_on(s, ACT_CKPT_ROW, s->ev->step, s->ev->of_generation);
}

/* The read that a report of damage asked for failed on the medium: again. */
void jm_damage_tick(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (!m->damage_suspected || m->end_to != JOB_NONE || m->state != JOB_RECOVERING ||
        s->now < m->retry_at)
        return;
    struct jm_ckpt *ckpt = jm_ckpt_at(m, m->restore_step, m->restore_generation);
    if (!ckpt || ckpt->state != CKPT_GOOD) {
        m->damage_suspected = false;
        return;
    }
    if (ckpt->verifying)
        return;
    m->retry_at = s->now + 1000;
    ask_verify(s, ckpt);
}

void jm_catalog_resume(struct jm_step *s)
{
    struct job_machine *m = s->m;
    for (size_t i = 0; i < m->catalog_count && s->out->count < JM_ACTIONS_MAX / 2; i++) {
        struct jm_ckpt *ckpt = &m->catalog[i];
        ckpt->verifying = false;
        if (ckpt->state == CKPT_REMOVING) {
            jm_act_on(s, ACT_REMOVE, ckpt->step, ckpt->generation);
        } else if (ckpt->state == CKPT_QUARANTINING) {
            jm_act_on(s, ACT_QUARANTINE, ckpt->step, ckpt->generation);
        }
    }
}
