/*
 * Saves that do not become checkpoints: dropped, refused, failed, late; and what they may leave in
 * the store. (saves.c has the states of a save; what both need stands here.)
 *
 * A dropped save goes in order: ranks are told, each unlinks its file and says so, then the folder
 * is removed. Until then its step isn't saved again, as a late file would lie in the new folder.
 */
#include <stdio.h>

#include "common/check.h"
#include "server/machine/internal.h"

/* ---- what saves.c needs, too ---- */

int64_t machine_retry_ms(uint32_t tries)
{
    int64_t ms = 500;
    for (uint32_t i = 1; i < tries && ms < 30000; i++)
        ms *= 2;
    return ms < 30000 ? ms : 30000;
}

static bool may_follow(enum machine_save_state from, enum machine_save_state to)
{
    switch (to) {
    case MACHINE_SAVE_COLLECTING:
        return from == MACHINE_SAVE_OPENING;
    case MACHINE_SAVE_CHECKING:
        return from == MACHINE_SAVE_COLLECTING;
    case MACHINE_SAVE_COMMITTING:
        return from == MACHINE_SAVE_CHECKING;
    case MACHINE_SAVE_COMMITTED:
        return from == MACHINE_SAVE_COMMITTING;
    case MACHINE_SAVE_DROPPING:
        return from >= MACHINE_SAVE_OPENING && from <= MACHINE_SAVE_COMMITTING;
    case MACHINE_SAVE_DROPPED:
        return from == MACHINE_SAVE_DROPPING;
    case MACHINE_SAVE_FREE: /* a save begins by open_save, and ends where its place is needed */
    case MACHINE_SAVE_OPENING:
        break;
    }
    return false;
}

void machine_save_set_state(struct machine_turn *t, struct machine_save *save,
                            enum machine_save_state state)
{
    CHECK(may_follow(save->state, state));
    save->state = state;
    save->since = t->now;
    save->retry_at = 0;
    if (state == MACHINE_SAVE_CHECKING)
        return; /* the journalled reports say it */
    bool keeps = state == MACHINE_SAVE_COLLECTING || state == MACHINE_SAVE_COMMITTING ||
                 state == MACHINE_SAVE_DROPPING;
    machine_act_on(t, MACHINE_ACT_SAVE_ROW, save->step, save->generation)->save_state =
        keeps ? state : MACHINE_SAVE_FREE;
}

void machine_send_done(struct machine_turn *t, uint64_t step, uint32_t rank, bool committed)
{
    struct machine_action *act = machine_act_on(t, MACHINE_ACT_SEND_DONE, step, t->m->generation);
    act->rank = rank;
    act->committed = committed;
}

/* Puts a save in a free place, or in that of the one that was over first; -1: all are busy. */
int machine_save_new(struct machine_turn *t, uint64_t step, enum machine_save_state state)
{
    struct machine *m = t->m;
    int index = -1;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        const struct machine_save *save = &m->saves[i];
        if (save->state == MACHINE_SAVE_FREE) {
            index = i;
            break;
        }
        bool over = save->state == MACHINE_SAVE_COMMITTED ||
                    (save->state == MACHINE_SAVE_DROPPED && !save->wanted);
        if (over && (index < 0 || save->since < m->saves[index].since))
            index = i;
    }
    if (index < 0)
        return -1;
    m->saves[index] = (struct machine_save){
        .state = state, .step = step, .generation = m->generation, .since = t->now
    };
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].save_flags[index] = 0;
    return index;
}

/* ---- dropping ---- */

/* True if the rank has a file there, as far as is known, or may have one. */
static bool may_have_file(const struct machine_rank *rank, int index)
{
    uint8_t flags = rank->save_flags[index];
    return !rank->gone && !rank->parked && (flags & MACHINE_RANK_BEGUN) &&
           !(flags & MACHINE_RANK_REMOVED);
}

/* Asks for the folder's removal once no rank can have a file there. */
void machine_save_remove(struct machine_turn *t, int index)
{
    struct machine *m = t->m;
    struct machine_save *save = &m->saves[index];
    CHECK(save->state == MACHINE_SAVE_DROPPING);
    if (save->removing)
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (may_have_file(&m->ranks[i], index))
            return;
    }
    save->removing = true;
    machine_ask_store(t, MACHINE_TASK_DROP, save->step, save->generation);
}

void machine_save_drop(struct machine_turn *t, int index, const char *why, bool tell)
{
    struct machine *m = t->m;
    struct machine_save *save = &m->saves[index];
    bool opening = save->state == MACHINE_SAVE_OPENING;
    save->tries++;
    machine_text(save->message, sizeof save->message, why);
    machine_save_set_state(t, save, MACHINE_SAVE_DROPPING);
    if (tell)
        machine_tell(t, "save-dropped", "step %llu: %.400s", (unsigned long long)save->step, why);
    for (uint32_t i = 0; i < m->size; i++) {
        uint8_t *flags = &m->ranks[i].save_flags[index];
        if (*flags & MACHINE_RANK_BEGUN)
            *flags |= MACHINE_RANK_KNOWS_DROP;
        if ((*flags & MACHINE_RANK_BEGUN) && opening)
            *flags |= MACHINE_RANK_REMOVED; /* nobody was told where to write */
        *flags &= (uint8_t)~MACHINE_RANK_REPORTED;
    }
    if (opening) {
        struct machine_action *act =
            machine_act_on(t, MACHINE_ACT_SEND_FOLDER, save->step, save->generation);
        act->rank = MACHINE_ALL_RANKS;
    } else {
        machine_send_done(t, save->step, MACHINE_ALL_RANKS, false);
    }
    if (m->state == MACHINE_SAVING && !machine_ends(m)) {
        machine_set_reason(m, "waits to save step %llu: %.400s", (unsigned long long)save->step,
                           why);
    }
    machine_save_remove(t, index);
}

void machine_on_drop_done(struct machine_turn *t)
{
    struct machine *m = t->m;
    int index = machine_answered_save(t);
    if (index < 0 || m->saves[index].state != MACHINE_SAVE_DROPPING)
        return;
    m->saves[index].removing = false;
    const enum status st = t->ev->answer.status; /* again: a file of it is open somewhere */
    const bool gone = st == ST_OK || st == ST_EXISTS || st == ST_AGAIN;
    if (!gone && !machine_all_left(m)) {
        (void)machine_unsaved(t, t->ev->answer.message);
        m->saves[index].retry_at = t->now + machine_retry_ms(++m->saves[index].tries);
        return;
    }
    /* A folder that stays hinders nobody: the next try has another. The last step, or an announced
     * one, is saved again. */
    machine_save_set_state(t, &m->saves[index], MACHINE_SAVE_DROPPED);
    m->saves[index].retry_at = t->now + machine_retry_ms(m->saves[index].tries);
}

/* True if every rank holds on to its file: the store lets none of them go on. */
static bool every_rank_holds_on(const struct machine *m, int index)
{
    bool every = true;
    for (uint32_t i = 0; i < m->size; i++) {
        bool assumed = m->ranks[i].save_flags[index] & MACHINE_RANK_ASSUMED;
        every = every && may_have_file(&m->ranks[i], index) && !assumed;
    }
    return every;
}

/* Called when a rank doesn't say that its file of a dropped save is gone. It may still be writing,
 * so this generation must not save the step again. If it has to, the generation ends; but if no
 * rank says it, the store hangs for all, and all wait. */
static void give_up_on(struct machine_turn *t, int index)
{
    struct machine *m = t->m;
    struct machine_save *save = &m->saves[index];
    save->since = t->now;
    bool last = m->total_steps > 0 && save->step >= m->total_steps;
    if (!last && !save->wanted && !machine_announced_exit(m, save->step)) {
        machine_save_set_state(t, save, MACHINE_SAVE_DROPPED);
        return;
    }
    if (every_rank_holds_on(m, index)) {
        (void)machine_unsaved(t, save->message);
        return;
    }
    for (uint32_t i = 0; i < m->size; i++) {
        const struct machine_rank *rank = &m->ranks[i];
        if (!may_have_file(rank, index))
            continue;
        struct machine_fault fault = {
            .kind = MACHINE_FAULT_SESSION, .rank = i, .step = rank->step, .outside = true
        };
        machine_text(fault.phase, sizeof fault.phase, rank->phase);
        machine_text(fault.message, sizeof fault.message,
                     "it holds on to its file of a dropped save");
        machine_fail(t, &fault);
        return;
    }
}

/* Returns how long ranks have for saying that their files are gone. */
static int64_t patience_ms(const struct machine *m, int index)
{
    for (uint32_t i = 0; i < m->size; i++) {
        bool assumed = m->ranks[i].save_flags[index] & MACHINE_RANK_ASSUMED;
        if (may_have_file(&m->ranks[i], index) && !assumed)
            return MACHINE_REMOVE_MS;
    }
    return MACHINE_ASSUMED_MS;
}

bool machine_drop_tick(struct machine_turn *t, int index)
{
    const struct machine_save *save = &t->m->saves[index];
    if (save->state != MACHINE_SAVE_DROPPING || save->removing || save->retry_at != 0 ||
        t->now - save->since < patience_ms(t->m, index))
        return false;
    give_up_on(t, index);
    return true;
}

void machine_saves_end(struct machine_turn *t)
{
    struct machine *m = t->m;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        struct machine_save *save = &m->saves[i];
        if (save->state == MACHINE_SAVE_COLLECTING) {
            machine_save_drop(t, i, "the generation ended before all workers had written", true);
        } else if (save->state == MACHINE_SAVE_DROPPING && save->retry_at == 0) {
            machine_save_remove(t, i);
        }
        save->wanted = false;
        if (save->state == MACHINE_SAVE_DROPPED)
            save->retry_at = 0;
    }
}

int64_t machine_saves_deadline(const struct machine *m)
{
    int64_t at = INT64_MAX;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        const struct machine_save *save = &m->saves[i];
        if (save->retry_at != 0 && save->retry_at < at)
            at = save->retry_at;
        if (save->state != MACHINE_SAVE_DROPPING || save->removing)
            continue;
        int64_t end = save->since + patience_ms(m, i);
        at = end < at ? end : at;
    }
    return at;
}

/* ---- a rank fails, or is late ---- */

/* A rank is late, and will not write a save that others may not have begun yet. All of them have to
 * know at once; else each writes the file that the next one is late for. */
static void drop_before_begin(struct machine_turn *t)
{
    struct machine *m = t->m;
    uint64_t step = t->ev->save_failed.step;
    if (!machine_trains(m) || machine_ends(m) || machine_ckpt_at(m, step, m->generation))
        return;
    int index = machine_save_new(t, step, MACHINE_SAVE_DROPPED);
    if (index < 0)
        return;
    m->ranks[t->ev->rank].save_flags[index] = MACHINE_RANK_KNOWS_DROP | MACHINE_RANK_REMOVED;
    m->saves[index].retry_at = t->now + machine_retry_ms(1); /* where it was announced */
    if (!m->room.late_reported) {
        machine_tell(t, "save-dropped", "step %llu: %.400s", (unsigned long long)step,
                     t->ev->save_failed.message ? t->ev->save_failed.message : "a worker was late");
    }
    m->room.late_reported = true;
    machine_send_done(t, step, MACHINE_ALL_RANKS, false);
}

void machine_on_save_failed(struct machine_turn *t)
{
    struct machine *m = t->m;
    int index = machine_save_index(m, t->ev->save_failed.step, m->generation);
    if (index < 0) {
        drop_before_begin(t);
        return;
    }
    struct machine_save *save = &m->saves[index];
    uint8_t *flags = &m->ranks[t->ev->rank].save_flags[index];
    if (t->ev->save_failed.removed)
        *flags |= MACHINE_RANK_REMOVED;
    if (save->state == MACHINE_SAVE_OPENING || save->state == MACHINE_SAVE_COLLECTING) {
        const char *why = t->ev->save_failed.message;
        if (!why || !why[0])
            why = t->ev->save_failed.full ? "the store is full" : "a worker could not write";
        *flags |= MACHINE_RANK_BEGUN;
        m->ranks[t->ev->rank].save_failed = true;
        if (t->ev->save_failed.full) {
            machine_save_refuse(t, index, why);
        } else {
            machine_save_drop(t, index, why, true);
        }
    } else if (save->state == MACHINE_SAVE_DROPPING) {
        machine_save_remove(t, index);
    }
}

/* ---- no room, no store ---- */

/* Only the checkpoint is lost: training goes on, and the next save that is due is a new try. The
 * last save of a job, or before a pause, is tried again by the workers themselves. */
void machine_save_refuse(struct machine_turn *t, int index, const char *why)
{
    struct machine *m = t->m;
    struct machine_save *save = &m->saves[index];
    bool first = m->room.row == 0;
    bool exit = false;
    m->room.refused++;
    m->room.row++;
    machine_text(m->room.reason, sizeof m->room.reason, why);
    if (!machine_announced_exit(m, save->step))
        (void)machine_forget_announced(m, save->step, &exit);
    if (first) {
        machine_tell(t, "store-full", "step %llu is not saved, training goes on: %.380s",
                     (unsigned long long)save->step, why);
    }
    if (m->state == MACHINE_RUNNING) {
        machine_set_reason(m, "no room for the checkpoint of step %llu: %.400s",
                           (unsigned long long)save->step, why);
    }
    machine_save_drop(t, index, why, false);
    machine_retain(t); /* makes room */
}

bool machine_unsaved(struct machine_turn *t, const char *why)
{
    struct machine *m = t->m;
    const struct machine_ckpt *newest = machine_newest(m);
    unsigned long long since = newest ? newest->step : 0;
    if (!machine_trains(m) || machine_ends(m))
        return false;
    if (!m->room.unsaved)
        machine_tell(t, "store-fails", "no checkpoint since step %llu: %.400s", since, why);
    m->room.unsaved = true;
    const char *waits = m->state == MACHINE_SAVING ? "waits to save; " : "";
    machine_set_reason(m, "%sno checkpoint since step %llu: %.400s", waits, since, why);
    return true;
}

void machine_room_again(struct machine_turn *t, uint64_t step)
{
    struct machine *m = t->m;
    if (m->room.unsaved)
        machine_tell(t, "store-works", "step %llu is saved", (unsigned long long)step);
    m->room.unsaved = false;
    m->room.late_reported = false;
    if (m->room.row == 0)
        return;
    machine_tell(t, "store-room", "step %llu is saved; the store had no room for the %u before",
                 (unsigned long long)step, m->room.row);
    m->room.row = 0;
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
 *     none is open when the sweep is asked for, and none is ever opened again (machine.h,
 *     invariants 1 to 4).
 *   - A checkpoint that lost its manifest is in the catalog: that is damage, and kept as evidence.
 *   - bad-... folders and whatever has no name of ours stay.
 *   - A worker of a generation that is over may still write, cut off somewhere: none of it counts.
 */

/* Returns the generation before which all are over; 0: not now. */
static uint32_t over_before(const struct machine *m)
{
    if (machine_state_final(m->state))
        return machine_saves_busy(m) ? 0 : m->generation + 1;
    return m->state == MACHINE_RUNNING && m->committed ? m->generation : 0;
}

enum machine_rest machine_rested(const struct machine *m)
{
    if (!machine_state_final(m->state) || machine_saves_busy(m))
        return MACHINE_BUSY;
    bool left = over_before(m) >= 2 && over_before(m) > m->swept;
    for (size_t i = 0; !left && i < m->catalog_count; i++) {
        const struct machine_ckpt *ckpt = &m->catalog[i];
        left = ckpt->state == MACHINE_CKPT_REMOVING || ckpt->state == MACHINE_CKPT_QUARANTINING ||
               ckpt->verifying || ckpt->reading != 0;
    }
    return left ? MACHINE_LEFT : MACHINE_OVER;
}

static bool is_busy_before(const struct machine *m, uint32_t generation)
{
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        if (machine_save_busy(&m->saves[i]) && m->saves[i].generation < generation)
            return true;
    }
    return false;
}

void machine_sweep(struct machine_turn *t)
{
    struct machine *m = t->m;
    uint32_t before = over_before(m);
    if (before < 2 || before <= m->swept || before <= m->sweep_asked || is_busy_before(m, before))
        return;
    m->sweep_asked = before;
    machine_ask_store(t, MACHINE_TASK_SWEEP, 0, before);
}

void machine_sweep_again(struct machine_turn *t)
{
    if (t->m->sweep_failed)
        t->m->sweep_asked = t->m->swept;
    t->m->sweep_failed = false;
}

/* Folders that are left, by a failure or for being too many, go with the next commit, or, if the
 * job has ended, with the coordinator's next start. */
void machine_on_sweep_done(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (t->ev->answer.swept > 0) {
        machine_tell(t, "swept", "%llu folders of saves that were never committed were removed",
                     (unsigned long long)t->ev->answer.swept);
    }
    m->sweep_failed = t->ev->answer.status != ST_OK;
    if (m->sweep_failed || t->ev->answer.generation <= m->swept)
        return;
    m->swept = t->ev->answer.generation;
    m->dirty = true;
}
