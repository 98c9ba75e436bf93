#include "client/preflight/answer.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

void answer_read(int fd, int64_t ms, char *out, size_t capacity)
{
    const int64_t until = clock_mono_ms(clock_system()) + ms;
    size_t used = 0;
    ssize_t size = 1;
    for (int64_t left = ms; size > 0 && left > 0 && used + 1 < capacity;
         left = until - clock_mono_ms(clock_system())) {
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        size = poll(&wait, 1, (int)left) > 0 ? read(fd, out + used, capacity - 1 - used) : 0;
        used += size > 0 ? (size_t)size : 0;
    }
    out[used] = '\0';
    out[strcspn(out, "\n")] = '\0';
}
