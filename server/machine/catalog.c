/* The checkpoints of a job: what was committed, read back, set aside, removed (design 8). */
#include <stdlib.h>
#include <string.h>

#include "server/machine/internal.h"

/* The order of the catalog. */
static int compare(const void *a, const void *b)
{
    const struct jm_ckpt *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (x->generation > y->generation) - (x->generation < y->generation);
}

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
        if (compare(&m->catalog[at - 1], ckpt) < 0)
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
    struct jm_ckpt key = { .step = step, .generation = generation };
    if (m->catalog_count == 0)
        return NULL;
    return bsearch(&key, m->catalog, m->catalog_count, sizeof key, compare);
}

const struct jm_ckpt *jm_find_ckpt(const struct job_machine *m, uint64_t step, uint32_t generation)
{
    return jm_ckpt_at((struct job_machine *)m, step, generation);
}

bool jm_final_committed(const struct job_machine *m)
{
    const struct jm_ckpt *newest = jm_newest(m);
    return newest && m->total_steps > 0 && newest->step >= m->total_steps;
}

void jm_ask_verify(struct jm_step *s, struct jm_ckpt *ckpt)
{
    if (ckpt->verifying)
        return;
    ckpt->verifying = true;
    jm_act_on(s, ACT_VERIFY, ckpt->step, ckpt->generation);
}

static void set_aside(struct jm_step *s, struct jm_ckpt *ckpt, const char *why)
{
    ckpt->state = CKPT_QUARANTINING;
    ckpt->verified = false;
    jm_event(s, "damaged", "the checkpoint of step %llu is set aside: %.380s",
             (unsigned long long)ckpt->step, why);
    jm_act_on(s, ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    jm_act_on(s, ACT_QUARANTINE, ckpt->step, ckpt->generation);
}

/* Ascending: what is read through an orphan is one, too. */
void jm_drop_orphans(struct jm_step *s)
{
    struct job_machine *m = s->m;
    for (size_t i = 0; i < m->catalog_count && s->out->count < JM_ACTIONS_MAX / 2; i++) {
        struct jm_ckpt *ckpt = &m->catalog[i];
        if (ckpt->state != CKPT_GOOD || ckpt->parent_generation == 0)
            continue;
        const struct jm_ckpt *parent = jm_chain_next(m, ckpt);
        if (!parent || parent->state != CKPT_GOOD)
            set_aside(s, ckpt, "it holds differences to one that is damaged");
    }
}

/* The checkpoint that this generation started from, or NULL. */
static struct jm_ckpt *restored(struct job_machine *m)
{
    return m->restore_generation == 0 ? NULL
                                      : jm_ckpt_at(m, m->restore_step, m->restore_generation);
}

/* Its memory, its way to the store: the next workers go elsewhere, if there is room. The newest of
 * them stay known. */
static void suspect_node(struct job_machine *m, const char *node)
{
    for (uint32_t i = 0; i < m->suspect_count; i++) {
        if (strcmp(m->suspects[i], node) == 0)
            return;
    }
    if (m->suspect_count == JM_SUSPECTS_MAX) {
        m->suspect_count--;
        memmove(m->suspects[0], m->suspects[1], m->suspect_count * sizeof(m->suspects[0]));
    }
    jm_text(m->suspects[m->suspect_count++], LIMIT_NAME, node);
    m->dirty = true;
}

/* The restored one and those that it is read through were all read here since. */
static void damage_disproved(struct jm_step *s)
{
    struct job_machine *m = s->m;
    for (const struct jm_ckpt *c = restored(m); c; c = jm_chain_next(m, c)) {
        if (!c->verified)
            return;
    }
    m->damage_suspected = false;
    jm_act(s, ACT_SCHEDULE);
    const char *node = m->cause.rank < m->config.ranks ? m->ranks[m->cause.rank].node : "";
    if (m->damage_waited && m->cause.kind == FAULT_STORE) {
        jm_event(s, "verified", "the checkpoint of step %llu can be read again",
                 (unsigned long long)m->restore_step);
        return;
    }
    if (node[0] != '\0')
        suspect_node(m, node);
    jm_event(s, "verified",
             "the checkpoint of step %llu reads well here: node %.128s, which %s, is suspected and "
             "takes workers of this job only where no other has room",
             (unsigned long long)m->restore_step, node,
             m->cause.kind == FAULT_STORE ? "could not read it" : "reported damage");
}

/* The bytes that read badly may be those of the one that it is read through: that is read, too, and
 * is nobody's base until then. */
static void suspect_parent(struct jm_step *s, const struct jm_ckpt *ckpt)
{
    struct jm_ckpt *parent = jm_chain_next(s->m, ckpt);
    if (!parent || parent->state != CKPT_GOOD)
        return;
    parent->verified = false;
    jm_ask_verify(s, parent);
}

static void tell_none_left(struct jm_step *s)
{
    const struct job_machine *m = s->m;
    if (job_state_final(m->state)) {
        jm_event(s, "restart", "no good checkpoint is left");
    } else if (m->state == JOB_RUNNING) {
        jm_event(s, "restart", "no good checkpoint is left; one is taken soon");
    } else {
        jm_event(s, "restart", "no good checkpoint is left: training starts from the beginning");
    }
}

void jm_on_verified(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_ckpt *ckpt = jm_ckpt_at(m, s->ev->step, s->ev->of_generation);
    if (!ckpt)
        return;
    ckpt->verifying = false;
    ckpt->reads++;
    ckpt->read_status = s->ev->status;
    if (ckpt->state != CKPT_GOOD)
        return;
    bool suspected = m->damage_suspected && jm_in_chain(m, restored(m), ckpt);
    if (s->ev->status == ST_OK) {
        ckpt->verified = true;
        jm_act_on(s, ACT_CKPT_ROW, ckpt->step, ckpt->generation);
        if (suspected)
            damage_disproved(s);
        jm_retain(s);
        return;
    }
    bool damaged = status_scope(s->ev->status) == SCOPE_CHECKPOINT || s->ev->status == ST_NOT_FOUND;
    jm_note_away(s);
    if (!damaged) { /* EIO and timeouts are no damage */
        if (suspected) {
            m->damage_waited = true; /* asked again by jm_damage_tick */
            jm_set_reason(m, "waits for the checkpoint store: %.400s", s->ev->message);
        }
        return;
    }
    if (jm_in_chain(m, restored(m), ckpt)) {
        /* The cause is out of the way: what follows is a new try, not a repetition. */
        m->damage_suspected = false;
        m->budget_used = 0;
        m->barren = 0;
        m->streak = 0;
        m->retry_at = 0;
    }
    set_aside(s, ckpt, s->ev->message);
    suspect_parent(s, ckpt);
    jm_drop_orphans(s);
    if (!jm_newest(m))
        tell_none_left(s);
    if (m->state == JOB_RUNNING)
        jm_announce(s, false); /* a good newer one, soon */
    jm_act(s, ACT_SCHEDULE);
}

void jm_on_quarantined(struct jm_step *s)
{
    struct jm_ckpt *ckpt = jm_ckpt_at(s->m, s->ev->step, s->ev->of_generation);
    if (!ckpt || ckpt->state != CKPT_QUARANTINING)
        return;
    ckpt->state = CKPT_BAD; /* also if the rename failed: it is never restored again */
    jm_act_on(s, ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    jm_drop_orphans(s);
    jm_act(s, ACT_SCHEDULE);
}

/* A worker found the restored checkpoint damaged: read it here, with those that it is read through,
 * before anything else. */
void jm_suspect_damage(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_ckpt *ckpt = restored(m);
    if (!ckpt || ckpt->state != CKPT_GOOD)
        return;
    m->damage_suspected = true;
    m->damage_waited = false;
    for (; ckpt; ckpt = jm_chain_next(m, ckpt)) {
        ckpt->verified = false;
        jm_ask_verify(s, ckpt);
    }
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
    ckpt->removing = false;
    if (s->ev->flag)
        jm_note_away(s); /* asked again, it is given up */
    if (s->ev->status != ST_OK)
        return; /* again with the next retention; it is un-published or still whole */
    size_t at = (size_t)(ckpt - m->catalog);
    m->catalog_count--;
    memmove(ckpt, ckpt + 1, (m->catalog_count - at) * sizeof *ckpt);
    jm_act_on(s, ACT_CKPT_ROW, s->ev->step, s->ev->of_generation);
    jm_retain(s); /* those that it was read through may go now */
}

/* The read that a report of damage asked for failed on the medium: again. */
void jm_damage_tick(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (!m->damage_suspected || m->end_to != JOB_NONE || m->state != JOB_RECOVERING ||
        s->now < m->retry_at)
        return;
    struct jm_ckpt *ckpt = restored(m);
    if (!ckpt || ckpt->state != CKPT_GOOD) {
        m->damage_suspected = false;
        jm_act(s, ACT_SCHEDULE);
        return;
    }
    for (; ckpt; ckpt = jm_chain_next(m, ckpt)) {
        if (ckpt->verified || ckpt->verifying)
            continue;
        m->retry_at = s->now + 1000;
        jm_ask_verify(s, ckpt);
    }
}

void jm_catalog_resume(struct jm_step *s)
{
    struct job_machine *m = s->m;
    for (size_t i = 0; i < m->catalog_count && s->out->count < JM_ACTIONS_MAX / 2; i++) {
        struct jm_ckpt *ckpt = &m->catalog[i];
        ckpt->verifying = false;
        ckpt->removing = ckpt->state == CKPT_REMOVING;
        if (ckpt->state == CKPT_REMOVING) {
            jm_act_on(s, ACT_REMOVE, ckpt->step, ckpt->generation);
        } else if (ckpt->state == CKPT_QUARANTINING) {
            jm_act_on(s, ACT_QUARANTINE, ckpt->step, ckpt->generation);
        }
    }
    /* It was not read since it is suspected. */
    for (struct jm_ckpt *c = m->damage_suspected ? restored(m) : NULL; c; c = jm_chain_next(m, c))
        c->verified = false;
}
