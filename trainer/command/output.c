#include "trainer/command/output.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READ_BYTES = 64 * 1024, REPAINT_MS = 1000, PARTS = 3 };

/* The log is a file that others append to: a line is one write. A disk that is full loses lines. */
static void write_line(const struct output *output)
{
    struct iovec parts[PARTS] = {
        { (void *)output->label, strlen(output->label) },
        { (void *)output->line, output->used },
        { (void *)"\n", 1 },
    };
    (void)!writev(output->log_fd, parts, PARTS);
}

static void find_step(struct output *output)
{
    char digits[32];
    if (output->progress == NULL ||
        !pattern_find(output->progress, output->line, output->used, digits, sizeof(digits)))
        return;
    char *end = NULL;
    errno = 0;
    const unsigned long long step = strtoull(digits, &end, 10);
    if (errno != 0 || end == digits || digits[0] == '-' || step > INT64_MAX)
        return;
    output->matches += output->matches == 0 || step != output->step_found;
    output->step_found = step;
    if (step > output->step)
        output->step = step;
}

static void keep_line(struct output *output)
{
    char *to = output->last[output->lines++ % OUTPUT_LAST];
    size_t size = output->used < OUTPUT_LAST_LINE - 1 ? output->used : OUTPUT_LAST_LINE - 1;
    for (size_t i = 0; i < size; i++)
        to[i] = iscntrl((unsigned char)output->line[i]) ? ' ' : output->line[i];
    to[size] = '\0';
}

static void end_line(struct output *output, bool repaints, int64_t now_ms)
{
    if (output->used == 0 && repaints)
        return;
    find_step(output);
    keep_line(output);
    if (!repaints || now_ms - output->painted_ms >= REPAINT_MS) {
        write_line(output);
        output->painted_ms = repaints ? now_ms : output->painted_ms;
    }
    output->used = 0;
}

void output_add(struct output *output, const char *text, size_t size, int64_t now_ms)
{
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\n' || text[i] == '\r') {
            end_line(output, text[i] == '\r', now_ms);
        } else {
            output->line[output->used++] = text[i];
            if (output->used == sizeof(output->line))
                end_line(output, false, now_ms);
        }
    }
}

bool output_read(struct output *output, int fd, int64_t now_ms)
{
    char bytes[4096];
    for (size_t total = 0; total < READ_BYTES;) {
        const ssize_t size = read(fd, bytes, sizeof(bytes));
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            return size < 0 && errno == EAGAIN;
        total += (size_t)size;
        output_add(output, bytes, (size_t)size, now_ms);
    }
    return true;
}

void output_flush(struct output *output)
{
    if (output->used > 0)
        end_line(output, false, 0);
}

const char *output_last(const struct output *output, size_t n)
{
    const uint64_t kept = output->lines < OUTPUT_LAST ? output->lines : OUTPUT_LAST;
    return n < kept ? output->last[(output->lines - 1 - n) % OUTPUT_LAST] : NULL;
}

const char *output_last_words(const struct output *output)
{
    const char *line = NULL;
    for (size_t n = 0; (line = output_last(output, n)) != NULL; n++) {
        const bool blank = line[strspn(line, " ")] == '\0';
        const bool frame = strncmp(line, "  ", 2) == 0; /* of a traceback, or its source line */
        if (!blank && !frame)
            return line;
    }
    return output_last(output, 0);
}

/* A frame: `  File "/a/train.py", line 12 in step`. NULL: the line is none. Else where its path
 * begins; out_rest: its closing quote. */
static const char *frame_path(const char *line, const char **out_rest)
{
    static const char begin[] = "  File \"";
    if (strncmp(line, begin, sizeof(begin) - 1) != 0)
        return NULL;
    const char *path = line + sizeof(begin) - 1;
    *out_rest = strchr(path, '"');
    return *out_rest != NULL && strncmp(*out_rest, "\", line ", 8) == 0 ? path : NULL;
}

static bool is_in(const char *path, const char *rest, const char *folder)
{
    const char *found = strstr(path, folder);
    return found != NULL && found < rest;
}

static bool is_of_library(const char *path, const char *rest)
{
    return is_in(path, rest, "/site-packages/") || is_in(path, rest, "/dist-packages/") ||
           is_in(path, rest, "/lib/python3");
}

/* Prints a frame without its folders. */
static void print_frame(const char *path, const char *rest, char out[OUTPUT_LAST_LINE])
{
    const char *name = path;
    for (const char *c = path; c < rest; c++)
        name = *c == '/' ? c + 1 : name;
    (void)snprintf(out, OUTPUT_LAST_LINE, "%.*s%s", (int)(rest - name), name, rest + 1);
}

struct output_stack output_python_stack(const struct output *output)
{
    struct output_stack stack = { .waits = false };
    const char *line = NULL;
    size_t n = 0;
    while ((line = output_last(output, n)) != NULL && strncmp(line, "Current thread", 14) != 0)
        n++;
    bool innermost = true;
    for (size_t at = n; line != NULL && at > 0; at--) {
        const char *rest = NULL, *frame = output_last(output, at - 1);
        const char *path = frame != NULL ? frame_path(frame, &rest) : NULL;
        if (path == NULL)
            break; /* the stack's end */
        const bool ours = !is_of_library(path, rest);
        if (innermost) {
            stack.waits = is_in(path, rest, "/torch/distributed/");
            print_frame(path, rest, stack.at);
        }
        if (ours && !innermost)
            print_frame(path, rest, stack.at);
        if (ours)
            break;
        innermost = false;
    }
    return stack;
}
