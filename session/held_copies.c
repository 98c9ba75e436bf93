/* Copies for another node: which copy file is read, and that nobody writes to it meanwhile. Copies
 * that are saved after all. */
#include "common/check.h"
#include "session/internal.h"

/* True if no copy can be kept any more. Under mutex. */
static bool keep_ends(const struct session *session)
{
    return session_fsm_ended(&session->fsm) || session->closing || session->copies.keep_ends;
}

/* Keeps a copy file. Under mutex. */
static const struct copy_file *keep_file(struct session *session, int file)
{
    session->fsm.files[file].kept++;
    return &session->copies.files[file];
}

enum status session_keep_newest(struct session *session, uint64_t after,
                                const struct copy_file **out)
{
    (void)pthread_mutex_lock(&session->mutex);
    int file = session_fsm_newest(&session->fsm);
    while (!keep_ends(session) && (file < 0 || session->fsm.files[file].step <= after)) {
        (void)session_wait(session, session_deadline(1000));
        file = session_fsm_newest(&session->fsm);
    }
    const enum status st = keep_ends(session) ? ST_STALE : ST_OK;
    if (st == ST_OK)
        *out = keep_file(session, file);
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

enum status session_keep(struct session *session, uint64_t step, const struct copy_file **out)
{
    (void)pthread_mutex_lock(&session->mutex);
    const int file = session_fsm_complete_copy(&session->fsm, step);
    if (file >= 0)
        *out = keep_file(session, file);
    (void)pthread_mutex_unlock(&session->mutex);
    return file >= 0 ? ST_OK : ST_INCOMPLETE;
}

void session_unkeep(struct session *session, const struct copy_file *file)
{
    if (file == NULL)
        return;
    (void)pthread_mutex_lock(&session->mutex);
    struct session_file_record *record = &session->fsm.files[file - session->copies.files];
    CHECK(record->kept > 0);
    record->kept--;
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
}

void session_keep_end(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    session->copies.keep_ends = true;
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
}

void session_peers_complete(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    session->copies.peers_wait = false;
    (void)pthread_mutex_unlock(&session->mutex);
}

/* ---- copies that are saved after all ---- */

bool session_exit(struct session *session, struct session_exit *out)
{
    bool found = false;
    (void)pthread_mutex_lock(&session->mutex);
    const struct session_fsm *fsm = &session->fsm;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX && !session_fsm_ended(fsm); i++) {
        const struct session_announced *one = &fsm->announced[i];
        const bool waits =
            one->state == SESSION_ANNOUNCED_AHEAD || one->state == SESSION_ANNOUNCED_TAKEN;
        if (!one->exits || !waits)
            continue;
        found = true;
        *out = (struct session_exit){ .step = one->step,
                                      .waited_ms = session_now(session) - fsm->exits_ms };
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return found;
}

uint64_t session_committed(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    const uint64_t step = session->fsm.committed_step;
    (void)pthread_mutex_unlock(&session->mutex);
    return step;
}

size_t session_complete_steps(struct session *session, uint64_t *out)
{
    size_t count = 0;
    (void)pthread_mutex_lock(&session->mutex);
    for (int i = 0; i < session->fsm.file_count; i++) {
        if (session->fsm.files[i].complete)
            out[count++] = session->fsm.files[i].step;
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return count;
}

enum status session_save_copy(struct session *session, uint64_t step)
{
    (void)pthread_mutex_lock(&session->mutex);
    session->fsm.now_ms = session_now(session);
    const enum status st = session_fsm_save_again(&session->fsm, step);
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}
