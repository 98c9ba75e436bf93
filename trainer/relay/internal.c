#include "trainer/relay/internal.h"

#include <stdarg.h>

#include "common/clock.h"

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
