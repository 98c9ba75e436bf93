#include "server/store/watch.h"

#include <stddef.h>

/*
 * Defines watch_CALL: CALL of the real table as long as the task isn't given up, counted when it
 * came back. PARAMETERS are those of the call in struct io; the rest are their names, without self.
 */
#define WATCH_CALL(CALL, PARAMETERS, ...)                                                          \
    static enum status watch_##CALL PARAMETERS                                                     \
    {                                                                                              \
        struct store_watch *watch = self;                                                          \
        const struct io *real = watch->real;                                                       \
        if (atomic_load(&watch->given_up))                                                         \
            return ST_CLOSED;                                                                      \
        const enum status st = real->CALL(real->self, __VA_ARGS__);                                \
        atomic_fetch_add(&watch->calls, 1);                                                        \
        return st;                                                                                 \
    }

/* ---- what is refused once the task was given up ---- */

WATCH_CALL(open, (void *self, const char *path, int flags, int *out_fd), path, flags, out_fd)
WATCH_CALL(pread, (void *self, int fd, void *data, size_t size, uint64_t at, size_t *out_size), fd,
           data, size, at, out_size)
WATCH_CALL(pwrite,
           (void *self, int fd, const void *data, size_t size, uint64_t at, size_t *out_size), fd,
           data, size, at, out_size)
WATCH_CALL(fsync, (void *self, int fd), fd)
WATCH_CALL(fsync_dir, (void *self, const char *path), path)
WATCH_CALL(mkdir, (void *self, const char *path), path)
WATCH_CALL(link, (void *self, const char *from, const char *to), from, to)
WATCH_CALL(rename, (void *self, const char *from, const char *to), from, to)
WATCH_CALL(unlink, (void *self, const char *path), path)
WATCH_CALL(rmdir, (void *self, const char *path), path)
WATCH_CALL(stat, (void *self, const char *path, struct io_stat *out), path, out)
WATCH_CALL(list, (void *self, const char *path, io_name_fn fn, void *arg), path, fn, arg)
WATCH_CALL(map, (void *self, int fd, void **out_data, size_t *out_size), fd, out_data, out_size)
WATCH_CALL(put_new, (void *self, const char *path, const void *data, size_t size), path, data, size)
WATCH_CALL(probe, (void *self, const char *path), path)
WATCH_CALL(list_sizes, (void *self, const char *path, io_size_fn fn, void *arg), path, fn, arg)
WATCH_CALL(unlink_many,
           (void *self, const char *dir, const char *const *names, uint32_t count, bool *out_gone),
           dir, names, count, out_gone)
WATCH_CALL(space, (void *self, const char *path, uint64_t *out_bytes), path, out_bytes)

/* Unlinks for a task that yields. */
static enum status watch_unlink_in_turn(void *self, const char *path)
{
    struct store_watch *watch = self;
    bool over = atomic_fetch_add(&watch->unlinked, 1) >= STORE_TURN;
    if (over && atomic_load(&watch->others_wait))
        atomic_store(&watch->yielded, true);
    return atomic_load(&watch->yielded) ? ST_AGAIN : watch_unlink(self, path);
}

/* ---- what is not: what is open is closed, and asking changes nothing ---- */

static enum status watch_close(void *self, int fd)
{
    const struct io *real = ((struct store_watch *)self)->real;
    return real->close(real->self, fd);
}

static enum status watch_unmap(void *self, void *data, size_t size)
{
    const struct io *real = ((struct store_watch *)self)->real;
    return real->unmap(real->self, data, size);
}

static void watch_expect(void *self, int fd, uint64_t at, uint64_t end)
{
    io_expect(((struct store_watch *)self)->real, fd, at, end);
}

static bool watch_seen_late(void *self, const char *path)
{
    const struct io *real = ((struct store_watch *)self)->real;
    return real->seen_late(real->self, path);
}

static bool watch_is_object(void *self, const char *path)
{
    const struct io *real = ((struct store_watch *)self)->real;
    return real->is_object(real->self, path);
}

static void watch_explain(void *self, enum status st, struct reason *out)
{
    const struct io *real = ((struct store_watch *)self)->real;
    real->explain(real->self, st, out);
}

void store_watch_init(struct store_watch *watch, const struct io *real, bool yields)
{
    watch->real = real;
    atomic_store(&watch->unlinked, 0);
    atomic_store(&watch->yielded, false);
    watch->io = (struct io){
        .self = watch,
        .open = watch_open,
        .close = watch_close,
        .pread = watch_pread,
        .pwrite = watch_pwrite,
        .fsync = watch_fsync,
        .fsync_dir = watch_fsync_dir,
        .mkdir = watch_mkdir,
        .link = watch_link,
        .rename = watch_rename,
        .unlink = yields ? watch_unlink_in_turn : watch_unlink,
        .rmdir = watch_rmdir,
        .stat = watch_stat,
        .list = watch_list,
        .map = real->map != NULL ? watch_map : NULL,
        .unmap = real->unmap != NULL ? watch_unmap : NULL,
        .is_object = real->is_object != NULL ? watch_is_object : NULL,
        .put_new = real->put_new != NULL ? watch_put_new : NULL,
        .probe = real->probe != NULL ? watch_probe : NULL,
        .list_sizes = real->list_sizes != NULL ? watch_list_sizes : NULL,
        .unlink_many = real->unlink_many != NULL ? watch_unlink_many : NULL,
        .seen_late = real->seen_late != NULL ? watch_seen_late : NULL,
        .expect = real->expect != NULL ? watch_expect : NULL,
        .space = real->space != NULL ? watch_space : NULL,
        .explain = real->explain != NULL ? watch_explain : NULL,
    };
}

void store_watch_give_up(struct store_watch *watch)
{
    atomic_store(&watch->given_up, true);
}
