/*
 * The exact reduction on one rank; exact.h has the picture and the words.
 *
 * A bucket
 *
 *     step thread's -> handed over   [exact_bucket_done]         size 1: reduced at once, done
 *     handed over   -> in work       [communication_run]   one after the other, as they were handed
 *                                                          over, which is the same on all ranks
 *     in work       -> done          [reduce_bucket]       local [add_local], [exchange_partials],
 *                                                          [add_tree], [gather_chunks]; with `fast`
 *                                                          [reduce_fast] after the first
 *     all done      -> step thread's [exact_wait]
 *
 * Invariants
 *  1. The order of additions is exact_order's alone: nothing here depends on time, threads or sizes
 *     of messages.
 *  2. A bucket belongs to the step thread until exact_bucket_done, then to the communication thread
 *     until it is counted in done.
 *  3. The result lies in the buffer of this rank's first partial sum. When an owner writes a
 *     finished element there, its own partial has been added; and when another rank's chunk arrives
 *     there, the partial has been sent (an exchange returns only when all was sent).
 *  4. After an error no bucket is worked on any more, but each is still counted in done: exact_wait
 *     ends.
 *  5. On a device a bucket counts as done when its work is enqueued; only the last of a step waits
 *     for the device. The communication stream waits for the compute stream by the bucket's event,
 *     recorded before the bucket is handed over. The compute stream needs no event back, since the
 *     host waits for the end of the step before it enqueues more.
 */
#include "comm/exact.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/exact_order.h"
#include "comm/sum.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"
#include "common/limits.h"

#define BLOCK_ELEMENTS  4096 /* of the owner's tree at once: stays in the first-level cache */
#define ALIGNMENT       64
#define DRAIN_NS        INT64_C(5000000000)
#define HUGE_PAGE_BYTES ((size_t)2 * 1024 * 1024)

struct exact {
    const struct comm_table *table;
    struct comm *comm;
    uint32_t rank, size, lanes;
    size_t count, bucket_count;
    size_t *bucket_begin; /* [bucket_count + 1], the last is count */
    int64_t timeout_ms;
    bool fast;

    const struct backend_table *device; /* NULL: host memory */
    struct backend *backend;
    struct stream *compute, *communication;
    struct event **event; /* [bucket_count] the bucket is complete on the compute stream */
    struct event *drained;

    struct exact_local local;
    float **buffer;         /* [local.buffers][count] */
    uint32_t *node_count;   /* [size] partial sums of each rank */
    uint32_t rounds;        /* the largest of node_count */
    uint32_t operand_count; /* of the owner's tree: all partial sums of all ranks, ascending */
    uint32_t *operand_of;   /* [size] first operand of each rank */
    struct exact_add *tree; /* [operand_count - 1] what an owner adds */
    float **operand;        /* [operand_count] where each lies, of the bucket in work */
    float *staging;         /* [operands of others, chunk_max] where they are received */
    size_t chunk_max;       /* elements of this rank's chunk of the largest bucket */
    struct comm_segment *send, *recv; /* [size] */

    uint32_t lane; /* own lanes done in this step; step thread only */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t changed;
    size_t *order;        /* [bucket_count] buckets as they were handed over */
    bool *is_handed_over; /* [bucket_count] in this step */
    size_t ready;         /* how many were handed over */
    size_t done;          /* how many of those are reduced */
    enum status status;
    bool quit;
};

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

static float *floats_new(const struct exact *exact, size_t count)
{
    void *memory = NULL;
    if (exact->device == NULL)
        return host_floats_new(count);
    const size_t bytes = (count < 1 ? 1 : count) * sizeof(float);
    return exact->device->alloc(exact->backend, bytes, &memory) == ST_OK ? memory : NULL;
}

static void floats_free(const struct exact *exact, float *memory)
{
    if (exact->device == NULL) {
        free(memory);
    } else if (memory != NULL) {
        exact->device->free(exact->backend, memory);
    }
}

static enum status allocate_tables(struct exact *exact, const struct exact_options *options)
{
    const size_t size = exact->size, buckets = exact->bucket_count;
    exact->bucket_begin = calloc(buckets + 1, sizeof(*exact->bucket_begin));
    exact->order = calloc(buckets, sizeof(*exact->order));
    exact->is_handed_over = calloc(buckets, sizeof(*exact->is_handed_over));
    exact->node_count = calloc(size, sizeof(*exact->node_count));
    exact->operand_of = calloc(size, sizeof(*exact->operand_of));
    exact->send = calloc(size, sizeof(*exact->send));
    exact->recv = calloc(size, sizeof(*exact->recv));
    exact->tree = calloc(exact->lanes, sizeof(*exact->tree));
    exact->operand = calloc(exact->lanes, sizeof(*exact->operand));
    if (exact->bucket_begin == NULL || exact->order == NULL || exact->is_handed_over == NULL ||
        exact->node_count == NULL || exact->operand_of == NULL || exact->send == NULL ||
        exact->recv == NULL || exact->tree == NULL || exact->operand == NULL)
        return ST_NO_MEMORY;
    memcpy(exact->bucket_begin, options->bucket_begin, buckets * sizeof(*exact->bucket_begin));
    exact->bucket_begin[buckets] = exact->count;
    return ST_OK;
}

static enum status allocate_buffers(struct exact *exact)
{
    exact->buffer = calloc(exact->local.buffers, sizeof(*exact->buffer));
    if (exact->buffer == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < exact->local.buffers; i++) {
        exact->buffer[i] = floats_new(exact, exact->count);
        if (exact->buffer[i] == NULL)
            return ST_NO_MEMORY;
    }
    const uint32_t foreign = exact->operand_count - exact->local.node_count;
    if (foreign == 0 || exact->fast)
        return ST_OK;
    exact->staging = floats_new(exact, foreign * exact->chunk_max);
    return exact->staging == NULL ? ST_NO_MEMORY : ST_OK;
}

static enum status make_events(struct exact *exact)
{
    if (exact->device == NULL)
        return ST_OK;
    exact->event = calloc(exact->bucket_count, sizeof(struct event *));
    if (exact->event == NULL)
        return ST_NO_MEMORY;
    enum status st = exact->device->event_new(exact->backend, &exact->drained);
    for (size_t b = 0; st == ST_OK && b < exact->bucket_count; b++)
        st = exact->device->event_new(exact->backend, &exact->event[b]);
    return st;
}

/* ---- the order, for all ranks ---- */

static enum status derive_order(struct exact *exact, const uint32_t *shares)
{
    struct exact_counter all;
    exact_counter_init(&all, exact->lanes, exact->tree);
    uint32_t first = 0;
    for (uint32_t r = 0; r < exact->size; first += shares[r], r++) {
        struct exact_local local;
        enum status st = exact_local_init(&local, first, shares[r], exact->lanes);
        if (st != ST_OK)
            return st;
        exact->node_count[r] = local.node_count;
        exact->operand_of[r] = exact->operand_count;
        if (local.node_count > exact->rounds)
            exact->rounds = local.node_count;
        for (uint32_t i = 0; i < local.node_count; i++) {
            struct exact_node node = local.node[i];
            node.place = exact->operand_count++;
            exact_counter_push(&all, node);
        }
        if (r == exact->rank) {
            exact->local = local;
        } else {
            exact_local_release(&local);
        }
    }
    CHECK(first == exact->lanes); /* the shares add up */
    CHECK(exact->operand_count <= exact->lanes);
    CHECK(all.count == 1);
    CHECK(all.add_count + 1 == exact->operand_count);
    for (size_t b = 0; b < exact->bucket_count; b++) {
        size_t begin = 0, end = 0;
        exact_chunk(exact->bucket_begin[b], exact->bucket_begin[b + 1], exact->rank, exact->size,
                    &begin, &end);
        if (end - begin > exact->chunk_max)
            exact->chunk_max = end - begin;
    }
    return ST_OK;
}

static bool are_valid(const struct exact_options *options, uint32_t *out_lanes)
{
    if (options->size < 1 || options->size > LIMIT_RANKS || options->rank < 0 ||
        options->rank >= options->size || options->count < 1 || options->bucket_count < 1 ||
        options->bucket_begin[0] != 0)
        return false;
    for (size_t b = 1; b < options->bucket_count; b++) {
        if (options->bucket_begin[b] <= options->bucket_begin[b - 1])
            return false;
    }
    if (options->bucket_begin[options->bucket_count - 1] >= options->count)
        return false;
    uint64_t lanes = 0;
    for (int r = 0; r < options->size; r++) {
        if (options->shares[r] < 1)
            return false;
        lanes += options->shares[r];
    }
    *out_lanes = (uint32_t)lanes;
    return lanes <= LIMIT_LANES;
}

/* ---- one bucket, in the communication thread (with size 1: in the step thread) ---- */

/* On a device the addition is enqueued on the stream. */
static enum status add_vectors(const struct exact *exact, float *out, const float *x,
                               const float *y, size_t count, struct stream *stream)
{
    if (exact->device != NULL)
        return exact->device->vector.add(exact->backend, out, x, y, count, stream);
    sum_f32(out, x, y, count);
    return ST_OK;
}

static enum status add_local(const struct exact *exact, uint32_t lane, size_t begin, size_t end,
                             struct stream *stream)
{
    const struct exact_local *local = &exact->local;
    enum status st = ST_OK;
    for (size_t i = local->add_begin[lane]; st == ST_OK && i < local->add_begin[lane + 1]; i++) {
        float *into = exact->buffer[local->adds[i].into] + begin;
        st = add_vectors(exact, into, into, exact->buffer[local->adds[i].from] + begin, end - begin,
                         stream);
    }
    return st;
}

static struct comm_segment segment_of(float *base, size_t begin, size_t end)
{
    return (struct comm_segment){ base + begin, (end - begin) * sizeof(float) };
}

/* Round k moves every rank's k-th partial sum, cut into chunks, to the chunks' owners. */
static enum status exchange_partials(struct exact *exact, size_t bucket_begin, size_t bucket_end)
{
    size_t own_begin = 0, own_end = 0;
    exact_chunk(bucket_begin, bucket_end, exact->rank, exact->size, &own_begin, &own_end);
    uint32_t foreign = 0;
    for (uint32_t r = 0; r < exact->size; r++) {
        for (uint32_t k = 0; k < exact->node_count[r]; k++) {
            float **operand = &exact->operand[exact->operand_of[r] + k];
            if (r == exact->rank) {
                *operand = exact->buffer[exact->local.node[k].place] + own_begin;
            } else {
                *operand = exact->staging + exact->chunk_max * foreign++;
            }
        }
    }
    CHECK(foreign == exact->operand_count - exact->local.node_count);
    for (uint32_t k = 0; k < exact->rounds; k++) {
        for (uint32_t r = 0; r < exact->size; r++) {
            size_t begin = 0, end = 0;
            exact_chunk(bucket_begin, bucket_end, r, exact->size, &begin, &end);
            exact->send[r] = (struct comm_segment){ NULL, 0 };
            exact->recv[r] = (struct comm_segment){ NULL, 0 };
            if (k < exact->local.node_count) {
                float *partial = exact->buffer[exact->local.node[k].place];
                exact->send[r] = segment_of(partial, begin, end);
            }
            if (k < exact->node_count[r]) {
                float *operand = exact->operand[exact->operand_of[r] + k];
                exact->recv[r] = segment_of(operand, 0, own_end - own_begin);
            }
        }
        enum status st =
            exact->table->all_to_all_v(exact->comm, exact->send, exact->recv, exact->timeout_ms);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* The owner's additions, on the host a block at a time; the last one writes the result. */
static enum status add_tree(struct exact *exact, size_t bucket_begin, size_t bucket_end)
{
    size_t begin = 0, end = 0;
    exact_chunk(bucket_begin, bucket_end, exact->rank, exact->size, &begin, &end);
    float *result = exact->buffer[exact->local.node[0].place] + begin;
    const uint32_t adds = exact->operand_count - 1;
    const size_t block = exact->device != NULL ? end - begin : BLOCK_ELEMENTS;
    for (size_t at = 0; at < end - begin; at += block) {
        const size_t left = end - begin - at;
        const size_t count = left < block ? left : block;
        for (uint32_t i = 0; i < adds; i++) {
            float *into = exact->operand[exact->tree[i].into] + at;
            const float *from = exact->operand[exact->tree[i].from] + at;
            enum status st = add_vectors(exact, i + 1 == adds ? result + at : into, into, from,
                                         count, exact->communication);
            if (st != ST_OK)
                return st;
        }
    }
    return ST_OK;
}

static enum status gather_chunks(struct exact *exact, size_t bucket_begin, size_t bucket_end)
{
    float *result = exact->buffer[exact->local.node[0].place];
    for (uint32_t r = 0; r < exact->size; r++) {
        size_t begin = 0, end = 0;
        exact_chunk(bucket_begin, bucket_end, r, exact->size, &begin, &end);
        exact->recv[r] = segment_of(result, begin, end);
    }
    return exact->table->all_gather_v(exact->comm, exact->recv, exact->timeout_ms);
}

/* The rank's partial sums into one, then the sum of all ranks' in NCCL's or Gloo's own order. */
static enum status reduce_fast(struct exact *exact, size_t begin, size_t end)
{
    float *into = exact->buffer[exact->local.node[0].place] + begin;
    for (uint32_t k = 1; k < exact->local.node_count; k++) {
        enum status st =
            add_vectors(exact, into, into, exact->buffer[exact->local.node[k].place] + begin,
                        end - begin, exact->communication);
        if (st != ST_OK)
            return st;
    }
    return exact->table->all_reduce_f32(exact->comm, into, end - begin, exact->timeout_ms);
}

static enum status reduce_bucket(struct exact *exact, size_t bucket)
{
    const size_t begin = exact->bucket_begin[bucket], end = exact->bucket_begin[bucket + 1];
    enum status st = ST_OK;
    if (exact->device != NULL && exact->size > 1) {
        st = exact->device->event_wait(exact->backend, exact->event[bucket], exact->communication);
    }
    if (st == ST_OK) {
        st = add_local(exact, exact->local.n - 1, begin, end,
                       exact->size > 1 ? exact->communication : exact->compute);
    }
    if (st != ST_OK || exact->size == 1)
        return st;
    if (exact->fast) {
        fault_point("comm.exchange");
        return reduce_fast(exact, begin, end);
    }
    st = exchange_partials(exact, begin, end);
    if (st != ST_OK)
        return st;
    fault_point("comm.exchange");
    st = add_tree(exact, begin, end);
    return st == ST_OK ? gather_chunks(exact, begin, end) : st;
}

/* After the last bucket of a step everything is through on the device. */
static enum status work_on(struct exact *exact, size_t bucket, bool last)
{
    enum status st = reduce_bucket(exact, bucket);
    if (st != ST_OK || !last || exact->device == NULL)
        return st;
    return exact->table->wait(exact->comm, exact->timeout_ms);
}

static void *communication_run(void *arg)
{
    struct exact *exact = arg;
    (void)pthread_mutex_lock(&exact->mutex);
    for (;;) {
        while (!exact->quit && exact->done == exact->ready)
            (void)pthread_cond_wait(&exact->changed, &exact->mutex);
        if (exact->quit)
            break;
        const size_t bucket = exact->order[exact->done];
        const bool last = exact->done + 1 == exact->bucket_count;
        enum status st = exact->status;
        if (st == ST_OK) {
            (void)pthread_mutex_unlock(&exact->mutex);
            st = work_on(exact, bucket, last);
            (void)pthread_mutex_lock(&exact->mutex);
        }
        exact->status = st;
        exact->done++;
        (void)pthread_cond_broadcast(&exact->changed);
    }
    (void)pthread_mutex_unlock(&exact->mutex);
    return NULL;
}

/* ---- open and close ---- */

enum status exact_open(const struct exact_options *options, struct exact **out)
{
    uint32_t lanes = 0;
    if (!are_valid(options, &lanes))
        return ST_INVALID;
    struct exact *exact = calloc(1, sizeof(*exact));
    if (exact == NULL)
        return ST_NO_MEMORY;
    exact->table = options->table;
    exact->comm = options->comm;
    exact->rank = (uint32_t)options->rank;
    exact->size = (uint32_t)options->size;
    exact->lanes = lanes;
    exact->count = options->count;
    exact->bucket_count = options->bucket_count;
    exact->timeout_ms = options->timeout_ms;
    exact->fast = options->fast;
    if (options->device != NULL && !options->device->host_memory) {
        exact->device = options->device;
        exact->backend = options->backend;
        exact->compute = options->compute;
        exact->communication = options->communication;
    }
    (void)pthread_mutex_init(&exact->mutex, NULL);
    (void)pthread_cond_init(&exact->changed, NULL);
    enum status st = allocate_tables(exact, options);
    if (st == ST_OK)
        st = derive_order(exact, options->shares);
    if (st == ST_OK)
        st = allocate_buffers(exact);
    if (st == ST_OK)
        st = make_events(exact);
    if (st == ST_OK && exact->size > 1) {
        exact->has_thread = pthread_create(&exact->thread, NULL, communication_run, exact) == 0;
        st = exact->has_thread ? ST_OK : ST_NO_MEMORY;
    }
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

static void release_memory(struct exact *exact)
{
    const bool idle =
        exact->device == NULL || exact->drained == NULL ||
        (is_drained(exact, exact->compute) && is_drained(exact, exact->communication));
    for (uint32_t i = 0; idle && exact->buffer != NULL && i < exact->local.buffers; i++)
        floats_free(exact, exact->buffer[i]);
    if (idle)
        floats_free(exact, exact->staging);
    if (exact->device == NULL)
        return;
    for (size_t b = 0; exact->event != NULL && b < exact->bucket_count; b++) {
        if (exact->event[b] != NULL)
            exact->device->event_free(exact->backend, exact->event[b]);
    }
    if (exact->drained != NULL)
        exact->device->event_free(exact->backend, exact->drained);
}

void exact_close(struct exact *exact)
{
    if (exact == NULL)
        return;
    if (exact->has_thread) {
        (void)pthread_mutex_lock(&exact->mutex);
        exact->quit = true;
        if (exact->done < exact->ready && exact->status == ST_OK)
            exact->table->abort(exact->comm);
        (void)pthread_cond_broadcast(&exact->changed);
        (void)pthread_mutex_unlock(&exact->mutex);
        (void)pthread_join(exact->thread, NULL);
    }
    release_memory(exact);
    free(exact->event);
    free(exact->buffer);
    exact_local_release(&exact->local);
    free(exact->bucket_begin);
    free(exact->order);
    free(exact->is_handed_over);
    free(exact->node_count);
    free(exact->operand_of);
    free(exact->tree);
    free(exact->operand);
    free(exact->send);
    free(exact->recv);
    (void)pthread_cond_destroy(&exact->changed);
    (void)pthread_mutex_destroy(&exact->mutex);
    free(exact);
}

/* ---- a step ---- */

void exact_begin(struct exact *exact)
{
    (void)pthread_mutex_lock(&exact->mutex);
    CHECK(exact->done == exact->ready);
    exact->done = 0;
    exact->ready = 0;
    memset(exact->is_handed_over, 0, exact->bucket_count * sizeof(*exact->is_handed_over));
    (void)pthread_mutex_unlock(&exact->mutex);
    exact->lane = 0;
}

float *exact_lane(struct exact *exact)
{
    CHECK(exact->lane < exact->local.n);
    return exact->buffer[exact->local.buffer_of[exact->lane]];
}

enum status exact_lane_done(struct exact *exact)
{
    CHECK(exact->lane + 1 < exact->local.n);
    enum status st = add_local(exact, exact->lane, 0, exact->count, exact->compute);
    exact->lane++;
    return st;
}

void exact_bucket_done(struct exact *exact, size_t bucket)
{
    CHECK(exact->lane + 1 == exact->local.n);
    CHECK(bucket < exact->bucket_count);
    enum status st = ST_OK;
    if (!exact->has_thread) {
        st = reduce_bucket(exact, bucket);
    } else if (exact->device != NULL) {
        st = exact->device->event_record(exact->backend, exact->event[bucket], exact->compute);
    }
    (void)pthread_mutex_lock(&exact->mutex);
    if (exact->status == ST_OK)
        exact->status = st;
    CHECK(!exact->is_handed_over[bucket]);
    exact->is_handed_over[bucket] = true;
    exact->order[exact->ready++] = bucket;
    if (!exact->has_thread)
        exact->done++;
    (void)pthread_cond_broadcast(&exact->changed);
    (void)pthread_mutex_unlock(&exact->mutex);
}

enum status exact_wait(struct exact *exact, int64_t *exposed_ns)
{
    const int64_t begin_ns = clock_mono_ns();
    (void)pthread_mutex_lock(&exact->mutex);
    CHECK(exact->ready == exact->bucket_count);
    while (exact->done < exact->bucket_count)
        (void)pthread_cond_wait(&exact->changed, &exact->mutex);
    const enum status st = exact->status;
    (void)pthread_mutex_unlock(&exact->mutex);
    *exposed_ns = clock_mono_ns() - begin_ns;
    return st;
}

const float *exact_sum(const struct exact *exact)
{
    return exact->buffer[exact->local.node[0].place];
}
