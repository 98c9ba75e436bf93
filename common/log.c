#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"

static const char *const level_names[] = { "debug", "info", "warn", "error" };
static const char *const level_leads[] = { "<7>", "<6>", "<4>", "<3>" }; /* sd-daemon(3) */

/* True if the file is the one that JOURNAL_STREAM names: "DEVICE:INODE". Somebody may have put
 * another in its place. */
static bool is_journal(int fd)
{
    const char *stream = getenv("JOURNAL_STREAM");
    char text[64];
    struct stat about;
    if (stream == NULL || fstat(fd, &about) != 0)
        return false;
    (void)snprintf(text, sizeof(text), "%ju:%ju", (uintmax_t)about.st_dev, (uintmax_t)about.st_ino);
    return strcmp(text, stream) == 0;
}

struct log log_open(const char *program)
{
    struct log log = { .fd = STDERR_FILENO,
                       .level = LOG_LEVEL_INFO,
                       .program = program,
                       .rank = -1,
                       .generation = -1,
                       .leads = is_journal(STDERR_FILENO) };
    const char *wanted = getenv("CAIRN_LOG");
    for (int i = 0; wanted != NULL && i < 4; i++) {
        if (strcmp(wanted, level_names[i]) == 0)
            log.level = (enum log_level)i;
    }
    return log;
}

void log_set_rank(struct log *log, int64_t rank)
{
    __atomic_store_n(&log->rank, rank, __ATOMIC_RELAXED);
}

/* A line that is being built; its tail is kept free for the closing. */
struct log_line {
    char text[LIMIT_LOG_LINE];
    size_t size;
    bool cut;
};

#define TAIL_BYTES 16 /* `","cut":true}` and newline */

static void log_put(struct log_line *line, const char *text)
{
    size_t room = sizeof(line->text) - TAIL_BYTES - line->size, size = strlen(text);
    if (size > room) {
        line->cut = true;
        return;
    }
    memcpy(line->text + line->size, text, size);
    line->size += size;
}

/* Writes a text as the inside of a JSON string. */
static void log_put_escaped(struct log_line *line, const char *text)
{
    for (; *text != '\0' && !line->cut; text++) {
        unsigned char byte = (unsigned char)*text;
        char piece[8] = { (char)byte, '\0' };
        if (byte == '"' || byte == '\\') {
            (void)snprintf(piece, sizeof(piece), "\\%c", byte);
        } else if (byte == '\n') {
            (void)snprintf(piece, sizeof(piece), "\\n");
        } else if (byte < 0x20) {
            (void)snprintf(piece, sizeof(piece), "\\u%04x", byte);
        }
        log_put(line, piece);
    }
}

static void log_put_text(struct log_line *line, const char *name, const char *value)
{
    if (value == NULL)
        return;
    log_put(line, ",\"");
    log_put(line, name);
    log_put(line, "\":\"");
    log_put_escaped(line, value);
    log_put(line, "\"");
}

static void log_put_number(struct log_line *line, const char *name, int64_t value)
{
    if (value < 0)
        return;
    char text[64];
    (void)snprintf(text, sizeof(text), ",\"%s\":%lld", name, (long long)value);
    log_put(line, text);
}

static void log_put_time(struct log_line *line)
{
    int64_t ms = clock_wall_ms(clock_system());
    time_t seconds = (time_t)(ms / 1000);
    struct tm utc;
    char date[32] = "", text[64];
    if (gmtime_r(&seconds, &utc) != NULL)
        (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(text, sizeof(text), "{\"ts\":\"%s.%03dZ\"", date, (int)(ms % 1000));
    log_put(line, text);
}

void log_write(const struct log *log, enum log_level level, const char *format, ...)
{
    if (log == NULL || log->fd < 0 || level < log->level)
        return;
    char message[LIMIT_LOG_LINE];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(message, sizeof(message), format, list);
    va_end(list);

    struct log_line line = { .size = 0 };
    if (log->leads)
        log_put(&line, level_leads[level]);
    log_put_time(&line);
    log_put_text(&line, "level", level_names[level]);
    log_put_text(&line, "program", log->program);
    log_put_text(&line, "node", log->node);
    log_put_text(&line, "job", log->job);
    log_put_number(&line, "rank", __atomic_load_n(&log->rank, __ATOMIC_RELAXED));
    log_put_number(&line, "generation", log->generation);
    log_put(&line, ",\"msg\":\"");
    log_put_escaped(&line, message);
    const char *tail = line.cut ? "\",\"cut\":true}\n" : "\"}\n";
    size_t size = strlen(tail);
    memcpy(line.text + line.size, tail, size);
    (void)!write(log->fd, line.text, line.size + size); /* a log never stops its program */
}

/* ---- bounded files ---- */

uint64_t log_turn_bytes(uint64_t usual)
{
    const char *text = getenv("CAIRN_LOG_BYTES");
    const unsigned long long bytes = text != NULL ? strtoull(text, NULL, 10) : 0;
    return bytes > 0 ? bytes : usual;
}

static enum status copy_piece(int from, int to, off_t *at)
{
    char piece[65536];
    const ssize_t count = pread(from, piece, sizeof(piece), *at);
    if (count < 0)
        return errno == EINTR ? ST_OK : status_from_errno(errno);
    if (count == 0)
        return ST_NOT_FOUND;
    for (ssize_t done = 0; done < count;) {
        const ssize_t wrote = write(to, piece + done, (size_t)(count - done));
        if (wrote < 0 && errno != EINTR)
            return status_from_errno(errno);
        done += wrote > 0 ? wrote : 0;
    }
    *at += count;
    return ST_OK;
}

/* Copies up to the end, which others move on meanwhile: at most `max` bytes. */
static enum status copy_from(int from, int to, off_t at, uint64_t max)
{
    const off_t begin = at;
    enum status st = ST_OK;
    while (st == ST_OK && (uint64_t)(at - begin) < max)
        st = copy_piece(from, to, &at);
    return st == ST_NOT_FOUND ? ST_OK : st;
}

static enum status keep(int from, const char *path, off_t begin, uint64_t max)
{
    char kept[LIMIT_PATH], part[LIMIT_PATH];
    const int size = snprintf(kept, sizeof(kept), "%s" LOG_TURN_SUFFIX, path);
    const int part_size = snprintf(part, sizeof(part), "%s" LOG_TURN_SUFFIX ".part", path);
    if (size < 0 || part_size < 0 || (size_t)part_size >= sizeof(part))
        return ST_INVALID;
    (void)unlink(part);
    auto_close int to = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return status_from_errno(errno);
    enum status st = copy_from(from, to, begin, max);
    if (st == ST_OK && rename(part, kept) != 0)
        st = status_from_errno(errno);
    if (st != ST_OK)
        (void)unlink(part);
    return st;
}

enum status log_turn(const char *path, uint64_t max, const char *line, bool *out_turned)
{
    struct stat about;
    *out_turned = false;
    auto_close int fd =
        open(path, O_RDWR | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return errno == ENOENT ? ST_OK : status_from_errno(errno);
    if (fstat(fd, &about) != 0)
        return status_from_errno(errno);
    if (!S_ISREG(about.st_mode) || (uint64_t)about.st_size <= max)
        return ST_OK;
    const uint64_t kept = 2 * max, bytes = (uint64_t)about.st_size;
    const enum status st = keep(fd, path, bytes > kept ? (off_t)(bytes - kept) : 0, kept);
    if (ftruncate(fd, 0) != 0)
        return status_from_errno(errno);
    *out_turned = true;
    if (line != NULL && write(fd, line, strlen(line)) < 0)
        return status_from_errno(errno);
    return st;
}
