/* Going from one generation to the next: the calls of the step thread when Park came. */
#include <stdlib.h>

#include "common/check.h"
#include "session/internal.h"

struct session_retired {
    struct session *session;
    pthread_t thread;
    atomic_bool done;
};

bool session_parks(const struct session *session)
{
    struct session *mine = (struct session *)session; /* for the lock's sake */
    (void)pthread_mutex_lock(&mine->mutex);
    const bool parks = session_fsm_parks(&mine->fsm);
    (void)pthread_mutex_unlock(&mine->mutex);
    return parks;
}

bool session_parks_by_hang(const struct session *session)
{
    struct session *mine = (struct session *)session; /* for the lock's sake */
    (void)pthread_mutex_lock(&mine->mutex);
    const bool of_hang = session_fsm_parks(&mine->fsm) && mine->fsm.park.of_hang;
    (void)pthread_mutex_unlock(&mine->mutex);
    return of_hang;
}

enum status session_await_end(struct session *session, int64_t timeout_ms)
{
    int64_t deadline_ms = session_deadline(timeout_ms);
    enum status st = ST_OK;
    (void)pthread_mutex_lock(&session->mutex);
    while (st == ST_OK && !session_fsm_ended(&session->fsm)) {
        if (!session->fsm.up) {
            deadline_ms = session_deadline(timeout_ms);
            (void)session_wait(session, session_deadline(1000));
        } else if (!session_wait(session, deadline_ms)) {
            st = ST_TIMED_OUT;
        }
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

enum status session_set_warm(struct session *session, const struct session_ready *ready)
{
    (void)pthread_mutex_lock(&session->mutex);
    CHECK(session_fsm_is_spare(&session->fsm));
    const enum status st = session->fsm.over ? ST_STALE : session_fsm_ready(&session->fsm, ready);
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

/* Waits for the order to go on; false: over. Under mutex. */
static bool await_regroup(struct session *session, struct session_regroup *out)
{
    bool found = false;
    while (!found && !session->fsm.over) {
        found = session_fsm_regrouped(&session->fsm, &out->generation, &out->number, out->token);
        if (!found)
            (void)session_wait(session, session_deadline(1000));
    }
    return found;
}

enum status session_park(struct session *session, const struct session_parked *kept,
                         struct session_regroup *out)
{
    (void)pthread_mutex_lock(&session->mutex);
    session_mark(session, kept->step, session_fsm_is_spare(&session->fsm) ? "spare" : "parked");
    while (session->copies.given) /* the copier reads the state, or the host's copy of it */
        (void)session_wait(session, session_deadline(1000));
    session_fsm_parked(&session->fsm, kept);
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
    session_write_last_words(session);
    (void)pthread_mutex_lock(&session->mutex);
    const bool goes_on = await_regroup(session, out);
    (void)pthread_mutex_unlock(&session->mutex);
    return goes_on ? ST_OK : ST_STALE;
}

static void *retired_main(void *arg)
{
    struct session_retired *retired = arg;
    session_release(retired->session);
    atomic_store(&retired->done, true);
    return NULL;
}

enum status session_retire(struct session *session, struct session_retired **out)
{
    struct session_retired *retired = calloc(1, sizeof(*retired));
    if (retired == NULL)
        return ST_NO_MEMORY;
    (void)pthread_mutex_lock(&session->last_words_mutex);
    session->retired = true;
    (void)pthread_mutex_unlock(&session->last_words_mutex);
    session_end_threads(session);
    retired->session = session;
    if (pthread_create(&retired->thread, NULL, retired_main, retired) != 0) {
        session_release(session); /* waits for the store, but goes on */
        free(retired);
        *out = NULL;
        return ST_OK;
    }
    *out = retired;
    return ST_OK;
}

bool session_retired_done(const struct session_retired *retired)
{
    return retired == NULL || atomic_load(&retired->done);
}

void session_retired_join(struct session_retired *retired)
{
    if (retired == NULL)
        return;
    (void)pthread_join(retired->thread, NULL);
    free(retired);
}
