#include "trainer/relay/internal.h"

#include <stdarg.h>

#include "common/clock.h"

#define SLICE_MS INT64_C(200) /* one wait, before another look whether all is over */

int64_t relay_now_ms(void)
{
    return clock_mono_ms(clock_system());
}

void relay_fail(struct relay *relay, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)pthread_mutex_lock(&relay->mutex);
    if (!relay->failed)
        reason_set_list(&relay->why, format, list);
    relay->failed = true;
    (void)pthread_mutex_unlock(&relay->mutex);
    va_end(list);
}

bool relay_is_closing(struct relay *relay)
{
    (void)pthread_mutex_lock(&relay->mutex);
    const bool closing = relay->closing;
    (void)pthread_mutex_unlock(&relay->mutex);
    return closing;
}

void relay_pause(struct relay *relay, int64_t ms)
{
    const int64_t until_ns = clock_mono_ns() + ms * 1000000;
    bool waits = true;
    (void)pthread_mutex_lock(&relay->mutex);
    while (waits && !relay->closing)
        waits = clock_cond_wait(&relay->changed, &relay->mutex, until_ns);
    (void)pthread_mutex_unlock(&relay->mutex);
}

enum status relay_meet(struct relay *relay, const char *name, const void *common, size_t size,
                       struct rendezvous_got *out)
{
    struct relay *r = relay;
    const struct rendezvous *rendezvous = session_rendezvous(r->options.session);
    const struct rendezvous_part mine = { .common = common, .common_size = size };
    const uint32_t ranks = r->options.assignment->size;
    enum status st = ST_TIMED_OUT;
    while (st == ST_TIMED_OUT && !relay_is_closing(r))
        st = rendezvous->join(rendezvous->self, name, &mine, (int)ranks, SLICE_MS, out);
    if (st == ST_TIMED_OUT)
        return ST_STALE;
    for (uint32_t i = 0; st == ST_OK && i < ranks; i++) {
        if (out[i].common_size != size)
            st = ST_INVALID;
    }
    return st;
}
