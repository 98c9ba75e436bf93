/*
 * Saves of a generation, and the catalog of what was committed (design 8).
 *
 *   FREE -> OPENING                 [on_begin]      the store makes the folder
 *   OPENING -> COLLECTING           [on_folder]     ranks are told where
 *   COLLECTING -> CHECKING          [on_report]     the last report is journalled
 *   CHECKING -> COMMITTING          [on_check]      journalled with the manifest: this decides
 *   COMMITTING -> COMMITTED         [on_publish]    repeated until it succeeds, or the folder that
 *                                                   it is to lie in stays gone: -> DROPPING
 *   OPENING, COLLECTING, CHECKING -> DROPPING [drop]  -> DROPPED [removed], perhaps -> OPENING
 *   FREE -> DROPPED                 [on_failed]     a rank is late with those before
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/machine/internal.h"

static int64_t retry_ms(uint32_t tries)
{
    int64_t ms = 500;
    for (uint32_t i = 1; i < tries && ms < 30000; i++)
        ms *= 2;
    return ms < 30000 ? ms : 30000;
}

/* ---- saves ---- */

int jm_find_save(const struct job_machine *m, uint64_t step, uint32_t generation)
{
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        const struct jm_save *save = &m->saves[i];
        if (save->state != SAVE_FREE && save->step == step && save->generation == generation)
            return i;
    }
    return -1;
}

const struct jm_save *jm_find_open(const struct job_machine *m, uint64_t step, uint32_t generation)
{
    int index = jm_find_save(m, step, generation);
    return index < 0 ? NULL : &m->saves[index];
}

static int new_save(struct jm_step *s, uint64_t step, enum jm_save_state state)
{
    struct job_machine *m = s->m;
    int index = -1;
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        const struct jm_save *save = &m->saves[i];
        if (save->state == SAVE_FREE) {
            index = i;
            break;
        }
        bool over = save->state == SAVE_COMMITTED || (save->state == SAVE_DROPPED && !save->wanted);
        if (over && (index < 0 || save->since < m->saves[index].since))
            index = i;
    }
    if (index < 0)
        return -1;
    m->saves[index] = (struct jm_save){
        .state = state, .step = step, .generation = m->generation, .since = s->now
    };
    for (uint32_t i = 0; i < m->config.ranks; i++)
        m->ranks[i].save_flags[index] = 0;
    return index;
}

void jm_save_set_state(struct jm_step *s, struct jm_save *save, enum jm_save_state state)
{
    save->state = state;
    save->since = s->now;
    save->retry_at = 0;
    if (state == SAVE_CHECKING)
        return; /* the journalled reports say it */
    bool keeps = state == SAVE_COLLECTING || state == SAVE_COMMITTING || state == SAVE_DROPPING;
    jm_act_on(s, ACT_SAVE_ROW, save->step, save->generation)->value =
        keeps ? (int)state : SAVE_FREE;
}

bool jm_every_rank(const struct job_machine *m, int index, uint8_t flag)
{
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        if (!(m->ranks[i].save_flags[index] & flag))
            return false;
    }
    return true;
}

static void send_folder(struct jm_step *s, int index, uint32_t rank, bool there)
{
    struct jm_save *save = &s->m->saves[index];
    struct jm_action *act = jm_act_on(s, ACT_SEND_FOLDER, save->step, save->generation);
    act->rank = rank;
    act->flag = there;
}

void jm_send_done(struct jm_step *s, uint64_t step, uint32_t rank, bool committed)
{
    struct jm_action *act = jm_act_on(s, ACT_SEND_DONE, step, s->m->generation);
    act->rank = rank;
    act->flag = committed;
}

/* ---- dropping ---- */

/* All files of it are gone, or nobody is left to write one: the folder may go. */
void jm_save_remove(struct jm_step *s, int index)
{
    struct job_machine *m = s->m;
    struct jm_save *save = &m->saves[index];
    if (save->removing)
        return;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        const struct jm_rank *rank = &m->ranks[i];
        bool may_write =
            (rank->save_flags[index] & RANK_BEGUN) && !(rank->save_flags[index] & RANK_REMOVED);
        if (may_write && !rank->gone)
            return;
    }
    save->removing = true;
    jm_act_on(s, ACT_REMOVE, save->step, save->generation);
}

void jm_save_drop(struct jm_step *s, int index, const char *why, bool tell)
{
    struct job_machine *m = s->m;
    struct jm_save *save = &m->saves[index];
    bool opening = save->state == SAVE_OPENING;
    save->tries++;
    jm_text(save->message, sizeof save->message, why);
    jm_save_set_state(s, save, SAVE_DROPPING);
    if (tell)
        jm_event(s, "save-dropped", "step %llu: %.400s", (unsigned long long)save->step, why);
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        uint8_t *flags = &m->ranks[i].save_flags[index];
        if (*flags & RANK_BEGUN)
            *flags |= opening ? RANK_TOLD | RANK_REMOVED : RANK_TOLD;
        *flags &= (uint8_t)~RANK_REPORTED;
    }
    if (opening) {
        struct jm_action *act = jm_act_on(s, ACT_SEND_FOLDER, save->step, save->generation);
        act->rank = JM_ALL;
    } else {
        jm_send_done(s, save->step, JM_ALL, false);
    }
    if (jm_alive(m) && m->state == JOB_SAVING && m->end_to == JOB_NONE)
        jm_set_reason(m, "waits to save step %llu: %.400s", (unsigned long long)save->step, why);
    jm_save_remove(s, index);
}

/* The folder is gone. What was the last step, or announced, is saved again. */
static void removed(struct jm_step *s, int index)
{
    struct job_machine *m = s->m;
    struct jm_save *save = &m->saves[index];
    jm_save_set_state(s, save, SAVE_DROPPED);
    save->retry_at = s->now + retry_ms(save->tries);
}

/* It begins: from now on it has a base, and the next one by time is counted. */
static void open_save(struct jm_step *s, struct jm_save *save)
{
    const struct jm_ckpt *base = jm_choose_base(s->m, save->step);
    save->state = SAVE_OPENING;
    save->since = s->now;
    save->base_step = base ? base->step : 0;
    save->base_generation = base ? base->generation : 0;
    save->cost_us = 0;
    save->write_ms = 0;
    save->times = (struct jm_save_times){ 0 };
    save->reported_at = 0;
    jm_due_from(s);
    jm_act_on(s, ACT_FOLDER, save->step, save->generation);
}

/* A save that ranks asked for again, or that people wait for, after its folder went. */
void jm_save_again(struct jm_step *s, int index)
{
    struct job_machine *m = s->m;
    struct jm_save *save = &m->saves[index];
    save->retry_at = 0;
    if (m->end_to != JOB_NONE)
        return;
    if (save->wanted) {
        save->wanted = false;
        for (uint32_t i = 0; i < m->config.ranks; i++) {
            uint8_t *flags = &m->ranks[i].save_flags[index];
            *flags = (*flags & RANK_BEGUN) && !(*flags & RANK_TOLD) ? RANK_BEGUN : 0;
        }
        open_save(s, save);
        return;
    }
    bool exit;
    if (jm_announced_exit(m, save->step))
        return; /* ranks that are to leave with it begin it again by themselves */
    if (jm_forget_announced(m, save->step, &exit))
        jm_announce(s, false);
}

/*
 * A rank saves one step after the other and speaks of them in that order: whoever begins a later
 * one will not report an earlier one any more. (It may have let it go while the coordinator was
 * away.)
 */
static void drop_outdated(struct jm_step *s, uint32_t rank, uint64_t step)
{
    struct job_machine *m = s->m;
    for (int i = 0; i < JM_SAVES_MAX; i++) {
        struct jm_save *save = &m->saves[i];
        uint8_t *flags = &m->ranks[rank].save_flags[i];
        bool open = save->state == SAVE_OPENING || save->state == SAVE_COLLECTING;
        if (!open || save->step >= step || (*flags & RANK_REPORTED))
            continue;
        *flags = RANK_TOLD | RANK_REMOVED;
        jm_save_drop(s, i, "a worker went on without it", !m->late_told);
        m->late_told = true;
        send_folder(s, i, rank, false); /* should it wait for one all the same */
    }
}

void jm_on_begin(struct jm_step *s)
{
    struct job_machine *m = s->m;
    uint32_t rank = s->ev->rank;
    uint64_t step = s->ev->step;
    drop_outdated(s, rank, step);
    int index = jm_find_save(m, step, m->generation);
    if (index < 0) {
        if (jm_ckpt_at(m, step, m->generation)) {
            jm_send_done(s, step, rank, true);
            return;
        }
        bool possible = m->state == JOB_RUNNING || m->state == JOB_SAVING;
        index = possible && m->end_to == JOB_NONE ? new_save(s, step, SAVE_OPENING) : -1;
        if (index < 0) {
            m->held_at = s->now; /* who waits for it is not hanging */
            if (!m->unsaved)
                (void)jm_unsaved(s, "the saves before wait for the store, one more has no place");
            jm_act_on(s, ACT_SEND_FOLDER, step, m->generation)->rank = rank;
            return;
        }
        if (m->total_steps > 0 && step >= m->total_steps && m->state == JOB_RUNNING) {
            m->state = JOB_SAVING;
            m->dirty = true;
        }
        open_save(s, &m->saves[index]);
    }
    struct jm_save *save = &m->saves[index];
    uint8_t *flags = &m->ranks[rank].save_flags[index];
    *flags &= (uint8_t)~RANK_ASSUMED;
    switch (save->state) {
    case SAVE_OPENING:
        *flags |= RANK_BEGUN;
        break;
    case SAVE_COLLECTING:
        *flags |= RANK_BEGUN;
        send_folder(s, index, rank, true);
        break;
    case SAVE_COMMITTED:
        jm_send_done(s, step, rank, true);
        break;
    case SAVE_DROPPING:
    case SAVE_DROPPED:
        if (*flags & RANK_TOLD) { /* it was told, and tries again */
            *flags = RANK_BEGUN | RANK_REMOVED;
            save->wanted = true;
            if (save->state == SAVE_DROPPING) {
                jm_save_remove(s, index);
            } else if (save->retry_at == 0) {
                save->retry_at = s->now + retry_ms(save->tries);
            }
        } else if (!(*flags & RANK_BEGUN)) {
            *flags |= RANK_TOLD | RANK_REMOVED;
            send_folder(s, index, rank, false);
        }
        break;
    case SAVE_CHECKING:
    case SAVE_COMMITTING:
    case SAVE_FREE:
        break;
    }
}

void jm_on_folder(struct jm_step *s)
{
    struct job_machine *m = s->m;
    int index = jm_find_save(m, s->ev->step, s->ev->of_generation);
    if (index < 0)
        return;
    struct jm_save *save = &m->saves[index];
    if (save->state != SAVE_OPENING)
        return;
    if (s->ev->status == ST_FULL) {
        jm_save_refuse(s, index, s->ev->message);
        return;
    }
    if (s->ev->status != ST_OK) {
        jm_save_drop(s, index, s->ev->message, !jm_unsaved(s, s->ev->message));
        return;
    }
    jm_save_set_state(s, save, SAVE_COLLECTING);
    struct jm_action *act = jm_act_on(s, ACT_SEND_FOLDER, save->step, save->generation);
    act->rank = JM_ALL; /* those that began */
    act->flag = true;
}

void jm_save_check(struct jm_step *s, int index)
{
    struct jm_save *save = &s->m->saves[index];
    jm_save_set_state(s, save, SAVE_CHECKING);
    save->reported_at = s->now;
    jm_act_on(s, ACT_CHECK, save->step, save->generation);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The slowest rank counts. */
static void note_times(struct jm_save *save, const struct job_event *ev)
{
    struct jm_save_times *times = &save->times;
    save->cost_us = larger(save->cost_us, ev->cost_us);
    save->write_ms = larger(save->write_ms, ev->write_ms);
    times->stall_us = larger(times->stall_us, ev->times.stall_us);
    times->encode_us += ev->times.encode_us;
    times->io_us = larger(times->io_us, ev->times.io_us);
    times->sync_us = larger(times->sync_us, ev->times.sync_us);
}

void jm_on_report(struct jm_step *s)
{
    struct job_machine *m = s->m;
    uint32_t rank = s->ev->rank;
    uint64_t step = s->ev->step;
    int index = jm_find_save(m, step, m->generation);
    const struct jm_save *save = index < 0 ? NULL : &m->saves[index];
    bool known = save && save->state >= SAVE_COLLECTING && save->state <= SAVE_COMMITTED;
    if (!known && !jm_ckpt_at(m, step, m->generation)) {
        jm_send_done(s, step, rank, false);
        return;
    }
    if (known && save->state == SAVE_COLLECTING) {
        uint8_t *flags = &m->ranks[rank].save_flags[index];
        if (!(*flags & RANK_REPORTED)) {
            *flags |= RANK_BEGUN | RANK_REPORTED;
            note_times(&m->saves[index], s->ev);
            struct jm_action *row = jm_act_on(s, ACT_REPORT_ROW, step, m->generation);
            row->rank = rank;
        }
    }
    jm_act_on(s, ACT_SEND_ACK, step, m->generation)->rank = rank;
    if (!known || save->state == SAVE_COMMITTED) {
        jm_send_done(s, step, rank, true);
    } else if (save->state == SAVE_COLLECTING && jm_every_rank(m, index, RANK_REPORTED)) {
        jm_save_check(s, index);
    }
}

/* A rank will not write what others may not have begun: all of them are to know at once, or each
 * writes what the next is late for. */
static void never_begun(struct jm_step *s)
{
    struct job_machine *m = s->m;
    uint64_t step = s->ev->step;
    bool runs = m->state == JOB_RUNNING || m->state == JOB_SAVING;
    if (!runs || m->end_to != JOB_NONE || jm_ckpt_at(m, step, m->generation))
        return;
    int index = new_save(s, step, SAVE_DROPPED);
    if (index < 0)
        return;
    m->ranks[s->ev->rank].save_flags[index] = RANK_TOLD | RANK_REMOVED;
    m->saves[index].retry_at = s->now + retry_ms(1); /* where it was announced */
    if (!m->late_told) {
        jm_event(s, "save-dropped", "step %llu: %.400s", (unsigned long long)step,
                 s->ev->message ? s->ev->message : "a worker was late");
    }
    m->late_told = true;
    jm_send_done(s, step, JM_ALL, false);
}

void jm_on_failed(struct jm_step *s)
{
    struct job_machine *m = s->m;
    int index = jm_find_save(m, s->ev->step, m->generation);
    if (index < 0) {
        never_begun(s);
        return;
    }
    struct jm_save *save = &m->saves[index];
    uint8_t *flags = &m->ranks[s->ev->rank].save_flags[index];
    if (s->ev->flag)
        *flags |= RANK_REMOVED;
    if (save->state == SAVE_OPENING || save->state == SAVE_COLLECTING) {
        char why[LIMIT_REASON];
        jm_text(why, sizeof why,
                s->ev->message && s->ev->message[0] ? s->ev->message
                : s->ev->full                       ? "the store is full"
                                                    : "a worker could not write");
        *flags |= RANK_BEGUN;
        if (s->ev->full) {
            jm_save_refuse(s, index, why);
        } else {
            jm_save_drop(s, index, why, true);
        }
    } else if (save->state == SAVE_DROPPING) {
        jm_save_remove(s, index);
    }
}

void jm_on_passed(struct jm_step *s)
{
    struct job_machine *m = s->m;
    bool exit;
    if (s->ev->at > m->ranks[s->ev->rank].step)
        m->ranks[s->ev->rank].step = s->ev->at;
    if (!jm_forget_announced(m, s->ev->step, &exit))
        return;
    int index = jm_find_save(m, s->ev->step, m->generation);
    if (index < 0) {
        (void)new_save(s, s->ev->step, SAVE_DROPPED); /* late ranks are told so */
    } else if (m->saves[index].state == SAVE_OPENING || m->saves[index].state == SAVE_COLLECTING) {
        jm_save_drop(s, index, "a worker had passed that step", true);
    }
    m->passes++; /* they are faster than thought: further ahead next time */
    jm_announce(s, exit);
}

void jm_on_checked(struct jm_step *s)
{
    int index = jm_find_save(s->m, s->ev->step, s->ev->of_generation);
    if (index < 0)
        return;
    struct jm_save *save = &s->m->saves[index];
    if (save->state != SAVE_CHECKING)
        return;
    if (s->ev->status == ST_OK) {
        save->tries = 0;
        jm_save_set_state(s, save, SAVE_COMMITTING);
        jm_act_on(s, ACT_PUBLISH, save->step, save->generation);
        return;
    }
    enum status st = s->ev->status;
    bool again = st == ST_IO || st == ST_TIMED_OUT || st == ST_UNREACHABLE;
    bool told = again && jm_unsaved(s, s->ev->message);
    if (again && ++save->tries < JM_STORE_TRIES) {
        save->retry_at = s->now + retry_ms(save->tries);
        return;
    }
    /* Ranks may have disagreed on whether the base can be read. */
    if (!again && save->base_generation > 0)
        s->m->base_refused = true;
    jm_save_drop(s, index, s->ev->message, !told);
}

/* What a commit allows: the job may be done, or what was asked of it. */
static void after_commit(struct jm_step *s, uint64_t step)
{
    struct job_machine *m = s->m;
    bool exit = jm_announced_exit(m, step);
    bool forgotten;
    if (jm_forget_announced(m, step, &forgotten))
        m->passes = 0;
    if (m->end_to != JOB_NONE || !jm_alive(m))
        return;
    if (m->total_steps > 0 && step >= m->total_steps) {
        jm_end_generation(s, JOB_SUCCEEDED, true);
        return;
    }
    jm_set_reason(m, "%s", "");
    if (!exit)
        return;
    switch (m->intent) {
    case INTENT_PAUSE:
        jm_end_generation(s, JOB_PAUSED, true);
        break;
    case INTENT_STOP:
        jm_end_generation(s, JOB_STOPPED, true);
        break;
    case INTENT_DRAIN:
        jm_end_generation(s, JOB_QUEUED, true);
        break;
    case INTENT_FINISH:
        jm_end_generation(s, JOB_SUCCEEDED, true);
        break;
    case INTENT_NONE:
        jm_end_generation(s, JOB_RECOVERING, true);
        break;
    }
}

/* What it took; of one that another coordinator began, not all of that is known. */
static struct jm_save_times times_of(const struct jm_step *s, const struct jm_save *save)
{
    struct jm_save_times times = save->times;
    if (save->reported_at == 0 || times.encode_us == 0)
        return (struct jm_save_times){ 0 };
    times.save_us = save->write_ms * 1000;
    times.commit_us = (s->now - save->reported_at) * 1000;
    return times;
}

static void tell_saved(struct jm_step *s, const struct jm_ckpt *ckpt)
{
    const struct jm_save_times *times = &ckpt->times;
    char took[160] = "";
    if (times->encode_us > 0) {
        (void)snprintf(took, sizeof(took),
                       "; the step waited %.1f ms, saving took %.1f ms of processor time, "
                       "writing %.1f ms, syncing %.1f, committing %lld",
                       (double)times->stall_us / 1e3, (double)times->encode_us / 1e3,
                       (double)times->io_us / 1e3, (double)times->sync_us / 1e3,
                       (long long)times->commit_us / 1000);
    }
    jm_event(s, "saved", "step %llu, %.1f MB, %.3f times smaller than the state, digest %s%s",
             (unsigned long long)ckpt->step, (double)ckpt->bytes / 1e6,
             ckpt->bytes > 0 ? (double)ckpt->raw_bytes / (double)ckpt->bytes : 0.0, ckpt->digest,
             took);
}

void jm_on_published(struct jm_step *s)
{
    struct job_machine *m = s->m;
    int index = jm_find_save(m, s->ev->step, s->ev->of_generation);
    if (index < 0)
        return;
    struct jm_save *save = &m->saves[index];
    if (save->state != SAVE_COMMITTING)
        return;
    if (s->ev->status == ST_NOT_FOUND && save->tries + 1 >= JM_STORE_TRIES) {
        jm_save_drop(s, index, s->ev->message, true); /* somebody removed its folder */
        return;
    }
    if (s->ev->status != ST_OK || !s->ev->ckpt) {
        save->tries++;
        save->retry_at = s->now + retry_ms(save->tries);
        (void)jm_unsaved(s, s->ev->message);
        jm_set_reason(m, "waits to publish step %llu: %.400s", (unsigned long long)save->step,
                      s->ev->message);
        if (s->ev->status == ST_FULL)
            jm_retain(s);
        return;
    }
    struct jm_ckpt ckpt = *s->ev->ckpt;
    ckpt.times = times_of(s, save);
    enum status added = jm_catalog_add(m, &ckpt);
    if (added != ST_OK) {
        save->retry_at = s->now + retry_ms(++save->tries);
        jm_set_reason(m, "waits to list step %llu: %s", (unsigned long long)save->step,
                      added == ST_FULL ? "a job has 65536 checkpoints at most, remove some"
                                       : status_string(added));
        return;
    }
    m->base_refused = false;
    jm_save_set_state(s, save, SAVE_COMMITTED);
    jm_act_on(s, ACT_CKPT_ROW, save->step, save->generation);
    if (!m->committed)
        jm_act(s, ACT_FORGET); /* where its workers were before, but are no more */
    m->committed = true;
    jm_sweep_again(s);
    if (save->step > m->step_max)
        m->step_max = save->step;
    if (save->generation == m->generation)
        m->progress_at = s->now;
    tell_saved(s, &ckpt);
    if (jm_alive(m))
        jm_send_done(s, save->step, JM_ALL, true);
    jm_room_again(s, save->step);
    jm_note_cost(s, save);
    jm_note_stall(m, save->times.stall_us);
    after_commit(s, save->step);
    jm_retain(s);
}

void jm_on_removed(struct jm_step *s)
{
    struct job_machine *m = s->m;
    int index = jm_find_save(m, s->ev->step, s->ev->of_generation);
    struct jm_ckpt *ckpt = jm_ckpt_at(m, s->ev->step, s->ev->of_generation);
    if (ckpt && ckpt->state == CKPT_REMOVING) {
        jm_on_ckpt_removed(s, ckpt);
        return;
    }
    if (index < 0 || m->saves[index].state != SAVE_DROPPING)
        return;
    m->saves[index].removing = false;
    if (s->ev->status != ST_OK && !jm_all_gone(m)) {
        (void)jm_unsaved(s, s->ev->message);
        m->saves[index].retry_at = s->now + retry_ms(++m->saves[index].tries);
        return;
    }
    removed(s, index); /* a folder that stays hinders no other generation */
}
