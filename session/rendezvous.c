/* The generation's rendezvous over the link: each caller waits for the answer of its round. */
#include "session/internal.h"

static enum status session_rendezvous_join(void *self, const char *name,
                                           const struct rendezvous_part *mine, int ranks,
                                           int64_t timeout_ms, struct rendezvous_got *out)
{
    struct session *session = self;
    const int64_t deadline_ms = session_deadline(timeout_ms);
    const struct session_rendezvous_round *round = NULL;
    (void)pthread_mutex_lock(&session->mutex);
    enum status st =
        ranks == (int)session->size
            ? session_fsm_rendezvous_join(&session->fsm, name, mine, session->size, &round)
            : ST_INVALID;
    if (st == ST_OK)
        session_wake(session);
    while (st == ST_OK && !round->answered) {
        if (session_fsm_ended(&session->fsm)) {
            st = ST_STALE;
        } else if (!session_wait(session, deadline_ms)) {
            st = ST_TIMED_OUT;
        }
    }
    if (st == ST_OK)
        st = session_fsm_rendezvous_result(round, out);
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

static bool session_rendezvous_over(void *self)
{
    struct session *session = self;
    (void)pthread_mutex_lock(&session->mutex);
    const bool over = session_fsm_ended(&session->fsm);
    (void)pthread_mutex_unlock(&session->mutex);
    return over;
}

void session_rendezvous_init(struct session *session)
{
    session->rendezvous = (struct rendezvous){ .self = session,
                                               .join = session_rendezvous_join,
                                               .is_over = session_rendezvous_over };
}

const struct rendezvous *session_rendezvous(struct session *session)
{
    return &session->rendezvous;
}
