#include "tests/gpu/async_device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/check.h"
#include "common/clock.h"
#include "tests/gpu/async_impl.h"

#define QUEUE_MAX     1024
#define ADDRESS_BYTES ((size_t)16 << 30)
#define PAGE          ((size_t)4096)

struct event {
    atomic_uint_fast64_t recorded, done;
    int64_t at_ns; /* when the stream came to it last; of the mutex */
    bool timed;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
};

static atomic_size_t limit;
static atomic_uint_fast64_t allocations;

void async_device_limit(size_t bytes)
{
    atomic_store(&limit, bytes);
}

uint64_t async_device_allocations(void)
{
    return atomic_load(&allocations);
}

/* ---- memory ---- */

bool async_is_device(const struct backend *b, const void *p)
{
    const uint8_t *at = p;
    return at >= b->address && at < b->address + ADDRESS_BYTES;
}

void *async_memory_of(const struct backend *b, const void *p)
{
    return async_is_device(b, p) ? b->memory + ((const uint8_t *)p - b->address) : (void *)p;
}

void *async_device_memory(struct stream *stream, const void *address)
{
    return async_memory_of(stream->backend, address);
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Addresses, of which `taken` bytes are memory; whole pages. */
static enum status take(struct backend *b, size_t addresses, size_t taken, uint8_t **out)
{
    const size_t most = atomic_load(&limit) == 0 ? ADDRESS_BYTES : atomic_load(&limit);
    (void)atomic_fetch_add(&allocations, 1);
    (void)pthread_mutex_lock(&b->mutex);
    const bool fits =
        taken <= most && b->taken <= most - taken && addresses <= ADDRESS_BYTES - b->used;
    if (fits) {
        *out = b->address + b->used;
        b->used += addresses;
        b->taken += taken;
    }
    (void)pthread_mutex_unlock(&b->mutex);
    return fits ? ST_OK : ST_NO_MEMORY;
}

static enum status async_alloc(struct backend *b, size_t bytes, void **out)
{
    uint8_t *at = NULL;
    enum status st = take(b, whole_pages(bytes), whole_pages(bytes), &at);
    if (st == ST_OK)
        *out = at;
    return st;
}

/* Addresses are not used again. */
static void async_free(struct backend *b, void *memory)
{
    CHECK(async_is_device(b, memory));
}

static enum status async_alloc_parts(struct backend *b, size_t bytes,
                                     const struct memory_part *parts, size_t count, void **out)
{
    size_t taken = 0;
    uint8_t *at = NULL;
    for (size_t i = 0; i < count; i++)
        taken += whole_pages(parts[i].bytes);
    enum status st = take(b, whole_pages(bytes), taken, &at);
    if (st != ST_OK)
        return st;
    uint8_t *memory = async_memory_of(b, at);
    CHECK(mprotect(memory, whole_pages(bytes), PROT_NONE) == 0);
    for (size_t i = 0; i < count; i++) {
        const size_t first = parts[i].first / PAGE * PAGE, end = parts[i].first + parts[i].bytes;
        CHECK(end <= bytes);
        CHECK(mprotect(memory + first, end - first, PROT_READ | PROT_WRITE) == 0);
    }
    *out = at;
    return ST_OK;
}

/* Whoever still touches it, dies. */
static void async_free_parts(struct backend *b, void *memory, size_t bytes)
{
    CHECK(async_is_device(b, memory));
    CHECK(mprotect(async_memory_of(b, memory), whole_pages(bytes), PROT_NONE) == 0);
}

static enum status async_alloc_host(struct backend *b, size_t bytes, void **out)
{
    void *data = calloc(1, bytes);
    if (data == NULL)
        return ST_NO_MEMORY;
    (void)pthread_mutex_lock(&b->mutex);
    int i = 0;
    while (i < PINNED_MAX && b->pinned[i].data != NULL)
        i++;
    CHECK(i < PINNED_MAX);
    b->pinned[i].data = data;
    b->pinned[i].bytes = bytes;
    (void)pthread_mutex_unlock(&b->mutex);
    *out = data;
    return ST_OK;
}

static void async_free_host(struct backend *b, void *memory)
{
    (void)pthread_mutex_lock(&b->mutex);
    for (int i = 0; i < PINNED_MAX; i++) {
        if (b->pinned[i].data == memory)
            b->pinned[i].data = NULL;
    }
    (void)pthread_mutex_unlock(&b->mutex);
    free(memory);
}

bool async_is_stable(struct backend *b, const void *p)
{
    bool found = async_is_device(b, p);
    const uint8_t *at = p;
    (void)pthread_mutex_lock(&b->mutex);
    for (int i = 0; !found && i < PINNED_MAX; i++) {
        found = b->pinned[i].data != NULL && at >= b->pinned[i].data &&
                at < b->pinned[i].data + b->pinned[i].bytes;
    }
    (void)pthread_mutex_unlock(&b->mutex);
    return found;
}

/* ---- streams ---- */

static void *run_stream(void *arg)
{
    struct stream *s = arg;
    (void)pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (!s->quit && s->begin == s->end)
            (void)pthread_cond_wait(&s->changed, &s->mutex);
        if (s->begin == s->end)
            break;
        struct work *work = &s->queue[s->begin % QUEUE_MAX];
        (void)pthread_mutex_unlock(&s->mutex);
        const enum status st = work->run(s, work->arg);
        (void)pthread_mutex_lock(&s->mutex);
        if (s->status == ST_OK)
            s->status = st;
        s->begin++;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->mutex);
    return NULL;
}

void async_device_enqueue(struct stream *s, async_run *run, const void *arg, size_t size)
{
    CHECK(size <= ASYNC_ARG_MAX);
    CHECK(atomic_load(&s->held) == 0);
    (void)pthread_mutex_lock(&s->mutex);
    while (s->end - s->begin == QUEUE_MAX)
        (void)pthread_cond_wait(&s->changed, &s->mutex);
    struct work *work = &s->queue[s->end % QUEUE_MAX];
    work->run = run;
    memcpy(work->arg, arg, size);
    s->end++;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->mutex);
}

void async_device_hold(struct stream *stream, int by)
{
    (void)atomic_fetch_add(&stream->held, by);
}

static enum status async_stream_new(struct backend *b, struct stream **out)
{
    struct stream *s = calloc(1, sizeof(*s));
    CHECK(s != NULL);
    s->backend = b;
    s->queue = calloc(QUEUE_MAX, sizeof(*s->queue));
    CHECK(s->queue != NULL);
    CHECK(backend_cpu()->stream_new(b->cpu, &s->cpu) == ST_OK);
    (void)pthread_mutex_init(&s->mutex, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    CHECK(pthread_create(&s->thread, NULL, run_stream, s) == 0);
    *out = s;
    return ST_OK;
}

static void async_stream_free(struct backend *b, struct stream *s)
{
    (void)pthread_mutex_lock(&s->mutex);
    s->quit = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->mutex);
    (void)pthread_join(s->thread, NULL);
    backend_cpu()->stream_free(b->cpu, s->cpu);
    free(s->queue);
    free(s);
}

enum status async_stream_sync(struct backend *b, struct stream *s)
{
    (void)b;
    (void)pthread_mutex_lock(&s->mutex);
    while (s->begin != s->end)
        (void)pthread_cond_wait(&s->changed, &s->mutex);
    const enum status st = s->status;
    (void)pthread_mutex_unlock(&s->mutex);
    return st;
}

static void *async_stream_native(struct stream *stream)
{
    return stream;
}

/* ---- events ---- */

static enum status async_event_new(struct backend *b, bool timed, struct event **out)
{
    (void)b;
    struct event *e = calloc(1, sizeof(*e));
    CHECK(e != NULL);
    e->timed = timed;
    (void)pthread_mutex_init(&e->mutex, NULL);
    (void)pthread_cond_init(&e->changed, NULL);
    *out = e;
    return ST_OK;
}

static void async_event_free(struct backend *b, struct event *e)
{
    (void)b;
    (void)pthread_mutex_lock(&e->mutex); /* the stream that set it has let go of it */
    (void)pthread_mutex_unlock(&e->mutex);
    (void)pthread_mutex_destroy(&e->mutex);
    (void)pthread_cond_destroy(&e->changed);
    free(e);
}

struct moment {
    struct event *event;
    uint64_t number;
};

static enum status run_record(struct stream *stream, void *arg)
{
    (void)stream;
    const struct moment *m = arg;
    (void)pthread_mutex_lock(&m->event->mutex);
    m->event->at_ns = clock_mono_ns();
    atomic_store(&m->event->done, m->number);
    (void)pthread_cond_broadcast(&m->event->changed);
    (void)pthread_mutex_unlock(&m->event->mutex);
    return ST_OK;
}

static enum status run_wait(struct stream *stream, void *arg)
{
    (void)stream;
    const struct moment *m = arg;
    (void)pthread_mutex_lock(&m->event->mutex);
    while (atomic_load(&m->event->done) < m->number)
        (void)pthread_cond_wait(&m->event->changed, &m->event->mutex);
    (void)pthread_mutex_unlock(&m->event->mutex);
    return ST_OK;
}

static enum status async_event_record(struct backend *b, struct event *e, struct stream *s)
{
    (void)b;
    const struct moment m = { e, atomic_fetch_add(&e->recorded, 1) + 1 };
    async_device_enqueue(s, run_record, &m, sizeof(m));
    return ST_OK;
}

static enum status async_event_wait(struct backend *b, struct event *e, struct stream *s)
{
    (void)b;
    const struct moment m = { e, atomic_load(&e->recorded) };
    async_device_enqueue(s, run_wait, &m, sizeof(m));
    return ST_OK;
}

static enum status async_event_query(struct backend *b, struct event *e)
{
    (void)b;
    return atomic_load(&e->done) == atomic_load(&e->recorded) ? ST_OK : ST_AGAIN;
}

static int64_t moment_of(struct event *e)
{
    (void)pthread_mutex_lock(&e->mutex);
    const int64_t at_ns = e->at_ns;
    (void)pthread_mutex_unlock(&e->mutex);
    return at_ns;
}

static enum status async_event_elapsed(struct backend *b, struct event *begin, struct event *end,
                                       int64_t *out_us)
{
    CHECK(begin->timed && end->timed);
    if (async_event_query(b, begin) != ST_OK || async_event_query(b, end) != ST_OK)
        return ST_AGAIN;
    *out_us = (moment_of(end) - moment_of(begin)) / 1000;
    return ST_OK;
}

/* ---- the table ---- */

static enum status async_open(const struct backend_options *options, struct backend **out)
{
    struct backend *b = calloc(1, sizeof(*b));
    CHECK(b != NULL);
    enum status st = backend_cpu()->open(options, &b->cpu);
    if (st != ST_OK) {
        free(b);
        return st;
    }
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    b->address = mmap(NULL, ADDRESS_BYTES, PROT_NONE, flags, -1, 0);
    b->memory = mmap(NULL, ADDRESS_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(b->address != MAP_FAILED);
    CHECK(b->memory != MAP_FAILED);
    (void)pthread_mutex_init(&b->mutex, NULL);
    *out = b;
    return ST_OK;
}

static void async_close(struct backend *b)
{
    (void)munmap(b->address, ADDRESS_BYTES);
    (void)munmap(b->memory, ADDRESS_BYTES);
    backend_cpu()->close(b->cpu);
    free(b);
}

static enum status async_pins(struct backend *b, struct buf *out)
{
    return backend_cpu()->pins(b->cpu, out);
}

static enum status async_capture_begin(struct backend *b, struct stream *s)
{
    (void)b;
    (void)s;
    return ST_INVALID;
}

static struct backend_table table = {
    .name = "cuda",
    .open = async_open,
    .close = async_close,
    .alloc = async_alloc,
    .alloc_parts = async_alloc_parts,
    .free_parts = async_free_parts,
    .free = async_free,
    .alloc_host = async_alloc_host,
    .free_host = async_free_host,
    .stream_new = async_stream_new,
    .stream_free = async_stream_free,
    .event_new = async_event_new,
    .event_free = async_event_free,
    .event_record = async_event_record,
    .event_wait = async_event_wait,
    .event_query = async_event_query,
    .event_elapsed = async_event_elapsed,
    .stream_sync = async_stream_sync,
    .stream_native = async_stream_native,
    .capture_begin = async_capture_begin,
    .refresh = async_refresh,
    .reformat = async_reformat,
    .sum = async_sum,
    .kernel_free = async_kernel_free,
    .pins = async_pins,
};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill_table(void)
{
    for (int op = 0; op < OP_COUNT; op++)
        table.op[op] = async_ops;
    table.vector = async_vector;
}

const struct backend_table *async_device(void)
{
    (void)pthread_once(&once, fill_table);
    return &table;
}
