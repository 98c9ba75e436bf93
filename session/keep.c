/* Copies for another node: which slot is read, and that it stays until it was. */
#include "common/check.h"
#include "session/internal.h"

/* Under mutex. */
static bool ends(const struct session *session)
{
    return session->core.over || session->closing || session->copies.keep_ends;
}

/* Under mutex. */
static const struct slot *keep(struct session *session, int slot)
{
    session->core.slots[slot].kept++;
    return &session->copies.slots[slot];
}

enum status session_keep_newest(struct session *session, uint64_t after, const struct slot **out)
{
    (void)pthread_mutex_lock(&session->mutex);
    int slot = session_core_newest(&session->core);
    while (!ends(session) && (slot < 0 || session->core.slots[slot].step <= after)) {
        (void)session_wait(session, session_deadline(1000));
        slot = session_core_newest(&session->core);
    }
    const enum status st = ends(session) ? ST_STALE : ST_OK;
    if (st == ST_OK)
        *out = keep(session, slot);
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

enum status session_keep(struct session *session, uint64_t step, const struct slot **out)
{
    (void)pthread_mutex_lock(&session->mutex);
    const int slot = session_core_whole(&session->core, step);
    if (slot >= 0)
        *out = keep(session, slot);
    (void)pthread_mutex_unlock(&session->mutex);
    return slot >= 0 ? ST_OK : ST_INCOMPLETE;
}

void session_unkeep(struct session *session, const struct slot *slot)
{
    if (slot == NULL)
        return;
    (void)pthread_mutex_lock(&session->mutex);
    struct session_slot_record *record = &session->core.slots[slot - session->copies.slots];
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

void session_peers_whole(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    session->copies.peers_wait = false;
    (void)pthread_mutex_unlock(&session->mutex);
}
