/* The exact reduction over NCCL (a fake one) with vectors on a device (a fake one). */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/nccl.h"
#include "comm/reducer.h"
#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/limits.h"
#include "tests/gpu/async_device.h"
#include "tests/gpu/fake_nccl.h"
#include "tests/test.h"
#include "tests/unit/comm/nccl_fixture.h"

#define LANES   6
#define COUNT   ((size_t)200000)
#define BUCKETS 3
#define STEPS   3

struct reduction {
    uint32_t shares[NCCL_RANKS_MAX];
    bool fast;
    float result[NCCL_RANKS_MAX][COUNT];
};

static float value_of(uint32_t lane, size_t i)
{
    const uint32_t z = ((uint32_t)i * 0x9E3779B9u) ^ (lane * 0x85EBCA6Bu + 0x165667B1u);
    return (float)(int32_t)(z * 0x7feb352du) / 2147483648.0f * ((z & 7) != 0 ? 1.0f : 1024.0f);
}

static void fill_lane(struct nccl_rank *r, float *lane, uint32_t number)
{
    float *host = NULL;
    CHECK(r->table->alloc_host(r->backend, COUNT * sizeof(float), (void **)&host) == ST_OK);
    for (size_t i = 0; i < COUNT; i++)
        host[i] = value_of(number, i);
    CHECK(r->table->vector.copy(r->backend, lane, host, COUNT * sizeof(float), r->compute) ==
          ST_OK);
    CHECK(r->table->stream_sync(r->backend, r->compute) == ST_OK);
    r->table->free_host(r->backend, host);
}

static enum status run_step(struct nccl_rank *r, struct reducer *reducer, const uint32_t *shares)
{
    uint32_t order[LIMIT_LANES], first = 0;
    enum status st = ST_OK;
    reducer_spread(shares, (uint32_t)r->size, order);
    for (int p = 0; p < r->rank; p++)
        first += shares[p];
    reducer_begin(reducer);
    for (uint32_t i = 0; st == ST_OK && i < shares[r->rank]; i++) {
        fill_lane(r, reducer_lane(reducer, 0), order[first + i]);
        if (i + 1 < shares[r->rank])
            st = reducer_lane_done(reducer, 0);
    }
    for (size_t b = BUCKETS; b-- > 0;)
        reducer_bucket_done(reducer, b);
    int64_t exposed_ns = 0;
    return st == ST_OK ? reducer_wait(reducer, &exposed_ns) : st;
}

static enum status reduce_body(struct nccl_rank *r)
{
    struct reduction *reduction = r->arg;
    static const size_t buckets[BUCKETS] = { 0, 65536, 131072 };
    const struct reducer_options options = { .table = r->size > 1 ? comm_nccl() : NULL,
                                             .comm = r->size > 1 ? r->comm : NULL,
                                             .rank = r->rank,
                                             .size = r->size,
                                             .shares = reduction->shares,
                                             .count = COUNT,
                                             .bucket_begin = buckets,
                                             .bucket_count = BUCKETS,
                                             .timeout_ms = NCCL_LONG_MS,
                                             .fast = reduction->fast,
                                             .device = r->table,
                                             .backend = r->backend,
                                             .compute = r->compute,
                                             .communication = r->stream };
    struct reducer *reducer = NULL;
    CHECK(reducer_open(&options, &reducer) == ST_OK);
    enum status st = ST_OK;
    for (int step = 0; st == ST_OK && step < STEPS; step++) {
        st = run_step(r, reducer, reduction->shares);
        if (st == ST_OK) {
            st = r->table->vector.copy(r->backend, reduction->result[r->rank], reducer_sum(reducer),
                                       COUNT * sizeof(float), r->compute);
        }
    }
    reducer_close(reducer);
    return st;
}

static float *reduce(uint32_t a, uint32_t b, uint32_t c, bool fast)
{
    struct reduction *reduction = calloc(1, sizeof(*reduction));
    assert_non_null(reduction);
    const uint32_t shares[NCCL_RANKS_MAX] = { a, b, c };
    memcpy(reduction->shares, shares, sizeof(shares));
    reduction->fast = fast;
    const int size = c > 0 ? 3 : b > 0 ? 2 : 1;
    nccl_run_well(size, reduce_body, reduction);
    for (int r = 1; r < size; r++)
        assert_memory_equal(reduction->result[0], reduction->result[r], COUNT * sizeof(float));
    float *sum = malloc(COUNT * sizeof(float));
    assert_non_null(sum);
    memcpy(sum, reduction->result[0], COUNT * sizeof(float));
    free(reduction);
    return sum;
}

static void the_reduction_gives_the_same_bits_for_every_spread(void **state)
{
    (void)state;
    float *one = reduce(6, 0, 0, false);
    for (size_t i = 0; i < COUNT; i += 997) {
        const float want = ((value_of(0, i) + value_of(1, i)) + (value_of(2, i) + value_of(3, i))) +
                           (value_of(4, i) + value_of(5, i));
        assert_memory_equal(&one[i], &want, sizeof(want));
    }
    static const uint32_t spreads[][3] = { { 3, 3, 0 }, { 2, 2, 2 }, { 1, 4, 1 }, { 5, 1, 0 } };
    for (size_t s = 0; s < 4; s++) {
        float *other = reduce(spreads[s][0], spreads[s][1], spreads[s][2], false);
        assert_memory_equal(one, other, COUNT * sizeof(float));
        free(other);
    }
    free(one);
}

static void the_fast_reduction_is_nearly_the_sum(void **state)
{
    (void)state;
    const int before = fake_nccl_counts().all_reduces;
    float *reducer = reduce(6, 0, 0, false);
    float *fast = reduce(3, 2, 1, true);
    assert_int_equal(fake_nccl_counts().all_reduces - before, 3 * STEPS * BUCKETS);
    size_t different = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_float_equal(fast[i], reducer[i], 0.01);
        different += memcmp(&fast[i], &reducer[i], sizeof(float)) != 0;
    }
    assert_true(different > COUNT / 100);
    free(reducer);
    free(fast);
}

/* ---- owners ---- */

#define OWNED 2 /* buckets that are kept, and gathered */

static const size_t owned_buckets[BUCKETS] = { 0, 65536, 131072 };
/* [BUCKETS][3 + 1]: uneven, evenly, and one that owns nothing. */
static const size_t owned_borders[] = { 0,      1000,   1000,   65536,  65536,  87381,
                                        109226, 131072, 131072, 150000, 199000, COUNT };

struct ownership {
    struct reduction reduction;
    float gathered[STEPS][NCCL_RANKS_MAX][COUNT];
    pthread_barrier_t all;
};

static enum status nap_on_stream(struct stream *stream, void *arg)
{
    (void)stream;
    const struct timespec time = { .tv_nsec = *(const long *)arg };
    (void)nanosleep(&time, NULL);
    return ST_OK;
}

/* The stream is behind the host. */
static void slow_down(struct stream *stream)
{
    const long ns = 20000000;
    async_device_enqueue(stream, nap_on_stream, &ns, sizeof(ns));
}

static struct reducer *open_owned(struct nccl_rank *r, const uint32_t *shares)
{
    const struct reducer_options options = { .table = comm_nccl(),
                                             .comm = r->comm,
                                             .rank = r->rank,
                                             .size = r->size,
                                             .shares = shares,
                                             .count = COUNT,
                                             .bucket_begin = owned_buckets,
                                             .bucket_count = BUCKETS,
                                             .borders = owned_borders,
                                             .kept = OWNED,
                                             .timeout_ms = NCCL_LONG_MS,
                                             .device = r->table,
                                             .backend = r->backend,
                                             .compute = r->compute,
                                             .communication = r->stream };
    struct reducer *reducer = NULL;
    CHECK(reducer_open(&options, &reducer) == ST_OK);
    return reducer;
}

/* A rank's own chunks of the sum become its parameters, late; all of them are read at once, as far
 * as the host can tell. */
static enum status update_owned(struct nccl_rank *r, struct reducer *reducer, float *params,
                                float *out)
{
    enum status st = ST_OK;
    if (r->rank == 0)
        slow_down(r->compute);
    for (size_t b = 0; st == ST_OK && b < OWNED; b++) {
        size_t begin = 0, end = 0;
        reducer_own_chunk(reducer, b, &begin, &end);
        st = r->table->vector.copy(r->backend, params + begin, reducer_sum(reducer) + begin,
                                   (end - begin) * sizeof(float), r->compute);
    }
    if (st == ST_OK)
        st = reducer_gather(reducer, params, OWNED);
    if (st != ST_OK)
        return st;
    return r->table->vector.copy(r->backend, out, params, owned_buckets[OWNED] * sizeof(float),
                                 r->compute);
}

static enum status owned_body(struct nccl_rank *r)
{
    struct ownership *o = r->arg;
    struct reducer *reducer = open_owned(r, o->reduction.shares);
    float *params = NULL, *pinned = NULL;
    const size_t bytes = COUNT * sizeof(float);
    CHECK(r->table->alloc(r->backend, bytes, (void **)&params) == ST_OK);
    CHECK(r->table->alloc_host(r->backend, STEPS * bytes, (void **)&pinned) == ST_OK);
    enum status st = ST_OK;
    for (int step = 0; st == ST_OK && step < STEPS; step++) {
        st = run_step(r, reducer, o->reduction.shares);
        if (st == ST_OK)
            st = update_owned(r, reducer, params, pinned + (size_t)step * COUNT);
        if (st == ST_OK && step + 1 < STEPS)
            st = r->table->vector.fill(r->backend, params, -1.0f, COUNT, r->compute);
    }
    /* The rest of the sum was gathered. */
    if (st == ST_OK) {
        st = r->table->vector.copy(r->backend, o->reduction.result[r->rank], reducer_sum(reducer),
                                   bytes, r->compute);
    }
    if (st == ST_OK)
        st = r->table->stream_sync(r->backend, r->compute);
    for (size_t step = 0; st == ST_OK && step < STEPS; step++)
        memcpy(o->gathered[step][r->rank], pinned + step * COUNT, bytes);
    r->table->free_host(r->backend, pinned);
    r->table->free(r->backend, params);
    reducer_close(reducer);
    return st;
}

static void owners_gather_between_two_streams(void **state)
{
    (void)state;
    static const uint32_t spreads[][3] = { { 2, 2, 2 }, { 1, 4, 1 }, { 3, 1, 2 } };
    float *one = reduce(6, 0, 0, false);
    for (size_t s = 0; s < 3; s++) {
        struct ownership *o = calloc(1, sizeof(*o));
        assert_non_null(o);
        memcpy(o->reduction.shares, spreads[s], sizeof(spreads[s]));
        nccl_run_well(3, owned_body, o);
        const size_t end = owned_buckets[OWNED];
        for (int r = 0; r < 3; r++) {
            for (int step = 0; step < STEPS; step++)
                assert_memory_equal(o->gathered[step][r], one, end * sizeof(float));
            assert_memory_equal(o->reduction.result[r] + end, one + end,
                                (COUNT - end) * sizeof(float));
        }
        free(o);
    }
    free(one);
}

/* The last rank is gone when the others gather: that is enqueued, and its end tells. */
static enum status bereaved_body(struct nccl_rank *r)
{
    struct ownership *o = r->arg;
    struct reducer *reducer = open_owned(r, o->reduction.shares);
    float *params = NULL;
    CHECK(r->table->alloc(r->backend, COUNT * sizeof(float), (void **)&params) == ST_OK);
    enum status st = run_step(r, reducer, o->reduction.shares);
    const bool dies = r->rank + 1 == r->size;
    if (st == ST_OK && !dies)
        CHECK(reducer_gather(reducer, params, OWNED) == ST_OK);
    (void)pthread_barrier_wait(&o->all);
    if (dies) {
        fake_nccl_lose(r->rank);
    } else {
        st = comm_nccl()->wait(r->comm, NCCL_LONG_MS);
        CHECK(r->table->stream_sync(r->backend, r->compute) == ST_OK); /* it goes on */
    }
    r->table->free(r->backend, params);
    reducer_close(reducer);
    return st;
}

static void a_death_amid_gathering_shows_at_the_next_wait(void **state)
{
    (void)state;
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    struct ownership *o = calloc(1, sizeof(*o));
    assert_non_null(o);
    o->reduction.shares[0] = o->reduction.shares[1] = o->reduction.shares[2] = 2;
    assert_int_equal(pthread_barrier_init(&o->all, NULL, 3), 0);
    nccl_run_some(ranks, 3, 3, NCCL_LONG_MS, bereaved_body, o);
    for (int r = 0; r < 3; r++)
        assert_int_equal(ranks[r].st, r < 2 ? ST_PEER : ST_OK);
    assert_int_equal(fake_nccl_counts().live, 0);
    (void)pthread_barrier_destroy(&o->all);
    free(o);
}

/* ---- extents ---- */

/* The vector's stages: what all ranks have in one generation, and the next. */
static const struct stage {
    struct reducer_extent extents[2];
    size_t extent_count, buckets[3], bucket_count;
} stages[] = {
    { { { 1000, 70000, 0 } }, 1, { 1000 }, 1 },
    /* needs more events */
    { { { 0, 1000, 0 }, { 71000, 129000, 0 } }, 2, { 0, 71000, 131072 }, 3 },
    { { { 1000, 70000, 0 } }, 1, { 1000, 30000 }, 2 },
};
#define STAGES (sizeof(stages) / sizeof(stages[0]))

static void fill_runs(struct nccl_rank *r, const struct stage *stage, float *lane,
                      const float *from)
{
    for (size_t i = 0; i < stage->extent_count; i++) {
        const struct reducer_extent extent = stage->extents[i];
        CHECK(r->table->vector.copy(r->backend, lane + extent.first, from + extent.first,
                                    extent.count * sizeof(float), r->compute) == ST_OK);
    }
}

/* A step of a stage; its extents of the sum are copied to `out`. lanes: [LANES] pinned vectors. */
static enum status run_stage(struct nccl_rank *r, struct reducer *reducer,
                             const struct stage *stage, float *const *lanes, float *out)
{
    const struct reduction *reduction = r->arg;
    uint32_t order[LANES], first = 0;
    enum status st = ST_OK;
    reducer_spread(reduction->shares, (uint32_t)r->size, order);
    for (int p = 0; p < r->rank; p++)
        first += reduction->shares[p];
    reducer_begin(reducer);
    for (uint32_t i = 0; st == ST_OK && i < reduction->shares[r->rank]; i++) {
        fill_runs(r, stage, reducer_lane(reducer, 0), lanes[order[first + i]]);
        if (i + 1 < reduction->shares[r->rank])
            st = reducer_lane_done(reducer, 0);
    }
    for (size_t b = stage->bucket_count; b-- > 0;)
        reducer_bucket_done(reducer, b);
    int64_t exposed_ns = 0;
    if (st == ST_OK)
        st = reducer_wait(reducer, &exposed_ns);
    for (size_t i = 0; st == ST_OK && i < stage->extent_count; i++) {
        const struct reducer_extent extent = stage->extents[i];
        st = r->table->vector.copy(r->backend, out + extent.first,
                                   reducer_sum(reducer) + extent.first,
                                   extent.count * sizeof(float), r->compute);
    }
    return st == ST_OK ? r->table->stream_sync(r->backend, r->compute) : st;
}

/* From one stage to the next with the communicator that there is. */
static enum status stages_body(struct nccl_rank *r)
{
    struct reduction *reduction = r->arg;
    struct reducer *reducer = NULL;
    float *lanes[LANES + 1]; /* and the sum */
    const size_t bytes = COUNT * sizeof(float);
    enum status st = ST_OK;
    for (uint32_t lane = 0; lane <= LANES; lane++) {
        CHECK(r->table->alloc_host(r->backend, bytes, (void **)&lanes[lane]) == ST_OK);
        for (size_t i = 0; lane < LANES && i < COUNT; i++)
            lanes[lane][i] = value_of(lane, i);
    }
    for (size_t s = 0; st == ST_OK && s < STAGES; s++) {
        const struct reducer_options options = { .table = comm_nccl(),
                                                 .comm = r->comm,
                                                 .rank = r->rank,
                                                 .size = r->size,
                                                 .shares = reduction->shares,
                                                 .count = COUNT,
                                                 .extents = stages[s].extents,
                                                 .extent_count = stages[s].extent_count,
                                                 .bucket_begin = stages[s].buckets,
                                                 .bucket_count = stages[s].bucket_count,
                                                 .timeout_ms = NCCL_LONG_MS,
                                                 .device = r->table,
                                                 .backend = r->backend,
                                                 .compute = r->compute,
                                                 .communication = r->stream };
        st = s == 0 ? reducer_open(&options, &reducer) : reducer_reconnect(reducer, &options);
        for (int step = 0; st == ST_OK && step < STEPS; step++)
            st = run_stage(r, reducer, &stages[s], lanes, lanes[LANES]);
        reducer_disconnect(reducer);
    }
    memcpy(reduction->result[r->rank], lanes[LANES], bytes);
    for (uint32_t lane = 0; lane <= LANES; lane++)
        r->table->free_host(r->backend, lanes[lane]);
    reducer_close(reducer);
    return st;
}

/* Two stages have all of the vector together; the first one is done again at the end. */
static void ranks_go_on_with_other_runs(void **state)
{
    (void)state;
    struct reduction *reduction = calloc(1, sizeof(*reduction));
    assert_non_null(reduction);
    float *one = reduce(6, 0, 0, false);
    const uint32_t shares[NCCL_RANKS_MAX] = { 1, 3, 2 };
    memcpy(reduction->shares, shares, sizeof(shares));
    nccl_run_well(3, stages_body, reduction);
    for (int r = 0; r < 3; r++)
        assert_memory_equal(reduction->result[r], one, COUNT * sizeof(float));
    free(one);
    free(reduction);
}

/* ---- the end ---- */

static enum status left_body(struct nccl_rank *r)
{
    struct reduction *reduction = r->arg;
    static const size_t border = 0;
    const struct reducer_options options = { .table = comm_nccl(),
                                             .comm = r->comm,
                                             .rank = r->rank,
                                             .size = r->size,
                                             .shares = reduction->shares,
                                             .count = COUNT,
                                             .bucket_begin = &border,
                                             .bucket_count = 1,
                                             .timeout_ms = NCCL_LONG_MS,
                                             .device = r->table,
                                             .backend = r->backend,
                                             .compute = r->compute,
                                             .communication = r->stream };
    struct reducer *reducer = NULL;
    CHECK(reducer_open(&options, &reducer) == ST_OK);
    reducer_begin(reducer);
    if (r->rank == 0)
        reducer_bucket_done(reducer, 0); /* the other never does */
    reducer_close(reducer);
    return ST_OK;
}

static void closing_the_reduction_amid_a_step_ends_its_thread(void **state)
{
    (void)state;
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    struct reduction *reduction = calloc(1, sizeof(*reduction));
    assert_non_null(reduction);
    reduction->shares[0] = reduction->shares[1] = 1;
    nccl_run_some(ranks, 2, 2, NCCL_LONG_MS, left_body, reduction);
    assert_int_equal(ranks[0].st, ST_OK);
    assert_int_equal(fake_nccl_counts().live, 0);
    free(reduction);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reduction_gives_the_same_bits_for_every_spread),
        cmocka_unit_test(the_fast_reduction_is_nearly_the_sum),
        cmocka_unit_test(owners_gather_between_two_streams),
        cmocka_unit_test(a_death_amid_gathering_shows_at_the_next_wait),
        cmocka_unit_test(ranks_go_on_with_other_runs),
        cmocka_unit_test(closing_the_reduction_amid_a_step_ends_its_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
