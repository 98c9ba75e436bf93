/* Copies for another node: which copy file is read, and that nobody writes to it meanwhile. */
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
