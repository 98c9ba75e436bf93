/*
 * Saves that do not become checkpoints: dropped, refused, failed, late; and what they may leave in
 * the store. (save.c has the states of a save; what both need stands here.)
 *
 * A dropped save goes in order: ranks are told, each unlinks its file and says so, then the folder
 * is removed. Each further try of that save has a folder of its own: a late file harms none.
 */
#include "server/jobfsm/save_abort.h"

#include <stdio.h>

#include "common/backoff.h"
#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/failure_policy.h"
#include "server/jobfsm/retention.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/state.h"

/* ---- what save.c needs, too ---- */

int64_t fsm_retry_ms(uint32_t tries)
{
    return backoff_ms(500, 2, tries, 30000);
}

void fsm_save_set_state_by(struct fsm_ctx *t, struct fsm_save *save, enum fsm_save_state state,
                           const char *function)
{
    CHECK(save->state != state);
    fsm_save_move_by(save, state, function);
    save->since = t->now;
    save->retry_at = 0;
    if (state == FSM_SAVE_CHECKING)
        return; /* the journalled reports say it */
    bool keeps =
        state == FSM_SAVE_COLLECTING || state == FSM_SAVE_COMMITTING || state == FSM_SAVE_DROPPING;
    fsm_act_on(t, FSM_ACT_SAVE_ROW, save->step, save->generation)->save_state =
        keeps ? state : FSM_SAVE_FREE;
}

void fsm_send_done(struct fsm_ctx *t, uint64_t step, uint32_t rank, bool committed)
{
    struct fsm_action *act = fsm_act_on(t, FSM_ACT_SEND_DONE, step, t->m->generation);
    act->rank = rank;
    act->committed = committed;
}

int fsm_save_new_by(struct fsm_ctx *t, uint64_t step, enum fsm_save_state state,
                    const char *function)
{
    struct fsm *m = t->m;
    int index = -1;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        if (save->state == FSM_SAVE_FREE) {
            index = i;
            break;
        }
        bool over =
            save->state == FSM_SAVE_COMMITTED || (save->state == FSM_SAVE_DROPPED && !save->wanted);
        if (over && (index < 0 || save->since < m->saves[index].since))
            index = i;
    }
    if (index < 0)
        return -1;
    m->saves[index] =
        (struct fsm_save){ .step = step, .generation = m->generation, .since = t->now };
    fsm_save_move_by(&m->saves[index], state, function);
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].save_flags[index] = 0;
    return index;
}

/* ---- dropping ---- */

/* True if the rank has a file there, as far as is known, or may have one. */
static bool may_have_file(const struct fsm_rank *rank, int index)
{
    uint8_t flags = rank->save_flags[index];
    return !rank->gone && !rank->parked && (flags & FSM_RANK_BEGUN) && !(flags & FSM_RANK_REMOVED);
}

/* Asks for the folder's removal once no rank can have a file there. */
void fsm_save_remove(struct fsm_ctx *t, int index)
{
    struct fsm *m = t->m;
    struct fsm_save *save = &m->saves[index];
    CHECK(save->state == FSM_SAVE_DROPPING);
    if (save->removing)
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (may_have_file(&m->ranks[i], index))
            return;
    }
    save->removing = true;
    fsm_ask_store(t, FSM_TASK_DROP, save->step, save->generation);
}

void fsm_save_drop(struct fsm_ctx *t, int index, const char *why, bool tell)
{
    struct fsm *m = t->m;
    struct fsm_save *save = &m->saves[index];
    bool opening = save->state == FSM_SAVE_OPENING;
    save->failures++;
    fsm_text(save->message, sizeof(save->message), why);
    FSM_SAVE_SET_STATE(t, save, FSM_SAVE_DROPPING);
    if (tell)
        fsm_emit_event(t, "save-dropped", "step %llu: %.400s", (unsigned long long)save->step, why);
    for (uint32_t i = 0; i < m->size; i++) {
        uint8_t *flags = &m->ranks[i].save_flags[index];
        if (*flags & FSM_RANK_BEGUN)
            *flags |= FSM_RANK_KNOWS_DROP;
        if ((*flags & FSM_RANK_BEGUN) && opening)
            *flags |= FSM_RANK_REMOVED; /* nobody was told where to write */
        *flags &= (uint8_t)~FSM_RANK_REPORTED;
    }
    if (opening) {
        struct fsm_action *act = fsm_act_on(t, FSM_ACT_SEND_FOLDER, save->step, save->generation);
        act->rank = FSM_ALL_RANKS;
    } else {
        fsm_send_done(t, save->step, FSM_ALL_RANKS, false);
    }
    if (m->state == FSM_SAVING && !fsm_ends(m)) {
        fsm_set_reason(m, "waits to save step %llu: %.400s", (unsigned long long)save->step, why);
    }
    fsm_save_remove(t, index);
}

void fsm_on_drop_done(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    int index = fsm_answered_save(t);
    if (index < 0 || m->saves[index].state != FSM_SAVE_DROPPING)
        return;
    m->saves[index].removing = false;
    const enum status st = t->ev->answer.status; /* again: a file of it is open somewhere */
    const bool gone = st == ST_OK || st == ST_EXISTS || st == ST_AGAIN;
    if (!gone && !fsm_all_left(m)) {
        (void)fsm_unsaved(t, t->ev->answer.message);
        m->saves[index].retry_at = t->now + fsm_retry_ms(++m->saves[index].failures);
        return;
    }
    /* A folder that stays hinders nobody: the next try has another. The last step, or an announced
     * one, is saved again. */
    FSM_SAVE_SET_STATE(t, &m->saves[index], FSM_SAVE_DROPPED);
    m->saves[index].retry_at = t->now + fsm_retry_ms(m->saves[index].failures);
}

/* True if every rank holds on to its file: the store lets none of them go on. */
static bool every_rank_holds_on(const struct fsm *m, int index)
{
    bool every = true;
    for (uint32_t i = 0; i < m->size; i++) {
        bool assumed = m->ranks[i].save_flags[index] & FSM_RANK_ASSUMED;
        every = every && may_have_file(&m->ranks[i], index) && !assumed;
    }
    return every;
}

/* Called when a rank doesn't say that its file of a dropped save is gone. It may still be writing,
 * so this generation must not save the step again. If it has to, the generation ends; but if no
 * rank says it, the store hangs for all, and all wait. */
static void give_up_on(struct fsm_ctx *t, int index)
{
    struct fsm *m = t->m;
    struct fsm_save *save = &m->saves[index];
    save->since = t->now;
    if (!fsm_is_last(m, save->step) && !save->wanted && !fsm_announced_exit(m, save->step)) {
        FSM_SAVE_SET_STATE(t, save, FSM_SAVE_DROPPED);
        return;
    }
    if (every_rank_holds_on(m, index)) {
        (void)fsm_unsaved(t, save->message);
        return;
    }
    for (uint32_t i = 0; i < m->size; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        if (!may_have_file(rank, index))
            continue;
        struct fsm_fault fault = {
            .kind = FSM_FAULT_SESSION, .rank = i, .step = rank->step, .outside = true
        };
        fsm_text(fault.phase, sizeof(fault.phase), rank->phase);
        fsm_text(fault.message, sizeof(fault.message), "it holds on to its file of a dropped save");
        fsm_handle_fault(t, &fault);
        return;
    }
}

/* Returns how long ranks have for saying that their files are gone. */
static int64_t patience_ms(const struct fsm *m, int index)
{
    for (uint32_t i = 0; i < m->size; i++) {
        bool assumed = m->ranks[i].save_flags[index] & FSM_RANK_ASSUMED;
        if (may_have_file(&m->ranks[i], index) && !assumed)
            return FSM_REMOVE_MS;
    }
    return FSM_ASSUMED_MS;
}

bool fsm_drop_tick(struct fsm_ctx *t, int index)
{
    const struct fsm_save *save = &t->m->saves[index];
    if (save->state != FSM_SAVE_DROPPING || save->removing || save->retry_at != 0 ||
        t->now - save->since < patience_ms(t->m, index))
        return false;
    give_up_on(t, index);
    return true;
}

void fsm_saves_end(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        struct fsm_save *save = &m->saves[i];
        if (save->state == FSM_SAVE_COLLECTING) {
            fsm_save_drop(t, i, "the generation ended before all workers had written", true);
        } else if (save->state == FSM_SAVE_DROPPING && save->retry_at == 0) {
            fsm_save_remove(t, i);
        }
        save->wanted = false;
        if (save->state == FSM_SAVE_DROPPED)
            save->retry_at = 0;
    }
}

int64_t fsm_saves_deadline(const struct fsm *m)
{
    int64_t at = INT64_MAX;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        if (save->retry_at != 0 && save->retry_at < at)
            at = save->retry_at;
        if (save->state != FSM_SAVE_DROPPING || save->removing)
            continue;
        int64_t end = save->since + patience_ms(m, i);
        at = end < at ? end : at;
    }
    return at;
}

/* ---- a rank fails, or is late ---- */

/* A rank is late, and will not write a save that others may not have begun yet. All of them have to
 * know at once; else each writes the file that the next one is late for. */
static void drop_before_begin(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    uint64_t step = t->ev->save_failed.step;
    if (!fsm_trains(m) || fsm_ends(m) || fsm_ckpt_at(m, step, m->generation) != NULL)
        return;
    int index = FSM_SAVE_NEW(t, step, FSM_SAVE_DROPPED);
    if (index < 0)
        return;
    m->ranks[t->ev->rank].save_flags[index] = FSM_RANK_KNOWS_DROP | FSM_RANK_REMOVED;
    m->saves[index].retry_at = t->now + fsm_retry_ms(1); /* where it was announced */
    if (!m->store_full.late_reported) {
        fsm_emit_event(t, "save-dropped", "step %llu: %.400s", (unsigned long long)step,
                       t->ev->save_failed.message != NULL ? t->ev->save_failed.message
                                                          : "a worker was late");
    }
    m->store_full.late_reported = true;
    fsm_send_done(t, step, FSM_ALL_RANKS, false);
}

void fsm_on_save_failed(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    int index = fsm_save_index(m, t->ev->save_failed.step, m->generation);
    if (index < 0) {
        drop_before_begin(t);
        return;
    }
    struct fsm_save *save = &m->saves[index];
    uint8_t *flags = &m->ranks[t->ev->rank].save_flags[index];
    if (t->ev->save_failed.removed)
        *flags |= FSM_RANK_REMOVED;
    if (save->state == FSM_SAVE_OPENING || save->state == FSM_SAVE_COLLECTING) {
        const char *why = t->ev->save_failed.message;
        if (why == NULL || !why[0])
            why = t->ev->save_failed.full ? "the store is full" : "a worker could not write";
        *flags |= FSM_RANK_BEGUN;
        m->ranks[t->ev->rank].save_failed = true;
        if (t->ev->save_failed.full) {
            fsm_save_refuse(t, index, why);
        } else {
            fsm_save_drop(t, index, why, true);
        }
    } else if (save->state == FSM_SAVE_DROPPING) {
        fsm_save_remove(t, index);
    }
}

/* ---- no room, no store ---- */

/* Only the checkpoint is lost: training goes on, and the next save that is due is a new try. The
 * last save of a job, or before a pause, is tried again by the workers themselves. */
void fsm_save_refuse(struct fsm_ctx *t, int index, const char *why)
{
    struct fsm *m = t->m;
    struct fsm_save *save = &m->saves[index];
    bool first = m->store_full.consecutive == 0;
    bool exit = false;
    m->store_full.refused++;
    m->store_full.consecutive++;
    fsm_text(m->store_full.reason, sizeof(m->store_full.reason), why);
    if (!fsm_announced_exit(m, save->step))
        (void)fsm_forget_announced(m, save->step, &exit);
    if (first) {
        fsm_emit_event(t, "store-full", "step %llu is not saved, training goes on: %.380s",
                       (unsigned long long)save->step, why);
    }
    if (m->state == FSM_RUNNING) {
        fsm_set_reason(m, "no room for the checkpoint of step %llu: %.400s",
                       (unsigned long long)save->step, why);
    }
    fsm_save_drop(t, index, why, false);
    fsm_retain(t); /* makes room */
}

bool fsm_unsaved(struct fsm_ctx *t, const char *why)
{
    struct fsm *m = t->m;
    const struct fsm_ckpt *newest = fsm_newest(m);
    unsigned long long since = newest != NULL ? newest->step : 0;
    if (!fsm_trains(m) || fsm_ends(m))
        return false;
    if (!m->store_full.unsaved)
        fsm_emit_event(t, "store-fails", "no checkpoint since step %llu: %.400s", since, why);
    m->store_full.unsaved = true;
    const char *waits = m->state == FSM_SAVING ? "waits to save; " : "";
    fsm_set_reason(m, "%sno checkpoint since step %llu: %.400s", waits, since, why);
    return true;
}

void fsm_store_has_space_again(struct fsm_ctx *t, uint64_t step)
{
    struct fsm *m = t->m;
    if (m->store_full.unsaved)
        fsm_emit_event(t, "store-works", "step %llu is saved", (unsigned long long)step);
    m->store_full.unsaved = false;
    m->store_full.late_reported = false;
    if (m->store_full.consecutive == 0)
        return;
    fsm_emit_event(t, "store-room", "step %llu is saved; the store had no room for the %u before",
                   (unsigned long long)step, m->store_full.consecutive);
    m->store_full.consecutive = 0;
}

/* ---- leftovers ---- */

/*
 * Dropped saves may leave things in the store: files that a rank held on to, or a folder. That was
 * made while the coordinator died, or its removal failed when nobody was left to repeat it.
 *
 * Only folders of generations that are over are looked at: once in each generation, with its first
 * commit, and at the job's end. The store's task gets the catalog along and takes away what has no
 * manifest and is not in it. That is safe, however late the task runs (the store may be slow, its
 * thread given up):
 *   - A save commits only in the current generation or, decided, in one before. Of those before
 *     none is open when the sweep is asked for, and none is ever opened again (jobfsm.h,
 *     invariants 1 to 4).
 *   - A checkpoint that lost its manifest is in the catalog: that is damage, and kept as evidence.
 *   - bad-... folders and whatever has no name of ours stay.
 *   - A worker of a generation that is over may still write, cut off somewhere: none of it counts.
 */

/* Returns the generation before which all are over; 0: not now. */
static uint32_t over_before(const struct fsm *m)
{
    if (m->config.saves_nothing)
        return 0;
    if (fsm_state_final(m->state))
        return fsm_saves_busy(m) ? 0 : m->generation + 1;
    return m->state == FSM_RUNNING && m->committed ? m->generation : 0;
}

enum fsm_work_left fsm_work_left_of(const struct fsm *m)
{
    if (!fsm_state_final(m->state) || fsm_saves_busy(m))
        return FSM_BUSY;
    bool left = over_before(m) >= 2 && over_before(m) > m->swept;
    for (size_t i = 0; !left && i < m->catalog_count; i++) {
        const struct fsm_ckpt *ckpt = &m->catalog[i];
        left = ckpt->state == FSM_CKPT_REMOVING || ckpt->state == FSM_CKPT_QUARANTINING ||
               ckpt->verifying || ckpt->reading != 0;
    }
    return left ? FSM_LEFT : FSM_OVER;
}

static bool is_busy_before(const struct fsm *m, uint32_t generation)
{
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        if (fsm_save_busy(&m->saves[i]) && m->saves[i].generation < generation)
            return true;
    }
    return false;
}

void fsm_sweep(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    uint32_t before = over_before(m);
    if (before < 2 || before <= m->swept || before <= m->sweep_asked || is_busy_before(m, before))
        return;
    m->sweep_asked = before;
    fsm_ask_store(t, FSM_TASK_SWEEP, 0, before);
}

void fsm_sweep_again(struct fsm_ctx *t)
{
    if (t->m->sweep_failed)
        t->m->sweep_asked = t->m->swept;
    t->m->sweep_failed = false;
}

/* Folders that are left, by a failure or for being too many, go with the next commit, or, if the
 * job has ended, with the coordinator's next start. */
void fsm_on_sweep_done(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (t->ev->answer.swept > 0) {
        fsm_emit_event(t, "swept", "%llu folders of saves that were never committed were removed",
                       (unsigned long long)t->ev->answer.swept);
    }
    m->sweep_failed = t->ev->answer.status != ST_OK;
    if (m->sweep_failed || t->ev->answer.generation <= m->swept)
        return;
    m->swept = t->ev->answer.generation;
    m->dirty = true;
}
