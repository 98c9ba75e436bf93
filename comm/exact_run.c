/*
 * The exact reduction on one rank; exact.h has the picture and the words.
 *
 * A bucket
 *
 *     step thread's -> handed over   [exact_bucket_done]         size 1: reduced at once, done
 *     handed over   -> in work       [exact_communication_run]  one after the other, as they were
 *                                                          handed over: the same on all ranks
 *     in work       -> done          [reduce_bucket]       local [add_local], [exchange_partials],
 *                                                          [add_tree], unless it is kept
 *                                                          [gather_chunks]; with `fast`
 *                                                          [reduce_fast] after the first
 *     all done      -> step thread's [exact_wait]
 *
 * exact_gather is the fourth phase for other data, in the step thread.
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
 *  6. exact_gather waits for nobody on a device: the communication stream waits for what the
 *     compute stream has to do before, and the compute stream for the gathering. What the
 *     communication stream gets in the next step lies behind it: that step's end is its end, too.
 */
#include <string.h>

#include "comm/exact.h"
#include "comm/exact_internal.h"
#include "comm/sum.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"

#define BLOCK_ELEMENTS 4096 /* of the owner's tree at once: stays in the first-level cache */

/* ---- one bucket, in the communication thread (with size 1: in the step thread) ---- */

/* Adds two vectors; on a device the addition is enqueued on the stream. */
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

static void chunk_of(const struct exact *exact, size_t bucket, uint32_t rank, size_t *begin,
                     size_t *end)
{
    const size_t *borders = exact->borders + bucket * ((size_t)exact->size + 1);
    *begin = borders[rank];
    *end = borders[rank + 1];
}

static struct comm_segment segment_of(float *base, size_t begin, size_t end)
{
    return (struct comm_segment){ base + begin, (end - begin) * sizeof(float) };
}

/* Round k moves every rank's k-th partial sum, cut into chunks, to the chunks' owners. */
static enum status exchange_partials(struct exact *exact, size_t bucket)
{
    size_t own_begin = 0, own_end = 0;
    chunk_of(exact, bucket, exact->rank, &own_begin, &own_end);
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
            chunk_of(exact, bucket, r, &begin, &end);
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
        enum status st = exact_all_to_all_v(&exact->watch, exact->table, exact->comm, exact->send,
                                            exact->recv, exact->timeout_ms);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* The owner's additions, on the host a block at a time; the last one writes the result. */
static enum status add_tree(struct exact *exact, size_t bucket)
{
    size_t begin = 0, end = 0;
    chunk_of(exact, bucket, exact->rank, &begin, &end);
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

static enum status gather_chunks(struct exact *exact, float *data, size_t bucket)
{
    for (uint32_t r = 0; r < exact->size; r++) {
        size_t begin = 0, end = 0;
        chunk_of(exact, bucket, r, &begin, &end);
        exact->recv[r] = segment_of(data, begin, end);
    }
    return exact_all_gather_v(&exact->watch, exact->table, exact->comm, exact->recv,
                              exact->timeout_ms);
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
    return exact_all_reduce_f32(&exact->watch, exact->table, exact->comm, into, end - begin,
                                exact->timeout_ms);
}

static enum status reduce_bucket(struct exact *exact, size_t bucket)
{
    const size_t begin = exact->bucket_begin[bucket], end = exact->bucket_end[bucket];
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
    st = exchange_partials(exact, bucket);
    if (st != ST_OK)
        return st;
    fault_point("comm.exchange");
    st = add_tree(exact, bucket);
    if (st != ST_OK || bucket < exact->kept)
        return st;
    return gather_chunks(exact, exact_sum(exact), bucket);
}

/* Reduces a bucket; after the last one of a step, waits until the device has completed
 * everything. */
static enum status work_on(struct exact *exact, size_t bucket, bool last)
{
    enum status st = reduce_bucket(exact, bucket);
    if (st != ST_OK || !last || exact->device == NULL)
        return st;
    return exact->table->wait(exact->comm, exact->timeout_ms);
}

void *exact_communication_run(void *arg)
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

/* ---- a step ---- */

void exact_begin(struct exact *exact)
{
    (void)pthread_mutex_lock(&exact->mutex);
    CHECK(exact->done == exact->ready);
    exact->done = 0;
    exact->ready = 0;
    memset(exact->is_handed_over, 0, exact->bucket_count * sizeof(*exact->is_handed_over));
    (void)pthread_mutex_unlock(&exact->mutex);
    memset(exact->lane, 0, sizeof(exact->lane));
}

float *exact_lane(struct exact *exact, size_t section)
{
    CHECK(section < EXACT_SECTIONS_MAX);
    CHECK(exact->lane[section] < exact->local.n);
    return exact->buffer[exact->local.buffer_of[exact->lane[section]]];
}

enum status exact_lane_done(struct exact *exact, size_t section)
{
    CHECK(section < EXACT_SECTIONS_MAX);
    const uint32_t lane = exact->lane[section];
    CHECK(lane + 1 < exact->local.n);
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < exact->extent_count; i++) {
        const struct exact_extent *extent = &exact->extents[i];
        if (extent->section == section)
            st = add_local(exact, lane, extent->first, extent->first + extent->count,
                           exact->compute);
    }
    exact->lane[section]++;
    return st;
}

void exact_bucket_done(struct exact *exact, size_t bucket)
{
    for (size_t s = 0; s < EXACT_SECTIONS_MAX; s++)
        CHECK(!exact->has_section[s] || exact->lane[s] + 1 == exact->local.n);
    CHECK(bucket < exact->bucket_count);
    enum status st = ST_OK;
    if (!exact->has_thread) {
        CHECK(exact->size == 1); /* a spare's is never reduced */
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

float *exact_sum(const struct exact *exact)
{
    return exact->buffer[exact->local.node[0].place];
}

/* ---- owners ---- */

void exact_own(const struct exact *exact, size_t bucket, size_t *begin, size_t *end)
{
    CHECK(bucket < exact->bucket_count);
    chunk_of(exact, bucket, exact->rank, begin, end);
}

/* Makes all later work on `stream` wait for the work that is on `before` now. */
static enum status follow(struct exact *exact, struct stream *stream, struct stream *before)
{
    enum status st = exact->device->event_record(exact->backend, exact->turn, before);
    return st == ST_OK ? exact->device->event_wait(exact->backend, exact->turn, stream) : st;
}

enum status exact_gather(struct exact *exact, float *data, size_t buckets)
{
    CHECK(buckets <= exact->bucket_count);
    if (exact->size == 1)
        return ST_OK;
    (void)pthread_mutex_lock(&exact->mutex);
    CHECK(exact->has_thread && exact->done == exact->ready); /* the thread is idle */
    enum status st = exact->status;
    (void)pthread_mutex_unlock(&exact->mutex);
    if (st == ST_OK && exact->device != NULL)
        st = follow(exact, exact->communication, exact->compute);
    for (size_t b = 0; st == ST_OK && b < buckets; b++) {
        fault_point("comm.gather");
        st = gather_chunks(exact, data, b);
    }
    if (st == ST_OK && exact->device != NULL)
        st = follow(exact, exact->compute, exact->communication);
    return st;
}
