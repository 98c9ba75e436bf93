/*
 * The reducer on one rank; reducer.h has the picture and the words.
 *
 * A bucket
 *
 *     step thread's -> handed over   [reducer_bucket_done]        size 1: reduced at once, done
 *     handed over   -> in work       [reducer_communication_run]  one after the other, as they were
 *                                                                 handed over: the same on all
 *                                                                 ranks
 *     in work       -> done          [reduce_bucket]              local [add_local],
 *                                                                 [exchange_partials], [add_tree],
 *                                                                 unless it is kept
 *                                                                 [gather_chunks]; with `fast`
 *                                                                 [reduce_fast] after the first
 *     all done      -> step thread's [reducer_wait]
 *
 * reducer_gather is the fourth phase for other data, in the step thread.
 *
 * Invariants
 *  1. The order of additions is that of reducer_order.h alone: nothing here depends on time,
 *     threads or sizes of messages.
 *  2. A bucket belongs to the step thread until reducer_bucket_done, then to the communication
 *     thread until it is counted in done.
 *  3. The result lies in the buffer of this rank's first partial sum. When an owner writes a
 *     finished element there, its own partial has been added; and when another rank's chunk arrives
 *     there, the partial has been sent (an exchange returns only when all was sent).
 *  4. After an error no bucket is worked on any more, but each is still counted in done:
 *     reducer_wait ends.
 *  5. On a device a bucket counts as done when its work is enqueued; only the last of a step waits
 *     for the device. The communication stream waits for the compute stream by the bucket's event,
 *     recorded before the bucket is handed over. The compute stream needs no event back, since the
 *     host waits for the end of the step before it enqueues more.
 *  6. reducer_gather waits for nobody on a device: the communication stream waits for what the
 *     compute stream has to do before, and the compute stream for the gathering. What the
 *     communication stream gets in the next step lies behind it: that step's end is its end, too.
 */
#include <string.h>

#include "comm/reducer.h"
#include "comm/reducer_internal.h"
#include "comm/sum.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"

#define BLOCK_ELEMENTS 4096 /* of the owner's tree at once: stays in the first-level cache */

/* ---- one bucket, in the communication thread (with size 1: in the step thread) ---- */

/* Adds two vectors; on a device the addition is enqueued on the stream. */
static enum status add_vectors(const struct reducer *reducer, float *out, const float *x,
                               const float *y, size_t count, struct stream *stream)
{
    if (reducer->device != NULL)
        return reducer->device->vector.add(reducer->backend, out, x, y, count, stream);
    sum_f32(out, x, y, count);
    return ST_OK;
}

static enum status add_local(const struct reducer *reducer, uint32_t lane, size_t begin, size_t end,
                             struct stream *stream)
{
    const struct reducer_local *local = &reducer->local;
    enum status st = ST_OK;
    for (size_t i = local->add_begin[lane]; st == ST_OK && i < local->add_begin[lane + 1]; i++) {
        float *into = reducer->buffer[local->adds[i].into] + begin;
        st = add_vectors(reducer, into, into, reducer->buffer[local->adds[i].from] + begin,
                         end - begin, stream);
    }
    return st;
}

static void chunk_of(const struct reducer *reducer, size_t bucket, uint32_t rank, size_t *begin,
                     size_t *end)
{
    const size_t *borders = reducer->borders + bucket * ((size_t)reducer->size + 1);
    *begin = borders[rank];
    *end = borders[rank + 1];
}

static struct comm_segment segment_of(float *base, size_t begin, size_t end)
{
    return (struct comm_segment){ base + begin, (end - begin) * sizeof(float) };
}

/* Round k moves every rank's k-th partial sum, cut into chunks, to the chunks' owners. */
static enum status exchange_partials(struct reducer *reducer, size_t bucket)
{
    size_t own_begin = 0, own_end = 0;
    chunk_of(reducer, bucket, reducer->rank, &own_begin, &own_end);
    uint32_t foreign = 0;
    for (uint32_t r = 0; r < reducer->size; r++) {
        for (uint32_t k = 0; k < reducer->partial_count[r]; k++) {
            float **operand = &reducer->operand[reducer->operand_of[r] + k];
            if (r == reducer->rank) {
                *operand = reducer->buffer[reducer->local.partial[k].place] + own_begin;
            } else {
                *operand = reducer->staging + reducer->chunk_max * foreign++;
            }
        }
    }
    CHECK(foreign == reducer->operand_count - reducer->local.partial_count);
    for (uint32_t k = 0; k < reducer->rounds; k++) {
        for (uint32_t r = 0; r < reducer->size; r++) {
            size_t begin = 0, end = 0;
            chunk_of(reducer, bucket, r, &begin, &end);
            reducer->send[r] = (struct comm_segment){ NULL, 0 };
            reducer->recv[r] = (struct comm_segment){ NULL, 0 };
            if (k < reducer->local.partial_count) {
                float *partial = reducer->buffer[reducer->local.partial[k].place];
                reducer->send[r] = segment_of(partial, begin, end);
            }
            if (k < reducer->partial_count[r]) {
                float *operand = reducer->operand[reducer->operand_of[r] + k];
                reducer->recv[r] = segment_of(operand, 0, own_end - own_begin);
            }
        }
        enum status st = reducer_all_to_all_v(&reducer->watch, reducer->table, reducer->comm,
                                              reducer->send, reducer->recv, reducer->timeout_ms);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* The owner's additions, on the host a block at a time; the last one writes the result. */
static enum status add_tree(struct reducer *reducer, size_t bucket)
{
    size_t begin = 0, end = 0;
    chunk_of(reducer, bucket, reducer->rank, &begin, &end);
    float *result = reducer->buffer[reducer->local.partial[0].place] + begin;
    const uint32_t adds = reducer->operand_count - 1;
    const size_t block = reducer->device != NULL ? end - begin : BLOCK_ELEMENTS;
    for (size_t at = 0; at < end - begin; at += block) {
        const size_t left = end - begin - at;
        const size_t count = left < block ? left : block;
        for (uint32_t i = 0; i < adds; i++) {
            float *into = reducer->operand[reducer->tree[i].into] + at;
            const float *from = reducer->operand[reducer->tree[i].from] + at;
            enum status st = add_vectors(reducer, i + 1 == adds ? result + at : into, into, from,
                                         count, reducer->communication);
            if (st != ST_OK)
                return st;
        }
    }
    return ST_OK;
}

static enum status gather_chunks(struct reducer *reducer, float *data, size_t bucket)
{
    for (uint32_t r = 0; r < reducer->size; r++) {
        size_t begin = 0, end = 0;
        chunk_of(reducer, bucket, r, &begin, &end);
        reducer->recv[r] = segment_of(data, begin, end);
    }
    return reducer_all_gather_v(&reducer->watch, reducer->table, reducer->comm, reducer->recv,
                                reducer->timeout_ms);
}

/* The rank's partial sums into one, then the sum of all ranks' in NCCL's or Gloo's own order. */
static enum status reduce_fast(struct reducer *reducer, size_t begin, size_t end)
{
    float *into = reducer->buffer[reducer->local.partial[0].place] + begin;
    for (uint32_t k = 1; k < reducer->local.partial_count; k++) {
        enum status st = add_vectors(reducer, into, into,
                                     reducer->buffer[reducer->local.partial[k].place] + begin,
                                     end - begin, reducer->communication);
        if (st != ST_OK)
            return st;
    }
    return reducer_all_reduce_f32(&reducer->watch, reducer->table, reducer->comm, into, end - begin,
                                  reducer->timeout_ms);
}

static enum status reduce_bucket(struct reducer *reducer, size_t bucket)
{
    const size_t begin = reducer->bucket_begin[bucket], end = reducer->bucket_end[bucket];
    enum status st = ST_OK;
    if (reducer->device != NULL && reducer->size > 1) {
        st = reducer->device->event_wait(reducer->backend, reducer->event[bucket],
                                         reducer->communication);
    }
    if (st == ST_OK) {
        st = add_local(reducer, reducer->local.n - 1, begin, end,
                       reducer->size > 1 ? reducer->communication : reducer->compute);
    }
    if (st != ST_OK || reducer->size == 1)
        return st;
    if (reducer->fast) {
        fault_point("comm.exchange");
        return reduce_fast(reducer, begin, end);
    }
    st = exchange_partials(reducer, bucket);
    if (st != ST_OK)
        return st;
    fault_point("comm.exchange");
    st = add_tree(reducer, bucket);
    if (st != ST_OK || bucket < reducer->kept)
        return st;
    return gather_chunks(reducer, reducer_sum(reducer), bucket);
}

/* Reduces a bucket; after the last one of a step, waits until the device has completed
 * everything. */
static enum status work_on(struct reducer *reducer, size_t bucket, bool last)
{
    enum status st = reduce_bucket(reducer, bucket);
    if (st != ST_OK || !last || reducer->device == NULL)
        return st;
    return reducer->table->wait(reducer->comm, reducer->timeout_ms);
}

void *reducer_communication_run(void *arg)
{
    struct reducer *reducer = arg;
    (void)pthread_mutex_lock(&reducer->mutex);
    for (;;) {
        while (!reducer->quit && reducer->done == reducer->ready)
            (void)pthread_cond_wait(&reducer->changed, &reducer->mutex);
        if (reducer->quit)
            break;
        const size_t bucket = reducer->order[reducer->done];
        const bool last = reducer->done + 1 == reducer->bucket_count;
        enum status st = reducer->status;
        if (st == ST_OK) {
            (void)pthread_mutex_unlock(&reducer->mutex);
            st = work_on(reducer, bucket, last);
            (void)pthread_mutex_lock(&reducer->mutex);
        }
        reducer->status = st;
        reducer->done++;
        (void)pthread_cond_broadcast(&reducer->changed);
    }
    (void)pthread_mutex_unlock(&reducer->mutex);
    return NULL;
}

/* ---- a step ---- */

void reducer_begin(struct reducer *reducer)
{
    (void)pthread_mutex_lock(&reducer->mutex);
    CHECK(reducer->done == reducer->ready);
    reducer->done = 0;
    reducer->ready = 0;
    memset(reducer->is_handed_over, 0, reducer->bucket_count * sizeof(*reducer->is_handed_over));
    (void)pthread_mutex_unlock(&reducer->mutex);
    memset(reducer->lane, 0, sizeof(reducer->lane));
}

float *reducer_lane(struct reducer *reducer, size_t section)
{
    CHECK(section < REDUCER_SECTIONS_MAX);
    CHECK(reducer->lane[section] < reducer->local.n);
    return reducer->buffer[reducer->local.buffer_of[reducer->lane[section]]];
}

enum status reducer_lane_done(struct reducer *reducer, size_t section)
{
    CHECK(section < REDUCER_SECTIONS_MAX);
    const uint32_t lane = reducer->lane[section];
    CHECK(lane + 1 < reducer->local.n);
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < reducer->extent_count; i++) {
        const struct reducer_extent *extent = &reducer->extents[i];
        if (extent->section == section) {
            st = add_local(reducer, lane, extent->first, extent->first + extent->count,
                           reducer->compute);
        }
    }
    reducer->lane[section]++;
    return st;
}

void reducer_bucket_done(struct reducer *reducer, size_t bucket)
{
    for (size_t s = 0; s < REDUCER_SECTIONS_MAX; s++)
        CHECK(!reducer->has_section[s] || reducer->lane[s] + 1 == reducer->local.n);
    CHECK(bucket < reducer->bucket_count);
    enum status st = ST_OK;
    if (!reducer->has_thread) {
        CHECK(reducer->size == 1); /* a spare's is never reduced */
        st = reduce_bucket(reducer, bucket);
    } else if (reducer->device != NULL) {
        st = reducer->device->event_record(reducer->backend, reducer->event[bucket],
                                           reducer->compute);
    }
    (void)pthread_mutex_lock(&reducer->mutex);
    if (reducer->status == ST_OK)
        reducer->status = st;
    CHECK(!reducer->is_handed_over[bucket]);
    reducer->is_handed_over[bucket] = true;
    reducer->order[reducer->ready++] = bucket;
    if (!reducer->has_thread)
        reducer->done++;
    (void)pthread_cond_broadcast(&reducer->changed);
    (void)pthread_mutex_unlock(&reducer->mutex);
}

enum status reducer_wait(struct reducer *reducer, int64_t *exposed_ns)
{
    const int64_t begin_ns = clock_mono_ns();
    (void)pthread_mutex_lock(&reducer->mutex);
    CHECK(reducer->ready == reducer->bucket_count);
    while (reducer->done < reducer->bucket_count)
        (void)pthread_cond_wait(&reducer->changed, &reducer->mutex);
    const enum status st = reducer->status;
    (void)pthread_mutex_unlock(&reducer->mutex);
    *exposed_ns = clock_mono_ns() - begin_ns;
    return st;
}

float *reducer_sum(const struct reducer *reducer)
{
    return reducer->buffer[reducer->local.partial[0].place];
}

/* ---- owners ---- */

void reducer_own_chunk(const struct reducer *reducer, size_t bucket, size_t *begin, size_t *end)
{
    CHECK(bucket < reducer->bucket_count);
    chunk_of(reducer, bucket, reducer->rank, begin, end);
}

/* Makes all later work on `stream` wait for the work that is on `before` now. */
static enum status follow(struct reducer *reducer, struct stream *stream, struct stream *before)
{
    enum status st = reducer->device->event_record(reducer->backend, reducer->turn, before);
    return st == ST_OK ? reducer->device->event_wait(reducer->backend, reducer->turn, stream) : st;
}

enum status reducer_gather(struct reducer *reducer, float *data, size_t buckets)
{
    CHECK(buckets <= reducer->bucket_count);
    if (reducer->size == 1)
        return ST_OK;
    (void)pthread_mutex_lock(&reducer->mutex);
    CHECK(reducer->has_thread && reducer->done == reducer->ready); /* the thread is idle */
    enum status st = reducer->status;
    (void)pthread_mutex_unlock(&reducer->mutex);
    if (st == ST_OK && reducer->device != NULL)
        st = follow(reducer, reducer->communication, reducer->compute);
    for (size_t b = 0; st == ST_OK && b < buckets; b++) {
        fault_point("comm.gather");
        st = gather_chunks(reducer, data, b);
    }
    if (st == ST_OK && reducer->device != NULL)
        st = follow(reducer, reducer->compute, reducer->communication);
    return st;
}
