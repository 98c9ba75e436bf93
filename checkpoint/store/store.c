/*
 * Invariants:
 *  (1) S3's descriptors begin where the system's can't be (S3_FD_FIRST).
 *  (2) s3 is made once, under the mutex. Whoever calls it is counted in `inside`, or holds it.
 */
#include "checkpoint/store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/s3/s3.h"
#include "common/check.h"

struct ckpt_store {
    struct io io;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct s3 *s3; /* NULL until a path asked for it */
    uint32_t inside;
    bool closing;
    struct reason reason; /* why there is no s3 */
};

bool ckpt_store_is_object(const char *path)
{
    return strncmp(path, "s3://", 5) == 0;
}

/* ---- the way in and out of S3 ---- */

/* *out is the table to call; leave afterwards. */
static enum status enter_s3(struct ckpt_store *store, const struct io **out)
{
    CHECK(pthread_mutex_lock(&store->mutex) == 0);
    enum status st = store->closing ? ST_CLOSED : ST_OK;
    if (st == ST_OK && store->s3 == NULL) {
        struct s3_options options = s3_defaults();
        st = s3_new(&options, &store->s3, &store->reason);
    }
    if (st == ST_OK) {
        store->inside++;
        *out = s3_io(store->s3);
    }
    (void)pthread_mutex_unlock(&store->mutex);
    return st;
}

static enum status leave_s3(struct ckpt_store *store, enum status st)
{
    CHECK(pthread_mutex_lock(&store->mutex) == 0);
    CHECK(store->inside > 0);
    if (--store->inside == 0)
        (void)pthread_cond_broadcast(&store->changed);
    (void)pthread_mutex_unlock(&store->mutex);
    return st;
}

enum status ckpt_store_ready(struct ckpt_store *store)
{
    const struct io *io = NULL;
    enum status st = enter_s3(store, &io);
    return st == ST_OK ? leave_s3(store, s3_ready(store->s3)) : st;
}

/* ---- by path ---- */

static enum status store_open(void *self, const char *path, int flags, int *out_fd)
{
    const struct io *io = io_system();
    if (!ckpt_store_is_object(path))
        return io->open(io->self, path, flags, out_fd);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->open(io->self, path, flags, out_fd)) : st;
}

/* A call that takes nothing but a path. */
typedef enum status (*path_fn)(void *self, const char *path);
enum path_call { CALL_FSYNC_DIR, CALL_MKDIR, CALL_UNLINK, CALL_RMDIR };

static path_fn path_call_of(const struct io *io, enum path_call call)
{
    switch (call) {
    case CALL_FSYNC_DIR:
        return io->fsync_dir;
    case CALL_MKDIR:
        return io->mkdir;
    case CALL_UNLINK:
        return io->unlink;
    case CALL_RMDIR:
        return io->rmdir;
    }
    CHECK(false);
    return NULL;
}

static enum status by_path(void *self, const char *path, enum path_call call)
{
    const struct io *io = io_system();
    if (!ckpt_store_is_object(path))
        return path_call_of(io, call)(io->self, path);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, path_call_of(io, call)(io->self, path)) : st;
}

static enum status store_fsync_dir(void *self, const char *path)
{
    return by_path(self, path, CALL_FSYNC_DIR);
}

static enum status store_mkdir(void *self, const char *path)
{
    return by_path(self, path, CALL_MKDIR);
}

static enum status store_unlink(void *self, const char *path)
{
    return by_path(self, path, CALL_UNLINK);
}

static enum status store_rmdir(void *self, const char *path)
{
    return by_path(self, path, CALL_RMDIR);
}

/* Nothing is linked or moved from one kind of store to the other. */
static enum status store_link(void *self, const char *from, const char *to)
{
    (void)self;
    const struct io *io = io_system();
    if (ckpt_store_is_object(from) || ckpt_store_is_object(to))
        return ST_REFUSED;
    return io->link(io->self, from, to);
}

static enum status store_rename(void *self, const char *from, const char *to)
{
    const struct io *io = io_system();
    if (ckpt_store_is_object(from) != ckpt_store_is_object(to))
        return ST_REFUSED;
    if (!ckpt_store_is_object(from))
        return io->rename(io->self, from, to);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->rename(io->self, from, to)) : st;
}

static enum status store_stat(void *self, const char *path, struct io_stat *out)
{
    const struct io *io = io_system();
    if (!ckpt_store_is_object(path))
        return io->stat(io->self, path, out);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->stat(io->self, path, out)) : st;
}

static enum status store_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    const struct io *io = io_system();
    if (!ckpt_store_is_object(path))
        return io->list(io->self, path, fn, arg);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->list(io->self, path, fn, arg)) : st;
}

static bool store_is_object(void *self, const char *path)
{
    (void)self;
    return ckpt_store_is_object(path);
}

static enum status store_put_new(void *self, const char *path, const void *data, size_t size)
{
    const struct io *io = NULL;
    enum status st = ckpt_store_is_object(path) ? enter_s3(self, &io) : ST_INVALID;
    return st == ST_OK ? leave_s3(self, io->put_new(io->self, path, data, size)) : st;
}

static enum status store_probe(void *self, const char *path)
{
    const struct io *io = NULL;
    if (!ckpt_store_is_object(path))
        return ST_OK;
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->probe(io->self, path)) : st;
}

/* Calls that only object stores have (io_list_sizes, io_unlink_many). */
static enum status store_list_sizes(void *self, const char *path, io_size_fn fn, void *arg)
{
    const struct io *io = NULL;
    enum status st = ckpt_store_is_object(path) ? enter_s3(self, &io) : ST_INVALID;
    return st == ST_OK ? leave_s3(self, io->list_sizes(io->self, path, fn, arg)) : st;
}

static enum status store_unlink_many(void *self, const char *dir, const char *const *names,
                                     uint32_t count, bool *out_gone)
{
    const struct io *io = NULL;
    enum status st = ckpt_store_is_object(dir) ? enter_s3(self, &io) : ST_INVALID;
    return st == ST_OK ? leave_s3(self, io->unlink_many(io->self, dir, names, count, out_gone))
                       : st;
}

/* Returns the free space of a folder; a bucket has no bound. */
static enum status store_space(void *self, const char *path, uint64_t *out_bytes)
{
    (void)self;
    return io_space(io_system(), path, out_bytes);
}

/* False for an object store, which answers all clients alike. */
static bool store_seen_late(void *self, const char *path)
{
    (void)self;
    const struct io *io = io_system();
    return !ckpt_store_is_object(path) && io->seen_late(io->self, path);
}

static void store_explain(void *self, enum status st, struct reason *out)
{
    struct ckpt_store *store = self;
    CHECK(pthread_mutex_lock(&store->mutex) == 0);
    const struct io *io = store->s3 == NULL ? NULL : s3_io(store->s3);
    if (io != NULL) {
        io->explain(io->self, st, out);
    } else {
        *out = st == ST_CONFIG ? store->reason : (struct reason){ "" };
    }
    (void)pthread_mutex_unlock(&store->mutex);
}

/* ---- by descriptor ---- */

static enum status store_close(void *self, int fd)
{
    const struct io *io = io_system();
    if (fd < S3_FD_FIRST)
        return io->close(io->self, fd);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->close(io->self, fd)) : st;
}

static enum status store_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                               size_t *out_size)
{
    const struct io *io = io_system();
    if (fd < S3_FD_FIRST)
        return io->pread(io->self, fd, data, size, at, out_size);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->pread(io->self, fd, data, size, at, out_size)) : st;
}

static enum status store_pwrite(void *self, int fd, const void *data, size_t size, uint64_t at,
                                size_t *out_size)
{
    const struct io *io = io_system();
    if (fd < S3_FD_FIRST)
        return io->pwrite(io->self, fd, data, size, at, out_size);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->pwrite(io->self, fd, data, size, at, out_size)) : st;
}

static enum status store_fsync(void *self, int fd)
{
    const struct io *io = io_system();
    if (fd < S3_FD_FIRST)
        return io->fsync(io->self, fd);
    enum status st = enter_s3(self, &io);
    return st == ST_OK ? leave_s3(self, io->fsync(io->self, fd)) : st;
}

static void store_expect(void *self, int fd, uint64_t at, uint64_t end)
{
    const struct io *io = NULL;
    if (fd < S3_FD_FIRST || enter_s3(self, &io) != ST_OK)
        return;
    io->expect(io->self, fd, at, end);
    (void)!leave_s3(self, ST_OK);
}

static enum status store_map(void *self, int fd, void **out_data, size_t *out_size)
{
    (void)self;
    const struct io *io = io_system();
    return fd < S3_FD_FIRST ? io->map(io->self, fd, out_data, out_size) : ST_REFUSED;
}

static enum status store_unmap(void *self, void *data, size_t size)
{
    (void)self;
    const struct io *io = io_system();
    return io->unmap(io->self, data, size);
}

/* ---- its life ---- */

enum status ckpt_store_new(struct ckpt_store **out)
{
    struct ckpt_store *store = calloc(1, sizeof(*store));
    if (store == NULL)
        return ST_NO_MEMORY;
    CHECK(pthread_mutex_init(&store->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&store->changed, NULL) == 0);
    store->io = (struct io){
        .self = store,
        .open = store_open,
        .close = store_close,
        .pread = store_pread,
        .pwrite = store_pwrite,
        .fsync = store_fsync,
        .fsync_dir = store_fsync_dir,
        .mkdir = store_mkdir,
        .link = store_link,
        .rename = store_rename,
        .unlink = store_unlink,
        .rmdir = store_rmdir,
        .stat = store_stat,
        .list = store_list,
        .map = store_map,
        .unmap = store_unmap,
        .is_object = store_is_object,
        .put_new = store_put_new,
        .probe = store_probe,
        .list_sizes = store_list_sizes,
        .unlink_many = store_unlink_many,
        .seen_late = store_seen_late,
        .space = store_space,
        .expect = store_expect,
        .explain = store_explain,
    };
    *out = store;
    return ST_OK;
}

void ckpt_store_close(struct ckpt_store *store)
{
    CHECK(pthread_mutex_lock(&store->mutex) == 0);
    store->closing = true;
    if (store->s3 != NULL)
        s3_close(store->s3);
    (void)pthread_mutex_unlock(&store->mutex);
}

void ckpt_store_free(struct ckpt_store *store)
{
    if (store == NULL)
        return;
    ckpt_store_close(store);
    CHECK(pthread_mutex_lock(&store->mutex) == 0);
    while (store->inside > 0)
        (void)pthread_cond_wait(&store->changed, &store->mutex);
    (void)pthread_mutex_unlock(&store->mutex);
    s3_free(store->s3);
    (void)pthread_mutex_destroy(&store->mutex);
    (void)pthread_cond_destroy(&store->changed);
    free(store);
}

const struct io *ckpt_store_io(struct ckpt_store *store)
{
    return &store->io;
}
