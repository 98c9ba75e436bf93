#include "trainer/state/owned_sync.h"

#include <stdlib.h>

#include "common/cleanup.h"

#define STRETCH ((size_t)1024 * 1024) /* elements that are sent at once */
#define SEND_MS INT64_C(60000)

struct owned_sync {
    struct worker *worker;
    const struct owned_sync_options *options;
    struct owners before;
    float *stretch;
    struct comm_segment *segments;
};

static enum status copy_now(const struct worker *w, void *to, const void *from, size_t count)
{
    const struct device *d = &w->device;
    enum status st = d->table->vector.copy(d->backend, to, from, count * sizeof(float), d->compute);
    return st == ST_OK ? d->table->stream_sync(d->backend, d->compute) : st;
}

/* Copies the elements that this rank owns now of [first, first + count), which lie in the
 * stretch. */
static enum status take(const struct owned_sync *s, size_t first, size_t count, float *to)
{
    const struct worker *w = s->worker;
    const struct owned_extent all = { 0, w->layout.param_count }, *extent = &all;
    uint32_t extents = 1;
    if (ownership_is_shared(&w->ownership))
        extent = owners_own(&w->ownership.owners, &extents);
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < extents; i++, extent++) {
        const size_t begin = extent->first > first ? extent->first : first;
        const size_t end = extent->first + extent->count < first + count
                               ? extent->first + extent->count
                               : first + count;
        if (begin < end)
            st = copy_now(w, to + begin, s->stretch + (begin - first), end - begin);
    }
    return st;
}

/* Sends one extent from the rank that has it to all. */
static enum status send_extent(const struct owned_sync *s, uint32_t part,
                               struct owned_extent extent, const float *from, float *to)
{
    const struct owned_sync_options *o = s->options;
    struct comm_segment *segment = &s->segments[o->sources[part]];
    enum status st = ST_OK;
    for (size_t at = 0; st == ST_OK && at < extent.count; at += STRETCH) {
        const size_t left = extent.count - at, count = left < STRETCH ? left : STRETCH;
        if (s->worker->options.rank == o->sources[part])
            st = copy_now(s->worker, s->stretch, from + extent.first + at, count);
        *segment = (struct comm_segment){ s->stretch, count * sizeof(float) };
        if (st == ST_OK && s->worker->options.size > 1)
            st = o->table->all_gather_v(o->comm, s->segments, SEND_MS);
        if (st == ST_OK)
            st = take(s, extent.first + at, count, to);
        progress_tick(s->worker->options.progress);
    }
    *segment = (struct comm_segment){ .size = 0 };
    return st;
}

static enum status move_moment(void *arg, const float *from, float *to)
{
    const struct owned_sync *s = arg;
    enum status st = ST_OK;
    for (uint32_t part = 0; st == ST_OK && part < s->options->parts; part++) {
        for (uint32_t i = s->before.begin[part]; st == ST_OK && i < s->before.begin[part + 1]; i++)
            st = send_extent(s, part, s->before.extent[i], from, to);
    }
    return st;
}

/* True if every rank owns what it owned before. */
static bool is_settled(const struct worker *w, const struct owned_sync_options *o)
{
    bool same = o->parts == w->options.size;
    for (uint32_t r = 0; same && r < o->parts; r++)
        same = o->sources[r] == r;
    return same;
}

enum status owned_sync(struct worker *worker, const struct owned_sync_options *options)
{
    struct owned_sync s = { .worker = worker, .options = options };
    const struct optimizer_move move = { move_moment, &s };
    if (is_settled(worker, options)) {
        if (!ownership_is_settled(&worker->ownership))
            return ST_INVALID; /* a generation that failed has moved them */
        return worker_hold(worker, NULL);
    }
    auto_free float *stretch = malloc(STRETCH * sizeof(*stretch));
    auto_free struct comm_segment *segments = calloc(worker->options.size, sizeof(*segments));
    if (stretch == NULL || segments == NULL)
        return ST_NO_MEMORY;
    s.stretch = stretch;
    s.segments = segments;
    ownership_unsettle(&worker->ownership);
    enum status st = ownership_among(&worker->ownership, options->parts, &s.before);
    if (st == ST_OK)
        st = worker_hold(worker, &move);
    owners_release(&s.before);
    return st;
}
