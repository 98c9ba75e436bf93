/*
 * Which checkpoints stay, which one the next may write differences to, and how large it will be.
 *
 * Invariants of retention, checked by tests/sim:
 *   1 A checkpoint goes only after one of a later step was read back from the store: by the ranks,
 *     or by the coordinator.
 *   2 What keep.last, keep.best or keep.every names stays, and the newest one of before any error
 *     that audits may still find. So does what a generation that is being formed restores, and the
 *     base of a save under way.
 *   3 A checkpoint outlives every one that holds differences to it.
 */
#include "server/jobfsm/retention.h"

#include <math.h>
#include <string.h>

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/state.h"

/* ---- what the store is asked of one checkpoint ---- */

void fsm_ask_verify(struct fsm_ctx *t, struct fsm_ckpt *ckpt)
{
    if (ckpt->verifying)
        return;
    ckpt->verifying = true;
    fsm_ask_store(t, FSM_TASK_VERIFY, ckpt->step, ckpt->generation);
}

void fsm_quarantine(struct fsm_ctx *t, struct fsm_ckpt *ckpt, const char *why)
{
    CHECK(ckpt->state == FSM_CKPT_GOOD);
    ckpt->state = FSM_CKPT_QUARANTINING;
    ckpt->verified = false;
    ckpt->removing = true;
    fsm_emit_event(t, "damaged", "the checkpoint of step %llu is set aside: %.380s",
                   (unsigned long long)ckpt->step, why);
    fsm_act_on(t, FSM_ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    fsm_ask_store(t, FSM_TASK_QUARANTINE, ckpt->step, ckpt->generation);
}

/* Looks at them in ascending order: what is read through an orphan is one, too. */
void fsm_drop_orphans(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (size_t i = 0; i < m->catalog_count && t->out->count < FSM_ACTIONS_MAX / 2; i++) {
        struct fsm_ckpt *ckpt = &m->catalog[i];
        if (ckpt->state != FSM_CKPT_GOOD || ckpt->parent_generation == 0)
            continue;
        const struct fsm_ckpt *parent = fsm_chain_next(m, ckpt);
        if (parent == NULL || parent->state != FSM_CKPT_GOOD)
            fsm_quarantine(t, ckpt, "it holds differences to one that is damaged");
    }
}

void fsm_remove_ckpt(struct fsm_ctx *t, struct fsm_ckpt *ckpt)
{
    ckpt->state = FSM_CKPT_REMOVING;
    ckpt->removing = true;
    fsm_act_on(t, FSM_ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    fsm_ask_store(t, FSM_TASK_REMOVE, ckpt->step, ckpt->generation);
}

/* ---- reading back beside training ---- */

uint32_t fsm_reader_of(const struct fsm *m, uint32_t shard)
{
    return (uint32_t)(((uint64_t)shard + 1) % m->size);
}

/* Returns half of the time between the last two saves, so that the read is over before the next. */
int64_t fsm_spread_ms(const struct fsm *m, const struct fsm_ckpt *ckpt)
{
    const struct fsm_ckpt *before = ckpt > m->catalog ? ckpt - 1 : NULL;
    int64_t thin = (int64_t)(ckpt->bytes / m->size / FSM_READ_BYTES_PER_MS);
    int64_t half = before != NULL ? (ckpt->wall_ms - before->wall_ms) / 2 : 0;
    if (half < 0)
        half = 0;
    return half < thin ? half : thin;
}

bool fsm_reading(const struct fsm *m, uint64_t *out_read, uint64_t *out_bytes)
{
    const struct fsm_read_back *it = &m->read_back;
    const struct fsm_ckpt *ckpt =
        it->generation == 0 ? NULL : fsm_find_ckpt(m, it->step, it->generation);
    if (ckpt == NULL)
        return false;
    *out_bytes = ckpt->bytes;
    *out_read = 0;
    for (uint32_t i = 0; i < m->size; i++)
        *out_read += m->ranks[i].read_bytes;
    return true;
}

static bool is_idle(const struct fsm *m)
{
    return fsm_state_final(m->state) || m->state == FSM_PAUSED;
}

/* Has the checkpoint read: by the ranks while they train. While they leave, and when idle, the
 * coordinator reads, as it does if the ranks could not; while they form it waits. */
static void read_back(struct fsm_ctx *t, struct fsm_ckpt *ckpt)
{
    struct fsm *m = t->m;
    struct fsm_read_back *it = &m->read_back;
    bool leaves = m->state == FSM_SAVING || fsm_ends(m);
    if (is_idle(m) || leaves || it->in_vain >= FSM_READ_TRIES) {
        fsm_ask_verify(t, ckpt);
    } else if (m->state == FSM_RUNNING) {
        *it = (struct fsm_read_back){ .step = ckpt->step,
                                      .generation = ckpt->generation,
                                      .since = t->now,
                                      .moved_at = t->now,
                                      .in_vain = it->in_vain };
        for (uint32_t i = 0; i < m->size; i++) {
            m->ranks[i].read_bytes = 0;
            m->ranks[i].read_done = false;
        }
        fsm_act_on(t, FSM_ACT_READ_BACK, it->step, it->generation);
    } else {
        it->due = true;
    }
}

void fsm_read_back_resend(struct fsm_ctx *t, uint32_t rank)
{
    const struct fsm_read_back *it = &t->m->read_back;
    if (it->generation != 0 && !t->m->ranks[rank].read_done)
        fsm_act_on(t, FSM_ACT_READ_BACK, it->step, it->generation)->rank = rank;
}

void fsm_read_back_end(struct fsm_ctx *t, const char *why)
{
    struct fsm_read_back *it = &t->m->read_back;
    if (why != NULL) {
        it->in_vain++;
        fsm_emit_event(t, "read-back", "the workers could not read step %llu back: %.300s",
                       (unsigned long long)it->step, why);
        if (it->in_vain >= FSM_READ_TRIES)
            it->due = true; /* by the coordinator, at once */
    }
    it->generation = 0;
}

void fsm_read_back_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_read_back *it = &m->read_back;
    const struct fsm_ckpt *ckpt =
        it->generation == 0 ? NULL : fsm_ckpt_at(m, it->step, it->generation);
    if (it->generation != 0 && (ckpt == NULL || ckpt->state != FSM_CKPT_GOOD || ckpt->verified)) {
        fsm_read_back_end(t, NULL);
    } else if (it->generation != 0 && (!fsm_trains(m) || fsm_ends(m))) {
        fsm_read_back_end(t, NULL);
        it->due = true;
    } else if (it->generation != 0 && t->now - it->moved_at >= FSM_READ_MS) {
        fsm_read_back_end(t, "none of them got on with it for 300 s");
    }
    if (it->due && (is_idle(m) || (m->state == FSM_RUNNING))) {
        it->due = false;
        fsm_retain(t);
    }
}

/* ---- what stays ---- */

/* Returns a checkpoint's merit: higher is better; NaN: not known, never among the best. */
static double merit(const struct fsm *m, const struct fsm_ckpt *ckpt)
{
    switch (m->config.best_metric) {
    case FSM_METRIC_LOSS:
        return -ckpt->loss;
    case FSM_METRIC_EVAL_LOSS:
        return -ckpt->eval_loss;
    case FSM_METRIC_EVAL_ACCURACY:
        return ckpt->eval_accuracy;
    case FSM_METRIC_NONE:
        break;
    }
    return (double)NAN;
}

/* Marks the keep_best best ones; of equals the newer one is better. */
static void mark_best(struct fsm *m)
{
    for (uint64_t n = 0; n < m->config.keep_best; n++) {
        struct fsm_ckpt *best = NULL;
        for (size_t i = 0; i < m->catalog_count; i++) {
            struct fsm_ckpt *ckpt = &m->catalog[i];
            bool eligible = ckpt->state == FSM_CKPT_GOOD && !ckpt->best && !isnan(merit(m, ckpt));
            if (eligible && (best == NULL || merit(m, ckpt) >= merit(m, best)))
                best = ckpt;
        }
        if (best == NULL)
            return;
        best->best = true;
    }
}

/*
 * Keeps the newest checkpoint that is beyond doubt, as errors not seen yet may be in later ones,
 * and the first one after it, to be the next. A job's last step ends with an audit.
 */
static void keep_audited(struct fsm *m)
{
    struct fsm_ckpt *sure = NULL, *next = NULL;
    const bool audits = m->config.audited > 0 && m->config.ranks > 1; /* one worker has nobody */
    if (!audits || fsm_final_committed(m) || fsm_state_final(m->state))
        return;
    for (size_t i = 0; i < m->catalog_count; i++) {
        struct fsm_ckpt *ckpt = &m->catalog[i];
        if (ckpt->state != FSM_CKPT_GOOD)
            continue;
        if (ckpt->step <= m->audit.sure) {
            sure = ckpt;
            next = NULL;
        } else if (next == NULL) {
            next = ckpt;
        }
    }
    if (sure != NULL)
        sure->retained = true;
    if (next != NULL)
        next->retained = true;
}

/* Sets `kept` of the checkpoints that a rule names; not yet of those that they are read through. */
static void mark_kept(struct fsm *m, uint64_t last)
{
    uint64_t good = 0;
    for (size_t i = 0; i < m->catalog_count; i++)
        m->catalog[i].best = false;
    mark_best(m);
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct fsm_ckpt *ckpt = &m->catalog[i - 1];
        bool restores = m->state == FSM_FORMING && ckpt->step == m->restore.step &&
                        ckpt->generation == m->restore.generation;
        ckpt->retained = ckpt->best || restores || fsm_is_base(m, ckpt);
        if (ckpt->state != FSM_CKPT_GOOD)
            continue;
        good++;
        bool regular = m->config.keep_every > 0 && ckpt->step % m->config.keep_every == 0;
        ckpt->retained = ckpt->retained || good <= last || regular;
    }
    keep_audited(m);
}

/* Keeps what ckpt is read through as long as ckpt. */
static void keep_parent(struct fsm *m, const struct fsm_ckpt *ckpt)
{
    struct fsm_ckpt *parent = fsm_chain_next(m, ckpt);
    if (parent != NULL)
        parent->retained = true;
}

/*
 * Removes those that nothing keeps, from the newest down: one that holds differences to another
 * comes before it. true: some are left that may go once a newer one was read back.
 */
static bool remove_unkept(struct fsm_ctx *t, const struct fsm_ckpt *read_back)
{
    struct fsm *m = t->m;
    bool left = false;
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct fsm_ckpt *ckpt = &m->catalog[i - 1];
        bool room = t->out->count < FSM_ACTIONS_MAX / 2; /* the rest with the next commit */
        if (ckpt->state == FSM_CKPT_REMOVING) {
            if (!ckpt->removing && room) { /* the removal failed in the store: again */
                ckpt->removing = true;
                fsm_ask_store(t, FSM_TASK_REMOVE, ckpt->step, ckpt->generation);
            }
            keep_parent(m, ckpt);
        } else if (ckpt->state == FSM_CKPT_GOOD && ckpt->retained) {
            keep_parent(m, ckpt);
        } else if (ckpt->state == FSM_CKPT_GOOD) {
            bool may_go = read_back != NULL && ckpt->step < read_back->step;
            left = left || !may_go;
            if (may_go && room)
                fsm_remove_ckpt(t, ckpt);
            keep_parent(m, ckpt);
        }
    }
    return left;
}

/* Returns how many of the last stay. If the store has no room for the next save, the one that it
 * would push out goes beforehand. */
static uint64_t count_last(const struct fsm *m)
{
    uint64_t good = 0;
    for (size_t i = 0; i < m->catalog_count; i++)
        good += m->catalog[i].state == FSM_CKPT_GOOD;
    bool pushed_out =
        m->store_full.consecutive > 0 && m->config.keep_last > 1 && good >= m->config.keep_last;
    return pushed_out ? m->config.keep_last - 1 : m->config.keep_last;
}

void fsm_retain(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_ckpt *newest = NULL;
    struct fsm_ckpt *good = NULL; /* the newest that was read back */
    bool reading = m->read_back.generation != 0;
    if (m->config.keep_last == 0)
        return;
    fsm_drop_orphans(t);
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct fsm_ckpt *ckpt = &m->catalog[i - 1];
        reading = reading || ckpt->verifying;
        if (ckpt->state != FSM_CKPT_GOOD)
            continue;
        if (newest == NULL)
            newest = ckpt;
        if (good == NULL && ckpt->verified)
            good = ckpt;
    }
    mark_kept(m, count_last(m));
    bool left = remove_unkept(t, good);
    /* Reads one at a time, always the newest: reading must not fall behind saving. */
    if (newest != NULL && !newest->verified && !reading && (left || m->config.delta))
        read_back(t, newest);
}

/* ---- the next one ---- */

/* Returns the newest one that was read back. NULL, so that the next save is full: that one is read
 * through too many already, or this is the job's last save. */
const struct fsm_ckpt *fsm_choose_base(struct fsm *m, uint64_t step)
{
    if (!m->config.delta || m->base_refused || fsm_is_last(m, step))
        return NULL;
    for (size_t i = m->catalog_count; i > 0; i--) {
        struct fsm_ckpt *ckpt = &m->catalog[i - 1];
        if (ckpt->state != FSM_CKPT_GOOD || !ckpt->verified || ckpt->step >= step ||
            ckpt->shards != m->size)
            continue;
        uint32_t length = 0;
        for (const struct fsm_ckpt *c = ckpt; c != NULL && length <= FSM_CHAIN_MAX;
             c = fsm_chain_next(m, c))
            length++;
        return length > FSM_CHAIN_MAX ? NULL : ckpt;
    }
    return NULL;
}

uint64_t fsm_expected_bytes(const struct fsm *m, bool full)
{
    uint64_t bytes = 0;
    for (size_t i = m->catalog_count; bytes == 0 && i > 0; i--) {
        const struct fsm_ckpt *ckpt = &m->catalog[i - 1];
        if (ckpt->state != FSM_CKPT_BAD && (ckpt->parent_generation == 0) == full)
            bytes = ckpt->bytes;
    }
    if (bytes == 0 && !full)
        return fsm_expected_bytes(m, true);
    if (bytes == 0) /* the first: trained states keep three quarters at least */
        return m->state_bytes / 4 * 3;
    return bytes + bytes / 8 + 65536;
}
