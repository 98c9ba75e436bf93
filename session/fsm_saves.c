/* Saves; their states, with what makes each transition, are in fsm_state.h. */
#include <string.h>

#include "common/check.h"
#include "session/fsm.h"

static void save_release(struct session_save_record *save)
{
    cairn__v1__save_report__free_unpacked(save->report, NULL);
    memset(save, 0, sizeof(*save));
}

static void save_enter(struct session_save_record *save, enum session_save_state state)
{
    save->state = state;
    save->said = false;
    save->repeat_ms = 0;
    save->taken = false;
}

static void save_fail(struct session_save_record *save, const char *why, bool full, bool removed)
{
    save_enter(save, SESSION_SAVE_FAILED);
    reason_set(&save->why, "%s", why);
    save->full = full;
    save->removed = removed;
}

/* The newest record of a step, or NULL. */
static struct session_save_record *save_find(struct session_fsm *fsm, uint64_t step)
{
    struct session_save_record *found = NULL;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        struct session_save_record *save = &fsm->saves[i];
        if (save->state != SESSION_SAVE_FREE && save->step == step &&
            (found == NULL || save->order > found->order))
            found = save;
    }
    return found;
}

/* A free record; else the oldest of which nothing is left but an answer that did not come. */
static struct session_save_record *save_vacant(struct session_fsm *fsm)
{
    struct session_save_record *oldest = NULL;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        struct session_save_record *save = &fsm->saves[i];
        if (save->state == SESSION_SAVE_FREE)
            return save;
        if (save->state == SESSION_SAVE_FAILED && (oldest == NULL || save->order < oldest->order))
            oldest = save;
    }
    if (oldest != NULL)
        save_release(oldest);
    return oldest;
}

/* ---- the step thread ---- */

/* A folder is on its way, or will be asked for: the snapshot is needed (invariant 5). */
static bool save_expects_folder(const struct session_fsm *fsm,
                                const struct session_save_record *save)
{
    return save->state == SESSION_SAVE_BEGUN && fsm->up &&
           (!save->said_begin || fsm->now_ms - save->said_begin_ms < SESSION_FOLDER_MS);
}

static void save_supersede(struct session_save_record *save)
{
    if (save->said_begin) {
        save_fail(save, "superseded by a newer save", false, true);
    } else {
        save_release(save);
    }
}

/* A newer save needs a copy file: what only waited for a folder that doesn't come is given up. */
static void give_way(struct session_fsm *fsm)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        struct session_save_record *save = &fsm->saves[i];
        if (save->state == SESSION_SAVE_BEGUN && !save_expects_folder(fsm, save))
            save_supersede(save);
    }
}

/* The newest save that waits while an older one is written. */
static struct session_save_record *save_waiting(struct session_fsm *fsm)
{
    struct session_save_record *found = NULL;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        struct session_save_record *save = &fsm->saves[i];
        if ((save->state == SESSION_SAVE_BEGUN ||
             (save->state == SESSION_SAVE_WRITING && !save->taken)) &&
            (found == NULL || save->order > found->order))
            found = save;
    }
    return found;
}

static int held_files(const struct session_fsm *fsm)
{
    int held = 0;
    for (int i = 0; i < SESSION_SAVES_MAX; i++)
        held += session_save_holds(&fsm->saves[i]);
    return held;
}

/* The last save has time, but not for one that only waits while another is written: after
 * SESSION_PATIENCE_MS that one is given up. */
static void make_room(struct session_fsm *fsm)
{
    struct session_save_record *save = save_waiting(fsm);
    if (fsm->blocked_ms == 0)
        fsm->blocked_ms = fsm->now_ms;
    if (fsm->saves_max > 1 && save != NULL && fsm->now_ms - fsm->blocked_ms >= SESSION_PATIENCE_MS)
        save_supersede(save);
}

/* Saves that follow each other within milliseconds wait for a copy file instead of being late. This
 * never waits for a store that hangs: what is late begins nothing. */
static bool in_rush(const struct session_fsm *fsm)
{
    return fsm->begun_ms != 0 && fsm->now_ms - fsm->begun_ms < SESSION_RUSH_MS;
}

/* A new try of that step makes it needless to say what became of the last (invariant 4). */
static void save_forget(struct session_fsm *fsm, uint64_t step)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        struct session_save_record *save = &fsm->saves[i];
        if ((save->state == SESSION_SAVE_FAILED || save->state == SESSION_SAVE_REMOVED) &&
            save->step == step)
            save_release(save);
    }
}

enum status session_fsm_save_begin(struct session_fsm *fsm, uint64_t step, bool last,
                                   int *out_index)
{
    if (session_fsm_ended(fsm))
        return ST_STALE;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        const struct session_save_record *save = &fsm->saves[i];
        const bool needed = save->state == SESSION_SAVE_WRITING ||
                            save->state == SESSION_SAVE_REMOVING || save_expects_folder(fsm, save);
        if (save->state == SESSION_SAVE_COPYING || (needed && save->step == step))
            return ST_AGAIN;
        if (save->state == SESSION_SAVE_REPORTING && save->step == step)
            return ST_EXISTS;
    }
    give_way(fsm);
    if (last && held_files(fsm) >= fsm->saves_max)
        make_room(fsm);
    const bool waits = last || in_rush(fsm);
    if (held_files(fsm) >= fsm->saves_max)
        return waits ? ST_AGAIN : ST_REFUSED;
    fsm->blocked_ms = 0;
    save_forget(fsm, step);
    struct session_save_record *save = save_vacant(fsm);
    int file = -1;
    if (save == NULL || session_fsm_copy_begin(fsm, step, &file) != ST_OK)
        return waits ? ST_AGAIN : ST_REFUSED;
    CHECK(held_files(fsm) < fsm->saves_max);
    save_enter(save, SESSION_SAVE_COPYING);
    fsm->begun_ms = fsm->now_ms;
    save->file = file;
    save->stall_us = 0;
    save->step = step;
    save->order = ++fsm->save_order;
    *out_index = (int)(save - fsm->saves);
    return ST_OK;
}

enum status session_fsm_save_again(struct session_fsm *fsm, uint64_t step)
{
    const int file = session_fsm_complete_copy(fsm, step);
    if (session_fsm_ended(fsm))
        return ST_STALE;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        const struct session_save_record *save = &fsm->saves[i];
        if (save->state == SESSION_SAVE_COPYING)
            return ST_AGAIN;
        if (save->step == step &&
            (session_save_holds(save) || save->state == SESSION_SAVE_REPORTING))
            return ST_EXISTS;
    }
    if (step <= fsm->committed_step)
        return ST_EXISTS;
    if (file < 0)
        return ST_INCOMPLETE;
    give_way(fsm);
    save_forget(fsm, step);
    struct session_save_record *save = save_vacant(fsm);
    if (save == NULL)
        return ST_AGAIN;
    save_enter(save, SESSION_SAVE_BEGUN);
    save->file = file;
    save->stall_us = 0;
    save->step = step;
    save->order = ++fsm->save_order;
    return ST_OK;
}

void session_fsm_save_late(struct session_fsm *fsm, uint64_t step)
{
    if (session_fsm_ended(fsm))
        return;
    save_forget(fsm, step);
    struct session_save_record *save = save_vacant(fsm);
    if (save == NULL)
        return; /* the coordinator sees it when the next one is begun */
    save->step = step;
    save->order = ++fsm->save_order;
    save_fail(save, "the store is slow: what was to be saved before is not yet written", false,
              true);
}

void session_fsm_save_copied(struct session_fsm *fsm, int index, bool ok)
{
    struct session_save_record *save = &fsm->saves[index];
    CHECK(save->state == SESSION_SAVE_COPYING);
    session_fsm_copied(fsm, save->file, ok);
    if (ok && !session_fsm_parks(fsm)) {
        save_enter(save, SESSION_SAVE_BEGUN);
    } else {
        save_release(save);
    }
}

/* ---- the saver ---- */

int session_fsm_saver_work(struct session_fsm *fsm)
{
    if (session_fsm_ended(fsm))
        return -1;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        struct session_save_record *save = &fsm->saves[i];
        if ((save->state == SESSION_SAVE_WRITING || save->state == SESSION_SAVE_REMOVING) &&
            !save->taken) {
            save->taken = true;
            return i;
        }
    }
    return -1;
}

void session_fsm_save_written(struct session_fsm *fsm, int index, Cairn__V1__SaveReport *report)
{
    struct session_save_record *save = &fsm->saves[index];
    CHECK(save->state == SESSION_SAVE_WRITING);
    CHECK(save->taken);
    CHECK(report != NULL);
    if (session_fsm_parks(fsm)) { /* the shard that was written is worthless */
        cairn__v1__save_report__free_unpacked(report, NULL);
        save_release(save);
        return;
    }
    if (save->cancelled) {
        cairn__v1__save_report__free_unpacked(report, NULL);
        save_enter(save, SESSION_SAVE_REMOVING);
        return;
    }
    save_enter(save, SESSION_SAVE_REPORTING);
    save->report = report;
    fsm->last_words_version++;
}

void session_fsm_save_failed(struct session_fsm *fsm, int index, enum status st, const char *why,
                             bool removed)
{
    struct session_save_record *save = &fsm->saves[index];
    CHECK(save->state == SESSION_SAVE_WRITING);
    CHECK(save->taken);
    if (session_fsm_parks(fsm)) {
        save_release(save);
    } else if (save->cancelled) {
        save_enter(save, removed ? SESSION_SAVE_REMOVED : SESSION_SAVE_REMOVING);
    } else {
        save_fail(save, why, st == ST_FULL, removed);
    }
}

void session_fsm_save_removed(struct session_fsm *fsm, int index)
{
    struct session_save_record *save = &fsm->saves[index];
    CHECK(save->state == SESSION_SAVE_REMOVING);
    CHECK(save->taken);
    if (session_fsm_parks(fsm)) {
        save_release(save);
    } else {
        save_enter(save, SESSION_SAVE_REMOVED);
    }
}

bool session_fsm_at_store(const struct session_fsm *fsm)
{
    bool found = false;
    for (int i = 0; i < SESSION_SAVES_MAX; i++)
        found = found || fsm->saves[i].taken;
    return found;
}

bool session_fsm_settled(const struct session_fsm *fsm)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        const struct session_save_record *save = &fsm->saves[i];
        const bool gave_way = save->state == SESSION_SAVE_FAILED && save->order < fsm->save_order;
        if (save->state != SESSION_SAVE_FREE && !gave_way)
            return false;
    }
    return true;
}

/* ---- orders ---- */

void session_order_folder(struct session_fsm *fsm, const Cairn__V1__SaveFolder *folder)
{
    if (session_fsm_ended(fsm))
        return;
    struct session_save_record *save = save_find(fsm, folder->step);
    if (save == NULL && folder->dir[0] != '\0') {
        /* The coordinator waits for a file that nobody here writes: it must know. */
        save = save_vacant(fsm);
        if (save == NULL)
            return;
        save->step = folder->step;
        save->order = ++fsm->save_order;
        save_enter(save, SESSION_SAVE_REMOVED);
        return;
    }
    if (save == NULL)
        return;
    if (folder->dir[0] == '\0') {
        if (save->state == SESSION_SAVE_BEGUN ||
            (save->state == SESSION_SAVE_FAILED && save->removed))
            save_release(save);
        return;
    }
    if (save->state != SESSION_SAVE_BEGUN)
        return;
    if (strlen(folder->dir) >= sizeof(save->dir)) {
        save_fail(save, "the folder's path is too long", false, true);
        return;
    }
    memcpy(save->dir, folder->dir, strlen(folder->dir) + 1);
    const size_t base = strlen(folder->base_dir);
    const bool differs = base < sizeof(save->base_dir); /* else the file stands for itself */
    memcpy(save->base_dir, differs ? folder->base_dir : "", differs ? base + 1 : 1);
    save_enter(save, SESSION_SAVE_WRITING);
}

static void save_drop(struct session_fsm *fsm, struct session_save_record *save)
{
    switch (save->state) {
    case SESSION_SAVE_BEGUN:
        save_release(save);
        break;
    case SESSION_SAVE_WRITING:
        if (save->taken) {
            save->cancelled = true;
        } else {
            save_enter(save, SESSION_SAVE_REMOVED);
        }
        break;
    case SESSION_SAVE_REPORTING:
        cairn__v1__save_report__free_unpacked(save->report, NULL);
        save->report = NULL;
        save_enter(save, SESSION_SAVE_REMOVING);
        fsm->last_words_version++;
        break;
    case SESSION_SAVE_FAILED:
        if (!save->removed) {
            save_enter(save, SESSION_SAVE_REMOVING);
        } else if (save->said) {
            save_release(save);
        } else {
            save_enter(save, SESSION_SAVE_REMOVED);
        }
        break;
    case SESSION_SAVE_FREE:
    case SESSION_SAVE_COPYING: /* meant an earlier try */
    case SESSION_SAVE_REMOVING:
    case SESSION_SAVE_REMOVED:
        break;
    }
}

void session_order_done(struct session_fsm *fsm, const Cairn__V1__SaveDone *done)
{
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        struct session_announced *one = &fsm->announced[i];
        /* Peers that are to leave after that step try again until the coordinator knows it. */
        const bool unheard =
            one->state == SESSION_ANNOUNCED_PASSED && !one->said && !done->committed;
        if (one->step == done->step && one->state != SESSION_ANNOUNCED_AHEAD && !unheard)
            memset(one, 0, sizeof(*one));
    }
    struct session_save_record *save = save_find(fsm, done->step);
    if (!done->committed) {
        if (save != NULL && !session_fsm_parks(fsm))
            save_drop(fsm, save);
        return;
    }
    if (done->step > fsm->committed_step)
        fsm->committed_step = done->step;
    if (!fsm->wanted.leaves)
        fsm->wanted.known = false;
    if (session_fsm_parks(fsm))
        return; /* the save was given up here, and is committed */
    if (save == NULL || save->state == SESSION_SAVE_COPYING || save->state == SESSION_SAVE_WRITING)
        return; /* of a file that is being written nothing can be committed */
    if (save->state == SESSION_SAVE_REPORTING)
        fsm->last_words_version++;
    save_release(save);
}

void session_saves_give_up(struct session_fsm *fsm)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        struct session_save_record *save = &fsm->saves[i];
        if (save->state != SESSION_SAVE_COPYING && !save->taken)
            save_release(save);
    }
}

/* ---- saying it ---- */

void session_saves_link_up(struct session_fsm *fsm)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++)
        fsm->saves[i].said = false;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++)
        fsm->announced[i].said = false;
}

void session_fsm_tick(struct session_fsm *fsm, int64_t now_ms)
{
    fsm->now_ms = now_ms;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        struct session_save_record *save = &fsm->saves[i];
        if (save->state == SESSION_SAVE_FAILED && save->said && now_ms >= save->repeat_ms)
            save_release(save);
    }
}

static bool save_is_to_say(const struct session_save_record *save, int64_t now_ms)
{
    switch (save->state) {
    case SESSION_SAVE_BEGUN:
    case SESSION_SAVE_REPORTING:
        return !save->said || now_ms >= save->repeat_ms;
    case SESSION_SAVE_FAILED:
    case SESSION_SAVE_REMOVED:
        return !save->said;
    case SESSION_SAVE_FREE:
    case SESSION_SAVE_COPYING:
    case SESSION_SAVE_WRITING:
    case SESSION_SAVE_REMOVING:
        return false;
    }
    return false;
}

static void fill_failed(const struct session_save_record *save, struct session_out *out)
{
    const bool failed = save->state == SESSION_SAVE_FAILED;
    cairn__v1__save_failed__init(&out->save_failed);
    out->save_failed.step = save->step;
    out->save_failed.full = failed && save->full;
    out->save_failed.removed = !failed || save->removed;
    reason_set(&out->text, "%s", failed ? save->why.text : "removed");
    out->save_failed.message = out->text.text;
    out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_FAILED;
    out->message.save_failed = &out->save_failed;
}

static void save_fill(const struct session_save_record *save, struct session_out *out)
{
    switch (save->state) {
    case SESSION_SAVE_BEGUN:
        cairn__v1__save_begin__init(&out->save_begin);
        out->save_begin.step = save->step;
        out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_BEGIN;
        out->message.save_begin = &out->save_begin;
        return;
    case SESSION_SAVE_REPORTING:
        CHECK(save->report != NULL);
        out->message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_REPORT;
        out->message.save_report = save->report;
        return;
    case SESSION_SAVE_FAILED:
    case SESSION_SAVE_REMOVED:
        fill_failed(save, out);
        return;
    case SESSION_SAVE_FREE:
    case SESSION_SAVE_COPYING:
    case SESSION_SAVE_WRITING:
    case SESSION_SAVE_REMOVING:
        break; /* save_is_to_say: nothing is said of these */
    }
    CHECK(false);
}

/* An earlier save was begun and is neither reported nor given up (invariant 3): the coordinator
 * would take it that the earlier one was let go. */
static bool save_follows(const struct session_fsm *fsm, const struct session_save_record *save)
{
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        const struct session_save_record *other = &fsm->saves[i];
        const bool open = other->state == SESSION_SAVE_BEGUN ||
                          other->state == SESSION_SAVE_WRITING ||
                          other->state == SESSION_SAVE_REMOVING;
        if (open && other->order < save->order)
            return true;
    }
    return false;
}

/* Sends saves in the order of begin, so that messages of a step's earlier try come before the
 * next. */
bool session_out_save(const struct session_fsm *fsm, int64_t now_ms, struct session_out *out)
{
    const struct session_save_record *first = NULL;
    for (int i = 0; i < SESSION_SAVES_MAX; i++) {
        const struct session_save_record *save = &fsm->saves[i];
        if (save_is_to_say(save, now_ms) &&
            !(save->state == SESSION_SAVE_BEGUN && save_follows(fsm, save)) &&
            (first == NULL || save->order < first->order))
            first = save;
    }
    if (first == NULL)
        return false;
    if (out == NULL)
        return true;
    save_fill(first, out);
    out->kind = SESSION_OUT_SAVE;
    out->index = (int)(first - fsm->saves);
    out->id = first->order;
    out->state = (int)first->state;
    return true;
}

void session_sent_save(struct session_fsm *fsm, const struct session_out *out, int64_t now_ms)
{
    struct session_save_record *save = &fsm->saves[out->index];
    if (save->state != (enum session_save_state)out->state || save->order != out->id)
        return; /* the save changed its state while the message left */
    if (save->state == SESSION_SAVE_BEGUN && !save->said_begin)
        save->said_begin_ms = now_ms; /* a folder is expected from now on */
    save->said = true;
    save->said_begin = true;
    save->repeat_ms =
        now_ms + (save->state == SESSION_SAVE_FAILED ? SESSION_FORGET_MS : SESSION_REPEAT_MS);
    if (save->state == SESSION_SAVE_REMOVED)
        save_release(save);
}
