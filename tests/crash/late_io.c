#include "tests/crash/late_io.h"

#include <stdio.h>

/* ---- the one that is cut off ---- */

/* false: the call is made now. */
static bool keep_call(struct late_io *late, enum late_call call, const char *path, const char *to)
{
    if (late->cut)
        return true;
    if (--late->slow_left > 0)
        return false;
    late->cut = true;
    late->kept = call;
    (void)snprintf(late->path, sizeof(late->path), "%s", path);
    (void)snprintf(late->to, sizeof(late->to), "%s", to);
    return true;
}

static enum status slow_open(void *self, const char *path, int flags, int *out_fd)
{
    struct late_io *late = self;
    bool reads = (flags & IO_CREATE_NEW) == 0;
    if (reads ? late->cut : keep_call(late, LATE_OPEN, path, ""))
        return ST_CLOSED;
    return late->real->open(late->real->self, path, flags, out_fd);
}

static enum status slow_fsync_dir(void *self, const char *path)
{
    struct late_io *late = self;
    return keep_call(late, LATE_FSYNC_DIR, path, "")
               ? ST_CLOSED
               : late->real->fsync_dir(late->real->self, path);
}

static enum status slow_mkdir(void *self, const char *path)
{
    struct late_io *late = self;
    return keep_call(late, LATE_MKDIR, path, "") ? ST_CLOSED
                                                 : late->real->mkdir(late->real->self, path);
}

static enum status slow_link(void *self, const char *from, const char *to)
{
    struct late_io *late = self;
    return keep_call(late, LATE_LINK, from, to) ? ST_CLOSED
                                                : late->real->link(late->real->self, from, to);
}

static enum status slow_unlink(void *self, const char *path)
{
    struct late_io *late = self;
    return keep_call(late, LATE_UNLINK, path, "") ? ST_CLOSED
                                                  : late->real->unlink(late->real->self, path);
}

/* Only what failed is undone so. */
static enum status slow_rmdir(void *self, const char *path)
{
    struct late_io *late = self;
    return late->cut ? ST_CLOSED : late->real->rmdir(late->real->self, path);
}

/* ---- the one in its place ---- */

/* What comes of it nobody hears. */
static void make_late_call(struct late_io *late)
{
    const struct io *io = late->real;
    int fd = -1;
    if (late->made || --late->next_left > 0)
        return;
    late->made = true;
    switch (late->kept) {
    case LATE_NONE:
        break;
    case LATE_OPEN:
        if (io->open(io->self, late->path, IO_CREATE_NEW, &fd) == ST_OK)
            (void)io->close(io->self, fd);
        break;
    case LATE_FSYNC_DIR:
        (void)io->fsync_dir(io->self, late->path);
        break;
    case LATE_MKDIR:
        (void)io->mkdir(io->self, late->path);
        break;
    case LATE_LINK:
        (void)io->link(io->self, late->path, late->to);
        break;
    case LATE_UNLINK:
        (void)io->unlink(io->self, late->path);
        break;
    }
}

static enum status next_open(void *self, const char *path, int flags, int *out_fd)
{
    struct late_io *late = self;
    make_late_call(late);
    return late->real->open(late->real->self, path, flags, out_fd);
}

static enum status next_fsync_dir(void *self, const char *path)
{
    struct late_io *late = self;
    make_late_call(late);
    return late->real->fsync_dir(late->real->self, path);
}

static enum status next_mkdir(void *self, const char *path)
{
    struct late_io *late = self;
    make_late_call(late);
    return late->real->mkdir(late->real->self, path);
}

static enum status next_link(void *self, const char *from, const char *to)
{
    struct late_io *late = self;
    make_late_call(late);
    return late->real->link(late->real->self, from, to);
}

static enum status next_unlink(void *self, const char *path)
{
    struct late_io *late = self;
    make_late_call(late);
    return late->real->unlink(late->real->self, path);
}

static enum status next_rmdir(void *self, const char *path)
{
    struct late_io *late = self;
    return late->real->rmdir(late->real->self, path);
}

/* ---- what both have ---- */

static enum status late_stat(void *self, const char *path, struct io_stat *out)
{
    const struct io *io = ((struct late_io *)self)->real;
    return io->stat(io->self, path, out);
}

static enum status late_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    const struct io *io = ((struct late_io *)self)->real;
    return io->list(io->self, path, fn, arg);
}

static enum status late_close(void *self, int fd)
{
    const struct io *io = ((struct late_io *)self)->real;
    return io->close(io->self, fd);
}

static enum status late_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                              size_t *out_size)
{
    const struct io *io = ((struct late_io *)self)->real;
    return io->pread(io->self, fd, data, size, at, out_size);
}

static enum status late_pwrite(void *self, int fd, const void *data, size_t size, uint64_t at,
                               size_t *out_size)
{
    const struct io *io = ((struct late_io *)self)->real;
    return io->pwrite(io->self, fd, data, size, at, out_size);
}

static enum status late_fsync(void *self, int fd)
{
    const struct io *io = ((struct late_io *)self)->real;
    return io->fsync(io->self, fd);
}

void late_io_init(struct late_io *late, const struct io *real, uint64_t slow_nth, uint64_t next_mth)
{
    *late = (struct late_io){ .real = real, .slow_left = slow_nth, .next_left = next_mth };
    late->next = (struct io){
        .self = late,
        .open = next_open,
        .close = late_close,
        .pread = late_pread,
        .pwrite = late_pwrite,
        .fsync = late_fsync,
        .fsync_dir = next_fsync_dir,
        .mkdir = next_mkdir,
        .link = next_link,
        .unlink = next_unlink,
        .rmdir = next_rmdir,
        .stat = late_stat,
        .list = late_list,
    };
    late->slow = late->next;
    late->slow.open = slow_open;
    late->slow.fsync_dir = slow_fsync_dir;
    late->slow.mkdir = slow_mkdir;
    late->slow.link = slow_link;
    late->slow.unlink = slow_unlink;
    late->slow.rmdir = slow_rmdir;
}
