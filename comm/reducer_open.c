/* The reducer's memory and tables: opened, given to other ranks, closed. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/reducer_internal.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/pages.h"

#define ALIGNMENT       64
#define DRAIN_NS        INT64_C(5000000000)
#define HUGE_PAGE_BYTES ((size_t)2 * 1024 * 1024)

/* ---- memory ---- */

static float *host_floats_new(size_t count)
{
    const size_t bytes = (count < 1 ? 1 : count) * sizeof(float);
    const size_t alignment = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : ALIGNMENT;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    float *memory = aligned_alloc(alignment, rounded);
    if (memory == NULL)
        return NULL;
    if (alignment == HUGE_PAGE_BYTES)
        (void)madvise(memory, rounded, MADV_HUGEPAGE);
    memset(memory, 0, rounded); /* no page faults in the first step */
    return memory;
}

/* ST_NO_MEMORY; or the device's error, which is no lack of memory. */
static enum status floats_new(const struct reducer *reducer, size_t count, float **out)
{
    void *memory = NULL;
    enum status st = ST_OK;
    if (reducer->device != NULL) {
        const size_t bytes = (count < 1 ? 1 : count) * sizeof(float);
        st = reducer->device->alloc(reducer->backend, bytes, &memory);
    } else {
        memory = host_floats_new(count);
        st = memory != NULL ? ST_OK : ST_NO_MEMORY;
    }
    *out = st == ST_OK ? memory : NULL;
    return st;
}

static void floats_free(const struct reducer *reducer, float *memory)
{
    if (reducer->device == NULL) {
        free(memory);
    } else if (memory != NULL) {
        reducer->device->free(reducer->backend, memory);
    }
}

/* ---- what of the vector there is ---- */

/* `all` becomes the extent that no extents stand for. */
static const struct reducer_extent *extents_of(const struct reducer_options *options,
                                               struct reducer_extent *all, size_t *count)
{
    *all = (struct reducer_extent){ .count = options->count };
    *count = options->extents == NULL ? 1 : options->extent_count;
    return options->extents == NULL ? all : options->extents;
}

/* 0: the bucket begins in no extent. */
static size_t bucket_end(const struct reducer_options *options, size_t bucket)
{
    struct reducer_extent all;
    size_t count = 0;
    const struct reducer_extent *extent = extents_of(options, &all, &count);
    const size_t begin = options->bucket_begin[bucket];
    for (size_t i = 0; i < count; i++) {
        if (begin < extent[i].first || begin - extent[i].first >= extent[i].count)
            continue;
        const size_t end = extent[i].first + extent[i].count;
        const bool is_last = bucket + 1 == options->bucket_count;
        const size_t next = is_last ? end : options->bucket_begin[bucket + 1];
        return next < end ? next : end;
    }
    return 0;
}

/* Addresses for the vector, memory for the extents. On the host it is what the CPU's alloc_parts
 * has, which a reduction without a table can't call. */
static enum status extents_alloc(const struct reducer *reducer, void **out)
{
    const size_t bytes = reducer->count * sizeof(float);
    struct memory_part *parts = calloc(reducer->extent_count, sizeof(*parts));
    if (parts == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < reducer->extent_count; i++) {
        parts[i].first = reducer->extents[i].first * sizeof(float);
        parts[i].bytes = reducer->extents[i].count * sizeof(float);
    }
    enum status st = ST_OK;
    if (reducer->device != NULL) {
        st = reducer->device->alloc_parts(reducer->backend, bytes, parts, reducer->extent_count,
                                          out);
    } else {
        st = pages_reserve(bytes, out);
        for (size_t i = 0; st == ST_OK && i < reducer->extent_count; i++)
            st = pages_back(*out, parts[i].first, parts[i].bytes);
    }
    free(parts);
    return st;
}

static bool has_all(const struct reducer *reducer)
{
    return reducer->extent_count == 1 && reducer->extents[0].count == reducer->count;
}

static void buffer_free(const struct reducer *reducer, float *memory)
{
    const size_t bytes = reducer->count * sizeof(float);
    if (has_all(reducer)) {
        floats_free(reducer, memory);
    } else if (reducer->device == NULL) {
        pages_free(memory, bytes);
    } else if (memory != NULL) {
        reducer->device->free_parts(reducer->backend, memory, bytes);
    }
}

static enum status buffer_new(const struct reducer *reducer, float **out)
{
    if (has_all(reducer))
        return floats_new(reducer, reducer->count, out);
    void *memory = NULL;
    enum status st = extents_alloc(reducer, &memory);
    if (st != ST_OK) {
        buffer_free(reducer, memory);
        memory = NULL;
    }
    *out = memory;
    return st;
}

static void free_buffers(struct reducer *reducer)
{
    while (reducer->buffer_count > 0)
        buffer_free(reducer, reducer->buffer[--reducer->buffer_count]);
}

/* Buffers are for extents: with other ones there are none yet. */
static enum status take_extents(struct reducer *reducer, const struct reducer_options *options)
{
    struct reducer_extent all;
    size_t count = 0;
    const struct reducer_extent *extents = extents_of(options, &all, &count);
    if (count == reducer->extent_count &&
        memcmp(extents, reducer->extents, count * sizeof(*extents)) == 0)
        return ST_OK;
    struct reducer_extent *copy = calloc(count, sizeof(*copy));
    if (copy == NULL)
        return ST_NO_MEMORY;
    memcpy(copy, extents, count * sizeof(*extents));
    free_buffers(reducer);
    free(reducer->extents);
    reducer->extents = copy;
    reducer->extent_count = count;
    memset(reducer->has_section, 0, sizeof(reducer->has_section));
    for (size_t i = 0; i < count; i++)
        reducer->has_section[copy[i].section] = true;
    return ST_OK;
}

/* ---- tables ---- */

/* NULL: evenly. */
static void fill_borders(struct reducer *reducer, const size_t *borders)
{
    const size_t row = (size_t)reducer->size + 1;
    if (borders != NULL) {
        memcpy(reducer->borders, borders, reducer->bucket_count * row * sizeof(*borders));
        return;
    }
    for (size_t b = 0; b < reducer->bucket_count; b++) {
        for (uint32_t r = 0; r < reducer->size; r++) {
            size_t *chunk = reducer->borders + b * row + r;
            reducer_chunk(reducer->bucket_begin[b], reducer->bucket_end[b], r, reducer->size,
                          &chunk[0], &chunk[1]);
        }
    }
}

static enum status allocate_tables(struct reducer *reducer, const struct reducer_options *options)
{
    const size_t size = reducer->size, buckets = reducer->bucket_count;
    reducer->bucket_begin = calloc(buckets, sizeof(*reducer->bucket_begin));
    reducer->bucket_end = calloc(buckets, sizeof(*reducer->bucket_end));
    reducer->borders = calloc(buckets * (size + 1), sizeof(*reducer->borders));
    reducer->order = calloc(buckets, sizeof(*reducer->order));
    reducer->is_handed_over = calloc(buckets, sizeof(*reducer->is_handed_over));
    reducer->partial_count = calloc(size, sizeof(*reducer->partial_count));
    reducer->operand_of = calloc(size, sizeof(*reducer->operand_of));
    reducer->send = calloc(size, sizeof(*reducer->send));
    reducer->recv = calloc(size, sizeof(*reducer->recv));
    reducer->tree = calloc(reducer->lanes, sizeof(*reducer->tree));
    reducer->operand = calloc(reducer->lanes, sizeof(*reducer->operand));
    if (reducer->bucket_begin == NULL || reducer->bucket_end == NULL || reducer->borders == NULL ||
        reducer->order == NULL || reducer->is_handed_over == NULL ||
        reducer->partial_count == NULL || reducer->operand_of == NULL || reducer->send == NULL ||
        reducer->recv == NULL || reducer->tree == NULL || reducer->operand == NULL)
        return ST_NO_MEMORY;
    memcpy(reducer->bucket_begin, options->bucket_begin, buckets * sizeof(*reducer->bucket_begin));
    for (size_t b = 0; b < buckets; b++)
        reducer->bucket_end[b] = bucket_end(options, b);
    fill_borders(reducer, options->borders);
    return ST_OK;
}

static enum status allocate_buffers(struct reducer *reducer)
{
    const uint32_t wanted = reducer->local.buffers;
    if (wanted > reducer->buffer_count) {
        float **more = realloc(reducer->buffer, wanted * sizeof(*more));
        if (more == NULL)
            return ST_NO_MEMORY;
        reducer->buffer = more;
    }
    while (reducer->buffer_count < wanted) {
        enum status st = buffer_new(reducer, &reducer->buffer[reducer->buffer_count]);
        if (st != ST_OK)
            return st;
        reducer->buffer_count++;
    }
    const size_t foreign = reducer->operand_count - reducer->local.partial_count;
    const size_t staged = reducer->fast ? 0 : foreign * reducer->chunk_max;
    if (staged <= reducer->staging_count)
        return ST_OK;
    floats_free(reducer, reducer->staging);
    enum status st = floats_new(reducer, staged, &reducer->staging);
    reducer->staging_count = st == ST_OK ? staged : 0;
    return st;
}

static enum status make_events(struct reducer *reducer)
{
    enum status st = ST_OK;
    if (reducer->device == NULL)
        return ST_OK;
    if (reducer->drained == NULL)
        st = reducer->device->event_new(reducer->backend, false, &reducer->drained);
    if (st == ST_OK && reducer->turn == NULL)
        st = reducer->device->event_new(reducer->backend, false, &reducer->turn);
    if (st != ST_OK || reducer->bucket_count <= reducer->event_count)
        return st;
    struct event **more = realloc(reducer->event, reducer->bucket_count * sizeof(struct event *));
    if (more == NULL)
        return ST_NO_MEMORY;
    reducer->event = more;
    while (st == ST_OK && reducer->event_count < reducer->bucket_count) {
        st = reducer->device->event_new(reducer->backend, false, &more[reducer->event_count]);
        reducer->event_count += st == ST_OK;
    }
    return st;
}

static void free_tables(struct reducer *reducer)
{
    reducer_local_release(&reducer->local);
    free(reducer->bucket_begin);
    free(reducer->bucket_end);
    free(reducer->borders);
    free(reducer->order);
    free(reducer->is_handed_over);
    free(reducer->partial_count);
    free(reducer->operand_of);
    free(reducer->tree);
    free(reducer->operand);
    free(reducer->send);
    free(reducer->recv);
}

/* ---- the order, for all ranks ---- */

static int compare_nodes(const void *left, const void *right)
{
    const struct reducer_tree_node *a = left, *b = right;
    const uint64_t begin = (uint64_t)a->index << a->level, other = (uint64_t)b->index << b->level;
    return begin < other ? -1 : begin > other;
}

/* The owner's additions: of all partial sums, by their lanes. */
static void derive_tree(struct reducer *reducer, struct reducer_tree_node *partial)
{
    struct reducer_counter all;
    reducer_counter_init(&all, reducer->lanes, reducer->tree);
    qsort(partial, reducer->operand_count, sizeof(*partial), compare_nodes);
    for (uint32_t i = 0; i < reducer->operand_count; i++)
        reducer_counter_push(&all, partial[i]);
    CHECK(all.count == 1);
    CHECK(all.add_count + 1 == reducer->operand_count);
}

/* order, partial: [lanes], overwritten. */
static enum status derive_shares(struct reducer *reducer, const uint32_t *shares, uint32_t *order,
                                 struct reducer_tree_node *partial)
{
    uint32_t first = 0;
    reducer_spread(shares, reducer->size, order);
    for (uint32_t r = 0; r < reducer->size; first += shares[r], r++) {
        struct reducer_local local;
        enum status st = reducer_local_init(&local, order + first, shares[r], reducer->lanes);
        if (st != ST_OK)
            return st;
        reducer->partial_count[r] = local.partial_count;
        reducer->operand_of[r] = reducer->operand_count;
        if (local.partial_count > reducer->rounds)
            reducer->rounds = local.partial_count;
        CHECK(reducer->operand_count + local.partial_count <= reducer->lanes);
        for (uint32_t i = 0; i < local.partial_count; i++) {
            partial[reducer->operand_count] = local.partial[i];
            partial[reducer->operand_count].place = reducer->operand_count;
            reducer->operand_count++;
        }
        if (r == reducer->rank) {
            reducer->local = local;
        } else {
            reducer_local_release(&local);
        }
    }
    CHECK(first == reducer->lanes); /* the shares add up */
    derive_tree(reducer, partial);
    return ST_OK;
}

static enum status derive_order(struct reducer *reducer, const uint32_t *shares)
{
    uint32_t *order = calloc(reducer->lanes, sizeof(*order));
    struct reducer_tree_node *partial = calloc(reducer->lanes, sizeof(*partial));
    enum status st = ST_NO_MEMORY;
    if (order != NULL && partial != NULL)
        st = derive_shares(reducer, shares, order, partial);
    free(order);
    free(partial);
    for (size_t b = 0; b < reducer->bucket_count; b++) {
        size_t begin = 0, end = 0;
        reducer_own_chunk(reducer, b, &begin, &end);
        if (end - begin > reducer->chunk_max)
            reducer->chunk_max = end - begin;
    }
    return st;
}

/* ---- what is asked for ---- */

/* Whether the extents are in the vector, and buckets cover them. */
static bool are_buckets_valid(const struct reducer_options *options)
{
    struct reducer_extent all;
    size_t count = 0, from = 0, extents = 0, covered = 0;
    const struct reducer_extent *extent = extents_of(options, &all, &count);
    for (size_t i = 0; i < count; i++) {
        if (extent[i].first < from || extent[i].count < 1 || extent[i].first > options->count ||
            extent[i].count > options->count - extent[i].first ||
            extent[i].section >= REDUCER_SECTIONS_MAX)
            return false;
        from = extent[i].first + extent[i].count;
        extents += extent[i].count;
    }
    for (size_t b = 0; b < options->bucket_count; b++) {
        const size_t end = bucket_end(options, b);
        if (end <= options->bucket_begin[b]) /* in no extent, or the next doesn't lie behind it */
            return false;
        covered += end - options->bucket_begin[b];
    }
    return options->bucket_count > 0 && covered == extents;
}

/* Whether chunks cover each bucket. */
static bool are_owners_valid(const struct reducer_options *options)
{
    const size_t size = (size_t)options->size;
    const size_t *borders = options->borders;
    for (size_t b = 0; borders != NULL && b < options->bucket_count; b++, borders += size + 1) {
        if (borders[0] != options->bucket_begin[b] || borders[size] != bucket_end(options, b))
            return false;
        for (size_t r = 0; r < size; r++) {
            if (borders[r + 1] < borders[r])
                return false;
        }
    }
    return options->kept <= options->bucket_count;
}

static bool are_valid(const struct reducer_options *options, uint32_t *out_lanes)
{
    if (options->size < 1 || options->size > LIMIT_RANKS || options->rank < 0 ||
        options->rank >= options->size || options->count < 1 || !are_buckets_valid(options))
        return false;
    uint64_t lanes = 0;
    for (int r = 0; r < options->size; r++) {
        if (options->shares[r] < 1)
            return false;
        lanes += options->shares[r];
    }
    *out_lanes = (uint32_t)lanes;
    return lanes <= LIMIT_LANES && are_owners_valid(options);
}

/* ---- open and close ---- */

/* The tables of these ranks and shares, what memory there lacks for them, and the thread. */
static enum status reducer_connect(struct reducer *reducer, const struct reducer_options *options)
{
    reducer->table = options->table;
    reducer->comm = options->comm;
    reducer->rank = (uint32_t)options->rank;
    reducer->size = (uint32_t)options->size;
    reducer->kept = options->kept;
    reducer->bucket_count = options->bucket_count;
    if (reducer->device != NULL)
        reducer->communication = options->communication;
    enum status st = take_extents(reducer, options);
    if (st == ST_OK)
        st = allocate_tables(reducer, options);
    if (st == ST_OK)
        st = derive_order(reducer, options->shares);
    if (st == ST_OK)
        st = allocate_buffers(reducer);
    if (st == ST_OK)
        st = make_events(reducer);
    if (st != ST_OK || reducer->comm == NULL)
        return st;
    reducer->has_thread =
        pthread_create(&reducer->thread, NULL, reducer_communication_run, reducer) == 0;
    return reducer->has_thread ? ST_OK : ST_NO_MEMORY;
}

enum status reducer_open(const struct reducer_options *options, struct reducer **out)
{
    uint32_t lanes = 0;
    if (!are_valid(options, &lanes))
        return ST_INVALID;
    struct reducer *reducer = calloc(1, sizeof(*reducer));
    if (reducer == NULL)
        return ST_NO_MEMORY;
    reducer->lanes = lanes;
    reducer->count = options->count;
    reducer->timeout_ms = options->timeout_ms;
    reducer->watch = options->watch;
    reducer->fast = options->fast;
    if (options->device != NULL && !options->device->host_memory) {
        reducer->device = options->device;
        reducer->backend = options->backend;
        reducer->compute = options->compute;
    }
    (void)pthread_mutex_init(&reducer->mutex, NULL);
    (void)pthread_cond_init(&reducer->changed, NULL);
    enum status st = reducer_connect(reducer, options);
    if (st != ST_OK) {
        reducer_close(reducer);
        return st;
    }
    *out = reducer;
    return ST_OK;
}

/* Whether nothing on the device uses the buffers any more. A stream that doesn't end in time holds
 * a kernel that waits for a peer: its memory is not given back, the process ends soon. */
static bool is_drained(const struct reducer *reducer, struct stream *stream)
{
    if (stream == NULL)
        return true;
    const int64_t deadline_ns = clock_mono_ns() + DRAIN_NS;
    enum status st = reducer->device->event_record(reducer->backend, reducer->drained, stream);
    while (st == ST_OK) {
        st = reducer->device->event_query(reducer->backend, reducer->drained);
        if (st != ST_AGAIN)
            return st == ST_OK;
        st = clock_mono_ns() < deadline_ns ? ST_OK : ST_TIMED_OUT;
        (void)sched_yield();
    }
    return false;
}

static void drain(struct reducer *reducer)
{
    const bool idle = reducer->device == NULL || reducer->drained == NULL ||
                      (!reducer->stuck && is_drained(reducer, reducer->compute) &&
                       is_drained(reducer, reducer->communication));
    reducer->stuck = !idle;
}

static void release_memory(struct reducer *reducer)
{
    const bool idle = !reducer->stuck;
    if (idle) {
        free_buffers(reducer);
        floats_free(reducer, reducer->staging);
    }
    if (reducer->device == NULL)
        return;
    while (reducer->event_count > 0)
        reducer->device->event_free(reducer->backend, reducer->event[--reducer->event_count]);
    if (reducer->turn != NULL)
        reducer->device->event_free(reducer->backend, reducer->turn);
    if (reducer->drained != NULL)
        reducer->device->event_free(reducer->backend, reducer->drained);
}

static void end_thread(struct reducer *reducer)
{
    if (!reducer->has_thread)
        return;
    (void)pthread_mutex_lock(&reducer->mutex);
    reducer->quit = true;
    if (reducer->done < reducer->ready && reducer->status == ST_OK)
        reducer->table->abort(reducer->comm);
    (void)pthread_cond_broadcast(&reducer->changed);
    (void)pthread_mutex_unlock(&reducer->mutex);
    (void)pthread_join(reducer->thread, NULL);
    reducer->has_thread = false;
    reducer->quit = false;
}

void reducer_disconnect(struct reducer *reducer)
{
    end_thread(reducer);
    drain(reducer);
    free_tables(reducer);
    memset(&reducer->local, 0, sizeof(reducer->local));
    reducer->bucket_begin = reducer->bucket_end = reducer->borders = reducer->order = NULL;
    reducer->is_handed_over = NULL;
    reducer->partial_count = reducer->operand_of = NULL;
    reducer->tree = NULL;
    reducer->operand = NULL;
    reducer->send = reducer->recv = NULL;
    reducer->rounds = reducer->operand_count = 0;
    reducer->chunk_max = 0;
    reducer->ready = reducer->done = 0;
    reducer->status = ST_OK;
    reducer->comm = NULL;
}

enum status reducer_reconnect(struct reducer *reducer, const struct reducer_options *options)
{
    uint32_t lanes = 0;
    CHECK(reducer->comm == NULL && reducer->bucket_begin == NULL);
    if (!are_valid(options, &lanes) || lanes != reducer->lanes ||
        options->count != reducer->count || options->fast != reducer->fast)
        return ST_INVALID;
    return reducer->stuck ? ST_DEVICE : reducer_connect(reducer, options);
}

void reducer_close(struct reducer *reducer)
{
    if (reducer == NULL)
        return;
    end_thread(reducer);
    drain(reducer);
    release_memory(reducer);
    free(reducer->event);
    free(reducer->buffer);
    free(reducer->extents);
    free_tables(reducer);
    (void)pthread_cond_destroy(&reducer->changed);
    (void)pthread_mutex_destroy(&reducer->mutex);
    free(reducer);
}
