#include "common/watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

int watchdog_open(void)
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

void watchdog_beat(int fd)
{
    if (fd >= 0)
        (void)!write(fd, "b", 1);
}

bool watchdog_watched(int fd)
{
    struct pollfd pipe = { .fd = fd, .events = POLLOUT };
    return fd >= 0 && poll(&pipe, 1, 0) >= 0 && (pipe.revents & (POLLERR | POLLNVAL)) == 0;
}
