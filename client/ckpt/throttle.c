#include "client/ckpt/throttle.h"

#include <time.h>

#include "common/clock.h"

#define NS INT64_C(1000000000)

/* Waits until the rate allows that `bytes` were read since the start. */
static void wait_for_rate(const struct throttle *throttle, uint64_t bytes)
{
    if (throttle->rate == 0)
        return;
    double due = (double)bytes / (double)throttle->rate * (double)NS;
    int64_t left = (int64_t)due - (clock_mono_ns() - throttle->start_ns);
    struct timespec wait = { .tv_sec = left / NS, .tv_nsec = left % NS };
    if (left > 0)
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &wait, NULL);
}

static enum status throttle_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                                  size_t *out_size)
{
    struct throttle *t = self;
    enum status st = t->inner->pread(t->inner->self, fd, data, size, at, out_size);
    if (st != ST_OK)
        return st;
    (void)pthread_mutex_lock(&t->lock);
    t->bytes += *out_size;
    uint64_t bytes = t->bytes;
    if (t->progress != NULL)
        t->progress(t->progress_arg, bytes);
    (void)pthread_mutex_unlock(&t->lock);
    wait_for_rate(t, bytes);
    return ST_OK;
}

static enum status throttle_open(void *self, const char *path, int flags, int *out_fd)
{
    const struct throttle *t = self;
    return t->inner->open(t->inner->self, path, flags, out_fd);
}

static enum status throttle_close(void *self, int fd)
{
    const struct throttle *t = self;
    return t->inner->close(t->inner->self, fd);
}

static enum status throttle_stat(void *self, const char *path, struct io_stat *out)
{
    const struct throttle *t = self;
    return t->inner->stat(t->inner->self, path, out);
}

static enum status throttle_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    const struct throttle *t = self;
    return t->inner->list(t->inner->self, path, fn, arg);
}

static enum status throttle_list_sizes(void *self, const char *path, io_size_fn fn, void *arg)
{
    const struct throttle *t = self;
    return io_list_sizes(t->inner, path, fn, arg);
}

static bool throttle_is_object(void *self, const char *path)
{
    const struct throttle *t = self;
    return io_is_object(t->inner, path);
}

static void throttle_expect(void *self, int fd, uint64_t at, uint64_t end)
{
    const struct throttle *t = self;
    io_expect(t->inner, fd, at, end);
}

void throttle_init(struct throttle *throttle, const struct io *inner, uint64_t rate)
{
    *throttle = (struct throttle){ .inner = inner, .rate = rate, .start_ns = clock_mono_ns() };
    (void)pthread_mutex_init(&throttle->lock, NULL);
    /* What changes anything, and mapping, which can't be counted, is left out. */
    throttle->io = (struct io){ .self = throttle,
                                .open = throttle_open,
                                .close = throttle_close,
                                .pread = throttle_pread,
                                .stat = throttle_stat,
                                .list = throttle_list,
                                .list_sizes = throttle_list_sizes,
                                .is_object = throttle_is_object,
                                .expect = throttle_expect };
}

void throttle_release(struct throttle *throttle)
{
    (void)pthread_mutex_destroy(&throttle->lock);
}
