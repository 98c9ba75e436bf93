/* Saves on their way to checkpoints: the moves of enum fsm_save_state (parts.h). */
#include "server/jobfsm/save.h"

#include <stdio.h>

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/retention.h"
#include "server/jobfsm/save_abort.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

/* ---- a save begins ---- */

static void send_folder(struct fsm_ctx *t, int index, uint32_t rank, bool there)
{
    struct fsm_save *save = &t->m->saves[index];
    struct fsm_action *act = fsm_act_on(t, FSM_ACT_SEND_FOLDER, save->step, save->generation);
    act->rank = rank;
    act->there = there;
}

/* Takes the number of this try, journalled before the folder that is named after it is asked for.
 * What was asked of the store before may happen as late as it likes: in other folders. */
static uint32_t take_try(struct fsm *m, uint64_t step)
{
    m->dirty = true;
    if (step <= m->tried_step)
        return ++m->tried_again;
    m->tried_step = step;
    return 0;
}

/* Opens a save: from now on it has a base, and the next one by time is counted. */
static void open_save(struct fsm_ctx *t, struct fsm_save *save)
{
    const struct fsm_ckpt *base = fsm_choose_base(t->m, save->step);
    CHECK(save->state == FSM_SAVE_OPENING || save->state == FSM_SAVE_DROPPED);
    FSM_SAVE_MOVE(save, FSM_SAVE_OPENING);
    save->since = t->now;
    save->try_number = take_try(t->m, save->step);
    save->base_step = base != NULL ? base->step : 0;
    save->base_generation = base != NULL ? base->generation : 0;
    save->cost_us = 0;
    save->write_ms = 0;
    save->times = (struct fsm_save_times){ 0 };
    save->reported_at = 0;
    fsm_due_from(t);
    fsm_ask_store(t, FSM_TASK_FOLDER, save->step, save->generation);
}

/* The folder of a dropped save is gone: it is begun again if ranks did so or people wait for it. */
static void save_again(struct fsm_ctx *t, int index)
{
    struct fsm *m = t->m;
    struct fsm_save *save = &m->saves[index];
    if (fsm_ends(m))
        return;
    if (save->wanted) {
        save->wanted = false;
        for (uint32_t i = 0; i < m->size; i++) {
            uint8_t *flags = &m->ranks[i].save_flags[index];
            *flags =
                (*flags & FSM_RANK_BEGUN) && !(*flags & FSM_RANK_KNOWS_DROP) ? FSM_RANK_BEGUN : 0;
        }
        open_save(t, save);
        return;
    }
    bool exit;
    if (fsm_announced_exit(m, save->step))
        return; /* ranks that are to leave with it begin it again by themselves */
    if (fsm_forget_announced(m, save->step, &exit))
        fsm_announce(t, false);
}

/*
 * A rank saves one step after the other and speaks of them in that order: whoever begins a later
 * one will not report an earlier one any more. (It may have let it go while the coordinator was
 * away.)
 */
static void drop_outdated(struct fsm_ctx *t, uint32_t rank, uint64_t step)
{
    struct fsm *m = t->m;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        struct fsm_save *save = &m->saves[i];
        uint8_t *flags = &m->ranks[rank].save_flags[i];
        bool open = save->state == FSM_SAVE_OPENING || save->state == FSM_SAVE_COLLECTING;
        if (!open || save->step >= step || (*flags & FSM_RANK_REPORTED))
            continue;
        *flags = FSM_RANK_KNOWS_DROP | FSM_RANK_REMOVED;
        fsm_save_drop(t, i, "a worker went on without it", !m->store_full.late_reported);
        m->store_full.late_reported = true;
        send_folder(t, i, rank, false); /* should it wait for the folder all the same */
    }
}

/* Finds the save of that step, perhaps a new one; -1: there is none for this rank, which was
 * answered. */
static int find_or_open(struct fsm_ctx *t, uint32_t rank, uint64_t step)
{
    struct fsm *m = t->m;
    int index = fsm_save_index(m, step, m->generation);
    if (index >= 0)
        return index;
    if (fsm_ckpt_at(m, step, m->generation) != NULL) {
        fsm_send_done(t, step, rank, true);
        return -1;
    }
    if (fsm_trains(m) && !fsm_ends(m))
        index = FSM_SAVE_NEW(t, step, FSM_SAVE_OPENING);
    if (index < 0) {
        m->ranks[rank].counter_at = t->now; /* a rank that waits for it is not hanging */
        if (!m->store_full.unsaved)
            (void)fsm_unsaved(t, "the saves before wait for the store, one more has no place");
        fsm_act_on(t, FSM_ACT_SEND_FOLDER, step, m->generation)->rank = rank;
        return -1;
    }
    if (fsm_is_last(m, step) && m->state == FSM_RUNNING) {
        FSM_MOVE(m, FSM_SAVING);
        m->dirty = true;
    }
    open_save(t, &m->saves[index]);
    return index;
}

/* Handles a rank that begins a save which is dropped. */
static void begin_dropped(struct fsm_ctx *t, int index, uint32_t rank)
{
    struct fsm_save *save = &t->m->saves[index];
    uint8_t *flags = &t->m->ranks[rank].save_flags[index];
    if (*flags & FSM_RANK_KNOWS_DROP) { /* the rank tries again */
        *flags = FSM_RANK_BEGUN | FSM_RANK_REMOVED;
        save->wanted = true;
        if (save->state == FSM_SAVE_DROPPING) {
            fsm_save_remove(t, index);
        } else if (save->retry_at == 0) {
            save->retry_at = t->now + fsm_retry_ms(save->failures);
        }
    } else if (!(*flags & FSM_RANK_BEGUN)) {
        *flags |= FSM_RANK_KNOWS_DROP | FSM_RANK_REMOVED;
        send_folder(t, index, rank, false);
        if (save->state == FSM_SAVE_DROPPING)
            fsm_save_remove(t, index);
    }
}

void fsm_on_save_begin(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    uint32_t rank = t->ev->rank;
    uint64_t step = t->ev->save_begin.step;
    drop_outdated(t, rank, step);
    int index = find_or_open(t, rank, step);
    if (index < 0)
        return;
    uint8_t *flags = &m->ranks[rank].save_flags[index];
    if ((*flags & FSM_RANK_ASSUMED) && m->saves[index].state == FSM_SAVE_DROPPING)
        *flags = 0; /* the rank begins: so it has no file there */
    *flags &= (uint8_t)~FSM_RANK_ASSUMED;
    switch (m->saves[index].state) {
    case FSM_SAVE_OPENING:
        *flags |= FSM_RANK_BEGUN;
        break;
    case FSM_SAVE_COLLECTING:
        *flags |= FSM_RANK_BEGUN;
        send_folder(t, index, rank, true);
        break;
    case FSM_SAVE_COMMITTED:
        fsm_send_done(t, step, rank, true);
        break;
    case FSM_SAVE_DROPPING:
    case FSM_SAVE_DROPPED:
        begin_dropped(t, index, rank);
        break;
    case FSM_SAVE_CHECKING:
    case FSM_SAVE_COMMITTING:
    case FSM_SAVE_FREE:
        break;
    }
}

void fsm_on_folder_done(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    int index = fsm_answered_save(t);
    if (index < 0)
        return;
    struct fsm_save *save = &m->saves[index];
    if (save->state != FSM_SAVE_OPENING)
        return;
    if (t->ev->answer.status == ST_FULL) {
        fsm_save_refuse(t, index, t->ev->answer.message);
        return;
    }
    if (t->ev->answer.status != ST_OK) {
        fsm_save_drop(t, index, t->ev->answer.message, !fsm_unsaved(t, t->ev->answer.message));
        return;
    }
    FSM_SAVE_SET_STATE(t, save, FSM_SAVE_COLLECTING);
    send_folder(t, index, FSM_ALL_RANKS, true);
}

/* ---- ranks report ---- */

static void check_save(struct fsm_ctx *t, int index)
{
    struct fsm_save *save = &t->m->saves[index];
    CHECK(fsm_every_rank(t->m, index, FSM_RANK_REPORTED));
    FSM_SAVE_SET_STATE(t, save, FSM_SAVE_CHECKING);
    save->reported_at = t->now;
    fsm_ask_store(t, FSM_TASK_CHECK, save->step, save->generation);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Notes the times of the slowest rank, and the sum of processor time. */
static void note_times(struct fsm_save *save, const struct fsm_report *report)
{
    struct fsm_save_times *times = &save->times;
    save->cost_us = larger(save->cost_us, report->cost_us);
    save->write_ms = larger(save->write_ms, report->write_ms);
    times->stall_us = larger(times->stall_us, report->times.stall_us);
    times->encode_us += report->times.encode_us;
    times->io_us = larger(times->io_us, report->times.io_us);
    times->sync_us = larger(times->sync_us, report->times.sync_us);
}

/* A report comes again until its rank hears what became of the save, and once more with last
 * words. */
void fsm_on_save_report(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    uint32_t rank = t->ev->rank;
    uint64_t step = t->ev->save_report.step;
    int index = fsm_save_index(m, step, m->generation);
    enum fsm_save_state state = index < 0 ? FSM_SAVE_FREE : m->saves[index].state;
    if (state < FSM_SAVE_COLLECTING || state > FSM_SAVE_COMMITTING) {
        bool committed = state == FSM_SAVE_COMMITTED || fsm_ckpt_at(m, step, m->generation) != NULL;
        fsm_send_done(t, step, rank, committed);
        return;
    }
    uint8_t *flags = &m->ranks[rank].save_flags[index];
    if (state != FSM_SAVE_COLLECTING || (*flags & FSM_RANK_REPORTED))
        return;
    *flags |= FSM_RANK_BEGUN | FSM_RANK_REPORTED;
    m->ranks[rank].save_failed = false;
    note_times(&m->saves[index], &t->ev->save_report);
    fsm_act_on(t, FSM_ACT_REPORT_ROW, step, m->generation)->rank = rank;
    if (fsm_every_rank(m, index, FSM_RANK_REPORTED))
        check_save(t, index);
}

/* Drops the save of a step that some rank had passed before it heard that it was to be saved. */
static void drop_passed(struct fsm_ctx *t, uint64_t step, bool exit)
{
    struct fsm *m = t->m;
    if (exit) { /* said first: ranks that wait for that save, to leave, don't begin it again */
        m->due.stay_step = step;
        fsm_act_on(t, FSM_ACT_STAY, step, m->generation);
    }
    int index = fsm_save_index(m, step, m->generation);
    if (index < 0) {
        /* Ranks that come to that step are told so. */
        (void)FSM_SAVE_NEW(t, step, FSM_SAVE_DROPPED);
    } else if (m->saves[index].state == FSM_SAVE_OPENING ||
               m->saves[index].state == FSM_SAVE_COLLECTING) {
        fsm_save_drop(t, index, "a worker had passed that step", true);
    }
}

void fsm_on_save_passed(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    bool exit;
    if (t->ev->save_passed.at > m->ranks[t->ev->rank].step)
        m->ranks[t->ev->rank].step = t->ev->save_passed.at;
    if (!fsm_forget_announced(m, t->ev->save_passed.step, &exit))
        return;
    drop_passed(t, t->ev->save_passed.step, exit);
    m->due.passes++; /* the ranks are faster than we thought: further ahead next time */
    fsm_announce(t, exit);
}

void fsm_saves_beyond(struct fsm_ctx *t, uint32_t rank, uint64_t step)
{
    struct fsm *m = t->m;
    for (int i = 0; rank < m->size && i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        const bool open = save->state == FSM_SAVE_OPENING || save->state == FSM_SAVE_COLLECTING;
        const uint64_t passed = save->step;
        bool exit;
        if (!open || save->generation != m->generation || passed >= step ||
            m->ranks[rank].save_flags[i] != 0 || fsm_ends(m))
            continue;
        const bool announced = fsm_forget_announced(m, passed, &exit);
        drop_passed(t, passed, announced && exit);
        if (announced)
            fsm_announce(t, exit);
    }
}

/* ---- the decision ---- */

void fsm_on_check_done(struct fsm_ctx *t)
{
    int index = fsm_answered_save(t);
    if (index < 0)
        return;
    struct fsm_save *save = &t->m->saves[index];
    if (save->state != FSM_SAVE_CHECKING)
        return;
    if (t->ev->answer.status == ST_OK) {
        save->failures = 0;
        FSM_SAVE_SET_STATE(t, save, FSM_SAVE_COMMITTING);
        fsm_ask_store(t, FSM_TASK_PUBLISH, save->step, save->generation);
        return;
    }
    enum status st = t->ev->answer.status;
    bool again = st == ST_IO || st == ST_TIMED_OUT || st == ST_UNREACHABLE || st == ST_AWAY ||
                 st == ST_FORGOTTEN || st == ST_NO_MEMORY;
    bool reported = again && fsm_unsaved(t, t->ev->answer.message);
    fsm_text(save->message, sizeof(save->message), t->ev->answer.message);
    if (again && ++save->failures < FSM_STORE_TRIES) {
        save->retry_at = t->now + fsm_retry_ms(save->failures);
        return;
    }
    /* Ranks may have disagreed on whether the base can be read. */
    if (!again && save->base_generation > 0)
        t->m->base_refused = true;
    fsm_save_drop(t, index, t->ev->answer.message, !reported);
}

/* Called after a commit, which the job's end, or the end of this generation, may wait for. */
static void after_commit(struct fsm_ctx *t, uint64_t step)
{
    struct fsm *m = t->m;
    bool exit = fsm_announced_exit(m, step);
    bool forgotten;
    if (fsm_forget_announced(m, step, &forgotten))
        m->due.passes = 0;
    if (exit && m->intent == FSM_INTENT_STOP && m->ending.to == FSM_RECOVERING)
        m->ending.to = FSM_STOPPED; /* what it was to recover for is saved after all */
    if (fsm_ends(m) || !fsm_alive(m))
        return;
    if (fsm_is_last(m, step)) {
        fsm_end_generation(t, FSM_SUCCEEDED, true);
        return;
    }
    fsm_set_reason(m, "%s", "");
    if (!exit)
        return;
    fsm_end_generation(t, fsm_intended(m->intent), true);
}

/* Returns the times that the save took; of a save that another coordinator began, not all of that
 * is known. */
static struct fsm_save_times times_of(const struct fsm_ctx *t, const struct fsm_save *save)
{
    struct fsm_save_times times = save->times;
    if (save->reported_at == 0 || times.encode_us == 0)
        return (struct fsm_save_times){ 0 };
    times.save_us = save->write_ms * 1000;
    times.commit_us = (t->now - save->reported_at) * 1000;
    return times;
}

static void emit_saved(struct fsm_ctx *t, const struct fsm_ckpt *ckpt)
{
    const struct fsm_save_times *times = &ckpt->times;
    char took[160] = "";
    if (times->encode_us > 0) {
        (void)snprintf(took, sizeof(took),
                       "; the step waited %.1f ms, saving took %.1f ms of processor time, "
                       "writing %.1f ms, syncing %.1f, committing %lld",
                       (double)times->stall_us / 1e3, (double)times->encode_us / 1e3,
                       (double)times->io_us / 1e3, (double)times->sync_us / 1e3,
                       (long long)times->commit_us / 1000);
    }
    fsm_emit_event_of(t, ckpt->step, "saved",
                      "step %llu, %.1f MB, %.3f times smaller than the state, digest %s%s",
                      (unsigned long long)ckpt->step, (double)ckpt->bytes / 1e6,
                      ckpt->bytes > 0 ? (double)ckpt->raw_bytes / (double)ckpt->bytes : 0.0,
                      ckpt->digest, took);
}

void fsm_on_publish_done(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    int index = fsm_answered_save(t);
    if (index < 0)
        return;
    struct fsm_save *save = &m->saves[index];
    if (save->state != FSM_SAVE_COMMITTING)
        return;
    if (t->ev->answer.status == ST_NOT_FOUND && save->failures + 1 >= FSM_STORE_TRIES) {
        fsm_save_drop(t, index, t->ev->answer.message, true); /* somebody removed its folder */
        return;
    }
    if (t->ev->answer.status != ST_OK || t->ev->answer.ckpt == NULL) {
        save->failures++;
        save->retry_at = t->now + fsm_retry_ms(save->failures);
        fsm_text(save->message, sizeof(save->message), t->ev->answer.message);
        (void)fsm_unsaved(t, t->ev->answer.message);
        fsm_set_reason(m, "waits to publish step %llu: %.400s", (unsigned long long)save->step,
                       t->ev->answer.message);
        if (t->ev->answer.status == ST_FULL)
            fsm_retain(t);
        return;
    }
    struct fsm_ckpt ckpt = *t->ev->answer.ckpt;
    CHECK(ckpt.step == save->step);
    CHECK(ckpt.generation == save->generation);
    ckpt.times = times_of(t, save);
    enum status added = fsm_add_ckpt(m, &ckpt);
    if (added != ST_OK) {
        save->retry_at = t->now + fsm_retry_ms(++save->failures);
        fsm_set_reason(m, "waits to list step %llu: %s", (unsigned long long)save->step,
                       added == ST_FULL ? "a job has 65536 checkpoints at most, remove some"
                                        : status_string(added));
        return;
    }
    m->base_refused = false;
    FSM_SAVE_SET_STATE(t, save, FSM_SAVE_COMMITTED);
    fsm_act_on(t, FSM_ACT_CKPT_ROW, save->step, save->generation);
    if (!m->committed)
        fsm_act(t, FSM_ACT_FORGET); /* copies on nodes that it doesn't run on any more */
    m->committed = true;
    fsm_sweep_again(t);
    if (save->step > m->step_max) /* before any rank said that it had finished it */
        fsm_note_reached(t, save->step);
    if (save->generation == m->generation)
        m->progress_at = t->now;
    emit_saved(t, &ckpt);
    if (fsm_alive(m))
        fsm_send_done(t, save->step, FSM_ALL_RANKS, true);
    fsm_store_has_space_again(t, save->step);
    fsm_note_cost(t, save);
    fsm_note_stall(m, save->times.stall_us);
    after_commit(t, save->step);
    fsm_retain(t);
}

/* ---- time; after a restart of the coordinator ---- */

void fsm_saves_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        struct fsm_save *save = &m->saves[i];
        if (fsm_drop_tick(t, i))
            continue;
        if (save->retry_at == 0 || t->now < save->retry_at)
            continue;
        save->retry_at = 0;
        switch (save->state) {
        case FSM_SAVE_CHECKING:
            fsm_ask_store(t, FSM_TASK_CHECK, save->step, save->generation);
            break;
        case FSM_SAVE_COMMITTING:
            fsm_ask_store(t, FSM_TASK_PUBLISH, save->step, save->generation);
            break;
        case FSM_SAVE_DROPPING:
            fsm_save_remove(t, i);
            break;
        case FSM_SAVE_DROPPED:
            save_again(t, i);
            break;
        case FSM_SAVE_FREE:
        case FSM_SAVE_OPENING:
        case FSM_SAVE_COLLECTING:
        case FSM_SAVE_COMMITTED:
            break;
        }
    }
}

void fsm_saves_resume(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        struct fsm_save *save = &m->saves[i];
        save->since = t->now;
        if (save->state == FSM_SAVE_COMMITTING) {
            fsm_ask_store(t, FSM_TASK_PUBLISH, save->step, save->generation);
        } else if (save->state == FSM_SAVE_COLLECTING && fsm_every_rank(m, i, FSM_RANK_REPORTED)) {
            check_save(t, i);
        }
    }
}

void fsm_load_save(struct fsm *m, const struct fsm_save *row)
{
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        if (m->saves[i].state != FSM_SAVE_FREE)
            continue;
        m->saves[i] = *row;
        /* The journal doesn't have which ranks began it: each may have a file there. */
        for (uint32_t r = 0; r < m->size; r++)
            m->ranks[r].save_flags[i] = FSM_RANK_BEGUN | FSM_RANK_ASSUMED;
        return;
    }
}

void fsm_load_report(struct fsm *m, uint64_t step, uint32_t generation, uint32_t rank)
{
    int index = fsm_save_index(m, step, generation);
    if (index >= 0 && rank < m->size)
        m->ranks[rank].save_flags[index] |= FSM_RANK_REPORTED;
}
