/*
 * Posts, groups, and several communicators of one rank, in comm/nccl.c's host side, against a fake
 * NCCL and a fake device. Ranks are threads.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "comm/nccl.h"
#include "common/check.h"
#include "tests/gpu/async_device.h"
#include "tests/gpu/fake_nccl.h"
#include "tests/test.h"
#include "tests/unit/comm/nccl_fixture.h"

static uint32_t *device_new(struct nccl_rank *r, size_t count)
{
    void *memory = NULL;
    CHECK(r->table->alloc(r->backend, count * sizeof(uint32_t), &memory) == ST_OK);
    return memory;
}

static void copy(struct nccl_rank *r, void *to, const void *from, size_t count,
                 struct stream *stream)
{
    CHECK(r->table->vector.copy(r->backend, to, from, count * sizeof(uint32_t), stream) == ST_OK);
}

static enum status open_pipe(struct nccl_rank *r, struct stream **out_stream, struct comm **out)
{
    const struct comm_some all = { .round_name = "pipe" };
    CHECK(r->table->stream_new(r->backend, out_stream) == ST_OK);
    return nccl_open_some(r, &all, *out_stream, out);
}

static void close_pipe(struct nccl_rank *r, struct stream *stream, struct comm *comm)
{
    comm_nccl()->close(comm);
    r->table->stream_free(r->backend, stream);
}

/* ---- order on the streams ---- */

/* Holds up a stream until the host lets it go on. */
struct gate {
    atomic_bool open;
};

static enum status pass_gate(struct stream *stream, void *arg)
{
    (void)stream;
    struct gate *gate = *(struct gate **)arg;
    while (!atomic_load(&gate->open))
        (void)sched_yield();
    return ST_OK;
}

static void enqueue_gate(struct stream *stream, struct gate *gate)
{
    async_device_enqueue(stream, pass_gate, &gate, sizeof(gate));
}

#define PER_PEER 3 /* messages to each in a bundle: they keep their order */
#define BUNDLES  4
#define WORDS    50

static uint32_t word_of(int from, int to, int bundle, int which, int i)
{
    return (uint32_t)((((from * 8 + to) * 8 + bundle) * 8 + which) * 1000 + i);
}

struct exchange {
    uint32_t *out[NCCL_RANKS_MAX][PER_PEER], *in[NCCL_RANKS_MAX][PER_PEER];
    uint32_t *seen[NCCL_RANKS_MAX][PER_PEER]; /* in, as read on the compute stream */
    struct comm_post sent[NCCL_RANKS_MAX][PER_PEER], got[NCCL_RANKS_MAX][PER_PEER];
};

static void prepare(struct nccl_rank *r, struct exchange *x, int bundle)
{
    uint32_t words[WORDS];
    for (int p = 0; p < r->size; p++) {
        for (int k = 0; k < PER_PEER; k++) {
            uint32_t *computed = device_new(r, WORDS);
            x->out[p][k] = device_new(r, WORDS);
            x->in[p][k] = device_new(r, WORDS);
            x->seen[p][k] = device_new(r, WORDS);
            for (int i = 0; i < WORDS; i++)
                words[i] = word_of(r->rank, p, bundle, k, i);
            copy(r, computed, words, WORDS, r->stream); /* from the host: it waits */
            CHECK(r->table->stream_sync(r->backend, r->stream) == ST_OK);
            copy(r, x->out[p][k], computed, WORDS, r->compute); /* behind the gate */
        }
    }
}

static enum status post(struct nccl_rank *r, struct comm *comm, struct exchange *x)
{
    const size_t size = WORDS * sizeof(uint32_t);
    enum status st = comm_nccl()->post_begin(comm);
    for (int p = 0; p < r->size; p++) {
        for (int k = 0; k < PER_PEER && p != r->rank && st == ST_OK; k++) {
            st = comm_nccl()->post_send(comm, p, 0, x->out[p][k], size, &x->sent[p][k]);
            if (st == ST_OK)
                st = comm_nccl()->post_recv(comm, p, 0, x->in[p][k], size, &x->got[p][k]);
        }
    }
    return st == ST_OK ? comm_nccl()->post_end(comm, NCCL_LONG_MS) : st;
}

/* What is enqueued on compute after the wait reads what came. */
static enum status take(struct nccl_rank *r, struct comm *comm, struct exchange *x)
{
    enum status st = ST_OK;
    for (int p = r->size - 1; p >= 0; p--) {
        for (int k = PER_PEER - 1; k >= 0 && p != r->rank && st == ST_OK; k--) {
            st = comm_nccl()->wait_one(comm, &x->got[p][k], NCCL_LONG_MS);
            copy(r, x->seen[p][k], x->in[p][k], WORDS, r->compute);
        }
    }
    for (int p = 0; p < r->size; p++) {
        for (int k = 0; k < PER_PEER && p != r->rank && st == ST_OK; k++)
            st = comm_nccl()->wait_one(comm, &x->sent[p][k], NCCL_LONG_MS);
    }
    return st;
}

static enum status check_seen(struct nccl_rank *r, const struct exchange *x, int bundle)
{
    uint32_t words[WORDS];
    for (int p = 0; p < r->size; p++) {
        for (int k = 0; k < PER_PEER && p != r->rank; k++) {
            copy(r, words, x->seen[p][k], WORDS, r->compute);
            if (r->table->stream_sync(r->backend, r->compute) != ST_OK)
                return ST_CORRUPT;
            for (int i = 0; i < WORDS; i++) {
                if (words[i] != word_of(p, r->rank, bundle, k, i))
                    return ST_CORRUPT;
            }
        }
    }
    return ST_OK;
}

/* All bundles are enqueued, and waited for in any order, before anything was computed: so their
 * order is that of the streams. */
static enum status ordered_body(struct nccl_rank *r)
{
    struct stream *stream = NULL;
    struct comm *comm = NULL;
    struct exchange x[BUNDLES];
    struct gate gate = { false };
    enum status st = open_pipe(r, &stream, &comm);
    enqueue_gate(r->compute, &gate);
    for (int b = 0; st == ST_OK && b < BUNDLES; b++) {
        prepare(r, &x[b], b);
        st = post(r, comm, &x[b]);
    }
    for (int b = BUNDLES - 1; st == ST_OK && b >= 0; b--)
        st = take(r, comm, &x[b]);
    atomic_store(&gate.open, true);
    for (int b = 0; st == ST_OK && b < BUNDLES; b++)
        st = check_seen(r, &x[b], b);
    if (st == ST_OK)
        st = comm_nccl()->wait(comm, NCCL_LONG_MS);
    (void)r->table->stream_sync(r->backend, r->compute);
    close_pipe(r, stream, comm);
    return st;
}

static void run_well(int size, enum status (*body)(struct nccl_rank *rank), void *arg)
{
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    const int before = fake_nccl_counts().aborted;
    nccl_run_some(ranks, size, size, NCCL_LONG_MS, body, arg);
    for (int r = 0; r < size; r++) {
        assert_int_equal(ranks[r].opened, ST_OK);
        assert_int_equal(ranks[r].st, ST_OK);
    }
    assert_int_equal(fake_nccl_counts().aborted, before);
    assert_int_equal(fake_nccl_counts().live, 0);
}

static void posts_come_after_what_was_computed_and_before_what_is(void **state)
{
    (void)state;
    for (int size = 2; size <= NCCL_RANKS_MAX; size++)
        run_well(size, ordered_body, NULL);
    fake_nccl_progress(50);
    run_well(3, ordered_body, NULL);
    fake_nccl_progress(0);
}

/* The others come only when rank 0 has waited for what they will send. */
static enum status early_body(struct nccl_rank *r)
{
    atomic_int *waited = r->arg;
    struct stream *stream = NULL;
    struct comm *comm = NULL;
    struct exchange x;
    enum status st = open_pipe(r, &stream, &comm);
    prepare(r, &x, 0);
    while (r->rank != 0 && atomic_load(waited) == 0)
        (void)sched_yield();
    if (st == ST_OK)
        st = post(r, comm, &x);
    if (st == ST_OK)
        st = take(r, comm, &x);
    if (r->rank == 0)
        atomic_store(waited, 1);
    if (st == ST_OK)
        st = check_seen(r, &x, 0);
    close_pipe(r, stream, comm);
    return st;
}

static void waiting_for_a_post_does_not_hold_up_the_host(void **state)
{
    (void)state;
    atomic_int waited = 0;
    run_well(2, early_body, &waited);
}

/* ---- what is refused ---- */

static enum status refused_on(struct nccl_rank *r, struct comm *comm)
{
    const struct comm_table *t = comm_nccl();
    const int peer = 1 - r->rank;
    uint32_t *data = device_new(r, 2);
    struct comm_post got = { 0 }, sent = { 0 };
    CHECK(t->post_send(comm, peer, 0, data, 4, &sent) == ST_INVALID); /* no bundle */
    CHECK(t->post_end(comm, NCCL_LONG_MS) == ST_INVALID);
    CHECK(t->wait_one(comm, &got, NCCL_LONG_MS) == ST_INVALID);
    CHECK(t->post_begin(comm) == ST_OK);
    CHECK(t->post_begin(comm) == ST_INVALID);
    CHECK(t->post_send(comm, peer, 0, data, 0, &sent) == ST_INVALID);
    CHECK(t->post_send(comm, r->rank, 0, data, 4, &sent) == ST_INVALID);
    CHECK(t->post_recv(comm, 2, 0, data, 4, &got) == ST_INVALID);
    CHECK(t->post_recv(comm, peer, 0, data, 4, &got) == ST_OK);
    CHECK(t->post_send(comm, peer, 0, data + 1, 4, &sent) == ST_OK);
    CHECK(t->wait_one(comm, &got, NCCL_LONG_MS) == ST_INVALID); /* its bundle is open */
    CHECK(t->post_end(comm, 0) == ST_INVALID);
    CHECK(t->post_end(comm, NCCL_LONG_MS) == ST_OK);
    CHECK(t->wait_one(comm, &got, NCCL_LONG_MS) == ST_OK);
    CHECK(t->wait_one(comm, &got, NCCL_LONG_MS) == ST_INVALID); /* it was waited for */
    CHECK(t->wait_one(comm, &sent, NCCL_LONG_MS) == ST_OK);
    CHECK(t->post_begin(comm) == ST_OK);
    return t->post_end(comm, NCCL_LONG_MS); /* nothing in it */
}

static enum status refused_body(struct nccl_rank *r)
{
    struct stream *stream = NULL;
    struct comm *comm = NULL;
    enum status st = open_pipe(r, &stream, &comm);
    if (st == ST_OK)
        st = refused_on(r, comm);
    if (st == ST_OK)
        st = refused_on(r, r->comm); /* without a compute stream */
    close_pipe(r, stream, comm);
    return st;
}

static void posts_that_make_no_sense_are_refused_and_do_no_harm(void **state)
{
    (void)state;
    run_well(2, refused_body, NULL);
}

/* One message a bundle, and as many bundles as there may be; twice: they come back. */
static enum status full_body(struct nccl_rank *r)
{
    const struct comm_table *t = comm_nccl();
    struct stream *stream = NULL;
    struct comm *comm = NULL;
    struct comm_post posts[COMM_POSTS_MAX], more;
    uint32_t *data = device_new(r, 1);
    enum status st = open_pipe(r, &stream, &comm);
    for (int i = 0; st == ST_OK && i < 2 * COMM_POSTS_MAX; i++) {
        struct comm_post *post = &posts[i % COMM_POSTS_MAX];
        if (i >= COMM_POSTS_MAX) {
            CHECK(t->post_begin(comm) == ST_OK);
            CHECK(t->post_recv(comm, 1 - r->rank, 0, data, 4, &more) == ST_FULL);
            CHECK(t->post_end(comm, NCCL_LONG_MS) == ST_OK);
            CHECK(t->wait_one(comm, post, NCCL_LONG_MS) == ST_OK);
        }
        st = t->post_begin(comm);
        if (st == ST_OK && r->rank == 0)
            st = t->post_send(comm, 1, 0, data, 4, post);
        if (st == ST_OK && r->rank == 1)
            st = t->post_recv(comm, 0, 0, data, 4, post);
        if (st == ST_OK)
            st = t->post_end(comm, NCCL_LONG_MS);
    }
    for (int i = 0; st == ST_OK && i < COMM_POSTS_MAX; i++)
        st = t->wait_one(comm, &posts[i], NCCL_LONG_MS);
    (void)r->table->stream_sync(r->backend, r->compute);
    close_pipe(r, stream, comm);
    return st;
}

static void so_many_are_under_way_and_no_more(void **state)
{
    (void)state;
    run_well(2, full_body, NULL);
}

/* ---- groups ---- */

/* [0, 1] and [2, 3], and then each alone: one round each. */
static enum status groups_body(struct nccl_rank *r)
{
    const int pair[2] = { r->rank / 2 * 2, r->rank / 2 * 2 + 1 };
    const struct comm_some some = { .round_name = "group", .members = pair, .member_count = 2 };
    const struct comm_some alone = { .round_name = "alone",
                                     .members = &r->rank,
                                     .member_count = 1 };
    struct comm *comm = NULL, *lone = NULL;
    struct stream *stream = NULL;
    uint32_t words[2] = { 0 }, *data = device_new(r, 2);
    CHECK(r->table->stream_new(r->backend, &stream) == ST_OK);
    enum status st = nccl_open_some(r, &some, stream, &comm);
    if (st == ST_OK)
        st = nccl_open_some(r, &alone, stream, &lone);
    words[r->rank % 2] = (uint32_t)r->rank + 10;
    copy(r, data, words, 2, stream);
    const struct comm_segment segments[2] = { { data, 4 }, { data + 1, 4 } };
    if (st == ST_OK)
        st = comm_nccl()->all_gather_v(comm, segments, NCCL_LONG_MS);
    if (st == ST_OK)
        st = comm_nccl()->all_gather_v(lone, segments, NCCL_LONG_MS); /* nobody else is in it */
    copy(r, words, data, 2, stream);
    if (st == ST_OK)
        st = comm_nccl()->wait(comm, NCCL_LONG_MS);
    if (st == ST_OK && (words[0] != (uint32_t)pair[0] + 10 || words[1] != (uint32_t)pair[1] + 10))
        st = ST_CORRUPT;
    comm_nccl()->close(lone);
    comm_nccl()->close(comm);
    r->table->stream_free(r->backend, stream);
    return st;
}

static void one_meeting_serves_all_groups(void **state)
{
    (void)state;
    run_well(4, groups_body, NULL);
}

/* ---- several communicators that end ---- */

struct ending {
    atomic_int hung;  /* ranks that wait, or are about to */
    bool by_deadline; /* else by an abort of the pipe's, from another thread */
    bool in_wait;     /* a second thread waits in the workers' communicator */
    struct comm *pipe;
    struct comm *workers;
    atomic_int waited; /* the status that the second thread got; -1 before */
};

static void *abort_pipe(void *arg)
{
    struct ending *ending = arg;
    while (atomic_load(&ending->hung) == 0)
        (void)sched_yield();
    comm_nccl()->abort(ending->pipe);
    return NULL;
}

static void *wait_in_workers(void *arg)
{
    struct ending *ending = arg;
    atomic_store(&ending->waited, (int)comm_nccl()->wait(ending->workers, NCCL_LONG_MS));
    return NULL;
}

/* Rank 0's work hangs in both of its communicators, since rank 1 does nothing. */
static enum status hang_in_both(struct nccl_rank *r, struct comm *pipe, struct ending *ending)
{
    const struct comm_table *t = comm_nccl();
    pthread_t aborter, waiter;
    struct comm_post post;
    uint32_t *data = device_new(r, 2);
    const enum status expected = ending->by_deadline ? ST_PEER : ST_STALE;
    CHECK(t->recv(r->comm, 1, data, 4, NCCL_LONG_MS) == ST_OK);
    CHECK(t->post_begin(pipe) == ST_OK);
    CHECK(t->post_recv(pipe, 1, 0, data + 1, 4, &post) == ST_OK);
    CHECK(t->post_end(pipe, NCCL_LONG_MS) == ST_OK);
    CHECK(t->wait_one(pipe, &post, NCCL_LONG_MS) == ST_OK);
    ending->pipe = pipe;
    ending->workers = r->comm;
    CHECK(!ending->in_wait || pthread_create(&waiter, NULL, wait_in_workers, ending) == 0);
    CHECK(ending->by_deadline || pthread_create(&aborter, NULL, abort_pipe, ending) == 0);
    atomic_store(&ending->hung, 1);
    CHECK(t->wait(pipe, ending->by_deadline ? 50 : NCCL_LONG_MS) == expected);
    CHECK(ending->by_deadline || pthread_join(aborter, NULL) == 0);
    CHECK(!ending->in_wait || pthread_join(waiter, NULL) == 0);
    if (ending->in_wait && atomic_load(&ending->waited) != (int)expected)
        return ST_CORRUPT;
    /* The other one has ended, too, and in the same way; nothing hangs on any stream. */
    CHECK(t->wait(r->comm, NCCL_LONG_MS) == expected);
    CHECK(t->post_end(pipe, NCCL_LONG_MS) == expected);
    CHECK(t->wait_one(pipe, &post, NCCL_LONG_MS) == expected);
    CHECK(r->table->stream_sync(r->backend, r->stream) == ST_OK);
    CHECK(r->table->stream_sync(r->backend, r->compute) == ST_OK);
    return strlen(t->why(r->comm)) > 0 ? ST_OK : ST_CORRUPT;
}

static enum status ending_body(struct nccl_rank *r)
{
    struct ending *ending = r->arg;
    struct stream *stream = NULL;
    struct comm *pipe = NULL;
    enum status st = open_pipe(r, &stream, &pipe);
    if (st == ST_OK && r->rank == 0) {
        st = hang_in_both(r, pipe, ending);
        atomic_store(&ending->hung, 2);
    }
    while (r->rank == 1 && atomic_load(&ending->hung) < 2)
        (void)sched_yield();
    if (r->rank == 1)
        comm_nccl()->abort(pipe); /* its generation is over, too */
    close_pipe(r, stream, pipe);
    return st;
}

static void one_communicator_that_ends_ends_all_of_its_device(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct nccl_rank ranks[NCCL_RANKS_MAX];
        struct ending ending = { .by_deadline = i % 2 == 1, .in_wait = i / 2 == 1, .waited = -1 };
        const int before = fake_nccl_counts().aborted;
        nccl_run_some(ranks, 2, 2, NCCL_LONG_MS, ending_body, &ending);
        assert_int_equal(ranks[0].st, ST_OK);
        assert_int_equal(ranks[1].st, ST_OK);
        assert_int_equal(fake_nccl_counts().aborted - before, 4);
        assert_int_equal(fake_nccl_counts().live, 0);
    }
}

/* Nobody knows whether the peer comes to what was posted: closing doesn't wait for it. */
static enum status leaving_body(struct nccl_rank *r)
{
    atomic_int *left = r->arg;
    struct stream *stream = NULL;
    struct comm *comm = NULL;
    struct comm_post post;
    uint32_t *data = device_new(r, 1);
    enum status st = open_pipe(r, &stream, &comm);
    if (st == ST_OK && r->rank == 0) {
        CHECK(comm_nccl()->post_begin(comm) == ST_OK);
        CHECK(comm_nccl()->post_recv(comm, 1, 0, data, 4, &post) == ST_OK);
        CHECK(comm_nccl()->post_end(comm, NCCL_LONG_MS) == ST_OK);
    }
    while (r->rank == 1 && atomic_load(left) == 0)
        (void)sched_yield();
    if (r->rank == 1)
        comm_nccl()->abort(comm);
    close_pipe(r, stream, comm);
    atomic_store(left, 1);
    return st;
}

static void closing_with_a_post_that_was_not_waited_for_aborts(void **state)
{
    (void)state;
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    atomic_int left = 0;
    const int before = fake_nccl_counts().aborted;
    nccl_run_some(ranks, 2, 2, NCCL_LONG_MS, leaving_body, &left);
    assert_int_equal(ranks[0].st, ST_OK);
    assert_int_equal(ranks[1].st, ST_OK);
    assert_int_equal(fake_nccl_counts().aborted - before, 4); /* with the workers' */
    assert_int_equal(fake_nccl_counts().live, 0);
}

int main(void)
{
    (void)alarm(240); /* what hangs, hangs for ever */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(posts_come_after_what_was_computed_and_before_what_is),
        cmocka_unit_test(waiting_for_a_post_does_not_hold_up_the_host),
        cmocka_unit_test(posts_that_make_no_sense_are_refused_and_do_no_harm),
        cmocka_unit_test(so_many_are_under_way_and_no_more),
        cmocka_unit_test(one_meeting_serves_all_groups),
        cmocka_unit_test(one_communicator_that_ends_ends_all_of_its_device),
        cmocka_unit_test(closing_with_a_post_that_was_not_waited_for_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
