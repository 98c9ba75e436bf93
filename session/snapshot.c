/*
 * Snapshots: which copy file one goes to, and the thread that copies it beside the step.
 *
 *     idle   -> active   [take_file]                a copy file was found; its head is written
 *     active -> given    [session_snapshot_begin]   the copier's; the state must not change
 *     given  -> idle     [copier_copy]              the copy is complete, or it failed
 *     active -> idle     [snapshot_end]             an error
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/fault.h"
#include "session/internal.h"

void session_copies_want(struct session *session, const struct session_budget *budget,
                         const struct session_ready *ready)
{
    struct session_copies *copies = &session->copies;
    CHECK(copies->file_count == 0);
    const int own = budget->files - (ready->peers ? SESSION_PEER_FILES : 0);
    copies->file_count = budget->files;
    copies->share_bytes = ready->snapshot_bytes_max;
    copies->peers_wait = ready->peers || ready->shared;
    copies->shared = ready->shared;
    copies->copy_cost = ready->copy_cost;
    session->fsm.memory_bytes = session_budget_copies(budget);
    /* With copies between saves, two files are for these copies. */
    session_fsm_files(&session->fsm, budget->files, ready->memory_every > 0 ? 1 : own);
}

void session_copies_need(struct session *session)
{
    struct session_copies *copies = &session->copies;
    if (copies->needed || copies->file_count == 0)
        return;
    copies->needed = true;
    (void)pthread_cond_broadcast(&session->changed);
}

/* ---- the step thread ---- */

/* Begins a save, or only a copy if the save is late: a slow store delays no step. Under mutex. */
static enum status begin_save(struct session *session, const struct session_snapshot *snapshot,
                              int *out_save, int *out_file)
{
    const uint64_t step = snapshot->state->scalars.step;
    enum status st = session_fsm_save_begin(&session->fsm, step, snapshot->last, out_save);
    if (st == ST_OK)
        *out_file = session->fsm.saves[*out_save].file;
    if (st != ST_REFUSED)
        return st;
    session_fsm_save_late(&session->fsm, step);
    session_wake(session);
    return session->fsm.ready.memory_every > 0
               ? session_fsm_copy_begin(&session->fsm, step, out_file)
               : ST_REFUSED;
}

/* Ends the snapshot that was begun. Under mutex. */
static void snapshot_end(struct session *session, enum status st)
{
    struct session_copies *copies = &session->copies;
    CHECK(copies->active);
    if (copies->save >= 0) {
        session_fsm_save_copied(&session->fsm, copies->save, st == ST_OK);
    } else {
        session_fsm_copied(&session->fsm, copies->file, st == ST_OK);
    }
    copies->status = st;
    copies->active = false;
    copies->given = false;
    copies->reads_state = false;
    session_wake(session);
}

/* Returns when the wait for a snapshot is over; INT64_MAX: never. */
static int64_t patience_of(const struct session_snapshot *snapshot)
{
    return snapshot->patience_ms > 0 ? session_deadline(snapshot->patience_ms) : INT64_MAX;
}

/* Waits until the file is made. Under mutex. ST_STALE: ended; ST_TIMED_OUT */
static enum status await_made(struct session *session, int file, int64_t until_ms)
{
    const struct session_copies *copies = &session->copies;
    while (copies->made <= file && copies->made_status == ST_OK) {
        if (session_fsm_ended(&session->fsm))
            return ST_STALE;
        if (session_deadline(0) >= until_ms)
            return ST_TIMED_OUT;
        (void)session_wait(session, session_deadline(SESSION_RUSH_MS));
    }
    return copies->made_status;
}

/* Under mutex. */
static enum status take_file(struct session *session, const struct session_snapshot *snapshot)
{
    struct session_copies *copies = &session->copies;
    const int64_t until_ms = patience_of(snapshot);
    int save = -1, file = -1;
    enum status st = ST_AGAIN;
    session_copies_need(session);
    while (st == ST_AGAIN) {
        if (session_fsm_ended(&session->fsm)) {
            st = ST_STALE;
        } else if (session->fsm.stays) {
            st = ST_REFUSED;
        } else if (copies->active) {
            st = ST_AGAIN;
        } else if (snapshot->saves) {
            session->fsm.now_ms = session_now(session);
            st = begin_save(session, snapshot, &save, &file);
        } else {
            st = session_fsm_copy_begin(&session->fsm, snapshot->state->scalars.step, &file);
        }
        if (st == ST_AGAIN && session_deadline(0) >= until_ms)
            st = ST_TIMED_OUT;
        if (st == ST_AGAIN)
            (void)session_wait_at_store(session, session_deadline(SESSION_RUSH_MS));
    }
    if (st != ST_OK)
        return st;
    CHECK(!copies->given);
    copies->active = true;
    copies->save = save;
    copies->file = file;
    st = await_made(session, file, until_ms);
    if (st != ST_OK)
        snapshot_end(session, st);
    return st;
}

/* Under mutex. */
static void count_stall(struct session *session, int64_t since_ns)
{
    const int save = session->copies.save;
    if (save >= 0)
        session->fsm.saves[save].stall_us += (uint64_t)(clock_mono_ns() - since_ns) / 1000;
}

/* Notes the stall, once the step thread is done with the snapshot. Under mutex. */
static void note_stall(struct session_copies *copies)
{
    session_copy_cost_note(&copies->copy_cost.stall_ms, (double)copies->stall_ns / 1e6);
    copies->stall_ns = 0;
}

enum status session_snapshot_begin(struct session *session, const struct session_snapshot *snapshot)
{
    struct session_copies *copies = &session->copies;
    const int64_t since_ns = clock_mono_ns();
    (void)pthread_mutex_lock(&session->mutex);
    enum status st = take_file(session, snapshot);
    if (st == ST_TIMED_OUT && snapshot->saves && !snapshot->last) {
        session_fsm_save_late(&session->fsm, snapshot->state->scalars.step);
        session_wake(session);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    if (st != ST_OK)
        return st;
    /* The file is this thread's until it is given to the copier. What was waited for until now is
     * no cost of this copy. */
    const int64_t begin_ns = clock_mono_ns();
    st = copy_file_begin(&copies->files[copies->file], snapshot->state, session->rank,
                         session->size);
    if (st == ST_OK && snapshot->start != NULL)
        st = snapshot->start(snapshot->arg);
    (void)pthread_mutex_lock(&session->mutex);
    if (st == ST_OK) {
        copies->snapshot = *snapshot;
        copies->snapshot.state = NULL; /* the caller's */
        copies->status = ST_OK;
        copies->given = true;
        copies->reads_state = true;
        if (snapshot->fill == NULL) {
            count_stall(session, since_ns);
            copies->stall_ns = clock_mono_ns() - begin_ns;
        }
        (void)pthread_cond_broadcast(&session->changed);
    } else {
        snapshot_end(session, st);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

enum status session_snapshot_wait(struct session *session)
{
    struct session_copies *copies = &session->copies;
    (void)pthread_mutex_lock(&session->mutex);
    const int64_t since_ns = clock_mono_ns();
    if (copies->reads_state) {
        const int save = copies->snapshot.fill == NULL ? copies->save : -1;
        while (copies->reads_state)
            (void)session_wait(session, session_deadline(1000));
        if (save >= 0 && save == copies->save)
            count_stall(session, since_ns);
    }
    if (copies->stall_ns > 0) {
        copies->stall_ns += clock_mono_ns() - since_ns;
        note_stall(copies);
    }
    const enum status st = copies->status;
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

const struct copy_file *session_snapshot_file(struct session *session, uint32_t *out_number)
{
    struct session_copies *copies = &session->copies;
    (void)pthread_mutex_lock(&session->mutex);
    CHECK(copies->reads_state);
    *out_number = (uint32_t)copies->file;
    const struct copy_file *file = &copies->files[copies->file];
    (void)pthread_mutex_unlock(&session->mutex);
    return file;
}

/* ---- the copier ---- */

/* Opens a copy file as the steps need it. */
static enum status open_file(const struct session *session, const char *path, struct copy_file *out)
{
    const size_t bytes = session->copies.share_bytes;
    return session->copies.shared ? copy_file_open_shared(path, bytes, out)
                                  : copy_file_open(path, bytes, out);
}

/* Says once that copies lie in this worker's own memory: to the log, and to the coordinator, if it
 * wasn't told as the generation began that there is no room. */
static void say_alone(struct session *session, size_t bytes, enum status st)
{
    struct reason what;
    (void)pthread_mutex_lock(&session->mutex);
    const bool first = !session->copies.alone;
    session->copies.alone = true;
    reason_set(
        &what,
        "a copy file of %.1f MiB can't be made in %.200s: %s: copies in memory don't outlive "
        "rank %u%s",
        (double)bytes / (1024.0 * 1024.0), session->options.copies, status_string(st),
        session->rank,
        st == ST_FULL ? "; make that file system larger (a container's: --shm-size), or "
                        "name another folder with CAIRN_COPIES"
                      : "");
    if (first)
        session_fsm_copies_alone(&session->fsm, &what);
    (void)pthread_mutex_unlock(&session->mutex);
    if (first)
        LOG_WARN(session->options.log, "%s", what.text);
}

static enum status make_file(struct session *session, int number, struct copy_file *out)
{
    const struct session_options *o = &session->options;
    const struct session_copy *restored = &session->copies.restored;
    const size_t bytes = session->copies.share_bytes;
    char path[LIMIT_PATH];
    if (o->copies == NULL)
        return open_file(session, NULL, out);
    const int length = snprintf(path, sizeof(path), "%s/g%u-r%u-%d.copy", o->copies, o->generation,
                                session->rank, number);
    enum status st = length > 0 && (size_t)length < sizeof(path) ? ST_OK : ST_FULL;
    if (st == ST_OK) {
        (void)copy_folder_reuse(o->copies, o->generation, session->rank,
                                restored->generation > 0 ? restored : NULL, copy_file_bytes(bytes),
                                path);
        st = open_file(session, path, out);
    }
    if (st == ST_OK)
        return ST_OK;
    say_alone(session, copy_file_bytes(bytes), st);
    return open_file(session, NULL, out);
}

/* Makes the next copy file. Copies that no assignment can name any more are used again or removed.
 * The copy from which this generation was restored stays until every rank has copies of its own. */
static void make_next_file(struct session *session)
{
    const struct session_options *o = &session->options;
    struct session_copies *copies = &session->copies;
    const int next = copies->made; /* changes in this thread only */
    struct copy_file file = { .memory = NULL };
    const enum status st = make_file(session, next, &file);
    if (st != ST_OK || next + 1 == copies->file_count) {
        copy_folder_clean(o->copies, o->generation, session->rank,
                          copies->restored.generation > 0 ? &copies->restored : NULL);
    }
    (void)pthread_mutex_lock(&session->mutex);
    copies->files[next] = file; /* no pointer leads into it yet */
    copies->made += st == ST_OK;
    copies->made_status = st;
    (void)pthread_cond_broadcast(&session->changed);
    (void)pthread_mutex_unlock(&session->mutex);
}

/* Removes older copies with the second copy, when a rank knows that every rank has the first
 * (trainer/loop/loop.c). */
static void copier_clean(struct session *session, uint64_t step)
{
    struct session_copies *copies = &session->copies;
    if (copies->first_step == 0)
        copies->first_step = step;
    (void)pthread_mutex_lock(&session->mutex);
    const bool early = copies->peers_wait;
    (void)pthread_mutex_unlock(&session->mutex);
    if (copies->cleaned || early || step == copies->first_step)
        return;
    copies->cleaned = true;
    copy_folder_clean(session->options.copies, session->options.generation, SESSION_RANK_ANY, NULL);
}

/* Waits until another process has filled the file in; false: `fill` isn't set. */
static bool await_filled(struct session *session, struct copy_file *file, enum status *out_st)
{
    struct session_copies *copies = &session->copies;
    uint64_t stall_us = 0;
    if (copies->snapshot.fill == NULL)
        return false;
    *out_st = copies->snapshot.fill(copies->snapshot.arg, &stall_us);
    (void)pthread_mutex_lock(&session->mutex);
    if (copies->save >= 0)
        session->fsm.saves[copies->save].stall_us += stall_us;
    session_copy_cost_note(&copies->copy_cost.stall_ms, (double)stall_us / 1e3);
    (void)pthread_mutex_unlock(&session->mutex);
    if (*out_st == ST_OK)
        copy_file_filled(file);
    return true;
}

static void copier_copy(struct session *session)
{
    struct session_copies *copies = &session->copies;
    struct copy_file *file = &copies->files[copies->file];
    const struct session_snapshot *snapshot = &copies->snapshot;
    enum status st = ST_OK;
    const int64_t begin_ns = clock_mono_ns(), cpu_ns = clock_thread_ns();
    if (snapshot->wait != NULL) {
        st = snapshot->wait(snapshot->arg);
        (void)pthread_mutex_lock(&session->mutex);
        copies->reads_state = false;
        copies->status = st;
        (void)pthread_cond_broadcast(&session->changed);
        (void)pthread_mutex_unlock(&session->mutex);
    }
    const bool filled = await_filled(session, file, &st);
    if (st == ST_OK) {
        if (!filled)
            copy_file_fill(file);
        fault_point("save.snapshot");
        copy_file_seal(file);
    }
    (void)pthread_mutex_lock(&session->mutex);
    session_copy_cost_note(&copies->copy_cost.cpu_ms, (double)(clock_thread_ns() - cpu_ns) / 1e6);
    session_copy_cost_note(&copies->copy_cost.busy_ms, (double)(clock_mono_ns() - begin_ns) / 1e6);
    snapshot_end(session, st);
    (void)pthread_mutex_unlock(&session->mutex);
    if (st == ST_OK)
        copier_clean(session, copy_file_state(file)->scalars.step);
}

void *session_copier_run(void *arg)
{
    struct session *session = arg;
    struct session_copies *copies = &session->copies;
    (void)pthread_setname_np(pthread_self(), "cairn-copier");
    (void)pthread_mutex_lock(&session->mutex);
    while (!session->closing) {
        const bool makes =
            copies->needed && copies->made < copies->file_count && copies->made_status == ST_OK;
        const bool copying = copies->given;
        if (!makes && !copying) {
            (void)pthread_cond_wait(&session->changed, &session->mutex);
            continue;
        }
        (void)pthread_mutex_unlock(&session->mutex);
        if (copying) {
            copier_copy(session);
        } else {
            make_next_file(session);
        }
        (void)pthread_mutex_lock(&session->mutex);
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return NULL;
}
