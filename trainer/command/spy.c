#include "trainer/command/spy.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "trainer/command/process.h"

#define TEXT_BYTES (128 * 1024) /* a hundred threads, deep ones; what is beyond is cut */

/* Waits until what the process writes can be read, or it ended. False: it is too late. */
static bool await_text(int fd, int64_t until)
{
    const int64_t left = until - clock_mono_ms(clock_system());
    struct pollfd ready = { fd, POLLIN, 0 };
    return left > 0 && poll(&ready, 1, (int)left) > 0;
}

/* Reads until the end, or `until`. False: it came to no end. */
static bool read_text(int fd, int64_t until, char text[TEXT_BYTES])
{
    size_t used = 0;
    while (used < TEXT_BYTES - 1 && await_text(fd, until)) {
        const ssize_t size = read(fd, text + used, TEXT_BYTES - 1 - used);
        if (size < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (size <= 0) {
            text[used] = '\0';
            return size == 0;
        }
        used += (size_t)size;
    }
    text[used] = '\0';
    return used == TEXT_BYTES - 1;
}

static bool begins_with(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

/* Adds a frame, `    NAME (PATH:LINE)`, as faulthandler has it. False: the line is none. */
static bool add_frame(const char *line, size_t size, int64_t now_ms, struct output *output)
{
    char frame[OUTPUT_LAST_LINE * 2];
    if (!begins_with(line, "    ") || size < 8 || line[size - 1] != ')')
        return false;
    const char *name = line + 4, *end = line + size - 1;
    const char *colon = memrchr(line, ':', size), *open = strstr(name, " (");
    if (colon == NULL || open == NULL || open >= colon)
        return false;
    const char *path = open + 2;
    const int written =
        snprintf(frame, sizeof(frame), "  File \"%.*s\", line %.*s in %.*s\n", (int)(colon - path),
                 path, (int)(end - colon - 1), colon + 1, (int)(open - name), name);
    if (written < 0 || (size_t)written >= sizeof(frame))
        return false;
    output_add(output, frame, (size_t)written, now_ms);
    return true;
}

bool spy_add_text(const char *text, pid_t pid, int64_t now_ms, struct output *output)
{
    static const char head[] = "Current thread (by py-spy, most recent call first):\n";
    bool inside = false, found = false;
    for (const char *line = text; *line != '\0';) {
        const size_t size = strcspn(line, "\n");
        if (begins_with(line, "Thread ")) {
            if (found)
                break;
            inside = strtol(line + 7, NULL, 10) == (long)pid; /* the main thread's number */
        } else if (inside && !found) {
            output_add(output, head, sizeof(head) - 1, now_ms);
            found = add_frame(line, size, now_ms, output);
            inside = found;
        } else if (inside) {
            (void)add_frame(line, size, now_ms, output);
        }
        line += size + (line[size] == '\n');
    }
    return found;
}

bool spy_add_stack(pid_t pid, char *const *env, int64_t now_ms, struct output *output)
{
    static char text[TEXT_BYTES]; /* one thread calls */
    char number[24];
    char *const argv[] = { "py-spy", "dump", "--nonblocking", "--full-filenames", "--pid",
                           number,   NULL };
    const struct process_start how = { .argv = argv, .env = env, .workdir = "/" };
    struct process spy;
    struct reason why;
    (void)snprintf(number, sizeof(number), "%ld", (long)pid);
    if (process_start(&how, &spy, &why) != ST_OK)
        return false; /* it isn't installed */
    const int64_t until = clock_mono_ms(clock_system()) + SPY_MS;
    bool whole = read_text(spy.said_fd, until, text);
    while (whole && !process_check(&spy) && await_text(spy.end_fd, until)) {
    }
    whole = whole && process_check(&spy);
    (void)close(spy.said_fd);
    if (!spy.ended) {
        process_signal(&spy, SIGKILL);
        (void)await_text(spy.end_fd, until + SPY_MS);
        (void)process_check(&spy);
    }
    return whole && spy_add_text(text, pid, now_ms, output);
}
