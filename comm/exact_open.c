/* The exact reduction's memory and tables: opened, given to other ranks, closed. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/exact_internal.h"
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
static enum status floats_new(const struct exact *exact, size_t count, float **out)
{
    void *memory = NULL;
    enum status st = ST_OK;
    if (exact->device != NULL) {
        const size_t bytes = (count < 1 ? 1 : count) * sizeof(float);
        st = exact->device->alloc(exact->backend, bytes, &memory);
    } else {
        memory = host_floats_new(count);
        st = memory != NULL ? ST_OK : ST_NO_MEMORY;
    }
    *out = st == ST_OK ? memory : NULL;
    return st;
}

static void floats_free(const struct exact *exact, float *memory)
{
    if (exact->device == NULL) {
        free(memory);
    } else if (memory != NULL) {
        exact->device->free(exact->backend, memory);
    }
}

/* ---- what of the vector there is ---- */

/* `all` becomes the extent that no extents stand for. */
static const struct exact_extent *extents_of(const struct exact_options *options,
                                             struct exact_extent *all, size_t *count)
{
    *all = (struct exact_extent){ .count = options->count };
    *count = options->extents == NULL ? 1 : options->extent_count;
    return options->extents == NULL ? all : options->extents;
}

/* 0: the bucket begins in no extent. */
static size_t bucket_end(const struct exact_options *options, size_t bucket)
{
    struct exact_extent all;
    size_t count = 0;
    const struct exact_extent *extent = extents_of(options, &all, &count);
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
static enum status extents_alloc(const struct exact *exact, void **out)
{
    const size_t bytes = exact->count * sizeof(float);
    struct memory_part *parts = calloc(exact->extent_count, sizeof(*parts));
    if (parts == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < exact->extent_count; i++) {
        parts[i].first = exact->extents[i].first * sizeof(float);
        parts[i].bytes = exact->extents[i].count * sizeof(float);
    }
    enum status st = ST_OK;
    if (exact->device != NULL) {
        st = exact->device->alloc_parts(exact->backend, bytes, parts, exact->extent_count, out);
    } else {
        st = pages_reserve(bytes, out);
        for (size_t i = 0; st == ST_OK && i < exact->extent_count; i++)
            st = pages_back(*out, parts[i].first, parts[i].bytes);
    }
    free(parts);
    return st;
}

static bool has_all(const struct exact *exact)
{
    return exact->extent_count == 1 && exact->extents[0].count == exact->count;
}

static void buffer_free(const struct exact *exact, float *memory)
{
    const size_t bytes = exact->count * sizeof(float);
    if (has_all(exact)) {
        floats_free(exact, memory);
    } else if (exact->device == NULL) {
        pages_free(memory, bytes);
    } else if (memory != NULL) {
        exact->device->free_parts(exact->backend, memory, bytes);
    }
}

static enum status buffer_new(const struct exact *exact, float **out)
{
    if (has_all(exact))
        return floats_new(exact, exact->count, out);
    void *memory = NULL;
    enum status st = extents_alloc(exact, &memory);
    if (st != ST_OK) {
        buffer_free(exact, memory);
        memory = NULL;
    }
    *out = memory;
    return st;
}

static void free_buffers(struct exact *exact)
{
    while (exact->buffer_count > 0)
        buffer_free(exact, exact->buffer[--exact->buffer_count]);
}

/* Buffers are for extents: with other ones there are none yet. */
static enum status take_extents(struct exact *exact, const struct exact_options *options)
{
    struct exact_extent all;
    size_t count = 0;
    const struct exact_extent *extents = extents_of(options, &all, &count);
    if (count == exact->extent_count &&
        memcmp(extents, exact->extents, count * sizeof(*extents)) == 0)
        return ST_OK;
    struct exact_extent *copy = calloc(count, sizeof(*copy));
    if (copy == NULL)
        return ST_NO_MEMORY;
    memcpy(copy, extents, count * sizeof(*extents));
    free_buffers(exact);
    free(exact->extents);
    exact->extents = copy;
    exact->extent_count = count;
    memset(exact->has_section, 0, sizeof(exact->has_section));
    for (size_t i = 0; i < count; i++)
        exact->has_section[copy[i].section] = true;
    return ST_OK;
}

/* ---- tables ---- */

/* NULL: evenly. */
static void fill_borders(struct exact *exact, const size_t *borders)
{
    const size_t row = (size_t)exact->size + 1;
    if (borders != NULL) {
        memcpy(exact->borders, borders, exact->bucket_count * row * sizeof(*borders));
        return;
    }
    for (size_t b = 0; b < exact->bucket_count; b++) {
        for (uint32_t r = 0; r < exact->size; r++) {
            size_t *chunk = exact->borders + b * row + r;
            exact_chunk(exact->bucket_begin[b], exact->bucket_end[b], r, exact->size, &chunk[0],
                        &chunk[1]);
        }
    }
}

static enum status allocate_tables(struct exact *exact, const struct exact_options *options)
{
    const size_t size = exact->size, buckets = exact->bucket_count;
    exact->bucket_begin = calloc(buckets, sizeof(*exact->bucket_begin));
    exact->bucket_end = calloc(buckets, sizeof(*exact->bucket_end));
    exact->borders = calloc(buckets * (size + 1), sizeof(*exact->borders));
    exact->order = calloc(buckets, sizeof(*exact->order));
    exact->is_handed_over = calloc(buckets, sizeof(*exact->is_handed_over));
    exact->node_count = calloc(size, sizeof(*exact->node_count));
    exact->operand_of = calloc(size, sizeof(*exact->operand_of));
    exact->send = calloc(size, sizeof(*exact->send));
    exact->recv = calloc(size, sizeof(*exact->recv));
    exact->tree = calloc(exact->lanes, sizeof(*exact->tree));
    exact->operand = calloc(exact->lanes, sizeof(*exact->operand));
    if (exact->bucket_begin == NULL || exact->bucket_end == NULL || exact->borders == NULL ||
        exact->order == NULL || exact->is_handed_over == NULL || exact->node_count == NULL ||
        exact->operand_of == NULL || exact->send == NULL || exact->recv == NULL ||
        exact->tree == NULL || exact->operand == NULL)
        return ST_NO_MEMORY;
    memcpy(exact->bucket_begin, options->bucket_begin, buckets * sizeof(*exact->bucket_begin));
    for (size_t b = 0; b < buckets; b++)
        exact->bucket_end[b] = bucket_end(options, b);
    fill_borders(exact, options->borders);
    return ST_OK;
}

static enum status allocate_buffers(struct exact *exact)
{
    const uint32_t wanted = exact->local.buffers;
    if (wanted > exact->buffer_count) {
        float **more = realloc(exact->buffer, wanted * sizeof(*more));
        if (more == NULL)
            return ST_NO_MEMORY;
        exact->buffer = more;
    }
    while (exact->buffer_count < wanted) {
        enum status st = buffer_new(exact, &exact->buffer[exact->buffer_count]);
        if (st != ST_OK)
            return st;
        exact->buffer_count++;
    }
    const size_t foreign = exact->operand_count - exact->local.node_count;
    const size_t staged = exact->fast ? 0 : foreign * exact->chunk_max;
    if (staged <= exact->staging_count)
        return ST_OK;
    floats_free(exact, exact->staging);
    enum status st = floats_new(exact, staged, &exact->staging);
    exact->staging_count = st == ST_OK ? staged : 0;
    return st;
}

static enum status make_events(struct exact *exact)
{
    enum status st = ST_OK;
    if (exact->device == NULL)
        return ST_OK;
    if (exact->drained == NULL)
        st = exact->device->event_new(exact->backend, false, &exact->drained);
    if (st == ST_OK && exact->turn == NULL)
        st = exact->device->event_new(exact->backend, false, &exact->turn);
    if (st != ST_OK || exact->bucket_count <= exact->event_count)
        return st;
    struct event **more = realloc(exact->event, exact->bucket_count * sizeof(struct event *));
    if (more == NULL)
        return ST_NO_MEMORY;
    exact->event = more;
    while (st == ST_OK && exact->event_count < exact->bucket_count) {
        st = exact->device->event_new(exact->backend, false, &more[exact->event_count]);
        exact->event_count += st == ST_OK;
    }
    return st;
}

static void free_tables(struct exact *exact)
{
    exact_local_release(&exact->local);
    free(exact->bucket_begin);
    free(exact->bucket_end);
    free(exact->borders);
    free(exact->order);
    free(exact->is_handed_over);
    free(exact->node_count);
    free(exact->operand_of);
    free(exact->tree);
    free(exact->operand);
    free(exact->send);
    free(exact->recv);
}

/* ---- the order, for all ranks ---- */

static int compare_nodes(const void *left, const void *right)
{
    const struct exact_node *a = left, *b = right;
    const uint64_t begin = (uint64_t)a->index << a->level, other = (uint64_t)b->index << b->level;
    return begin < other ? -1 : begin > other;
}

/* The owner's additions: of all partial sums, by their lanes. */
static void derive_tree(struct exact *exact, struct exact_node *partial)
{
    struct exact_counter all;
    exact_counter_init(&all, exact->lanes, exact->tree);
    qsort(partial, exact->operand_count, sizeof(*partial), compare_nodes);
    for (uint32_t i = 0; i < exact->operand_count; i++)
        exact_counter_push(&all, partial[i]);
    CHECK(all.count == 1);
    CHECK(all.add_count + 1 == exact->operand_count);
}

/* order, partial: [lanes], overwritten. */
static enum status derive_shares(struct exact *exact, const uint32_t *shares, uint32_t *order,
                                 struct exact_node *partial)
{
    uint32_t first = 0;
    exact_spread(shares, exact->size, order);
    for (uint32_t r = 0; r < exact->size; first += shares[r], r++) {
        struct exact_local local;
        enum status st = exact_local_init(&local, order + first, shares[r], exact->lanes);
        if (st != ST_OK)
            return st;
        exact->node_count[r] = local.node_count;
        exact->operand_of[r] = exact->operand_count;
        if (local.node_count > exact->rounds)
            exact->rounds = local.node_count;
        CHECK(exact->operand_count + local.node_count <= exact->lanes);
        for (uint32_t i = 0; i < local.node_count; i++) {
            partial[exact->operand_count] = local.node[i];
            partial[exact->operand_count].place = exact->operand_count;
            exact->operand_count++;
        }
        if (r == exact->rank) {
            exact->local = local;
        } else {
            exact_local_release(&local);
        }
    }
    CHECK(first == exact->lanes); /* the shares add up */
    derive_tree(exact, partial);
    return ST_OK;
}

static enum status derive_order(struct exact *exact, const uint32_t *shares)
{
    uint32_t *order = calloc(exact->lanes, sizeof(*order));
    struct exact_node *partial = calloc(exact->lanes, sizeof(*partial));
    enum status st = ST_NO_MEMORY;
    if (order != NULL && partial != NULL)
        st = derive_shares(exact, shares, order, partial);
    free(order);
    free(partial);
    for (size_t b = 0; b < exact->bucket_count; b++) {
        size_t begin = 0, end = 0;
        exact_own(exact, b, &begin, &end);
        if (end - begin > exact->chunk_max)
            exact->chunk_max = end - begin;
    }
    return st;
}

/* ---- what is asked for ---- */

/* Whether the extents are in the vector, and buckets cover them. */
static bool are_buckets_valid(const struct exact_options *options)
{
    struct exact_extent all;
    size_t count = 0, from = 0, extents = 0, covered = 0;
    const struct exact_extent *extent = extents_of(options, &all, &count);
    for (size_t i = 0; i < count; i++) {
        if (extent[i].first < from || extent[i].count < 1 || extent[i].first > options->count ||
            extent[i].count > options->count - extent[i].first ||
            extent[i].section >= EXACT_SECTIONS_MAX)
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
static bool are_owners_valid(const struct exact_options *options)
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

static bool are_valid(const struct exact_options *options, uint32_t *out_lanes)
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
static enum status exact_connect(struct exact *exact, const struct exact_options *options)
{
    exact->table = options->table;
    exact->comm = options->comm;
    exact->rank = (uint32_t)options->rank;
    exact->size = (uint32_t)options->size;
    exact->kept = options->kept;
    exact->bucket_count = options->bucket_count;
    if (exact->device != NULL)
        exact->communication = options->communication;
    enum status st = take_extents(exact, options);
    if (st == ST_OK)
        st = allocate_tables(exact, options);
    if (st == ST_OK)
        st = derive_order(exact, options->shares);
    if (st == ST_OK)
        st = allocate_buffers(exact);
    if (st == ST_OK)
        st = make_events(exact);
    if (st != ST_OK || exact->comm == NULL)
        return st;
    exact->has_thread = pthread_create(&exact->thread, NULL, exact_communication_run, exact) == 0;
    return exact->has_thread ? ST_OK : ST_NO_MEMORY;
}

enum status exact_open(const struct exact_options *options, struct exact **out)
{
    uint32_t lanes = 0;
    if (!are_valid(options, &lanes))
        return ST_INVALID;
    struct exact *exact = calloc(1, sizeof(*exact));
    if (exact == NULL)
        return ST_NO_MEMORY;
    exact->lanes = lanes;
    exact->count = options->count;
    exact->timeout_ms = options->timeout_ms;
    exact->watch = options->watch;
    exact->fast = options->fast;
    if (options->device != NULL && !options->device->host_memory) {
        exact->device = options->device;
        exact->backend = options->backend;
        exact->compute = options->compute;
    }
    (void)pthread_mutex_init(&exact->mutex, NULL);
    (void)pthread_cond_init(&exact->changed, NULL);
    enum status st = exact_connect(exact, options);
    if (st != ST_OK) {
        exact_close(exact);
        return st;
    }
    *out = exact;
    return ST_OK;
}

/* Whether nothing on the device uses the buffers any more. A stream that doesn't end in time holds
 * a kernel that waits for a peer: its memory is not given back, the process ends soon. */
static bool is_drained(const struct exact *exact, struct stream *stream)
{
    if (stream == NULL)
        return true;
    const int64_t deadline_ns = clock_mono_ns() + DRAIN_NS;
    enum status st = exact->device->event_record(exact->backend, exact->drained, stream);
    while (st == ST_OK) {
        st = exact->device->event_query(exact->backend, exact->drained);
        if (st != ST_AGAIN)
            return st == ST_OK;
        st = clock_mono_ns() < deadline_ns ? ST_OK : ST_TIMED_OUT;
        (void)sched_yield();
    }
    return false;
}

static void drain(struct exact *exact)
{
    const bool idle = exact->device == NULL || exact->drained == NULL ||
                      (!exact->stuck && is_drained(exact, exact->compute) &&
                       is_drained(exact, exact->communication));
    exact->stuck = !idle;
}

static void release_memory(struct exact *exact)
{
    const bool idle = !exact->stuck;
    if (idle) {
        free_buffers(exact);
        floats_free(exact, exact->staging);
    }
    if (exact->device == NULL)
        return;
    while (exact->event_count > 0)
        exact->device->event_free(exact->backend, exact->event[--exact->event_count]);
    if (exact->turn != NULL)
        exact->device->event_free(exact->backend, exact->turn);
    if (exact->drained != NULL)
        exact->device->event_free(exact->backend, exact->drained);
}

static void end_thread(struct exact *exact)
{
    if (!exact->has_thread)
        return;
    (void)pthread_mutex_lock(&exact->mutex);
    exact->quit = true;
    if (exact->done < exact->ready && exact->status == ST_OK)
        exact->table->abort(exact->comm);
    (void)pthread_cond_broadcast(&exact->changed);
    (void)pthread_mutex_unlock(&exact->mutex);
    (void)pthread_join(exact->thread, NULL);
    exact->has_thread = false;
    exact->quit = false;
}

void exact_disconnect(struct exact *exact)
{
    end_thread(exact);
    drain(exact);
    free_tables(exact);
    memset(&exact->local, 0, sizeof(exact->local));
    exact->bucket_begin = exact->bucket_end = exact->borders = exact->order = NULL;
    exact->is_handed_over = NULL;
    exact->node_count = exact->operand_of = NULL;
    exact->tree = NULL;
    exact->operand = NULL;
    exact->send = exact->recv = NULL;
    exact->rounds = exact->operand_count = 0;
    exact->chunk_max = 0;
    exact->ready = exact->done = 0;
    exact->status = ST_OK;
    exact->comm = NULL;
}

enum status exact_reconnect(struct exact *exact, const struct exact_options *options)
{
    uint32_t lanes = 0;
    CHECK(exact->comm == NULL && exact->bucket_begin == NULL);
    if (!are_valid(options, &lanes) || lanes != exact->lanes || options->count != exact->count ||
        options->fast != exact->fast)
        return ST_INVALID;
    return exact->stuck ? ST_DEVICE : exact_connect(exact, options);
}

void exact_close(struct exact *exact)
{
    if (exact == NULL)
        return;
    end_thread(exact);
    drain(exact);
    release_memory(exact);
    free(exact->event);
    free(exact->buffer);
    free(exact->extents);
    free_tables(exact);
    (void)pthread_cond_destroy(&exact->changed);
    (void)pthread_mutex_destroy(&exact->mutex);
    free(exact);
}
