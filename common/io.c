/* Functions that are built from the calls of the table; the order of the syncs is the point. */
#include "common/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"

#define INTERRUPTS_MAX 1000 /* a signal storm, not a disk, if there are more in a row */

bool io_is_object(const struct io *io, const char *path)
{
    return io->is_object != NULL && io->is_object(io->self, path);
}

void io_expect(const struct io *io, int fd, uint64_t at, uint64_t end)
{
    if (io->expect != NULL)
        io->expect(io->self, fd, at, end);
}

struct unsized {
    io_size_fn fn;
    void *arg;
};

static bool hand_on_unsized(void *arg, const char *name)
{
    const struct unsized *to = arg;
    return to->fn(to->arg, name, IO_SIZE_UNKNOWN);
}

enum status io_list_sizes(const struct io *io, const char *path, io_size_fn fn, void *arg)
{
    struct unsized to = { .fn = fn, .arg = arg };
    if (io->list_sizes != NULL && io_is_object(io, path))
        return io->list_sizes(io->self, path, fn, arg);
    return io->list(io->self, path, hand_on_unsized, &to);
}

enum status io_unlink_many(const struct io *io, const char *dir, const char *const *names,
                           uint32_t count, bool *out_gone)
{
    memset(out_gone, 0, count * sizeof(*out_gone));
    if (count < 2 || io->unlink_many == NULL || !io_is_object(io, dir))
        return ST_OK;
    return io->unlink_many(io->self, dir, names, count, out_gone);
}

/* The folder of a path: "." when it has none. */
static enum status parent_of(const char *path, char out[LIMIT_PATH])
{
    const char *slash = strrchr(path, '/');
    size_t size = slash == NULL ? 1 : slash == path ? 1 : (size_t)(slash - path);
    if (size >= LIMIT_PATH)
        return ST_TOO_LONG;
    memcpy(out, slash == NULL ? "." : path, size);
    out[size] = '\0';
    return ST_OK;
}

/* ---- what another machine has made ---- */

#define PAUSE_FIRST_MS 50
#define PAUSE_MAX_MS   1000

int64_t io_find_until(void)
{
    return clock_mono_ms(clock_system()) + IO_FIND_MS;
}

/* Looks at a file by what is remembered here, and if that isn't as expected, by opening it: facts
 * about an open file are as new as its opening. */
static enum status look_at(const struct io *io, const char *path, uint64_t size,
                           struct io_stat *out)
{
    int fd = -1;
    enum status st = io->stat(io->self, path, out);
    bool good = st == ST_OK && (out->is_dir || size == IO_SIZE_UNKNOWN || out->size == size);
    if (good || (st != ST_OK && st != ST_NOT_FOUND))
        return st;
    st = io->open(io->self, path, IO_READ, &fd);
    if (st != ST_OK)
        return st;
    st = io->stat(io->self, path, out);
    (void)io->close(io->self, fd);
    return st;
}

/* An io_name_fn: that it is read is all. */
static bool pass_over(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return true;
}

/* false: the time is over, or nobody waits any more. */
static bool pause_search(const struct io *io, int64_t ms, int64_t until_ms)
{
    const int64_t left_ms = until_ms - clock_mono_ms(clock_system());
    if (left_ms <= 0 || (io->waiting != NULL && !io->waiting(io->waiting_arg)))
        return false;
    ms = ms < left_ms ? ms : left_ms;
    const struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    (void)nanosleep(&time, NULL);
    return true;
}

enum status io_find(const struct io *io, const char *path, uint64_t size, int64_t until_ms,
                    struct io_stat *out)
{
    char parent[LIMIT_PATH];
    enum status st = look_at(io, path, size, out);
    if (st != ST_NOT_FOUND || io->seen_late == NULL || !io->seen_late(io->self, path) ||
        parent_of(path, parent) != ST_OK)
        return st;
    for (int64_t ms = PAUSE_FIRST_MS; st == ST_NOT_FOUND; ms = ms < PAUSE_MAX_MS ? ms * 2 : ms) {
        enum status listed = io->list(io->self, parent, pass_over, NULL);
        if (listed != ST_OK && listed != ST_NOT_FOUND)
            return listed;
        st = look_at(io, path, size, out);
        if (st == ST_NOT_FOUND &&
            !pause_search(io, ms < PAUSE_MAX_MS ? ms : PAUSE_MAX_MS, until_ms))
            break;
    }
    return st;
}

enum status io_space(const struct io *io, const char *path, uint64_t *out_bytes)
{
    *out_bytes = UINT64_MAX;
    return io->space == NULL || io_is_object(io, path) ? ST_OK
                                                       : io->space(io->self, path, out_bytes);
}

void io_explain(const struct io *io, enum status st, struct reason *out)
{
    struct reason own = { "" };
    if (io->explain != NULL)
        io->explain(io->self, st, &own);
    reason_set(out, "%s%s%s", status_string(st), own.text[0] == '\0' ? "" : ": ", own.text);
}

enum status io_write_all(const struct io *io, int fd, const void *data, size_t size, uint64_t at)
{
    const char *bytes = data;
    size_t done = 0;
    int interrupts = 0;
    while (done < size) {
        size_t now = 0;
        enum status st = io->pwrite(io->self, fd, bytes + done, size - done, at + done, &now);
        if (st == ST_AGAIN && ++interrupts < INTERRUPTS_MAX)
            continue;
        if (st != ST_OK)
            return st;
        if (now == 0)
            return ST_IO;
        done += now;
        interrupts = 0;
    }
    return ST_OK;
}

enum status io_read_all(const struct io *io, int fd, void *data, size_t size, uint64_t at)
{
    char *bytes = data;
    size_t done = 0;
    int interrupts = 0;
    while (done < size) {
        size_t now = 0;
        enum status st = io->pread(io->self, fd, bytes + done, size - done, at + done, &now);
        if (st == ST_AGAIN && ++interrupts < INTERRUPTS_MAX)
            continue;
        if (st != ST_OK)
            return st;
        if (now == 0)
            return ST_INCOMPLETE;
        done += now;
        interrupts = 0;
    }
    return ST_OK;
}

enum status io_read_file(const struct io *io, const char *path, size_t size_max, char **out,
                         size_t *out_size)
{
    struct io_stat info;
    enum status st = io->stat(io->self, path, &info);
    if (st != ST_OK)
        return st;
    if (info.is_dir)
        return ST_INVALID;
    if (info.size > size_max)
        return ST_FULL;
    int fd = -1;
    st = io->open(io->self, path, IO_READ, &fd);
    if (st != ST_OK)
        return st;
    auto_free char *data = malloc((size_t)info.size + 1);
    st = data == NULL ? ST_NO_MEMORY : io_read_all(io, fd, data, (size_t)info.size, 0);
    (void)io->close(io->self, fd);
    if (st != ST_OK)
        return st;
    data[info.size] = '\0';
    *out = TAKE_PTR(data);
    *out_size = (size_t)info.size;
    return ST_OK;
}

/* Writes and fsyncs a new file; an old one of that name is removed first. */
static enum status write_new(const struct io *io, const char *path, int rights, const void *data,
                             size_t size)
{
    int fd = -1;
    enum status st = io->open(io->self, path, IO_CREATE_NEW | rights, &fd);
    if (st == ST_EXISTS) {
        st = io->unlink(io->self, path);
        if (st == ST_OK)
            st = io->open(io->self, path, IO_CREATE_NEW | rights, &fd);
    }
    if (st != ST_OK)
        return st;
    st = io_write_all(io, fd, data, size, 0);
    if (st == ST_OK)
        st = io->fsync(io->self, fd);
    enum status closed = io->close(io->self, fd);
    return st != ST_OK ? st : closed;
}

enum status io_temporary(const struct io *io, const char *path, char out[LIMIT_PATH])
{
    const char *call = io->call == NULL ? "" : io->call;
    int length = snprintf(out, LIMIT_PATH, "%s%s%s.tmp", path, call[0] == '\0' ? "" : ".", call);
    return length < 0 || length >= LIMIT_PATH ? ST_TOO_LONG : ST_OK;
}

/* Writes the file under its temporary name; out_parent is the folder of both. */
static enum status write_temporary(const struct io *io, const char *path, int rights,
                                   const void *data, size_t size, char out_temporary[LIMIT_PATH],
                                   char out_parent[LIMIT_PATH])
{
    enum status st = io_temporary(io, path, out_temporary);
    if (st == ST_OK)
        st = parent_of(path, out_parent);
    return st == ST_OK ? write_new(io, out_temporary, rights, data, size) : st;
}

static enum status publish(const struct io *io, const char *path, int rights, const void *data,
                           size_t size)
{
    char temporary[LIMIT_PATH], parent[LIMIT_PATH];
    enum status st = write_temporary(io, path, rights, data, size, temporary, parent);
    if (st != ST_OK)
        return st;
    st = io->link(io->self, temporary, path);
    enum status removed = io->unlink(io->self, temporary);
    if (st != ST_OK)
        return st;
    if (removed != ST_OK)
        return removed;
    return io->fsync_dir(io->self, parent);
}

enum status io_publish(const struct io *io, const char *path, const void *data, size_t size)
{
    if (io_is_object(io, path))
        return io->put_new(io->self, path, data, size);
    return publish(io, path, 0, data, size);
}

enum status io_publish_private(const struct io *io, const char *path, const void *data, size_t size)
{
    return publish(io, path, IO_PRIVATE, data, size);
}

static enum status replace(const struct io *io, const char *path, int rights, const void *data,
                           size_t size)
{
    char temporary[LIMIT_PATH], parent[LIMIT_PATH];
    enum status st = write_temporary(io, path, rights, data, size, temporary, parent);
    if (st == ST_OK)
        st = io->rename(io->self, temporary, path);
    return st == ST_OK ? io->fsync_dir(io->self, parent) : st;
}

enum status io_replace(const struct io *io, const char *path, const void *data, size_t size)
{
    return replace(io, path, 0, data, size);
}

enum status io_replace_private(const struct io *io, const char *path, const void *data, size_t size)
{
    return replace(io, path, IO_PRIVATE, data, size);
}

/* Makes one folder; durable in its parent. */
static enum status make_folder(const struct io *io, const char *path)
{
    enum status st = io->mkdir(io->self, path);
    if (st == ST_EXISTS)
        return ST_OK;
    if (st != ST_OK)
        return st;
    char parent[LIMIT_PATH];
    st = parent_of(path, parent);
    if (st == ST_OK)
        st = io->fsync_dir(io->self, parent);
    if (st != ST_OK)
        (void)io->rmdir(io->self, path); /* another fsync would prove nothing: to be made again */
    return st;
}

enum status io_mkdir_all(const struct io *io, const char *path)
{
    if (io_is_object(io, path))
        return io->mkdir(io->self, path);
    char folder[LIMIT_PATH];
    int length = snprintf(folder, sizeof(folder), "%s", path);
    if (length <= 0 || (size_t)length >= sizeof(folder))
        return ST_INVALID;
    struct io_stat info;
    if (io->stat(io->self, folder, &info) == ST_OK)
        return info.is_dir ? ST_OK : ST_EXISTS;
    for (char *at = folder + 1; *at != '\0'; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        bool there = io->stat(io->self, folder, &info) == ST_OK;
        enum status st = there ? ST_OK : make_folder(io, folder);
        *at = '/';
        if (st != ST_OK)
            return st;
    }
    return make_folder(io, folder);
}
