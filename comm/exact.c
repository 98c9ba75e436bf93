/*
 * Invariants
 *  1. The order of additions is exact_plan's alone: nothing here depends on time, threads or sizes
 * of messages.
 *  2. A bucket belongs to the step thread until exact_ready, then to the communication thread until
 * it is counted in done; buckets are worked on one after the other, in the order in which they
 * became ready, which is the same on all ranks.
 *  3. The result lies in the buffer of this rank's first partial sum: when an owner writes a
 * finished element there, its own partial has been added, and when another rank's chunk arrives
 * there, the partial has been sent (an exchange returns only when all was sent).
 *  4. After an error no bucket is worked on any more, but each is still counted in done: exact_wait
 *     ends.
 *
 * A step: exact_begin ─lanes─▶ exact_ready(b)… ─all─▶ exact_wait → result. In the communication
 * thread, per bucket: last lane's local additions → rounds of all-to-all, one per partial sum of
 * the rank that has most → owner's tree → all-gather.
 */
#include "comm/exact.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/exact_plan.h"
#include "comm/sum.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"
#include "common/limits.h"

#define BLOCK_ELEMENTS  4096 /* of the owner's tree at once: stays in the first-level cache */
#define ALIGNMENT       64
#define HUGE_PAGE_BYTES ((size_t)2 * 1024 * 1024)

struct exact {
    const struct comm_table *table;
    struct comm *comm;
    uint32_t rank, size, lanes;
    size_t count, bucket_count;
    size_t *bucket_begin; /* [bucket_count + 1], the last is count */
    int64_t timeout_ms;

    struct exact_local local;
    float **buffer;         /* [local.buffers][count] */
    uint32_t *node_count;   /* [size] partial sums of each rank */
    uint32_t rounds;        /* the largest of node_count */
    uint32_t operand_count; /* of the owner's tree: all partial sums of all ranks, ascending */
    uint32_t *operand_of;   /* [size] first operand of each rank */
    struct exact_add *tree; /* [operand_count - 1] */
    float **operand;        /* [operand_count] of the bucket in work */
    float *staging;         /* [operands of others, chunk_max] */
    size_t chunk_max;
    struct comm_segment *send, *recv; /* [size] */

    uint32_t lane; /* own lanes done in this step; step thread only */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t changed;
    size_t *order; /* [bucket_count] buckets as they became ready */
    size_t ready, done;
    enum status status;
    bool quit;
};

/* ---- memory ---- */

static float *floats_new(size_t count)
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

static enum status allocate(struct exact *exact, const struct exact_options *options)
{
    const size_t size = exact->size, buckets = exact->bucket_count;
    exact->bucket_begin = calloc(buckets + 1, sizeof(*exact->bucket_begin));
    exact->order = calloc(buckets, sizeof(*exact->order));
    exact->node_count = calloc(size, sizeof(*exact->node_count));
    exact->operand_of = calloc(size, sizeof(*exact->operand_of));
    exact->send = calloc(size, sizeof(*exact->send));
    exact->recv = calloc(size, sizeof(*exact->recv));
    exact->tree = calloc(exact->lanes, sizeof(*exact->tree));
    exact->operand = calloc(exact->lanes, sizeof(*exact->operand));
    if (exact->bucket_begin == NULL || exact->order == NULL || exact->node_count == NULL ||
        exact->operand_of == NULL || exact->send == NULL || exact->recv == NULL ||
        exact->tree == NULL || exact->operand == NULL)
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
        exact->buffer[i] = floats_new(exact->count);
        if (exact->buffer[i] == NULL)
            return ST_NO_MEMORY;
    }
    const uint32_t foreign = exact->operand_count - exact->local.node_count;
    if (foreign > 0)
        exact->staging = floats_new(foreign * exact->chunk_max);
    return foreign > 0 && exact->staging == NULL ? ST_NO_MEMORY : ST_OK;
}

/* ---- the plan of all ranks ---- */

static enum status plan(struct exact *exact, const uint32_t *shares)
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
            node.slot = exact->operand_count++;
            exact_counter_push(&all, node);
        }
        if (r == exact->rank) {
            exact->local = local;
        } else {
            exact_local_release(&local);
        }
    }
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

static bool is_valid(const struct exact_options *options, uint32_t *out_lanes)
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

static void add_local(struct exact *exact, uint32_t lane, size_t begin, size_t end)
{
    const struct exact_local *local = &exact->local;
    for (size_t i = local->add_begin[lane]; i < local->add_begin[lane + 1]; i++) {
        float *into = exact->buffer[local->adds[i].into] + begin;
        sum_f32(into, into, exact->buffer[local->adds[i].from] + begin, end - begin);
    }
}

static struct comm_segment segment_of(float *base, size_t begin, size_t end)
{
    return (struct comm_segment){ base + begin, (end - begin) * sizeof(float) };
}

/* Round k moves every rank's k-th partial sum, cut into chunks, to the chunks' owners. */
static enum status exchange(struct exact *exact, size_t bucket_begin, size_t bucket_end)
{
    size_t own_begin = 0, own_end = 0;
    exact_chunk(bucket_begin, bucket_end, exact->rank, exact->size, &own_begin, &own_end);
    uint32_t foreign = 0;
    for (uint32_t r = 0; r < exact->size; r++) {
        for (uint32_t k = 0; k < exact->node_count[r]; k++) {
            float **operand = &exact->operand[exact->operand_of[r] + k];
            if (r == exact->rank) {
                *operand = exact->buffer[exact->local.node[k].slot] + own_begin;
            } else {
                *operand = exact->staging + exact->chunk_max * foreign++;
            }
        }
    }
    for (uint32_t k = 0; k < exact->rounds; k++) {
        for (uint32_t r = 0; r < exact->size; r++) {
            size_t begin = 0, end = 0;
            exact_chunk(bucket_begin, bucket_end, r, exact->size, &begin, &end);
            const bool sends = k < exact->local.node_count, receives = k < exact->node_count[r];
            exact->send[r] = sends
                                 ? segment_of(exact->buffer[exact->local.node[k].slot], begin, end)
                                 : (struct comm_segment){ NULL, 0 };
            exact->recv[r] = receives ? segment_of(exact->operand[exact->operand_of[r] + k], 0,
                                                   own_end - own_begin)
                                      : (struct comm_segment){ NULL, 0 };
        }
        enum status st =
            exact->table->all_to_all_v(exact->comm, exact->send, exact->recv, exact->timeout_ms);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* The owner's additions, a block at a time; the last one writes the result. */
static void add_tree(struct exact *exact, size_t bucket_begin, size_t bucket_end)
{
    size_t begin = 0, end = 0;
    exact_chunk(bucket_begin, bucket_end, exact->rank, exact->size, &begin, &end);
    float *result = exact->buffer[exact->local.node[0].slot] + begin;
    const uint32_t adds = exact->operand_count - 1;
    for (size_t at = 0; at < end - begin; at += BLOCK_ELEMENTS) {
        const size_t left = end - begin - at;
        const size_t count = left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS;
        for (uint32_t i = 0; i < adds; i++) {
            float *into = exact->operand[exact->tree[i].into] + at;
            const float *from = exact->operand[exact->tree[i].from] + at;
            sum_f32(i + 1 == adds ? result + at : into, into, from, count);
        }
    }
}

static enum status gather(struct exact *exact, size_t bucket_begin, size_t bucket_end)
{
    float *result = exact->buffer[exact->local.node[0].slot];
    for (uint32_t r = 0; r < exact->size; r++) {
        size_t begin = 0, end = 0;
        exact_chunk(bucket_begin, bucket_end, r, exact->size, &begin, &end);
        exact->recv[r] = segment_of(result, begin, end);
    }
    return exact->table->all_gather_v(exact->comm, exact->recv, exact->timeout_ms);
}

static enum status reduce(struct exact *exact, size_t bucket)
{
    const size_t begin = exact->bucket_begin[bucket], end = exact->bucket_begin[bucket + 1];
    add_local(exact, exact->local.n - 1, begin, end);
    if (exact->size == 1)
        return ST_OK;
    enum status st = exchange(exact, begin, end);
    if (st != ST_OK)
        return st;
    fault_point("comm.exchange");
    add_tree(exact, begin, end);
    return gather(exact, begin, end);
}

static void *run(void *arg)
{
    struct exact *exact = arg;
    (void)pthread_mutex_lock(&exact->mutex);
    for (;;) {
        while (!exact->quit && exact->done == exact->ready)
            (void)pthread_cond_wait(&exact->changed, &exact->mutex);
        if (exact->quit)
            break;
        const size_t bucket = exact->order[exact->done];
        enum status st = exact->status;
        if (st == ST_OK) {
            (void)pthread_mutex_unlock(&exact->mutex);
            st = reduce(exact, bucket);
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
    if (!is_valid(options, &lanes))
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
    (void)pthread_mutex_init(&exact->mutex, NULL);
    (void)pthread_cond_init(&exact->changed, NULL);
    enum status st = allocate(exact, options);
    if (st == ST_OK)
        st = plan(exact, options->shares);
    if (st == ST_OK)
        st = allocate_buffers(exact);
    if (st == ST_OK && exact->size > 1) {
        exact->has_thread = pthread_create(&exact->thread, NULL, run, exact) == 0;
        st = exact->has_thread ? ST_OK : ST_NO_MEMORY;
    }
    if (st != ST_OK) {
        exact_close(exact);
        return st;
    }
    *out = exact;
    return ST_OK;
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
    for (uint32_t i = 0; exact->buffer != NULL && i < exact->local.buffers; i++)
        free(exact->buffer[i]);
    free(exact->buffer);
    exact_local_release(&exact->local);
    free(exact->bucket_begin);
    free(exact->order);
    free(exact->node_count);
    free(exact->operand_of);
    free(exact->tree);
    free(exact->operand);
    free(exact->staging);
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
    (void)pthread_mutex_unlock(&exact->mutex);
    exact->lane = 0;
}

float *exact_lane(struct exact *exact)
{
    CHECK(exact->lane < exact->local.n);
    return exact->buffer[exact->local.slot[exact->lane]];
}

enum status exact_lane_done(struct exact *exact)
{
    CHECK(exact->lane + 1 < exact->local.n);
    add_local(exact, exact->lane, 0, exact->count);
    exact->lane++;
    return ST_OK;
}

void exact_ready(struct exact *exact, size_t bucket)
{
    CHECK(exact->lane + 1 == exact->local.n);
    CHECK(bucket < exact->bucket_count);
    if (!exact->has_thread)
        (void)reduce(exact, bucket);
    (void)pthread_mutex_lock(&exact->mutex);
    CHECK(exact->ready < exact->bucket_count);
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
    return exact->buffer[exact->local.node[0].slot];
}
