/* Position of the step thread, the time, and waiting under the session's mutex. */
#include "session/internal.h"

#define STORE_TICK_MS 1000

/* ---- progress ---- */

void session_mark(struct session *session, uint64_t step, const char *phase)
{
    atomic_store_explicit(&session->step, step, memory_order_relaxed);
    atomic_store_explicit(&session->phase, phase, memory_order_relaxed);
}

/* The next odd number, or the next even one; a single thread writes it. */
static void mark(_Atomic uint64_t *marks, bool inside)
{
    const uint64_t now = atomic_load_explicit(marks, memory_order_relaxed);
    atomic_store_explicit(marks, inside ? (now + 1) | 1 : now + (now & 1), memory_order_relaxed);
}

void session_mark_collective(struct session *session, const char *name, bool inside)
{
    atomic_store_explicit(&session->collective, name, memory_order_relaxed);
    mark(&session->collectives, inside);
}

void session_mark_exchange(struct session *session, bool inside)
{
    mark(&session->exchanges, inside);
}

void session_tick(struct session *session)
{
    (void)atomic_fetch_add_explicit(&session->counter, 1, memory_order_relaxed);
}

void session_tick_saving(struct session *session)
{
    (void)atomic_fetch_add_explicit(&session->saving, 1, memory_order_relaxed);
    session_tick(session);
}

struct session_progress session_progress_of(struct session *session)
{
    const _Atomic uint64_t *ticks = session->options.ticks;
    const uint64_t others = ticks != NULL ? atomic_load_explicit(ticks, memory_order_relaxed) : 0;
    return (struct session_progress){
        .step = atomic_load_explicit(&session->step, memory_order_relaxed),
        .phase = atomic_load_explicit(&session->phase, memory_order_relaxed),
        .counter = others + atomic_load_explicit(&session->counter, memory_order_relaxed),
        .saving = atomic_load_explicit(&session->saving, memory_order_relaxed),
        .collectives = atomic_load_explicit(&session->collectives, memory_order_relaxed),
        .exchanges = atomic_load_explicit(&session->exchanges, memory_order_relaxed),
        .collective = atomic_load_explicit(&session->collective, memory_order_relaxed),
    };
}

/* ---- steps of another process ---- */

void session_hear_steps(struct session *session)
{
    const struct session_followed *it = &session->followed;
    for (; it != NULL && it->reached != NULL; it = it->more)
        session_fsm_reached(&session->fsm, atomic_load(it->reached));
}

void session_tell_due(struct session *session)
{
    const struct session_followed *it = &session->followed;
    for (; it != NULL && it->next_due != NULL; it = it->more) {
        const uint64_t next = session_fsm_next_due(&session->fsm);
        const uint64_t owed = it->owed != NULL ? atomic_load(it->owed) : UINT64_MAX;
        atomic_store(it->next_due, owed < next ? owed : next);
    }
}

void session_follow(struct session *session, const struct session_followed *followed)
{
    (void)pthread_mutex_lock(&session->mutex);
    session->followed =
        followed != NULL ? *followed : (struct session_followed){ .next_due = NULL };
    session_hear_steps(session);
    session_tell_due(session);
    (void)pthread_mutex_unlock(&session->mutex);
}

/* ---- time, waiting ---- */

int64_t session_now(const struct session *session)
{
    return clock_mono_ms(session->options.clock);
}

int64_t session_deadline(int64_t timeout_ms)
{
    return clock_mono_ms(clock_system()) + timeout_ms;
}

bool session_wait(struct session *session, int64_t deadline_ms)
{
    if (clock_mono_ms(clock_system()) >= deadline_ms)
        return false;
    (void)clock_cond_wait(&session->changed, &session->mutex, deadline_ms * 1000000);
    return true;
}

bool session_wait_at_store(struct session *session, int64_t deadline_ms)
{
    const int64_t soon_ms = session_deadline(STORE_TICK_MS);
    if (session_fsm_at_store(&session->fsm))
        session_tick(session);
    if (soon_ms >= deadline_ms)
        return session_wait(session, deadline_ms);
    (void)session_wait(session, soon_ms);
    return true;
}

void session_wake(struct session *session)
{
    (void)pthread_cond_broadcast(&session->changed);
    if (session->options.link != NULL)
        session->options.link->interrupt(session->options.link->self);
}
