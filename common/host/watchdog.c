#include "common/host/watchdog.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

#define START_S 60 /* more time to start, from each beat on: a long journal takes minutes */

static int take_pipe(void)
{
    const char *text = getenv(WATCHDOG_ENV);
    if (text == NULL)
        return -1;
    char *end = NULL;
    long fd = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || fd < 3 || fd > 1023)
        return -1;
    if (fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl((int)fd, F_SETFL, O_NONBLOCK) != 0)
        return -1;
    return (int)fd;
}

void watchdog_open(struct watchdog *watchdog)
{
    *watchdog = (struct watchdog){ .fd = take_pipe() };
    notify_open(&watchdog->notify);
    if (watchdog->fd >= 0 && watchdog->notify.fd >= 0)
        (void)close(watchdog->notify.fd);
    if (watchdog->fd >= 0)
        watchdog->notify = (struct notify){ .fd = -1 };
}

int watchdog_every_ms(const struct watchdog *watchdog)
{
    const int64_t wanted = watchdog->notify.every_ms;
    if (watchdog->fd < 0 && watchdog->notify.fd < 0)
        return -1;
    return wanted > 0 && wanted < WATCHDOG_BEAT_MS ? (int)wanted : WATCHDOG_BEAT_MS;
}

static void write_byte(const struct watchdog *watchdog, char byte)
{
    if (watchdog->fd >= 0)
        (void)!write(watchdog->fd, &byte, 1);
}

static void send_sign(struct watchdog *watchdog, int64_t now)
{
    if (watchdog->serves && watchdog->notify.every_ms > 0) {
        notify_send(&watchdog->notify, false, "WATCHDOG=1");
        watchdog->sign_at = now + watchdog->notify.every_ms;
    } else if (!watchdog->serves) {
        notify_send(&watchdog->notify, false, "EXTEND_TIMEOUT_USEC=%d000000", START_S);
        watchdog->sign_at = now + WATCHDOG_BEAT_MS;
    }
}

void watchdog_beat(struct watchdog *watchdog)
{
    const int64_t now = clock_mono_ms(clock_system());
    if (now >= watchdog->beat_at) {
        write_byte(watchdog, WATCHDOG_BEAT);
        watchdog->beat_at = now + WATCHDOG_BEAT_MS;
    }
    if (watchdog->notify.fd >= 0 && now >= watchdog->sign_at)
        send_sign(watchdog, now);
}

void watchdog_ready(struct watchdog *watchdog)
{
    watchdog->serves = true;
    watchdog->sign_at = 0;
    write_byte(watchdog, WATCHDOG_READY);
    notify_send(&watchdog->notify, true, "READY=1");
}

void watchdog_status(struct watchdog *watchdog, const char *format, ...)
{
    char text[NOTIFY_BYTES - sizeof("STATUS=")];
    va_list list;
    if (watchdog->notify.fd < 0)
        return;
    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    text[strcspn(text, "\n")] = '\0';
    if (strcmp(text, watchdog->status) == 0)
        return;
    (void)snprintf(watchdog->status, sizeof(watchdog->status), "%s", text);
    notify_send(&watchdog->notify, false, "STATUS=%s", text);
}

void watchdog_stopping(struct watchdog *watchdog, uint32_t takes_ms)
{
    notify_send(&watchdog->notify, true, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64,
                ((uint64_t)takes_ms + 1000) * 1000);
}

bool watchdog_watched(const struct watchdog *watchdog)
{
    struct pollfd pipe = { .fd = watchdog->fd, .events = POLLOUT };
    return pipe.fd >= 0 && poll(&pipe, 1, 0) >= 0 && (pipe.revents & (POLLERR | POLLNVAL)) == 0;
}
