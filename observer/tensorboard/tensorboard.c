/*
 * Files (tensorboard.h). A row becomes whole records in `waiting`; of these `sent` bytes are in the
 * file, and the buffer is emptied only when all are: what a file holds ends within a record only
 * while the rest of that record waits here, or because we died.
 */
#include "observer/tensorboard/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/limits.h"
#include "observer/tensorboard/curve.h"
#include "observer/tensorboard/record.h"

#define PREFIX      "events.out.tfevents."
#define MIDDLE      ".cairn."
#define TIME_DIGITS 10
#define FILE_DIGITS 6
#define FILES_MAX   999999 /* of a folder: one for each FILE_BYTES, and for each crash */
#define TIME_MAX    INT64_C(9999999999)
#define NAME_BYTES  64
#define FILE_MAX    (TENSORBOARD_FILE_BYTES + TENSORBOARD_BUFFER_BYTES)

/* A file's name, as numbers, in the order of names. */
struct name {
    int64_t time; /* that of a folder's first file, all of them have it */
    int64_t number;
};

struct tensorboard {
    const struct log *log;
    char folder[LIMIT_PATH];
    struct name name; /* of the file that is or will be written to; number 0: not known yet */
    int fd;           /* -1: it is made with the next write */
    uint64_t size;    /* that we know of */
    bool headless;    /* no record of ours is in it or waits: the next row brings its head */
    bool lost;        /* the file isn't as we left it */
    bool failing;     /* the last write did */
    struct buf waiting;
    size_t sent;
    struct tensorboard_curve curve; /* with what waits */
};

/* ---- names ---- */

static bool digits(const char **at, int count, int64_t *out)
{
    *out = 0;
    for (int i = 0; i < count; i++, (*at)++) {
        if (**at < '0' || **at > '9')
            return false;
        *out = *out * 10 + (**at - '0');
    }
    return true;
}

static bool skip(const char **at, const char *text)
{
    const size_t size = strlen(text);
    const bool there = strncmp(*at, text, size) == 0;
    *at += there ? size : 0;
    return there;
}

static bool parse_name(const char *text, struct name *out)
{
    return skip(&text, PREFIX) && digits(&text, TIME_DIGITS, &out->time) && skip(&text, MIDDLE) &&
           digits(&text, FILE_DIGITS, &out->number) && *text == '\0';
}

static bool before(struct name a, struct name b)
{
    return a.time != b.time ? a.time < b.time : a.number < b.number;
}

static enum status path_of(const struct tensorboard *tb, struct name name, char out[LIMIT_PATH])
{
    const int size =
        snprintf(out, LIMIT_PATH, "%s/" PREFIX "%0*lld" MIDDLE "%0*lld", tb->folder, TIME_DIGITS,
                 (long long)name.time, FILE_DIGITS, (long long)name.number);
    return size > 0 && size < LIMIT_PATH ? ST_OK : ST_INVALID;
}

struct search {
    struct name below;
    struct name newest;
    bool found;
};

static bool look_at(void *arg, const char *text)
{
    struct search *search = arg;
    struct name name;
    if (parse_name(text, &name) && before(name, search->below) &&
        (!search->found || before(search->newest, name))) {
        search->newest = name;
        search->found = true;
    }
    return true;
}

/* ---- what is there ---- */

/* Adds to curve what a file says; out_complete: it ends with a record. One that is larger than any
 * that we write is not ours to go on with. */
static enum status read_file(const char *path, struct tensorboard_curve *curve, bool *out_complete)
{
    auto_free char *data = NULL;
    const void *record = NULL;
    size_t size = 0, at = 0, record_size = 0;
    *out_complete = false;
    enum status st = io_read_file(io_system(), path, FILE_MAX, &data, &size);
    if (st != ST_OK)
        return st == ST_FULL ? ST_OK : st;
    while (st == ST_OK && tensorboard_record_next(data, size, &at, &record, &record_size))
        st = tensorboard_read_event(curve, record, record_size);
    *out_complete = st == ST_OK && at == size;
    return st == ST_CORRUPT ? ST_OK : st;
}

/* ST_EXISTS: another process has the file. */
static enum status lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK ? ST_EXISTS : ST_OK;
}

static int take_fd(int *fd)
{
    const int taken = *fd;
    *fd = -1;
    return taken;
}

/* The newest file: goes on with it if it is complete, has its head and has room. */
static enum status take_newest(struct tensorboard *tb, struct name name)
{
    char path[LIMIT_PATH];
    bool complete = false;
    struct stat info;
    enum status st = path_of(tb, name, path);
    if (st != ST_OK)
        return st;
    auto_close int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return status_from_errno(errno);
    st = lock(fd);
    if (st == ST_OK)
        st = read_file(path, &tb->curve, &complete);
    if (st == ST_OK && fstat(fd, &info) != 0)
        st = status_from_errno(errno);
    if (st != ST_OK)
        return st;
    tb->name = name;
    tb->size = (uint64_t)info.st_size;
    tb->headless = tb->size == 0;
    if (complete && (tb->curve.begun || tb->headless) && tb->size < TENSORBOARD_FILE_BYTES) {
        tb->fd = take_fd(&fd);
    }
    return ST_OK;
}

/* Reads what was written before from the newest file. If that has no START, as we died early, older
 * files are read until one has. */
static enum status take_files(struct tensorboard *tb)
{
    struct search search = { .below = { .time = TIME_MAX, .number = FILES_MAX + 1 } };
    char path[LIMIT_PATH];
    bool complete = false;
    enum status st = io_system()->list(io_system()->self, tb->folder, look_at, &search);
    if (st != ST_OK || !search.found)
        return st == ST_NOT_FOUND ? ST_OK : st;
    st = take_newest(tb, search.newest);
    while (st == ST_OK && search.found && !tb->curve.begun) {
        search = (struct search){ .below = search.newest };
        st = io_system()->list(io_system()->self, tb->folder, look_at, &search);
        if (st == ST_OK && search.found)
            st = path_of(tb, search.newest, path);
        if (st == ST_OK && search.found)
            st = read_file(path, &tb->curve, &complete);
    }
    return st;
}

/* ---- writing ---- */

static void next_file(struct tensorboard *tb)
{
    if (tb->fd >= 0)
        (void)close(tb->fd);
    tb->fd = -1;
    tb->name.number++;
    tb->headless = true;
    tb->size = 0;
}

static enum status make_file(struct tensorboard *tb)
{
    char path[LIMIT_PATH];
    if (tb->name.number > FILES_MAX)
        return ST_FULL;
    enum status st = path_of(tb, tb->name, path);
    if (st == ST_OK)
        st = io_mkdir_all(io_system(), tb->folder);
    if (st != ST_OK)
        return st;
    tb->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (tb->fd < 0)
        return errno == EEXIST ? ST_CLOSED : status_from_errno(errno);
    return lock(tb->fd) == ST_OK ? ST_OK : ST_CLOSED;
}

/* Checks that nobody removed the file, wrote to it, or cut it. */
static enum status check_file(const struct tensorboard *tb)
{
    struct stat info;
    if (fstat(tb->fd, &info) != 0)
        return status_from_errno(errno);
    return info.st_nlink > 0 && (uint64_t)info.st_size == tb->size ? ST_OK : ST_CLOSED;
}

static enum status write_waiting(struct tensorboard *tb)
{
    enum status st = tb->fd < 0 ? make_file(tb) : check_file(tb);
    while (st == ST_OK && tb->sent < tb->waiting.size) {
        const size_t left = tb->waiting.size - tb->sent;
        const ssize_t size = write(tb->fd, tb->waiting.data + tb->sent, left);
        if (size > 0) {
            tb->sent += (size_t)size;
            tb->size += (uint64_t)size;
        } else if (size == 0 || errno != EINTR) {
            st = size == 0 ? ST_FULL : status_from_errno(errno);
        }
    }
    return st;
}

static enum status flush(struct tensorboard *tb)
{
    if (tb->lost)
        return ST_CLOSED;
    if (tb->sent == tb->waiting.size)
        return ST_OK;
    const enum status st = write_waiting(tb);
    if (st == ST_OK) {
        buf_clear(&tb->waiting);
        tb->sent = 0;
        if (tb->failing)
            LOG_INFO(tb->log, "events for TensorBoard are written again: %s", tb->folder);
    } else if (!tb->failing) {
        LOG_WARN(tb->log, "events for TensorBoard can't be written, trying again: %s: %s",
                 tb->folder, st == ST_CLOSED ? "the file was changed" : status_string(st));
    }
    tb->failing = st != ST_OK;
    tb->lost = st == ST_CLOSED;
    return st;
}

enum status tensorboard_flush(struct tensorboard *tb)
{
    return flush(tb);
}

/* ---- rows ---- */

/* True if a step is written: of a long job only every second, fourth, … step is, and every
 * evaluation. */
static bool wanted(const Cairn__V1__MetricRow *row)
{
    uint64_t every = 1;
    while (row->step / every > TENSORBOARD_ROWS)
        every *= 2;
    return row->step % every == 0 || row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL;
}

static enum status put(struct tensorboard *tb, const Cairn__V1__MetricRow *row, bool branch)
{
    struct tensorboard_curve curve = tb->curve;
    const size_t before_row = tb->waiting.size;
    enum status st = tb->headless ? tensorboard_put_version(row, &tb->waiting) : ST_OK;
    if (st == ST_OK && (branch || tb->headless))
        st = tensorboard_put_start(&curve, row, &tb->waiting);
    if (st == ST_OK)
        st = tensorboard_put_row(&curve, row, &tb->waiting);
    if (st != ST_OK) {
        tb->waiting.size = before_row;
        return st;
    }
    tb->headless = false;
    tb->curve = curve;
    return ST_OK;
}

static int64_t seconds_of(const Cairn__V1__MetricRow *row)
{
    const int64_t seconds = row->wall_ms / 1000;
    return seconds < 0 ? 0 : seconds > TIME_MAX ? TIME_MAX : seconds;
}

enum status tensorboard_add(struct tensorboard *tb, const Cairn__V1__MetricRow *row)
{
    if (row->step == 0 || row->step > INT64_MAX)
        return ST_INVALID;
    if (tb->lost)
        return ST_CLOSED;
    if (tb->waiting.size == 0 && tb->size >= TENSORBOARD_FILE_BYTES)
        next_file(tb);
    if (tb->name.number == 0)
        tb->name = (struct name){ .time = seconds_of(row), .number = 1 };
    const bool branch = row->step <= tb->curve.step || row->generation != tb->curve.generation;
    if (!branch && !wanted(row)) {
        tb->curve.step = row->step;
        return ST_OK;
    }
    const enum status st = put(tb, row, branch);
    if (st == ST_OK && tb->waiting.size >= TENSORBOARD_FLUSH_BYTES && !tb->failing)
        (void)flush(tb); /* what fails is told by the next call, or goes well then */
    return st;
}

/* ---- lifecycle ---- */

enum status tensorboard_open(const char *folder, const struct log *log, struct tensorboard **out)
{
    struct tensorboard *tb = calloc(1, sizeof(*tb));
    if (tb == NULL)
        return ST_NO_MEMORY;
    tb->log = log;
    tb->fd = -1;
    tb->headless = true;
    buf_init(&tb->waiting, TENSORBOARD_BUFFER_BYTES);
    const int size = snprintf(tb->folder, sizeof(tb->folder), "%s", folder);
    enum status st = size > 0 && size < LIMIT_PATH - NAME_BYTES ? ST_OK : ST_INVALID;
    if (st == ST_OK)
        st = take_files(tb);
    if (st == ST_OK && tb->name.number > 0 && tb->fd < 0)
        next_file(tb);
    if (st != ST_OK) {
        LOG_WARN(log, "events for TensorBoard can't be written: %s: %s", folder,
                 st == ST_EXISTS ? "another process writes there" : status_string(st));
        tensorboard_close(tb);
        return st;
    }
    *out = tb;
    return ST_OK;
}

void tensorboard_close(struct tensorboard *tb)
{
    if (tb == NULL)
        return;
    (void)flush(tb); /* rows that it fails for are asked for when it is opened again */
    if (tb->fd >= 0)
        (void)close(tb->fd);
    buf_release(&tb->waiting);
    free(tb);
}

uint64_t tensorboard_next_step(const struct tensorboard *tb)
{
    return tb->curve.step + 1;
}

uint32_t tensorboard_generation(const struct tensorboard *tb)
{
    return tb->curve.generation;
}
