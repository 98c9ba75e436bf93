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

#include "comm/nccl.h"
#include "common/check.h"
#include "common/clock.h"
#include "tests/gpu/async_device.h"
#include "tests/gpu/fake_nccl.h"
#include "tests/test.h"
#include "tests/unit/comm/nccl_fixture.h"

/* ---- device memory ---- */

static void *device_new(struct nccl_rank *r, size_t bytes)
{
    void *memory = NULL;
    CHECK(r->table->alloc(r->backend, bytes, &memory) == ST_OK);
    return memory;
}

static void write_to(struct nccl_rank *r, void *to, const void *from, size_t bytes)
{
    CHECK(r->table->vector.copy(r->backend, to, from, bytes, r->stream) == ST_OK);
}

static enum status read_from(struct nccl_rank *r, void *to, const void *from, size_t bytes)
{
    CHECK(r->table->vector.copy(r->backend, to, from, bytes, r->stream) == ST_OK);
    return comm_nccl()->wait(r->comm, NCCL_LONG_MS);
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

static enum status exchange_body(struct nccl_rank *r)
{
    struct comm_segment send[NCCL_RANKS_MAX], recv[NCCL_RANKS_MAX];
    uint8_t bytes[4096];
    for (int p = 0; p < r->size; p++) {
        const size_t out = size_between(r->rank, p), in = size_between(p, r->rank);
        send[p] = (struct comm_segment){ device_new(r, out + 1), out };
        recv[p] = (struct comm_segment){ device_new(r, in + 1), in };
        for (size_t i = 0; i < out; i++)
            bytes[i] = byte_of(r->rank, p, i);
        write_to(r, send[p].data, bytes, out);
    }
    enum status st = comm_nccl()->all_to_all_v(r->comm, send, recv, NCCL_LONG_MS);
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
    for (int size = 1; size <= NCCL_RANKS_MAX; size++)
        nccl_run_well(size, exchange_body, NULL);
    assert_int_equal(fake_nccl_counts().blocking, 0);
    assert_int_equal(fake_nccl_counts().max_ctas, 4);
    assert_string_equal(getenv("NCCL_SOCKET_IFNAME"), "lo");
}

static enum status gather_body(struct nccl_rank *r)
{
    const bool even = *(const bool *)r->arg;
    enum { COUNT = 1000 };
    uint32_t host[NCCL_RANKS_MAX * COUNT];
    uint32_t *data = device_new(r, sizeof(host));
    struct comm_segment segments[NCCL_RANKS_MAX];
    for (int p = 0; p < r->size; p++) {
        const size_t count = even ? COUNT : (size_t)p * 200;
        segments[p] = (struct comm_segment){ data + p * COUNT, count * sizeof(*data) };
    }
    for (uint32_t i = 0; i < COUNT; i++)
        host[i] = (uint32_t)r->rank * 1000000 + i;
    write_to(r, segments[r->rank].data, host, segments[r->rank].size);
    enum status st = comm_nccl()->all_gather_v(r->comm, segments, NCCL_LONG_MS);
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
    for (int size = 1; size <= NCCL_RANKS_MAX; size++)
        nccl_run_well(size, gather_body, &even);
    const int before = fake_nccl_counts().all_gathers;
    even = true;
    nccl_run_well(3, gather_body, &even);
    assert_int_equal(fake_nccl_counts().all_gathers - before, 3); /* equal parts in one call */
}

static enum status sum_body(struct nccl_rank *r)
{
    float host[501];
    float *data = device_new(r, sizeof(host));
    for (int i = 0; i < 501; i++)
        host[i] = (float)(i + r->rank);
    write_to(r, data, host, sizeof(host));
    enum status st = comm_nccl()->all_reduce_f32(r->comm, data, 501, NCCL_LONG_MS);
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
    for (int size = 1; size <= NCCL_RANKS_MAX; size++)
        nccl_run_well(size, sum_body, NULL);
}

static enum status pass_body(struct nccl_rank *r)
{
    uint64_t value = (uint64_t)r->rank;
    uint64_t *data = device_new(r, sizeof(value));
    const int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    write_to(r, data, &value, sizeof(value));
    enum status st = ST_OK;
    for (int turn = 0; st == ST_OK && turn < 2; turn++) {
        const bool sends = turn == r->rank % 2;
        st = sends ? comm_nccl()->send(r->comm, next, data, sizeof(value), NCCL_LONG_MS)
                   : comm_nccl()->recv(r->comm, before, data, sizeof(value), NCCL_LONG_MS);
    }
    if (comm_nccl()->send(r->comm, r->rank, data, 8, NCCL_LONG_MS) != ST_INVALID)
        return ST_CORRUPT;
    if (st == ST_OK)
        st = read_from(r, &value, data, sizeof(value));
    return st == ST_OK && r->rank % 2 == 1 && value != (uint64_t)before ? ST_CORRUPT : st;
}

static void a_rank_sends_to_another(void **state)
{
    (void)state;
    nccl_run_well(2, pass_body, NULL);
    nccl_run_well(4, pass_body, NULL);
}

static void what_stays_in_progress_is_polled(void **state)
{
    (void)state;
    bool even = true;
    fake_nccl_progress(50);
    nccl_run_well(3, exchange_body, NULL);
    nccl_run_well(3, gather_body, &even);
    nccl_run_well(2, sum_body, NULL);
    fake_nccl_progress(0);
}

/* ---- forming that fails ---- */

static void a_rank_that_does_not_come_ends_forming_at_the_deadline(void **state)
{
    (void)state;
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    const int before = fake_nccl_counts().aborted;
    nccl_run_some(ranks, 2, 3, 200, NULL, NULL);
    for (int r = 0; r < 2; r++)
        assert_int_equal(ranks[r].opened, ST_TIMED_OUT);
    assert_int_equal(fake_nccl_counts().aborted, before); /* it was not begun */
}

/* Rank 1 comes to the round, and no further. */
static void start_rank_0(struct shared_rendezvous *shared, struct nccl_rank *r, int64_t timeout_ms)
{
    shared_rendezvous_bring_nothing(shared, "workers", 1, 2);
    *r = (struct nccl_rank){ .rendezvous = shared_rendezvous_of(shared, 0),
                             .rank = 0,
                             .size = 2,
                             .timeout_ms = timeout_ms };
    assert_int_equal(pthread_create(&r->thread, NULL, nccl_run_rank, r), 0);
}

static void a_rank_that_is_lost_after_the_meeting_ends_forming_at_the_deadline(void **state)
{
    (void)state;
    struct shared_rendezvous *shared = shared_rendezvous_new();
    struct nccl_rank r;
    const int before = fake_nccl_counts().aborted;
    start_rank_0(shared, &r, 200);
    assert_int_equal(pthread_join(r.thread, NULL), 0);
    assert_int_equal(r.opened, ST_TIMED_OUT);
    assert_int_equal(fake_nccl_counts().aborted - before, 1);
    assert_int_equal(fake_nccl_counts().live, 0);
    shared_rendezvous_free(shared);
}

/* Rank 0 brought no id. */
static void who_gets_no_id_says_that_a_peer_failed(void **state)
{
    (void)state;
    struct shared_rendezvous *shared = shared_rendezvous_new();
    shared_rendezvous_bring_nothing(shared, "workers", 0, 2);
    struct nccl_rank r = { .rendezvous = shared_rendezvous_of(shared, 1),
                           .rank = 1,
                           .size = 2,
                           .timeout_ms = NCCL_LONG_MS };
    (void)nccl_run_rank(&r);
    assert_int_equal(r.opened, ST_PEER);
    shared_rendezvous_free(shared);
}

static void a_generation_that_is_over_ends_forming(void **state)
{
    (void)state;
    struct shared_rendezvous *shared = shared_rendezvous_new();
    struct nccl_rank r;
    start_rank_0(shared, &r, NCCL_LONG_MS);
    while (fake_nccl_counts().live == 0)
        (void)sched_yield();
    shared_rendezvous_go_stale(shared);
    assert_int_equal(pthread_join(r.thread, NULL), 0);
    assert_int_equal(r.opened, ST_STALE);
    assert_int_equal(fake_nccl_counts().live, 0);
    shared_rendezvous_free(shared);
}

static void what_nccl_answers_has_a_meaning(void **state)
{
    (void)state;
    static const struct {
        ncclResult_t result;
        enum status st;
    } rows[] = { { ncclRemoteError, ST_PEER },          { ncclSystemError, ST_PEER },
                 { ncclInvalidUsage, ST_INVALID },      { ncclInvalidArgument, ST_INVALID },
                 { ncclUnhandledCudaError, ST_DEVICE }, { ncclInternalError, ST_PEER } };
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_nccl_refuse(rows[i].result);
        nccl_run_some(ranks, 2, 2, NCCL_LONG_MS, NULL, NULL);
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
    struct nccl_rank r = { 0 };
    nccl_open_device(&r);
    for (size_t i = 0; i < 3; i++) {
        const struct comm_options options = { .size = 1,
                                              .timeout_ms = NCCL_LONG_MS,
                                              .device = { .table = r.table,
                                                          .backend = r.backend,
                                                          .stream = r.stream,
                                                          .settings = wrong + i,
                                                          .setting_count = 1 } };
        struct comm *comm = NULL;
        assert_int_equal(comm_nccl()->open(&options, &comm), ST_INVALID);
    }
    nccl_close_device(&r);
}

/* ---- peers that die, hang, or are told to stop ---- */

struct exchange_round {
    struct nccl_rank *ranks;
    atomic_int waiting, over;
};

/* Rank 1 never answers; the others' work hangs on their streams. */
static enum status hung_body(struct nccl_rank *r)
{
    struct exchange_round *exchange_round = r->arg;
    struct comm_segment segments[NCCL_RANKS_MAX];
    for (int p = 0; p < r->size; p++)
        segments[p] = (struct comm_segment){ device_new(r, 4096), 4096 };
    enum status st = ST_OK;
    if (r->rank == 1) {
        while (atomic_load(&exchange_round->over) < r->size - 1)
            (void)sched_yield();
        comm_nccl()->abort(r->comm); /* its generation is over, too */
        return comm_nccl()->wait(r->comm, NCCL_LONG_MS);
    }
    st = comm_nccl()->all_to_all_v(r->comm, segments, segments, NCCL_LONG_MS);
    (void)atomic_fetch_add(&exchange_round->waiting, 1);
    if (st == ST_OK)
        st = comm_nccl()->wait(r->comm, r->timeout_ms == NCCL_LONG_MS ? NCCL_LONG_MS : 100);
    const bool same = comm_nccl()->wait(r->comm, NCCL_LONG_MS) == st &&
                      comm_nccl()->all_gather_v(r->comm, segments, NCCL_LONG_MS) == st;
    const bool explained = strlen(comm_nccl()->why(r->comm)) > 0;
    /* Nothing hangs on the stream any more. */
    const bool drained = r->table->stream_sync(r->backend, r->stream) == ST_OK;
    (void)atomic_fetch_add(&exchange_round->over, 1);
    return same && explained && drained ? st : ST_CORRUPT;
}

static void a_peer_that_hangs_is_given_up_at_the_deadline(void **state)
{
    (void)state;
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    struct exchange_round exchange_round = { .ranks = ranks };
    nccl_run_some(ranks, 3, 3, NCCL_LONG_MS - 1, hung_body, &exchange_round);
    assert_int_equal(ranks[0].st, ST_PEER);
    assert_int_equal(ranks[2].st, ST_PEER);
    assert_int_equal(ranks[1].st, ST_STALE);
    assert_int_equal(fake_nccl_counts().live, 0);
}

static void *abort_when_waiting(void *arg)
{
    struct exchange_round *exchange_round = arg;
    while (atomic_load(&exchange_round->waiting) < 2)
        (void)sched_yield();
    comm_nccl()->abort(exchange_round->ranks[0].comm);
    comm_nccl()->abort(exchange_round->ranks[0].comm);
    comm_nccl()->abort(exchange_round->ranks[2].comm);
    return NULL;
}

static void abort_frees_whoever_waits_for_a_hung_peer(void **state)
{
    (void)state;
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    struct exchange_round exchange_round = { .ranks = ranks };
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, abort_when_waiting, &exchange_round), 0);
    nccl_run_some(ranks, 3, 3, NCCL_LONG_MS, hung_body, &exchange_round);
    assert_int_equal(pthread_join(other, NULL), 0);
    for (int r = 0; r < 3; r++)
        assert_int_equal(ranks[r].st, ST_STALE);
    assert_int_equal(fake_nccl_counts().live, 0);
}

static void *lose_when_waiting(void *arg)
{
    struct exchange_round *exchange_round = arg;
    while (atomic_load(&exchange_round->waiting) < 2)
        (void)sched_yield();
    fake_nccl_lose(1);
    return NULL;
}

static void a_peer_that_dies_ends_the_wait_of_all(void **state)
{
    (void)state;
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    struct exchange_round exchange_round = { .ranks = ranks };
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, lose_when_waiting, &exchange_round), 0);
    nccl_run_some(ranks, 3, 3, NCCL_LONG_MS, hung_body, &exchange_round);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(ranks[0].st, ST_PEER);
    assert_int_equal(ranks[2].st, ST_PEER);
    assert_int_equal(fake_nccl_counts().live, 0);
}

static void a_new_generation_forms_after_an_abort(void **state)
{
    a_peer_that_dies_ends_the_wait_of_all(state);
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    nccl_run_some(ranks, 2, 2, NCCL_LONG_MS, exchange_body, NULL);
    assert_int_equal(ranks[0].st, ST_OK);
    assert_int_equal(ranks[1].st, ST_OK);
}

/* Rank 1 closes only after the other has given up on it. */
static enum status farewell_body(struct nccl_rank *r)
{
    struct exchange_round *exchange_round = r->arg;
    if (r->rank == 1) {
        while (atomic_load(&exchange_round->over) == 0)
            (void)sched_yield();
    }
    return ST_OK;
}

static void *close_alone(void *arg)
{
    struct exchange_round *exchange_round = arg;
    (void)nccl_run_rank(&exchange_round->ranks[0]);
    atomic_store(&exchange_round->over, 1);
    return NULL;
}

static void closing_waits_only_so_long_for_the_others(void **state)
{
    (void)state;
    struct shared_rendezvous *shared = shared_rendezvous_new();
    struct nccl_rank ranks[2];
    struct exchange_round exchange_round = { .ranks = ranks };
    for (int r = 0; r < 2; r++) {
        ranks[r] = (struct nccl_rank){ .rendezvous = shared_rendezvous_of(shared, r),
                                       .rank = r,
                                       .size = 2,
                                       .timeout_ms = NCCL_LONG_MS,
                                       .body = farewell_body,
                                       .arg = &exchange_round };
    }
    const struct fake_nccl_counts before = fake_nccl_counts();
    pthread_t first;
    assert_int_equal(pthread_create(&first, NULL, close_alone, &exchange_round), 0);
    (void)nccl_run_rank(&ranks[1]);
    assert_int_equal(pthread_join(first, NULL), 0);
    const struct fake_nccl_counts after = fake_nccl_counts();
    assert_int_equal(after.aborted - before.aborted, 1); /* the one that had nobody to meet */
    assert_int_equal(after.live, 0);
    shared_rendezvous_free(shared);
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
        cmocka_unit_test(a_rank_that_is_lost_after_the_meeting_ends_forming_at_the_deadline),
        cmocka_unit_test(who_gets_no_id_says_that_a_peer_failed),
        cmocka_unit_test(a_generation_that_is_over_ends_forming),
        cmocka_unit_test(what_nccl_answers_has_a_meaning),
        cmocka_unit_test(settings_of_others_than_nccl_are_refused),
        cmocka_unit_test(a_peer_that_hangs_is_given_up_at_the_deadline),
        cmocka_unit_test(abort_frees_whoever_waits_for_a_hung_peer),
        cmocka_unit_test(a_peer_that_dies_ends_the_wait_of_all),
        cmocka_unit_test(a_new_generation_forms_after_an_abort),
        cmocka_unit_test(closing_waits_only_so_long_for_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
