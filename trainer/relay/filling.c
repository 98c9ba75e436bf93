/*
 * The copy that the program fills in. Whoever ends it first does so: the program, by COPIED; the
 * relay's thread, as the connection has ended; the forming one, as an older copy is to be saved.
 *
 *     NOTHING ─BEGIN─▶ BEGINS ─the session has a file─▶ FILLS ─COPIED─▶ FILLED ──▶ NOTHING
 *                                                         └─▶ GAVE_UP ────────────────▲
 */
#include "trainer/relay/internal.h"

enum status relay_fill(void *relay, uint64_t *out_stall_us)
{
    struct relay *r = relay;
    (void)pthread_mutex_lock(&r->mutex);
    while (r->filling == RELAY_BEGINS || (r->filling == RELAY_FILLS && !r->closing))
        (void)pthread_cond_wait(&r->changed, &r->mutex);
    const bool filled = r->filling == RELAY_FILLED;
    *out_stall_us = r->stall_us;
    (void)pthread_mutex_unlock(&r->mutex);
    return filled ? ST_OK : ST_CLOSED;
}

void relay_filling_begins(struct relay *relay)
{
    struct relay *r = relay;
    (void)pthread_mutex_lock(&r->mutex);
    r->filling = RELAY_BEGINS;
    r->dropped = false;
    r->stall_us = 0;
    (void)pthread_mutex_unlock(&r->mutex);
}

void relay_set_filling(struct relay *relay, enum relay_filling filling)
{
    (void)pthread_mutex_lock(&relay->mutex);
    relay->filling = filling;
    (void)pthread_cond_broadcast(&relay->changed);
    (void)pthread_mutex_unlock(&relay->mutex);
}

bool relay_fills(struct relay *relay)
{
    (void)pthread_mutex_lock(&relay->mutex);
    const bool fills = relay->filling == RELAY_FILLS;
    (void)pthread_mutex_unlock(&relay->mutex);
    return fills;
}

bool relay_end_filling(struct relay *relay, enum relay_filling how, uint64_t stall_us)
{
    struct relay *r = relay;
    (void)pthread_mutex_lock(&r->mutex);
    const bool fills = r->filling == RELAY_FILLS;
    if (fills) {
        r->filling = how;
        r->stall_us = stall_us;
        (void)pthread_cond_broadcast(&r->changed);
    }
    (void)pthread_mutex_unlock(&r->mutex);
    return fills;
}

bool relay_was_dropped(struct relay *relay)
{
    (void)pthread_mutex_lock(&relay->mutex);
    const bool dropped = relay->dropped;
    (void)pthread_mutex_unlock(&relay->mutex);
    return dropped;
}

bool relay_give_up(struct relay *relay)
{
    if (!relay_end_filling(relay, RELAY_GAVE_UP, 0))
        return false;
    (void)!session_snapshot_wait(relay->options.session); /* what was given up has failed */
    (void)pthread_mutex_lock(&relay->mutex);
    relay->filling = RELAY_FILLS_NOTHING;
    relay->dropped = true;
    (void)pthread_cond_broadcast(&relay->changed);
    (void)pthread_mutex_unlock(&relay->mutex);
    return true;
}
