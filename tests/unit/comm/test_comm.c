/*
 * Gloo behind the comm table, with ranks as threads. Those that die are in test_comm_faults.c.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/reducer.h"
#include "comm/reducer_order.h"
#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"

#define LONG_MS   120000
#define RANKS_MAX 5

struct rank_thread {
    struct shared_rendezvous *shared;
    int rank, size;
    enum status (*body)(struct comm *comm, int rank, int size);
    enum status status;
    pthread_t thread;
};

static void *run_rank(void *arg)
{
    struct rank_thread *self = arg;
    struct comm *comm = NULL;
    self->status = gloo_open_rank(self->shared, self->rank, self->size, LONG_MS, &comm);
    if (self->status == ST_OK)
        self->status = self->body(comm, self->rank, self->size);
    comm_gloo()->close(comm);
    return NULL;
}

static void run_ranks(int size, enum status (*body)(struct comm *comm, int rank, int size))
{
    struct shared_rendezvous *shared = shared_rendezvous_new();
    struct rank_thread rank[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        rank[r] = (struct rank_thread){ shared, r, size, body, ST_OK, 0 };
        assert_int_equal(pthread_create(&rank[r].thread, NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_join(rank[r].thread, NULL), 0);
    for (int r = 0; r < size; r++)
        assert_int_equal(rank[r].status, ST_OK);
    shared_rendezvous_free(shared);
}

/* ---- what must work ---- */

static size_t size_between(int from, int to)
{
    return (size_t)((from * 7 + to * 3) % 4) * 50001;
}

static uint8_t byte_of(int from, int to, size_t i, int round)
{
    return (uint8_t)((size_t)(from * 31 + to * 17 + round) + i * 13);
}

static enum status exchange_body(struct comm *comm, int rank, int size)
{
    struct comm_segment send[RANKS_MAX], recv[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        send[r] = (struct comm_segment){ malloc(size_between(rank, r) + 1), size_between(rank, r) };
        recv[r] = (struct comm_segment){ malloc(size_between(r, rank) + 1), size_between(r, rank) };
    }
    enum status st = ST_OK;
    for (int round = 0; st == ST_OK && round < 20; round++) {
        for (int r = 0; r < size; r++) {
            for (size_t i = 0; i < send[r].size; i++)
                ((uint8_t *)send[r].data)[i] = byte_of(rank, r, i, round);
        }
        st = comm_gloo()->all_to_all_v(comm, send, recv, LONG_MS);
        for (int r = 0; st == ST_OK && r < size; r++) {
            for (size_t i = 0; r != rank && i < recv[r].size; i++) {
                if (((uint8_t *)recv[r].data)[i] != byte_of(r, rank, i, round))
                    st = ST_CORRUPT;
            }
        }
    }
    for (int r = 0; r < size; r++) {
        free(send[r].data);
        free(recv[r].data);
    }
    return st;
}

static void ranks_exchange_segments_of_their_own_sizes_some_empty(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++)
        run_ranks(size, exchange_body);
}

static enum status gather_body(struct comm *comm, int rank, int size)
{
    uint32_t data[RANKS_MAX * 1000];
    struct comm_segment segments[RANKS_MAX];
    for (int r = 0; r < size; r++)
        segments[r] = (struct comm_segment){ data + r * 1000, (size_t)r * 800 };
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < 1000; i++)
            data[(uint32_t)rank * 1000 + i] = (uint32_t)rank * 1000000 + i + round;
        enum status st = comm_gloo()->all_gather_v(comm, segments, LONG_MS);
        if (st != ST_OK)
            return st;
        for (uint32_t r = 0; r < (uint32_t)size; r++) {
            for (uint32_t i = 0; i < r * 200; i++) {
                if (data[r * 1000 + i] != r * 1000000 + i + round)
                    return ST_CORRUPT;
            }
        }
    }
    return ST_OK;
}

static void every_rank_gathers_every_ranks_segment(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++)
        run_ranks(size, gather_body);
}

/* Three floats to each other rank, an all-gather of as many, and five bytes from 0 to 1. */
static enum status counted_body(struct comm *comm, int rank, int size)
{
    float out[RANKS_MAX][3] = { { 0 } }, in[RANKS_MAX][3];
    struct comm_segment send[RANKS_MAX], recv[RANKS_MAX];
    struct comm_traffic traffic = { 9, 9 };
    for (int r = 0; r < size; r++) {
        send[r] = (struct comm_segment){ out[r], sizeof(out[r]) };
        recv[r] = (struct comm_segment){ in[r], sizeof(in[r]) };
    }
    comm_gloo()->traffic(comm, &traffic);
    if (traffic.sent_bytes != 0 || traffic.received_bytes != 0)
        return ST_CORRUPT;
    enum status st = comm_gloo()->all_to_all_v(comm, send, recv, LONG_MS);
    if (st == ST_OK)
        st = comm_gloo()->all_gather_v(comm, recv, LONG_MS);
    if (st == ST_OK && size > 1 && rank == 0)
        st = comm_gloo()->send(comm, 1, out, 5, LONG_MS);
    if (st == ST_OK && size > 1 && rank == 1)
        st = comm_gloo()->recv(comm, 0, in, 5, LONG_MS);
    const uint64_t each = 2 * sizeof(out[0]) * (uint64_t)(size - 1);
    comm_gloo()->traffic(comm, &traffic);
    if (traffic.sent_bytes != each + (size > 1 && rank == 0 ? 5 : 0) ||
        traffic.received_bytes != each + (size > 1 && rank == 1 ? 5 : 0))
        return ST_CORRUPT;
    return st;
}

static void bytes_between_ranks_are_counted_at_both_ends(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++)
        run_ranks(size, counted_body);
}

static enum status message_body(struct comm *comm, int rank, int size)
{
    /* A token goes round twice; the last rank closes at once after sending. */
    uint64_t token = 0;
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    for (int round = 0; round < 2; round++) {
        enum status st = ST_OK;
        if (rank > 0 || round > 0)
            st = comm_gloo()->recv(comm, previous, &token, sizeof(token), LONG_MS);
        if (st == ST_OK && token != (uint64_t)(round * size + rank))
            st = ST_CORRUPT;
        token++;
        if (st == ST_OK && !(rank + 1 == size && round == 1))
            st = comm_gloo()->send(comm, next, &token, sizeof(token), LONG_MS);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static void messages_go_from_rank_to_rank_and_outlive_their_senders_close(void **state)
{
    (void)state;
    run_ranks(2, message_body);
    run_ranks(4, message_body);
}

static enum status sum_body(struct comm *comm, int rank, int size)
{
    const size_t count = 1500001;
    float *data = malloc(count * sizeof(float));
    if (data == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        data[i] = (float)((int)(i % 1000) + rank);
    enum status st = comm_gloo()->all_reduce_f32(comm, data, count, LONG_MS);
    for (size_t i = 0; st == ST_OK && i < count; i++) {
        if (data[i] != (float)(size * (int)(i % 1000) + size * (size - 1) / 2))
            st = ST_CORRUPT;
    }
    free(data);
    return st;
}

static void the_fast_sum_adds_all_ranks_values(void **state)
{
    (void)state;
    run_ranks(1, sum_body);
    run_ranks(2, sum_body);
    run_ranks(3, sum_body);
}

static float lane_value(uint32_t lane, size_t i)
{
    const uint32_t z = ((uint32_t)i + 1) * 2654435761u + lane * 40503u;
    return (float)(int32_t)(z ^ z >> 15) / 65536.0f;
}

static enum status reducer_body(struct comm *comm, int rank, int size)
{
    /* 7 lanes: (((0+1)+(2+3))+((4+5)+6)), whoever holds them. */
    static const uint32_t shares[RANKS_MAX + 1][RANKS_MAX] = {
        { 0 }, { 7 }, { 3, 4 }, { 5, 1, 1 }, { 2, 2, 2, 1 }
    };
    const size_t count = 300000, borders[] = { 0, 65536, 196608 };
    const struct reducer_options options = { .table = comm_gloo(),
                                             .comm = comm,
                                             .rank = rank,
                                             .size = size,
                                             .shares = shares[size],
                                             .count = count,
                                             .bucket_begin = borders,
                                             .bucket_count = 3,
                                             .timeout_ms = LONG_MS };
    struct reducer *reducer = NULL;
    enum status st = reducer_open(&options, &reducer);
    uint32_t order[7], first = 0;
    reducer_spread(shares[size], (uint32_t)size, order);
    for (int r = 0; r < rank; r++)
        first += shares[size][r];
    for (int step = 0; st == ST_OK && step < 3; step++) {
        reducer_begin(reducer);
        for (uint32_t lane = 0; lane < shares[size][rank]; lane++) {
            for (size_t i = 0; i < count; i++)
                reducer_lane(reducer, 0)[i] = lane_value(order[first + lane], i);
            if (lane + 1 < shares[size][rank])
                CHECK(reducer_lane_done(reducer, 0) == ST_OK);
        }
        for (size_t b = 3; b > 0; b--)
            reducer_bucket_done(reducer, b - 1);
        int64_t exposed_ns = 0;
        st = reducer_wait(reducer, &exposed_ns);
        for (size_t i = 0; st == ST_OK && i < count; i++) {
            float v[7];
            for (uint32_t lane = 0; lane < 7; lane++)
                v[lane] = lane_value(lane, i);
            const float sum = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6]);
            if (reducer_sum(reducer)[i] != sum)
                st = ST_CORRUPT;
        }
    }
    reducer_close(reducer);
    return st;
}

/* A rank's farewell is no part of what the others do. */
static enum status closes_body(struct comm *comm, int rank, int size)
{
    uint8_t bytes[RANKS_MAX][16] = { { 0 } };
    struct comm_segment segments[RANKS_MAX];
    if (rank == 1)
        return ST_OK;
    for (int r = 0; r < size; r++)
        segments[r] = (struct comm_segment){ bytes[r], sizeof(bytes[r]) };
    const enum status st = comm_gloo()->all_gather_v(comm, segments, LONG_MS);
    return st == ST_PEER && bytes[1][0] == 0 ? ST_OK : ST_CORRUPT;
}

static void who_closes_meanwhile_has_died_for_who_is_in_a_collective(void **state)
{
    (void)state;
    run_ranks(2, closes_body);
    run_ranks(3, closes_body);
}

static void the_exact_sum_is_the_same_over_gloo_for_1_to_4_ranks(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++)
        run_ranks(size, reducer_body);
}

/* ---- what must end ---- */

static void open_ends_when_a_rank_never_comes(void **state)
{
    (void)state;
    struct shared_rendezvous *shared = shared_rendezvous_new();
    struct comm *comm = NULL;
    assert_int_equal(gloo_open_rank(shared, 0, 2, 400, &comm), ST_TIMED_OUT);
    assert_null(comm);
    shared_rendezvous_free(shared);
}

static void open_ends_when_a_rank_went_after_it_said_where_it_is(void **state)
{
    (void)state;
    struct shared_rendezvous *shared = shared_rendezvous_new();
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        /* Says where it listens, then goes: rank 0 never says where it is in time. */
        struct comm *comm = NULL;
        _exit(gloo_open_rank(shared, 1, 2, 400, &comm) == ST_TIMED_OUT ? 0 : 1);
    }
    int code = -1;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    struct comm *comm = NULL;
    assert_int_equal(gloo_open_rank(shared, 0, 2, 2000, &comm), ST_PEER);
    assert_null(comm);
    shared_rendezvous_free(shared);
}

static void *go_stale_once_waiting(void *arg)
{
    struct shared_rendezvous *shared = arg;
    (void)pthread_mutex_lock(&shared->mutex);
    while (shared->waiting == 0)
        (void)pthread_cond_wait(&shared->changed, &shared->mutex);
    (void)pthread_mutex_unlock(&shared->mutex);
    shared_rendezvous_go_stale(shared);
    return NULL;
}

static void open_ends_at_once_when_the_generation_is_over(void **state)
{
    (void)state;
    struct shared_rendezvous *shared = shared_rendezvous_new();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, go_stale_once_waiting, shared), 0);
    struct comm *comm = NULL;
    assert_int_equal(gloo_open_rank(shared, 0, 2, LONG_MS, &comm), ST_STALE);
    assert_null(comm);
    assert_int_equal(pthread_join(thread, NULL), 0);
    shared_rendezvous_free(shared);
}

static void impossible_ranks_and_hosts_are_refused(void **state)
{
    (void)state;
    struct shared_rendezvous *shared = shared_rendezvous_new();
    struct comm *comm = NULL;
    assert_int_equal(gloo_open_rank(shared, 2, 2, LONG_MS, &comm), ST_INVALID);
    assert_int_equal(gloo_open_rank(shared, 0, 0, LONG_MS, &comm), ST_INVALID);
    const struct rendezvous rendezvous = shared_rendezvous_of(shared, 0);
    struct comm_options options = { .rendezvous = &rendezvous,
                                    .round_name = "workers",
                                    .size = 2,
                                    .host = "no.such.host.invalid",
                                    .secret = "any",
                                    .timeout_ms = LONG_MS };
    assert_int_equal(comm_gloo()->open(&options, &comm), ST_INVALID);
    options.host = "127.0.0.1";
    options.secret = "";
    assert_int_equal(comm_gloo()->open(&options, &comm), ST_INVALID);
    options.secret = NULL;
    assert_int_equal(comm_gloo()->open(&options, &comm), ST_INVALID);
    shared_rendezvous_free(shared);
}

int main(void)
{
    (void)alarm(240); /* a rank that could not open leaves the others waiting */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_exchange_segments_of_their_own_sizes_some_empty),
        cmocka_unit_test(every_rank_gathers_every_ranks_segment),
        cmocka_unit_test(bytes_between_ranks_are_counted_at_both_ends),
        cmocka_unit_test(messages_go_from_rank_to_rank_and_outlive_their_senders_close),
        cmocka_unit_test(the_fast_sum_adds_all_ranks_values),
        cmocka_unit_test(the_exact_sum_is_the_same_over_gloo_for_1_to_4_ranks),
        cmocka_unit_test(who_closes_meanwhile_has_died_for_who_is_in_a_collective),
        cmocka_unit_test(open_ends_when_a_rank_never_comes),
        cmocka_unit_test(open_ends_when_a_rank_went_after_it_said_where_it_is),
        cmocka_unit_test(open_ends_at_once_when_the_generation_is_over),
        cmocka_unit_test(impossible_ranks_and_hosts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
