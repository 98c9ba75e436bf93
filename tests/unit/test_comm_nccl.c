/*
 * comm/nccl.c's host side against a fake NCCL and a fake device: forming, exchanging, waiting,
 * deadlines, aborts, what an error means. Ranks are threads.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exact.h"
#include "comm/nccl.h"
#include "common/check.h"
#include "common/clock.h"
#include "tests/gpu/async_device.h"
#include "tests/gpu/fake_nccl.h"
#include "tests/test.h"
#include "tests/unit/comm_fixture.h"

#define RANKS_MAX 4
#define LONG_MS   60000

struct rank {
    struct kv kv;
    uint64_t generation;
    int rank, size;
    int64_t timeout_ms;
    enum status (*body)(struct rank *rank);
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream, *compute;
    struct comm *comm;
    enum status opened, st;
    pthread_t thread;
    void *arg;
};

static void open_device(struct rank *r)
{
    const struct backend_options options = { .threads = 1 };
    r->table = async_device();
    CHECK(r->table->open(&options, &r->backend) == ST_OK);
    CHECK(r->table->stream_new(r->backend, &r->stream) == ST_OK);
    CHECK(r->table->stream_new(r->backend, &r->compute) == ST_OK);
}

static void close_device(struct rank *r)
{
    r->table->stream_free(r->backend, r->compute);
    r->table->stream_free(r->backend, r->stream);
    r->table->close(r->backend);
}

static void *run_rank(void *arg)
{
    static const char *const settings[] = { "NCCL_SOCKET_IFNAME=lo" };
    struct rank *r = arg;
    open_device(r);
    const struct comm_options options = { .kv = &r->kv,
                                          .generation = r->generation,
                                          .rank = r->rank,
                                          .size = r->size,
                                          .timeout_ms = r->timeout_ms,
                                          .device = { .table = r->table,
                                                      .backend = r->backend,
                                                      .stream = r->stream,
                                                      .settings = settings,
                                                      .setting_count = 1,
                                                      .blocks_max = 4 } };
    r->opened = comm_nccl()->open(&options, &r->comm);
    if (r->opened == ST_OK && r->body != NULL)
        r->st = r->body(r);
    comm_nccl()->close(r->comm);
    close_device(r);
    return NULL;
}

/* Ranks [0, present) of size come. */
static void run_some(struct rank *ranks, int present, int size, uint64_t generation,
                     int64_t timeout_ms, enum status (*body)(struct rank *rank), void *arg)
{
    struct shared_kv *shared = shared_kv_new();
    for (int r = 0; r < present; r++) {
        ranks[r] = (struct rank){ .kv = shared_kv_table(shared),
                                  .generation = generation,
                                  .rank = r,
                                  .size = size,
                                  .timeout_ms = timeout_ms,
                                  .body = body,
                                  .arg = arg };
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < present; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
    shared_kv_free(shared);
}

static void run_well(int size, enum status (*body)(struct rank *rank), void *arg)
{
    struct rank ranks[RANKS_MAX];
    const struct fake_nccl_counts before = fake_nccl_counts();
    run_some(ranks, size, size, 1, LONG_MS, body, arg);
    for (int r = 0; r < size; r++) {
        assert_int_equal(ranks[r].opened, ST_OK);
        assert_int_equal(ranks[r].st, ST_OK);
    }
    const struct fake_nccl_counts after = fake_nccl_counts();
    const int formed = size > 1 ? size : 0;
    assert_int_equal(after.formed - before.formed, formed);
    assert_int_equal(after.destroyed - before.destroyed, formed);
    assert_int_equal(after.aborted, before.aborted);
    assert_int_equal(after.live, 0);
}

/* ---- device memory ---- */

static void *device_new(struct rank *r, size_t bytes)
{
    void *memory = NULL;
    CHECK(r->table->alloc(r->backend, bytes, &memory) == ST_OK);
    return memory;
}

static void write_to(struct rank *r, void *to, const void *from, size_t bytes)
{
    CHECK(r->table->vector.copy(r->backend, to, from, bytes, r->stream) == ST_OK);
}

static enum status read_from(struct rank *r, void *to, const void *from, size_t bytes)
{
    CHECK(r->table->vector.copy(r->backend, to, from, bytes, r->stream) == ST_OK);
    return comm_nccl()->wait(r->comm, LONG_MS);
}

/* ---- what must work ---- */

static size_t size_between(int from, int to)
{
    return (size_t)((from * 7 + to * 3) % 4) * 1001;
}

static uint8_t byte_of(int from, int to, size_t i)
{
    return (uint8_t)((size_t)(from * 31 + to * 17) + i * 13);
}

static enum status exchange_body(struct rank *r)
{
    struct comm_segment send[RANKS_MAX], recv[RANKS_MAX];
    uint8_t bytes[4096];
    for (int p = 0; p < r->size; p++) {
        const size_t out = size_between(r->rank, p), in = size_between(p, r->rank);
        send[p] = (struct comm_segment){ device_new(r, out + 1), out };
        recv[p] = (struct comm_segment){ device_new(r, in + 1), in };
        for (size_t i = 0; i < out; i++)
            bytes[i] = byte_of(r->rank, p, i);
        write_to(r, send[p].data, bytes, out);
    }
    enum status st = comm_nccl()->all_to_all_v(r->comm, send, recv, LONG_MS);
    for (int p = 0; st == ST_OK && p < r->size; p++) {
        st = read_from(r, bytes, recv[p].data, recv[p].size);
        for (size_t i = 0; p != r->rank && i < recv[p].size; i++) {
            if (bytes[i] != byte_of(p, r->rank, i))
                st = ST_CORRUPT;
        }
    }
    return st;
}

static void ranks_exchange_segments_of_their_own_sizes_some_empty(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++)
        run_well(size, exchange_body, NULL);
    assert_int_equal(fake_nccl_counts().blocking, 0);
    assert_int_equal(fake_nccl_counts().max_ctas, 4);
    assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "lo");
}

static enum status gather_body(struct rank *r)
{
    const bool even = *(const bool *)r->arg;
    enum { COUNT = 1000 };
    uint32_t host[RANKS_MAX * COUNT];
    uint32_t *data = device_new(r, sizeof(host));
    struct comm_segment segments[RANKS_MAX];
    for (int p = 0; p < r->size; p++) {
        const size_t count = even ? COUNT : (size_t)p * 200;
        segments[p] = (struct comm_segment){ data + p * COUNT, count * sizeof(*data) };
    }
    for (uint32_t i = 0; i < COUNT; i++)
        host[i] = (uint32_t)r->rank * 1000000 + i;
    write_to(r, segments[r->rank].data, host, segments[r->rank].size);
    enum status st = comm_nccl()->all_gather_v(r->comm, segments, LONG_MS);
    if (st == ST_OK)
        st = read_from(r, host, data, sizeof(host));
    for (uint32_t p = 0; st == ST_OK && p < (uint32_t)r->size; p++) {
        for (uint32_t i = 0; i < segments[p].size / sizeof(*data); i++) {
            if (host[p * COUNT + i] != p * 1000000 + i)
                st = ST_CORRUPT;
        }
    }
    return st;
}

static void every_rank_gets_the_segments_of_all(void **state)
{
    (void)state;
    bool even = false;
    for (int size = 1; size <= RANKS_MAX; size++)
        run_well(size, gather_body, &even);
    const int before = fake_nccl_counts().all_gathers;
    even = true;
    run_well(3, gather_body, &even);
    assert_int_equal(fake_nccl_counts().all_gathers - before, 3); /* equal parts in one call */
}

static enum status sum_body(struct rank *r)
{
    float host[501];
    float *data = device_new(r, sizeof(host));
    for (int i = 0; i < 501; i++)
        host[i] = (float)(i + r->rank);
    write_to(r, data, host, sizeof(host));
    enum status st = comm_nccl()->all_reduce_f32(r->comm, data, 501, LONG_MS);
    if (st == ST_OK)
        st = read_from(r, host, data, sizeof(host));
    for (int i = 0; st == ST_OK && i < 501; i++) {
        if (host[i] != (float)(r->size * i + r->size * (r->size - 1) / 2))
            st = ST_CORRUPT;
    }
    return st;
}

static void numbers_are_summed(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++)
        run_well(size, sum_body, NULL);
}

static enum status pass_body(struct rank *r)
{
    uint64_t value = (uint64_t)r->rank;
    uint64_t *data = device_new(r, sizeof(value));
    const int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    write_to(r, data, &value, sizeof(value));
    enum status st = ST_OK;
    for (int turn = 0; st == ST_OK && turn < 2; turn++) {
        const bool sends = turn == r->rank % 2;
        st = sends ? comm_nccl()->send(r->comm, next, data, sizeof(value), LONG_MS)
                   : comm_nccl()->recv(r->comm, before, data, sizeof(value), LONG_MS);
    }
    if (comm_nccl()->send(r->comm, r->rank, data, 8, LONG_MS) != ST_INVALID)
        return ST_CORRUPT;
    if (st == ST_OK)
        st = read_from(r, &value, data, sizeof(value));
    return st == ST_OK && r->rank % 2 == 1 && value != (uint64_t)before ? ST_CORRUPT : st;
}

static void a_rank_sends_to_another(void **state)
{
    (void)state;
    run_well(2, pass_body, NULL);
    run_well(4, pass_body, NULL);
}

static void what_stays_in_progress_is_polled(void **state)
{
    (void)state;
    bool even = true;
    fake_nccl_progress(50);
    run_well(3, exchange_body, NULL);
    run_well(3, gather_body, &even);
    run_well(2, sum_body, NULL);
    fake_nccl_progress(0);
}

/* ---- forming that fails ---- */

static void a_rank_that_does_not_come_ends_forming_at_the_deadline(void **state)
{
    (void)state;
    struct rank ranks[RANKS_MAX];
    const int before = fake_nccl_counts().aborted;
    run_some(ranks, 2, 3, 1, 200, NULL, NULL);
    for (int r = 0; r < 2; r++)
        assert_int_equal(ranks[r].opened, ST_TIMED_OUT);
    assert_int_equal(fake_nccl_counts().aborted - before, 2);
    assert_int_equal(fake_nccl_counts().live, 0);
    run_some(ranks, 1, 2, 1, 200, NULL, NULL);
    assert_int_equal(ranks[0].opened, ST_TIMED_OUT);
}

static void an_id_that_does_not_come_ends_forming_at_the_deadline(void **state)
{
    (void)state;
    struct shared_kv *shared = shared_kv_new();
    struct rank r = {
        .kv = shared_kv_table(shared), .generation = 1, .rank = 1, .size = 2, .timeout_ms = 100
    };
    (void)run_rank(&r);
    assert_int_equal(r.opened, ST_TIMED_OUT);
    shared_kv_free(shared);
}

static void *run_forming(void *arg)
{
    return run_rank(arg);
}

static void a_generation_that_is_over_ends_forming(void **state)
{
    (void)state;
    struct shared_kv *shared = shared_kv_new();
    struct rank r = {
        .kv = shared_kv_table(shared), .generation = 1, .rank = 0, .size = 2, .timeout_ms = LONG_MS
    };
    assert_int_equal(pthread_create(&r.thread, NULL, run_forming, &r), 0);
    while (fake_nccl_counts().live == 0)
        (void)sched_yield();
    shared_kv_go_stale(shared);
    assert_int_equal(pthread_join(r.thread, NULL), 0);
    assert_int_equal(r.opened, ST_STALE);
    assert_int_equal(fake_nccl_counts().live, 0);
    shared_kv_free(shared);
}

static void what_nccl_answers_has_a_meaning(void **state)
{
    (void)state;
    static const struct {
        ncclResult_t result;
        enum status st;
    } rows[] = { { ncclRemoteError, ST_PEER },          { ncclSystemError, ST_PEER },
                 { ncclInvalidUsage, ST_INVALID },      { ncclInvalidArgument, ST_INVALID },
                 { ncclUnhandledCudaError, ST_DEVICE }, { ncclInternalError, ST_DEVICE } };
    struct rank ranks[RANKS_MAX];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_nccl_refuse(rows[i].result);
        run_some(ranks, 2, 2, 1, LONG_MS, NULL, NULL);
        assert_int_equal(ranks[0].opened, rows[i].st);
        assert_int_equal(ranks[1].opened, rows[i].st);
    }
    fake_nccl_refuse(ncclSuccess);
    assert_int_equal(fake_nccl_counts().live, 0);
}

static void settings_of_others_than_nccl_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = { "PATH=/", "NCCL_DEBUG", "=1" };
    struct rank r = { 0 };
    open_device(&r);
    for (size_t i = 0; i < 3; i++) {
        const struct comm_options options = { .size = 1,
                                              .timeout_ms = LONG_MS,
                                              .device = { .table = r.table,
                                                          .backend = r.backend,
                                                          .stream = r.stream,
                                                          .settings = wrong + i,
                                                          .setting_count = 1 } };
        struct comm *comm = NULL;
        assert_int_equal(comm_nccl()->open(&options, &comm), ST_INVALID);
    }
    close_device(&r);
}

/* ---- peers that die, hang, or are told to stop ---- */

struct meeting {
    struct rank *ranks;
    atomic_int waiting, over;
};

/* Rank 1 never answers; the others' work hangs on their streams. */
static enum status hung_body(struct rank *r)
{
    struct meeting *meeting = r->arg;
    struct comm_segment segments[RANKS_MAX];
    for (int p = 0; p < r->size; p++)
        segments[p] = (struct comm_segment){ device_new(r, 4096), 4096 };
    enum status st = ST_OK;
    if (r->rank == 1) {
        while (atomic_load(&meeting->over) < r->size - 1)
            (void)sched_yield();
        comm_nccl()->abort(r->comm); /* its generation is over, too */
        return comm_nccl()->wait(r->comm, LONG_MS);
    }
    st = comm_nccl()->all_to_all_v(r->comm, segments, segments, LONG_MS);
    (void)atomic_fetch_add(&meeting->waiting, 1);
    if (st == ST_OK)
        st = comm_nccl()->wait(r->comm, r->timeout_ms == LONG_MS ? LONG_MS : 100);
    const bool same = comm_nccl()->wait(r->comm, LONG_MS) == st &&
                      comm_nccl()->all_gather_v(r->comm, segments, LONG_MS) == st;
    const bool explained = strlen(comm_nccl()->why(r->comm)) > 0;
    /* Nothing hangs on the stream any more. */
    const bool drained = r->table->stream_sync(r->backend, r->stream) == ST_OK;
    (void)atomic_fetch_add(&meeting->over, 1);
    return same && explained && drained ? st : ST_CORRUPT;
}

static void a_peer_that_hangs_is_given_up_at_the_deadline(void **state)
{
    (void)state;
    struct rank ranks[RANKS_MAX];
    struct meeting meeting = { .ranks = ranks };
    run_some(ranks, 3, 3, 1, LONG_MS - 1, hung_body, &meeting);
    assert_int_equal(ranks[0].st, ST_PEER);
    assert_int_equal(ranks[2].st, ST_PEER);
    assert_int_equal(ranks[1].st, ST_STALE);
    assert_int_equal(fake_nccl_counts().live, 0);
}

static void *abort_when_waiting(void *arg)
{
    struct meeting *meeting = arg;
    while (atomic_load(&meeting->waiting) < 2)
        (void)sched_yield();
    comm_nccl()->abort(meeting->ranks[0].comm);
    comm_nccl()->abort(meeting->ranks[0].comm);
    comm_nccl()->abort(meeting->ranks[2].comm);
    return NULL;
}

static void abort_frees_whoever_waits_for_a_hung_peer(void **state)
{
    (void)state;
    struct rank ranks[RANKS_MAX];
    struct meeting meeting = { .ranks = ranks };
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, abort_when_waiting, &meeting), 0);
    run_some(ranks, 3, 3, 1, LONG_MS, hung_body, &meeting);
    assert_int_equal(pthread_join(other, NULL), 0);
    for (int r = 0; r < 3; r++)
        assert_int_equal(ranks[r].st, ST_STALE);
    assert_int_equal(fake_nccl_counts().live, 0);
}

static void *lose_when_waiting(void *arg)
{
    struct meeting *meeting = arg;
    while (atomic_load(&meeting->waiting) < 2)
        (void)sched_yield();
    fake_nccl_lose(1);
    return NULL;
}

static void a_peer_that_dies_ends_the_wait_of_all(void **state)
{
    (void)state;
    struct rank ranks[RANKS_MAX];
    struct meeting meeting = { .ranks = ranks };
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, lose_when_waiting, &meeting), 0);
    run_some(ranks, 3, 3, 1, LONG_MS, hung_body, &meeting);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(ranks[0].st, ST_PEER);
    assert_int_equal(ranks[2].st, ST_PEER);
    assert_int_equal(fake_nccl_counts().live, 0);
}

static void a_new_generation_forms_after_an_abort(void **state)
{
    a_peer_that_dies_ends_the_wait_of_all(state);
    struct rank ranks[RANKS_MAX];
    run_some(ranks, 2, 2, 2, LONG_MS, exchange_body, NULL);
    assert_int_equal(ranks[0].st, ST_OK);
    assert_int_equal(ranks[1].st, ST_OK);
}

/* Rank 1 closes only after the other has given up on it. */
static enum status farewell_body(struct rank *r)
{
    struct meeting *meeting = r->arg;
    if (r->rank == 1) {
        while (atomic_load(&meeting->over) == 0)
            (void)sched_yield();
    }
    return ST_OK;
}

static void *close_alone(void *arg)
{
    struct meeting *meeting = arg;
    (void)run_rank(&meeting->ranks[0]);
    atomic_store(&meeting->over, 1);
    return NULL;
}

static void closing_waits_only_so_long_for_the_others(void **state)
{
    (void)state;
    struct shared_kv *shared = shared_kv_new();
    struct rank ranks[2];
    struct meeting meeting = { .ranks = ranks };
    for (int r = 0; r < 2; r++) {
        ranks[r] = (struct rank){ .kv = shared_kv_table(shared),
                                  .generation = 1,
                                  .rank = r,
                                  .size = 2,
                                  .timeout_ms = LONG_MS,
                                  .body = farewell_body,
                                  .arg = &meeting };
    }
    const struct fake_nccl_counts before = fake_nccl_counts();
    pthread_t first;
    assert_int_equal(pthread_create(&first, NULL, close_alone, &meeting), 0);
    (void)run_rank(&ranks[1]);
    assert_int_equal(pthread_join(first, NULL), 0);
    const struct fake_nccl_counts after = fake_nccl_counts();
    assert_int_equal(after.aborted - before.aborted, 1); /* the one that had nobody to meet */
    assert_int_equal(after.live, 0);
    shared_kv_free(shared);
}

/* ---- the exact reduction on a device ---- */

#define LANES   6
#define COUNT   ((size_t)200000)
#define BUCKETS 3

struct reduction {
    uint32_t shares[RANKS_MAX];
    bool fast;
    float result[RANKS_MAX][COUNT];
};

static float value_of(uint32_t lane, size_t i)
{
    const uint32_t z = ((uint32_t)i * 0x9E3779B9u) ^ (lane * 0x85EBCA6Bu + 0x165667B1u);
    return (float)(int32_t)(z * 0x7feb352du) / 2147483648.0f * ((z & 7) != 0 ? 1.0f : 1024.0f);
}

static void fill_lane(struct rank *r, float *lane, uint32_t number)
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

static enum status reduce_body(struct rank *r)
{
    struct reduction *reduction = r->arg;
    static const size_t buckets[BUCKETS] = { 0, 65536, 131072 };
    const struct exact_options options = { .table = r->size > 1 ? comm_nccl() : NULL,
                                           .comm = r->size > 1 ? r->comm : NULL,
                                           .rank = r->rank,
                                           .size = r->size,
                                           .shares = reduction->shares,
                                           .count = COUNT,
                                           .bucket_begin = buckets,
                                           .bucket_count = BUCKETS,
                                           .timeout_ms = LONG_MS,
                                           .fast = reduction->fast,
                                           .device = r->table,
                                           .backend = r->backend,
                                           .compute = r->compute,
                                           .communication = r->stream };
    struct exact *exact = NULL;
    CHECK(exact_open(&options, &exact) == ST_OK);
    uint32_t first = 0;
    for (int p = 0; p < r->rank; p++)
        first += reduction->shares[p];
    const uint32_t n = reduction->shares[r->rank];
    enum status st = ST_OK;
    for (int step = 0; st == ST_OK && step < 3; step++) {
        exact_begin(exact);
        for (uint32_t i = 0; st == ST_OK && i < n; i++) {
            fill_lane(r, exact_lane(exact), first + i);
            if (i + 1 < n)
                st = exact_lane_done(exact);
        }
        for (size_t b = BUCKETS; b-- > 0;)
            exact_ready(exact, b);
        int64_t exposed_ns = 0;
        st = exact_wait(exact, &exposed_ns);
        if (st == ST_OK) {
            st = r->table->vector.copy(r->backend, reduction->result[r->rank], exact_sum(exact),
                                       COUNT * sizeof(float), r->compute);
        }
    }
    exact_close(exact);
    return st;
}

static float *reduce(uint32_t a, uint32_t b, uint32_t c, bool fast)
{
    struct reduction *reduction = calloc(1, sizeof(*reduction));
    assert_non_null(reduction);
    const uint32_t shares[RANKS_MAX] = { a, b, c };
    memcpy(reduction->shares, shares, sizeof(shares));
    reduction->fast = fast;
    const int size = c > 0 ? 3 : b > 0 ? 2 : 1;
    run_well(size, reduce_body, reduction);
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
    float *exact = reduce(6, 0, 0, false);
    float *fast = reduce(3, 2, 1, true);
    assert_int_equal(fake_nccl_counts().all_reduces - before, 3 * 3 * BUCKETS);
    size_t different = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_float_equal(fast[i], exact[i], 0.01);
        different += memcmp(&fast[i], &exact[i], sizeof(float)) != 0;
    }
    assert_true(different > COUNT / 100);
    free(exact);
    free(fast);
}

static enum status left_body(struct rank *r)
{
    struct reduction *reduction = r->arg;
    static const size_t border = 0;
    const struct exact_options options = { .table = comm_nccl(),
                                           .comm = r->comm,
                                           .rank = r->rank,
                                           .size = r->size,
                                           .shares = reduction->shares,
                                           .count = COUNT,
                                           .bucket_begin = &border,
                                           .bucket_count = 1,
                                           .timeout_ms = LONG_MS,
                                           .device = r->table,
                                           .backend = r->backend,
                                           .compute = r->compute,
                                           .communication = r->stream };
    struct exact *exact = NULL;
    CHECK(exact_open(&options, &exact) == ST_OK);
    exact_begin(exact);
    if (r->rank == 0)
        exact_ready(exact, 0); /* the other never does */
    exact_close(exact);
    return ST_OK;
}

static void closing_the_reduction_amid_a_step_ends_its_thread(void **state)
{
    (void)state;
    struct rank ranks[RANKS_MAX];
    struct reduction *reduction = calloc(1, sizeof(*reduction));
    assert_non_null(reduction);
    reduction->shares[0] = reduction->shares[1] = 1;
    run_some(ranks, 2, 2, 1, LONG_MS, left_body, reduction);
    assert_int_equal(ranks[0].st, ST_OK);
    assert_int_equal(fake_nccl_counts().live, 0);
    free(reduction);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_exchange_segments_of_their_own_sizes_some_empty),
        cmocka_unit_test(every_rank_gets_the_segments_of_all),
        cmocka_unit_test(numbers_are_summed),
        cmocka_unit_test(a_rank_sends_to_another),
        cmocka_unit_test(what_stays_in_progress_is_polled),
        cmocka_unit_test(a_rank_that_does_not_come_ends_forming_at_the_deadline),
        cmocka_unit_test(an_id_that_does_not_come_ends_forming_at_the_deadline),
        cmocka_unit_test(a_generation_that_is_over_ends_forming),
        cmocka_unit_test(what_nccl_answers_has_a_meaning),
        cmocka_unit_test(settings_of_others_than_nccl_are_refused),
        cmocka_unit_test(a_peer_that_hangs_is_given_up_at_the_deadline),
        cmocka_unit_test(abort_frees_whoever_waits_for_a_hung_peer),
        cmocka_unit_test(a_peer_that_dies_ends_the_wait_of_all),
        cmocka_unit_test(a_new_generation_forms_after_an_abort),
        cmocka_unit_test(closing_waits_only_so_long_for_the_others),
        cmocka_unit_test(the_reduction_gives_the_same_bits_for_every_spread),
        cmocka_unit_test(the_fast_reduction_is_nearly_the_sum),
        cmocka_unit_test(closing_the_reduction_amid_a_step_ends_its_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
