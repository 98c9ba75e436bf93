/*
 * Which checkpoints stay, which one the next may write differences to, and how large it will be.
 *
 * Invariants, checked by tests/sim:
 *   1 a checkpoint goes only after one of a later step was read back from the store.
 *   2 what keep.last, keep.best or keep.every names stays; so does what a generation that is being
 *     formed restores, and the base of a save under way.
 *   3 a checkpoint outlives every one that holds differences to it: it goes only after they went,
 *     and is never removed before them.
 */
#include <math.h>
#include <string.h>

#include "server/machine/internal.h"

#define CHAIN_MAX 7 /* checkpoints that one is read through; the eighth is whole */

static struct jm_ckpt *parent_of(struct job_machine *m, const struct jm_ckpt *ckpt)
{
    return ckpt->parent_generation == 0 ? NULL
                                        : jm_ckpt_at(m, ckpt->parent_step, ckpt->parent_generation);
}

bool jm_in_chain(struct job_machine *m, const struct jm_ckpt *of, const struct jm_ckpt *ckpt)
{
    for (int i = 0; of && i <= CHAIN_MAX; i++) {
        if (of == ckpt)
            return true;
        of = parent_of(m, of);
    }
    return false;
}

struct jm_ckpt *jm_chain_next(struct job_machine *m, const struct jm_ckpt *ckpt)
{
    return parent_of(m, ckpt);
}

bool jm_is_parent(const struct job_machine *m, const struct jm_ckpt *ckpt)
{
    for (size_t i = 0; i < m->catalog_count; i++) {
        const struct jm_ckpt *other = &m->catalog[i];
        bool reads = other->state == CKPT_GOOD || other->state == CKPT_REMOVING;
        if (reads && other->parent_generation == ckpt->generation &&
            other->parent_step == ckpt->step && other->parent_generation > 0)
            return true;
    }
    return false;
}

/* ---- what stays ---- */

/* Higher is better; NaN: not known, never among the best. */
static double merit(const struct job_machine *m, const struct jm_ckpt *ckpt)
{
    switch (m->config.best_metric) {
    case METRIC_LOSS:
        return -ckpt->loss;
    case METRIC_EVAL_LOSS:
        return -ckpt->eval_loss;
    case METRIC_EVAL_ACCURACY:
        return ckpt->eval_accuracy;
    case METRIC_NONE:
        break;
    }
    return (double)NAN;
}

/* Of equals the newer one. */
static void mark_best(struct job_machine *m)
{
    for (uint64_t n = 0; n < m->config.keep_best; n++) {
        struct jm_ckpt *best = NULL;
        for (size_t i = 0; i < m->catalog_count; i++) {
            struct jm_ckpt *ckpt = &m->catalog[i];
            bool eligible = ckpt->state == CKPT_GOOD && !ckpt->best && !isnan(merit(m, ckpt));
            if (eligible && (!best || merit(m, ckpt) >= merit(m, best)))
                best = ckpt;
        }
        if (!best)
            return;
        best->best = true;
    }
}

bool jm_is_base(const struct job_machine *m, const struct jm_ckpt *ckpt)
{
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        const struct jm_save *save = &m->saves[i];
        bool open = save->state >= SAVE_OPENING && save->state <= SAVE_COMMITTING;
        if (open && save->base_generation == ckpt->generation && save->base_step == ckpt->step)
            return true;
    }
    return false;
}

/* Those that one names, in `kept`; not yet those that they are read through. */
static void mark_kept(struct job_machine *m, uint64_t last)
{
    uint64_t good = 0;
    for (size_t i = 0; i < m->catalog_count; i++)
        m->catalog[i].best = false;
    mark_best(m);
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct jm_ckpt *ckpt = &m->catalog[i - 1];
        bool restores = m->state == JOB_FORMING && ckpt->step == m->restore_step &&
                        ckpt->generation == m->restore_generation;
        ckpt->kept = ckpt->best || restores || jm_is_base(m, ckpt);
        if (ckpt->state != CKPT_GOOD)
            continue;
        good++;
        bool regular = m->config.keep_every > 0 && ckpt->step % m->config.keep_every == 0;
        ckpt->kept = ckpt->kept || good <= last || regular;
    }
}

static void pin_parent(struct job_machine *m, const struct jm_ckpt *ckpt)
{
    struct jm_ckpt *parent = parent_of(m, ckpt);
    if (parent)
        parent->kept = true;
}

void jm_remove_ckpt(struct jm_step *s, struct jm_ckpt *ckpt)
{
    ckpt->state = CKPT_REMOVING;
    ckpt->removing = true;
    jm_act_on(s, ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    jm_act_on(s, ACT_REMOVE, ckpt->step, ckpt->generation);
}

/* From the newest down: whoever reads another one comes before it. True: some are left that may go
 * once a newer one was read back. */
static bool sweep(struct jm_step *s, const struct jm_ckpt *read_back)
{
    struct job_machine *m = s->m;
    bool left = false;
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct jm_ckpt *ckpt = &m->catalog[i - 1];
        bool room = s->out->count < JM_ACTIONS_MAX / 2; /* the rest with the next commit */
        if (ckpt->state == CKPT_REMOVING) {
            if (!ckpt->removing && room) { /* the store failed to: again */
                ckpt->removing = true;
                jm_act_on(s, ACT_REMOVE, ckpt->step, ckpt->generation);
            }
            pin_parent(m, ckpt);
        } else if (ckpt->state == CKPT_GOOD && ckpt->kept) {
            pin_parent(m, ckpt);
        } else if (ckpt->state == CKPT_GOOD) {
            bool may_go = read_back && ckpt->step < read_back->step;
            left = left || !may_go;
            if (may_go && room)
                jm_remove_ckpt(s, ckpt);
            pin_parent(m, ckpt);
        }
    }
    return left;
}

/* How many of the last stay. Where the store has no room for the next, which will push the oldest
 * of them out, that one goes beforehand. */
static uint64_t count_last(const struct job_machine *m)
{
    uint64_t good = 0;
    for (size_t i = 0; i < m->catalog_count; i++)
        good += m->catalog[i].state == CKPT_GOOD;
    bool pushed_out = m->refused_row > 0 && m->config.keep_last > 1 && good >= m->config.keep_last;
    return pushed_out ? m->config.keep_last - 1 : m->config.keep_last;
}

void jm_retain(struct jm_step *s)
{
    struct job_machine *m = s->m;
    struct jm_ckpt *newest = NULL;
    struct jm_ckpt *read_back = NULL;
    bool reading = false;
    if (m->config.keep_last == 0)
        return;
    jm_drop_orphans(s);
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct jm_ckpt *ckpt = &m->catalog[i - 1];
        reading = reading || ckpt->verifying;
        if (ckpt->state != CKPT_GOOD)
            continue;
        if (!newest)
            newest = ckpt;
        if (!read_back && ckpt->verified)
            read_back = ckpt;
    }
    mark_kept(m, count_last(m));
    bool left = sweep(s, read_back);
    /* One at a time, always the newest: reading must not fall behind saving. */
    if (newest && !newest->verified && !reading && (left || m->config.delta))
        jm_ask_verify(s, newest);
}

/* ---- the next one ---- */

/* The newest that was read back, unless it is read through too many already: then the next is
 * whole. So is a job's last one. */
const struct jm_ckpt *jm_choose_base(struct job_machine *m, uint64_t step)
{
    if (!m->config.delta || m->base_refused || (m->total_steps > 0 && step >= m->total_steps))
        return NULL;
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct jm_ckpt *ckpt = &m->catalog[i - 1];
        if (ckpt->state != CKPT_GOOD || !ckpt->verified || ckpt->step >= step ||
            ckpt->shards != m->config.ranks)
            continue;
        uint32_t length = 0;
        for (const struct jm_ckpt *c = ckpt; c && length <= CHAIN_MAX; c = parent_of(m, c))
            length++;
        return length > CHAIN_MAX ? NULL : ckpt;
    }
    return NULL;
}

uint64_t jm_expected_bytes(const struct job_machine *m, bool whole)
{
    uint64_t bytes = 0;
    for (size_t i = m->catalog_count; bytes == 0 && i > 0; i--) {
        const struct jm_ckpt *ckpt = &m->catalog[i - 1];
        if (ckpt->state != CKPT_BAD && (ckpt->parent_generation == 0) == whole)
            bytes = ckpt->bytes;
    }
    if (bytes == 0 && !whole)
        return jm_expected_bytes(m, true);
    if (bytes == 0) /* the first: trained states keep three quarters at least */
        return m->state_bytes / 4 * 3;
    return bytes + bytes / 8 + 65536;
}
