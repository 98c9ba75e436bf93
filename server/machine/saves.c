/*
 * Saves on their way to checkpoints. A save is one attempt at a checkpoint of one step:
 *
 *   FREE, DROPPED -> OPENING    [open_save]               a rank begins; the folder is being made
 *   OPENING       -> COLLECTING [machine_on_folder_done]  ranks are told where, write and report
 *   COLLECTING    -> CHECKING   [check_save]              the last report is journalled
 *   CHECKING      -> COMMITTING [machine_on_check_done]   journalled with the manifest: it decides
 *   COMMITTING    -> COMMITTED  [machine_on_publish_done] repeated until it succeeds
 *
 *   OPENING, COLLECTING, CHECKING -> DROPPING [machine_save_drop]
 *   COMMITTING -> DROPPING  [machine_on_publish_done]  the folder was removed, and stays gone
 *   DROPPING   -> DROPPED   [machine_on_drop_done, give_up_on]
 *   FREE       -> DROPPED   [drop_before_begin, machine_on_save_passed]  a rank will not save it
 *
 * The journal has COLLECTING (with the reports that are in), COMMITTING and DROPPING. A save that
 * is OPENING when the coordinator dies is begun again by its ranks. One that is COMMITTED or
 * DROPPED keeps its place as long as nobody needs it, so that late ranks hear what became of it.
 */
#include <stdio.h>

#include "common/check.h"
#include "server/machine/internal.h"

/* ---- a save begins ---- */

static void send_folder(struct machine_turn *t, int index, uint32_t rank, bool there)
{
    struct machine_save *save = &t->m->saves[index];
    struct machine_action *act =
        machine_act_on(t, MACHINE_ACT_SEND_FOLDER, save->step, save->generation);
    act->rank = rank;
    act->there = there;
}

/* Takes the number of this try, journalled before the folder that is named after it is asked for.
 * What was asked of the store before may happen as late as it likes: in other folders. */
static uint32_t take_try(struct machine *m, uint64_t step)
{
    m->dirty = true;
    if (step <= m->tried_step)
        return ++m->tried_again;
    m->tried_step = step;
    return 0;
}

/* Opens a save: from now on it has a base, and the next one by time is counted. */
static void open_save(struct machine_turn *t, struct machine_save *save)
{
    const struct machine_ckpt *base = machine_choose_base(t->m, save->step);
    CHECK(save->state == MACHINE_SAVE_OPENING || save->state == MACHINE_SAVE_DROPPED);
    save->state = MACHINE_SAVE_OPENING;
    save->since = t->now;
    save->retry = take_try(t->m, save->step);
    save->base_step = base ? base->step : 0;
    save->base_generation = base ? base->generation : 0;
    save->cost_us = 0;
    save->write_ms = 0;
    save->times = (struct machine_save_times){ 0 };
    save->reported_at = 0;
    machine_due_from(t);
    machine_ask_store(t, MACHINE_TASK_FOLDER, save->step, save->generation);
}

/* The folder of a dropped save is gone: it is begun again if ranks did so or people wait for it. */
static void save_again(struct machine_turn *t, int index)
{
    struct machine *m = t->m;
    struct machine_save *save = &m->saves[index];
    if (machine_ends(m))
        return;
    if (save->wanted) {
        save->wanted = false;
        for (uint32_t i = 0; i < m->size; i++) {
            uint8_t *flags = &m->ranks[i].save_flags[index];
            *flags = (*flags & MACHINE_RANK_BEGUN) && !(*flags & MACHINE_RANK_KNOWS_DROP)
                         ? MACHINE_RANK_BEGUN
                         : 0;
        }
        open_save(t, save);
        return;
    }
    bool exit;
    if (machine_announced_exit(m, save->step))
        return; /* ranks that are to leave with it begin it again by themselves */
    if (machine_forget_announced(m, save->step, &exit))
        machine_announce(t, false);
}

/*
 * A rank saves one step after the other and speaks of them in that order: whoever begins a later
 * one will not report an earlier one any more. (It may have let it go while the coordinator was
 * away.)
 */
static void drop_outdated(struct machine_turn *t, uint32_t rank, uint64_t step)
{
    struct machine *m = t->m;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        struct machine_save *save = &m->saves[i];
        uint8_t *flags = &m->ranks[rank].save_flags[i];
        bool open = save->state == MACHINE_SAVE_OPENING || save->state == MACHINE_SAVE_COLLECTING;
        if (!open || save->step >= step || (*flags & MACHINE_RANK_REPORTED))
            continue;
        *flags = MACHINE_RANK_KNOWS_DROP | MACHINE_RANK_REMOVED;
        machine_save_drop(t, i, "a worker went on without it", !m->room.late_reported);
        m->room.late_reported = true;
        send_folder(t, i, rank, false); /* should it wait for the folder all the same */
    }
}

/* Finds the save of that step, perhaps a new one; -1: there is none for this rank, which was
 * answered. */
static int find_or_open(struct machine_turn *t, uint32_t rank, uint64_t step)
{
    struct machine *m = t->m;
    int index = machine_save_index(m, step, m->generation);
    if (index >= 0)
        return index;
    if (machine_ckpt_at(m, step, m->generation)) {
        machine_send_done(t, step, rank, true);
        return -1;
    }
    if (machine_trains(m) && !machine_ends(m))
        index = machine_save_new(t, step, MACHINE_SAVE_OPENING);
    if (index < 0) {
        m->ranks[rank].counter_at = t->now; /* a rank that waits for it is not hanging */
        if (!m->room.unsaved)
            (void)machine_unsaved(t, "the saves before wait for the store, one more has no place");
        machine_act_on(t, MACHINE_ACT_SEND_FOLDER, step, m->generation)->rank = rank;
        return -1;
    }
    if (m->total_steps > 0 && step >= m->total_steps && m->state == MACHINE_RUNNING) {
        m->state = MACHINE_SAVING;
        m->dirty = true;
    }
    open_save(t, &m->saves[index]);
    return index;
}

/* Handles a rank that begins a save which is dropped. */
static void begin_dropped(struct machine_turn *t, int index, uint32_t rank)
{
    struct machine_save *save = &t->m->saves[index];
    uint8_t *flags = &t->m->ranks[rank].save_flags[index];
    if (*flags & MACHINE_RANK_KNOWS_DROP) { /* the rank tries again */
        *flags = MACHINE_RANK_BEGUN | MACHINE_RANK_REMOVED;
        save->wanted = true;
        if (save->state == MACHINE_SAVE_DROPPING) {
            machine_save_remove(t, index);
        } else if (save->retry_at == 0) {
            save->retry_at = t->now + machine_retry_ms(save->tries);
        }
    } else if (!(*flags & MACHINE_RANK_BEGUN)) {
        *flags |= MACHINE_RANK_KNOWS_DROP | MACHINE_RANK_REMOVED;
        send_folder(t, index, rank, false);
        if (save->state == MACHINE_SAVE_DROPPING)
            machine_save_remove(t, index);
    }
}

void machine_on_save_begin(struct machine_turn *t)
{
    struct machine *m = t->m;
    uint32_t rank = t->ev->rank;
    uint64_t step = t->ev->save_begin.step;
    drop_outdated(t, rank, step);
    int index = find_or_open(t, rank, step);
    if (index < 0)
        return;
    uint8_t *flags = &m->ranks[rank].save_flags[index];
    if ((*flags & MACHINE_RANK_ASSUMED) && m->saves[index].state == MACHINE_SAVE_DROPPING)
        *flags = 0; /* the rank begins: so it has no file there */
    *flags &= (uint8_t)~MACHINE_RANK_ASSUMED;
    switch (m->saves[index].state) {
    case MACHINE_SAVE_OPENING:
        *flags |= MACHINE_RANK_BEGUN;
        break;
    case MACHINE_SAVE_COLLECTING:
        *flags |= MACHINE_RANK_BEGUN;
        send_folder(t, index, rank, true);
        break;
    case MACHINE_SAVE_COMMITTED:
        machine_send_done(t, step, rank, true);
        break;
    case MACHINE_SAVE_DROPPING:
    case MACHINE_SAVE_DROPPED:
        begin_dropped(t, index, rank);
        break;
    case MACHINE_SAVE_CHECKING:
    case MACHINE_SAVE_COMMITTING:
    case MACHINE_SAVE_FREE:
        break;
    }
}

void machine_on_folder_done(struct machine_turn *t)
{
    struct machine *m = t->m;
    int index = machine_answered_save(t);
    if (index < 0)
        return;
    struct machine_save *save = &m->saves[index];
    if (save->state != MACHINE_SAVE_OPENING)
        return;
    if (t->ev->answer.status == ST_FULL) {
        machine_save_refuse(t, index, t->ev->answer.message);
        return;
    }
    if (t->ev->answer.status != ST_OK) {
        machine_save_drop(t, index, t->ev->answer.message,
                          !machine_unsaved(t, t->ev->answer.message));
        return;
    }
    machine_save_set_state(t, save, MACHINE_SAVE_COLLECTING);
    send_folder(t, index, MACHINE_ALL_RANKS, true);
}

/* ---- ranks report ---- */

static void check_save(struct machine_turn *t, int index)
{
    struct machine_save *save = &t->m->saves[index];
    CHECK(machine_every_rank(t->m, index, MACHINE_RANK_REPORTED));
    machine_save_set_state(t, save, MACHINE_SAVE_CHECKING);
    save->reported_at = t->now;
    machine_ask_store(t, MACHINE_TASK_CHECK, save->step, save->generation);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Notes the times of the slowest rank, and the sum of processor time. */
static void note_times(struct machine_save *save, const struct machine_report *report)
{
    struct machine_save_times *times = &save->times;
    save->cost_us = larger(save->cost_us, report->cost_us);
    save->write_ms = larger(save->write_ms, report->write_ms);
    times->stall_us = larger(times->stall_us, report->times.stall_us);
    times->encode_us += report->times.encode_us;
    times->io_us = larger(times->io_us, report->times.io_us);
    times->sync_us = larger(times->sync_us, report->times.sync_us);
}

/* A report comes again until its rank hears what became of the save, and once more with last
 * words. */
void machine_on_save_report(struct machine_turn *t)
{
    struct machine *m = t->m;
    uint32_t rank = t->ev->rank;
    uint64_t step = t->ev->save_report.step;
    int index = machine_save_index(m, step, m->generation);
    enum machine_save_state state = index < 0 ? MACHINE_SAVE_FREE : m->saves[index].state;
    if (state < MACHINE_SAVE_COLLECTING || state > MACHINE_SAVE_COMMITTING) {
        bool committed = state == MACHINE_SAVE_COMMITTED || machine_ckpt_at(m, step, m->generation);
        machine_send_done(t, step, rank, committed);
        return;
    }
    uint8_t *flags = &m->ranks[rank].save_flags[index];
    if (state != MACHINE_SAVE_COLLECTING || (*flags & MACHINE_RANK_REPORTED))
        return;
    *flags |= MACHINE_RANK_BEGUN | MACHINE_RANK_REPORTED;
    m->ranks[rank].save_failed = false;
    note_times(&m->saves[index], &t->ev->save_report);
    machine_act_on(t, MACHINE_ACT_REPORT_ROW, step, m->generation)->rank = rank;
    if (machine_every_rank(m, index, MACHINE_RANK_REPORTED))
        check_save(t, index);
}

/* Drops the save of a step that some rank had passed before it heard that it was to be saved. */
static void drop_passed(struct machine_turn *t, uint64_t step, bool exit)
{
    struct machine *m = t->m;
    if (exit) { /* said first: ranks that wait for that save, to leave, don't begin it again */
        m->due.stay_step = step;
        machine_act_on(t, MACHINE_ACT_STAY, step, m->generation);
    }
    int index = machine_save_index(m, step, m->generation);
    if (index < 0) {
        /* Ranks that come to that step are told so. */
        (void)machine_save_new(t, step, MACHINE_SAVE_DROPPED);
    } else if (m->saves[index].state == MACHINE_SAVE_OPENING ||
               m->saves[index].state == MACHINE_SAVE_COLLECTING) {
        machine_save_drop(t, index, "a worker had passed that step", true);
    }
}

void machine_on_save_passed(struct machine_turn *t)
{
    struct machine *m = t->m;
    bool exit;
    if (t->ev->save_passed.at > m->ranks[t->ev->rank].step)
        m->ranks[t->ev->rank].step = t->ev->save_passed.at;
    if (!machine_forget_announced(m, t->ev->save_passed.step, &exit))
        return;
    drop_passed(t, t->ev->save_passed.step, exit);
    m->due.passes++; /* the ranks are faster than we thought: further ahead next time */
    machine_announce(t, exit);
}

void machine_saves_beyond(struct machine_turn *t, uint32_t rank, uint64_t step)
{
    struct machine *m = t->m;
    for (int i = 0; rank < m->size && i < MACHINE_SAVES_MAX; i++) {
        const struct machine_save *save = &m->saves[i];
        const bool open =
            save->state == MACHINE_SAVE_OPENING || save->state == MACHINE_SAVE_COLLECTING;
        const uint64_t passed = save->step;
        bool exit;
        if (!open || save->generation != m->generation || passed >= step ||
            m->ranks[rank].save_flags[i] != 0 || machine_ends(m))
            continue;
        const bool announced = machine_forget_announced(m, passed, &exit);
        drop_passed(t, passed, announced && exit);
        if (announced)
            machine_announce(t, exit);
    }
}

/* ---- the decision ---- */

void machine_on_check_done(struct machine_turn *t)
{
    int index = machine_answered_save(t);
    if (index < 0)
        return;
    struct machine_save *save = &t->m->saves[index];
    if (save->state != MACHINE_SAVE_CHECKING)
        return;
    if (t->ev->answer.status == ST_OK) {
        save->tries = 0;
        machine_save_set_state(t, save, MACHINE_SAVE_COMMITTING);
        machine_ask_store(t, MACHINE_TASK_PUBLISH, save->step, save->generation);
        return;
    }
    enum status st = t->ev->answer.status;
    bool again = st == ST_IO || st == ST_TIMED_OUT || st == ST_UNREACHABLE || st == ST_AWAY ||
                 st == ST_FORGOTTEN || st == ST_NO_MEMORY;
    bool reported = again && machine_unsaved(t, t->ev->answer.message);
    if (again && ++save->tries < MACHINE_STORE_TRIES) {
        save->retry_at = t->now + machine_retry_ms(save->tries);
        return;
    }
    /* Ranks may have disagreed on whether the base can be read. */
    if (!again && save->base_generation > 0)
        t->m->base_refused = true;
    machine_save_drop(t, index, t->ev->answer.message, !reported);
}

/* Called after a commit, which the job's end, or the end of this generation, may wait for. */
static void after_commit(struct machine_turn *t, uint64_t step)
{
    struct machine *m = t->m;
    bool exit = machine_announced_exit(m, step);
    bool forgotten;
    if (machine_forget_announced(m, step, &forgotten))
        m->due.passes = 0;
    if (exit && m->intent == MACHINE_INTENT_STOP && m->ending.to == MACHINE_RECOVERING)
        m->ending.to = MACHINE_STOPPED; /* what it was to recover for is saved after all */
    if (machine_ends(m) || !machine_alive(m))
        return;
    if (m->total_steps > 0 && step >= m->total_steps) {
        machine_end_generation(t, MACHINE_SUCCEEDED, true);
        return;
    }
    machine_set_reason(m, "%s", "");
    if (!exit)
        return;
    machine_end_generation(t, machine_intended(m->intent), true);
}

/* Returns the times that the save took; of a save that another coordinator began, not all of that
 * is known. */
static struct machine_save_times times_of(const struct machine_turn *t,
                                          const struct machine_save *save)
{
    struct machine_save_times times = save->times;
    if (save->reported_at == 0 || times.encode_us == 0)
        return (struct machine_save_times){ 0 };
    times.save_us = save->write_ms * 1000;
    times.commit_us = (t->now - save->reported_at) * 1000;
    return times;
}

static void tell_saved(struct machine_turn *t, const struct machine_ckpt *ckpt)
{
    const struct machine_save_times *times = &ckpt->times;
    char took[160] = "";
    if (times->encode_us > 0) {
        (void)snprintf(took, sizeof(took),
                       "; the step waited %.1f ms, saving took %.1f ms of processor time, "
                       "writing %.1f ms, syncing %.1f, committing %lld",
                       (double)times->stall_us / 1e3, (double)times->encode_us / 1e3,
                       (double)times->io_us / 1e3, (double)times->sync_us / 1e3,
                       (long long)times->commit_us / 1000);
    }
    machine_tell_of(t, ckpt->step, "saved",
                    "step %llu, %.1f MB, %.3f times smaller than the state, digest %s%s",
                    (unsigned long long)ckpt->step, (double)ckpt->bytes / 1e6,
                    ckpt->bytes > 0 ? (double)ckpt->raw_bytes / (double)ckpt->bytes : 0.0,
                    ckpt->digest, took);
}

void machine_on_publish_done(struct machine_turn *t)
{
    struct machine *m = t->m;
    int index = machine_answered_save(t);
    if (index < 0)
        return;
    struct machine_save *save = &m->saves[index];
    if (save->state != MACHINE_SAVE_COMMITTING)
        return;
    if (t->ev->answer.status == ST_NOT_FOUND && save->tries + 1 >= MACHINE_STORE_TRIES) {
        machine_save_drop(t, index, t->ev->answer.message, true); /* somebody removed its folder */
        return;
    }
    if (t->ev->answer.status != ST_OK || !t->ev->answer.ckpt) {
        save->tries++;
        save->retry_at = t->now + machine_retry_ms(save->tries);
        (void)machine_unsaved(t, t->ev->answer.message);
        machine_set_reason(m, "waits to publish step %llu: %.400s", (unsigned long long)save->step,
                           t->ev->answer.message);
        if (t->ev->answer.status == ST_FULL)
            machine_retain(t);
        return;
    }
    struct machine_ckpt ckpt = *t->ev->answer.ckpt;
    CHECK(ckpt.step == save->step);
    CHECK(ckpt.generation == save->generation);
    ckpt.times = times_of(t, save);
    enum status added = machine_add_ckpt(m, &ckpt);
    if (added != ST_OK) {
        save->retry_at = t->now + machine_retry_ms(++save->tries);
        machine_set_reason(m, "waits to list step %llu: %s", (unsigned long long)save->step,
                           added == ST_FULL ? "a job has 65536 checkpoints at most, remove some"
                                            : status_string(added));
        return;
    }
    m->base_refused = false;
    machine_save_set_state(t, save, MACHINE_SAVE_COMMITTED);
    machine_act_on(t, MACHINE_ACT_CKPT_ROW, save->step, save->generation);
    if (!m->committed)
        machine_act(t, MACHINE_ACT_FORGET); /* copies on nodes that it doesn't run on any more */
    m->committed = true;
    machine_sweep_again(t);
    if (save->step > m->step_max) /* before any rank said that it had finished it */
        machine_note_reached(t, save->step);
    if (save->generation == m->generation)
        m->progress_at = t->now;
    tell_saved(t, &ckpt);
    if (machine_alive(m))
        machine_send_done(t, save->step, MACHINE_ALL_RANKS, true);
    machine_room_again(t, save->step);
    machine_note_cost(t, save);
    machine_note_stall(m, save->times.stall_us);
    after_commit(t, save->step);
    machine_retain(t);
}

/* ---- time; after a restart of the coordinator ---- */

void machine_saves_tick(struct machine_turn *t)
{
    struct machine *m = t->m;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        struct machine_save *save = &m->saves[i];
        if (machine_drop_tick(t, i))
            continue;
        if (save->retry_at == 0 || t->now < save->retry_at)
            continue;
        save->retry_at = 0;
        switch (save->state) {
        case MACHINE_SAVE_CHECKING:
            machine_ask_store(t, MACHINE_TASK_CHECK, save->step, save->generation);
            break;
        case MACHINE_SAVE_COMMITTING:
            machine_ask_store(t, MACHINE_TASK_PUBLISH, save->step, save->generation);
            break;
        case MACHINE_SAVE_DROPPING:
            machine_save_remove(t, i);
            break;
        case MACHINE_SAVE_DROPPED:
            save_again(t, i);
            break;
        case MACHINE_SAVE_FREE:
        case MACHINE_SAVE_OPENING:
        case MACHINE_SAVE_COLLECTING:
        case MACHINE_SAVE_COMMITTED:
            break;
        }
    }
}

void machine_saves_resume(struct machine_turn *t)
{
    struct machine *m = t->m;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        struct machine_save *save = &m->saves[i];
        save->since = t->now;
        if (save->state == MACHINE_SAVE_COMMITTING) {
            machine_ask_store(t, MACHINE_TASK_PUBLISH, save->step, save->generation);
        } else if (save->state == MACHINE_SAVE_COLLECTING &&
                   machine_every_rank(m, i, MACHINE_RANK_REPORTED)) {
            check_save(t, i);
        }
    }
}

void machine_load_save(struct machine *m, const struct machine_save *row)
{
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        if (m->saves[i].state != MACHINE_SAVE_FREE)
            continue;
        m->saves[i] = *row;
        /* The journal doesn't have which ranks began it: each may have a file there. */
        for (uint32_t r = 0; r < m->size; r++)
            m->ranks[r].save_flags[i] = MACHINE_RANK_BEGUN | MACHINE_RANK_ASSUMED;
        return;
    }
}

void machine_load_report(struct machine *m, uint64_t step, uint32_t generation, uint32_t rank)
{
    int index = machine_save_index(m, step, generation);
    if (index >= 0 && rank < m->size)
        m->ranks[rank].save_flags[index] |= MACHINE_RANK_REPORTED;
}
