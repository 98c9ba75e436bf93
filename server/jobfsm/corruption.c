/*
 * Checkpoints read back, found damaged, and set aside; and another store at the place of the job's.
 *
 * After its commit, if retention needs that, a checkpoint is read back by the ranks, beside
 * training (retention.c). The coordinator reads only the files that one of them found damaged.
 *
 * The coordinator reads all of it if no rank can, if somebody asks for it (`cairn ckpt scrub`), and
 * if a worker reported that it can't restore it. If the report names one file of it, only that is
 * read. The last case is `damage_suspected`: no generation that would restore the checkpoint forms
 * until it, and all that it is read through, were read here. If one of them is found damaged it is
 * set aside at once, and the job goes on from an older one. If all read well, the worker's node is
 * suspected.
 *
 * A failure of the medium (EIO, a deadline, a store that is away) is no damage: the read is tried
 * again. So it is with what another version wrote (ST_VERSION): after a change of this program the
 * job waits.
 */
#include "server/jobfsm/corruption.h"

#include <string.h>

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/retention.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/state.h"

void fsm_note_mark(struct fsm_ctx *t)
{
    if (t->ev->answer.mark_mismatch && !t->m->mark_mismatch)
        fsm_emit_event(t, "store-away", "%s", t->ev->answer.message);
    t->m->mark_mismatch = t->ev->answer.mark_mismatch;
}

/* The checkpoint that this generation started from, or NULL. */
static struct fsm_ckpt *restored_ckpt(struct fsm *m)
{
    return m->restore.generation == 0 ? NULL
                                      : fsm_ckpt_at(m, m->restore.step, m->restore.generation);
}

bool fsm_unsuspect(struct fsm *m, const char *node)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->suspect_count; i++) {
        if (strcmp(m->suspects[i], node) != 0)
            memmove(m->suspects[kept++], m->suspects[i], sizeof(m->suspects[0]));
    }
    const bool dropped = kept < m->suspect_count;
    m->suspect_count = kept;
    return dropped;
}

/* Suspects the node: its memory or its way to the store may be bad, so the next workers go
 * elsewhere, if there is room. If there are too many, the oldest is forgotten. */
static void suspect_node(struct fsm *m, const char *node)
{
    for (uint32_t i = 0; i < m->suspect_count; i++) {
        if (strcmp(m->suspects[i], node) == 0)
            return;
    }
    if (m->suspect_count == FSM_SUSPECTS_MAX) {
        m->suspect_count--;
        memmove(m->suspects[0], m->suspects[1], m->suspect_count * sizeof(m->suspects[0]));
    }
    CHECK(m->suspect_count < FSM_SUSPECTS_MAX);
    fsm_text(m->suspects[m->suspect_count++], LIMIT_NAME, node);
    m->dirty = true;
}

/* Called when a suspected checkpoint reads well; once all of them do, the node was the cause. */
static void clear_suspicion(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (const struct fsm_ckpt *c = restored_ckpt(m); c != NULL; c = fsm_chain_next(m, c)) {
        if (c->suspected)
            return;
    }
    m->damage_suspected = false;
    fsm_act(t, FSM_ACT_SCHEDULE);
    const char *node = m->cause.rank < m->size ? m->ranks[m->cause.rank].node : "";
    if (m->damage_waited && m->cause.kind == FSM_FAULT_STORE) {
        fsm_emit_event(t, "verified", "the checkpoint of step %llu can be read again",
                       (unsigned long long)m->restore.step);
        return;
    }
    if (node[0] != '\0')
        suspect_node(m, node);
    fsm_emit_event(
        t, "verified",
        "the checkpoint of step %llu reads well here: node %.128s, which %s, is suspected and "
        "takes workers of this job only where no other has room",
        (unsigned long long)m->restore.step, node,
        m->cause.kind == FSM_FAULT_STORE ? "could not read it" : "reported damage");
}

/* Suspects the parent: the bytes that read badly may be its own. It is read, too, and is nobody's
 * base until then. */
static void suspect_parent(struct fsm_ctx *t, const struct fsm_ckpt *ckpt)
{
    struct fsm_ckpt *parent = fsm_chain_next(t->m, ckpt);
    if (parent == NULL || parent->state != FSM_CKPT_GOOD)
        return;
    parent->verified = false;
    if (!parent->reading)
        fsm_ask_verify(t, parent);
}

/* Reads what is disputed of a checkpoint. Files of one number hold the same chunks where they are
 * equally many. */
static void read_suspected(struct fsm_ctx *t, struct fsm_ckpt *ckpt)
{
    const struct fsm_ckpt *restored = restored_ckpt(t->m);
    if (t->m->damage_shard == 0 || restored == NULL || ckpt->shards != restored->shards) {
        fsm_ask_verify(t, ckpt);
        return;
    }
    if (ckpt->reading == t->m->damage_shard)
        return;
    ckpt->reading = t->m->damage_shard;
    struct fsm_action *act = fsm_act_on(t, FSM_ACT_STORE, ckpt->step, ckpt->generation);
    act->task = FSM_TASK_VERIFY;
    act->shard = t->m->damage_shard;
}

static void emit_none_left(struct fsm_ctx *t)
{
    const struct fsm *m = t->m;
    if (fsm_state_final(m->state)) {
        fsm_emit_event(t, "restart", "no good checkpoint is left");
    } else if (m->state == FSM_RUNNING) {
        fsm_emit_event(t, "restart", "no good checkpoint is left; one is taken soon");
    } else {
        fsm_emit_event(t, "restart",
                       "no good checkpoint is left: training starts from the beginning");
    }
}

static bool is_damage(enum status st)
{
    return status_scope(st) == SCOPE_CHECKPOINT || st == ST_NOT_FOUND;
}

/* ---- what the ranks read back ---- */

/* Returns the checkpoint of that step if the ranks are reading it back, or NULL. */
static struct fsm_ckpt *read_back_of(struct fsm *m, uint64_t step, uint32_t generation)
{
    const struct fsm_read_back *it = &m->read_back;
    return it->generation == 0 || it->generation != generation || it->step != step
               ? NULL
               : fsm_ckpt_at(m, step, generation);
}

/* Marks the checkpoint as read back once every rank has said that its part is good and nothing is
 * disputed. */
static void count_readers(struct fsm_ctx *t, struct fsm_ckpt *ckpt)
{
    struct fsm *m = t->m;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].read_done)
            return;
    }
    if (m->read_back.disputed > 0)
        return;
    ckpt->verified = true;
    m->read_back.in_vain = 0;
    fsm_read_back_end(t, NULL);
    fsm_act_on(t, FSM_ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    fsm_retain(t);
}

void fsm_on_read_back(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_rank *rank = &m->ranks[t->ev->rank];
    const struct fsm_read_state *said = &t->ev->read_back;
    struct fsm_ckpt *ckpt = read_back_of(m, said->step, said->generation);
    if (ckpt == NULL || ckpt->state != FSM_CKPT_GOOD || rank->read_done)
        return;
    if (said->bytes > rank->read_bytes || said->done)
        m->read_back.moved_at = t->now;
    if (said->bytes > rank->read_bytes)
        rank->read_bytes = said->bytes;
    if (!said->done)
        return;
    /* A rank stops at the first bad file: if it had more than one, it hasn't read the others. */
    bool damaged = is_damage(said->status) && said->shard < ckpt->shards &&
                   ckpt->shards <= m->size && fsm_reader_of(m, said->shard) == t->ev->rank;
    if (said->status != ST_OK && !damaged) {
        fsm_read_back_end(t, said->message);
        return;
    }
    rank->read_done = true;
    if (damaged) {
        m->read_back.disputed++;
        fsm_emit_event(t, "read-back", "rank %u reads damage, the file is read here, too: %.300s",
                       t->ev->rank, said->message);
        struct fsm_action *act = fsm_act_on(t, FSM_ACT_STORE, ckpt->step, ckpt->generation);
        act->task = FSM_TASK_VERIFY;
        act->shard = said->shard + 1;
        return;
    }
    count_readers(t, ckpt);
}

/* Takes the coordinator's reading of the disputed file. true: it is damaged. */
static bool settle_dispute(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const struct fsm_answer *answer = &t->ev->answer;
    struct fsm_ckpt *ckpt = read_back_of(m, answer->step, answer->generation);
    if (is_damage(answer->status))
        return true;
    if (ckpt == NULL || m->read_back.disputed == 0)
        return false; /* the read-back came to an end meanwhile */
    m->read_back.disputed--;
    if (answer->status != ST_OK) {
        fsm_note_mark(t);
        fsm_read_back_end(t, answer->message);
        return false;
    }
    const char *node = m->ranks[fsm_reader_of(m, answer->shard - 1)].node;
    suspect_node(m, node);
    fsm_emit_event(
        t, "verified",
        "file %u of the checkpoint of step %llu reads well here: node %.128s, which "
        "reported damage, is suspected and takes workers of this job only where no other "
        "has room",
        answer->shard - 1, (unsigned long long)answer->step, node);
    count_readers(t, ckpt);
    return false;
}

/* Sets aside a checkpoint that the answer says is damaged. */
static void quarantine_damaged(struct fsm_ctx *t, struct fsm_ckpt *ckpt)
{
    struct fsm *m = t->m;
    if (fsm_in_chain(m, restored_ckpt(m), ckpt)) {
        /* The cause is out of the way: what follows is a new try, not a repetition. */
        m->damage_suspected = false;
        m->budget.used = 0;
        m->budget.no_progress = 0;
        m->budget.own = 0;
        m->budget.failures = 0;
        m->retry_at = 0;
    }
    fsm_quarantine(t, ckpt, t->ev->answer.message);
    suspect_parent(t, ckpt);
    fsm_drop_orphans(t);
    if (fsm_newest(m) == NULL)
        emit_none_left(t);
    if (m->state == FSM_RUNNING)
        fsm_announce(t, false); /* a good newer one, soon */
    fsm_act(t, FSM_ACT_SCHEDULE);
}

/* ---- what the coordinator reads ---- */

/* Waits after a reading that failed, which says nothing of the bytes. */
static void wait_for_store(struct fsm_ctx *t)
{
    const struct fsm_answer *answer = &t->ev->answer;
    t->m->damage_waited = true; /* asked again by fsm_damage_tick */
    fsm_set_reason(t->m, "waits for %s: %.400s",
                   answer->status == ST_VERSION ? "a build that reads it" : "the checkpoint store",
                   answer->message);
}

static bool is_suspected(struct fsm *m, const struct fsm_ckpt *ckpt)
{
    return m->damage_suspected && fsm_in_chain(m, restored_ckpt(m), ckpt);
}

/* Takes the reading of the one file that a worker couldn't restore from. If it is good, the
 * checkpoint does not count as read back by that. */
static void settle_file(struct fsm_ctx *t, struct fsm_ckpt *ckpt)
{
    const enum status st = t->ev->answer.status;
    ckpt->reading = 0;
    if (ckpt->state != FSM_CKPT_GOOD)
        return;
    if (is_damage(st)) {
        quarantine_damaged(t, ckpt);
        return;
    }
    if (st != ST_OK)
        fsm_note_mark(t);
    if (!is_suspected(t->m, ckpt)) {
        if (st == ST_OK && !ckpt->verified && !ckpt->verifying)
            fsm_ask_verify(t, ckpt); /* the parent of what was set aside */
        return;
    }
    if (t->ev->answer.shard != t->m->damage_shard)
        return; /* since then more of it is suspected, and read */
    if (st != ST_OK) {
        wait_for_store(t);
        return;
    }
    ckpt->suspected = false;
    clear_suspicion(t);
}

void fsm_on_verify_done(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_ckpt *ckpt = fsm_ckpt_at(m, t->ev->answer.step, t->ev->answer.generation);
    if (ckpt == NULL)
        return;
    if (t->ev->answer.shard != 0 && t->ev->answer.shard == ckpt->reading) {
        settle_file(t, ckpt);
        return;
    }
    if (t->ev->answer.shard != 0) {
        if (settle_dispute(t) && ckpt->state == FSM_CKPT_GOOD)
            quarantine_damaged(t, ckpt);
        return;
    }
    ckpt->verifying = false;
    ckpt->reads++;
    ckpt->read_status = t->ev->answer.status;
    if (ckpt->state != FSM_CKPT_GOOD)
        return;
    bool suspected = is_suspected(m, ckpt);
    if (t->ev->answer.status == ST_OK) {
        ckpt->verified = true;
        ckpt->suspected = false;
        fsm_act_on(t, FSM_ACT_CKPT_ROW, ckpt->step, ckpt->generation);
        if (suspected)
            clear_suspicion(t);
        fsm_retain(t);
        return;
    }
    fsm_note_mark(t);
    if (!is_damage(t->ev->answer.status)) { /* EIO and timeouts are no damage */
        if (suspected)
            wait_for_store(t);
        return;
    }
    quarantine_damaged(t, ckpt);
}

/* Asks for as many as a turn has room for; the others follow with the answers. */
static void ask_quarantine(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (size_t i = 0; i < m->catalog_count && t->out->count < FSM_ACTIONS_MAX / 2; i++) {
        struct fsm_ckpt *ckpt = &m->catalog[i];
        if (ckpt->state != FSM_CKPT_QUARANTINING || ckpt->removing)
            continue;
        ckpt->removing = true;
        fsm_ask_store(t, FSM_TASK_QUARANTINE, ckpt->step, ckpt->generation);
    }
}

void fsm_on_quarantine_done(struct fsm_ctx *t)
{
    struct fsm_ckpt *ckpt = fsm_ckpt_at(t->m, t->ev->answer.step, t->ev->answer.generation);
    if (ckpt == NULL || ckpt->state != FSM_CKPT_QUARANTINING)
        return;
    ckpt->state = FSM_CKPT_BAD; /* also if the rename failed: it is never restored again */
    ckpt->removing = false;
    fsm_act_on(t, FSM_ACT_CKPT_ROW, ckpt->step, ckpt->generation);
    fsm_drop_orphans(t);
    fsm_act(t, FSM_ACT_SCHEDULE);
    ask_quarantine(t);
}

void fsm_suspect_damage(struct fsm_ctx *t, const struct fsm_fault *fault)
{
    struct fsm *m = t->m;
    struct fsm_ckpt *ckpt = restored_ckpt(m);
    if (ckpt == NULL || ckpt->state != FSM_CKPT_GOOD)
        return;
    m->damage_suspected = true;
    m->damage_waited = false;
    m->damage_shard =
        fault->kind == FSM_FAULT_DAMAGE && fault->shard <= ckpt->shards ? fault->shard : 0;
    for (; ckpt != NULL; ckpt = fsm_chain_next(m, ckpt)) {
        ckpt->verified = false;
        ckpt->suspected = true;
        read_suspected(t, ckpt);
    }
}

void fsm_on_remove_done(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_ckpt *ckpt = fsm_ckpt_at(m, t->ev->answer.step, t->ev->answer.generation);
    if (ckpt == NULL || ckpt->state != FSM_CKPT_REMOVING)
        return;
    ckpt->removing = false;
    ask_quarantine(t);
    if (t->ev->answer.mark_mismatch)
        fsm_note_mark(t); /* asked for again, it is given up (store_task.given_up) */
    if (t->ev->answer.status != ST_OK)
        return; /* again with the next retention: it is un-published, or untouched */
    size_t at = (size_t)(ckpt - m->catalog);
    m->catalog_count--;
    memmove(ckpt, ckpt + 1, (m->catalog_count - at) * sizeof(*ckpt));
    fsm_act_on(t, FSM_ACT_CKPT_ROW, t->ev->answer.step, t->ev->answer.generation);
    fsm_retain(t); /* what it was read through may go now */
}

void fsm_damage_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!m->damage_suspected || fsm_ends(m) || m->state != FSM_RECOVERING || t->now < m->retry_at)
        return;
    struct fsm_ckpt *ckpt = restored_ckpt(m);
    if (ckpt == NULL || ckpt->state != FSM_CKPT_GOOD) {
        m->damage_suspected = false;
        fsm_act(t, FSM_ACT_SCHEDULE);
        return;
    }
    for (; ckpt != NULL; ckpt = fsm_chain_next(m, ckpt)) {
        if (!ckpt->suspected || ckpt->verifying || ckpt->reading)
            continue;
        m->retry_at = t->now + 1000;
        read_suspected(t, ckpt);
    }
}

void fsm_catalog_resume(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (size_t i = 0; i < m->catalog_count; i++) {
        struct fsm_ckpt *ckpt = &m->catalog[i];
        ckpt->verifying = ckpt->removing = false;
        if (ckpt->state == FSM_CKPT_REMOVING && t->out->count < FSM_ACTIONS_MAX / 4) {
            ckpt->removing = true; /* the others with retention */
            fsm_ask_store(t, FSM_TASK_REMOVE, ckpt->step, ckpt->generation);
        }
    }
    ask_quarantine(t);
    /* Reads from before the restart don't answer the suspicion. */
    for (struct fsm_ckpt *c = m->damage_suspected ? restored_ckpt(m) : NULL; c != NULL;
         c = fsm_chain_next(m, c)) {
        c->verified = false;
        c->suspected = true;
    }
}
