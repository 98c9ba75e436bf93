#include "common/host/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define WAIT_S 1

/* The address in NOTIFY_SOCKET: a path, or "@NAME" of the abstract namespace. */
static bool take_address(struct notify *notify, const char *text)
{
    const size_t size = text != NULL ? strlen(text) : 0;
    if (size < 2 || size >= sizeof(notify->address.sun_path) || (text[0] != '/' && text[0] != '@'))
        return false;
    notify->address.sun_family = AF_UNIX;
    memcpy(notify->address.sun_path, text, size);
    if (text[0] == '@')
        notify->address.sun_path[0] = '\0';
    notify->address_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
    return true;
}

/* A whole positive number; 0: it is none. */
static long long number_of(const char *text)
{
    char *end = NULL;
    const long long value = text != NULL ? strtoll(text, &end, 10) : 0;
    return text != NULL && *text != '\0' && *end == '\0' && value > 0 ? value : 0;
}

static int64_t take_interval(void)
{
    const char *pid = getenv("WATCHDOG_PID");
    if (pid != NULL && number_of(pid) != getpid())
        return 0;
    const long long us = number_of(getenv("WATCHDOG_USEC"));
    return us > 0 && us < 2000 ? 1 : us / 2000;
}

void notify_open(struct notify *notify)
{
    const struct timeval wait = { .tv_sec = WAIT_S };
    *notify = (struct notify){ .fd = -1, .every_ms = take_interval() };
    if (take_address(notify, getenv("NOTIFY_SOCKET")))
        notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (notify->fd >= 0)
        (void)setsockopt(notify->fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
}

void notify_send(const struct notify *notify, bool waits, const char *format, ...)
{
    char text[NOTIFY_BYTES];
    va_list list;
    if (notify->fd < 0)
        return;
    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    (void)sendto(notify->fd, text, strlen(text), MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT),
                 (const struct sockaddr *)&notify->address, notify->address_size);
}
