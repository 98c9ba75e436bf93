/*
 * Posts of gloo behind the comm table, with ranks as threads: any order of posting and waiting.
 * What befalls them when ranks die is in test_comm_faults.c.
 */
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"

#define LONG_MS   120000
#define RANKS_MAX 4

struct rank_thread {
    struct shared_rendezvous *shared;
    int rank, size;
    uint64_t seed;
    enum status (*body)(struct comm *comm, const struct rank_thread *self);
    enum status status;
    pthread_t thread;
};

static void *run_rank(void *arg)
{
    struct rank_thread *self = arg;
    struct comm *comm = NULL;
    self->status = gloo_open_rank(self->shared, self->rank, self->size, LONG_MS, &comm);
    if (self->status == ST_OK)
        self->status = self->body(comm, self);
    comm_gloo()->close(comm);
    return NULL;
}

static void run_ranks(int size, uint64_t seed,
                      enum status (*body)(struct comm *comm, const struct rank_thread *self))
{
    struct shared_rendezvous *shared = shared_rendezvous_new();
    struct rank_thread rank[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        rank[r] = (struct rank_thread){
            .shared = shared, .rank = r, .size = size, .seed = seed, .body = body
        };
        assert_int_equal(pthread_create(&rank[r].thread, NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < size; r++)
        assert_int_equal(pthread_join(rank[r].thread, NULL), 0);
    for (int r = 0; r < size; r++)
        assert_int_equal(rank[r].status, ST_OK);
    shared_rendezvous_free(shared);
}

/* All are here. Its messages are a collective's, so none of them is in the order of posts. */
static enum status join(struct comm *comm, const struct rank_thread *self)
{
    uint8_t bytes[RANKS_MAX] = { 0 };
    struct comm_segment segments[RANKS_MAX];
    for (int r = 0; r < self->size; r++)
        segments[r] = (struct comm_segment){ bytes + r, 1 };
    return comm_gloo()->all_gather_v(comm, segments, LONG_MS);
}

/* ---- random programs ---- */

#define ROUNDS      6
#define IN_ROUND    3 /* messages of a pair in one round, at most */
#define LARGE_BYTES ((size_t)8 << 20)

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t draw(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return mix(*state);
}

/* What all ranks know of message `which` of a round from one to another. */
static uint64_t fact(uint64_t seed, int from, int to, int round, int which)
{
    return mix(seed ^ mix((uint64_t)(((from * 8 + to) * 64 + round) * 8 + which) + 1));
}

static int message_count(uint64_t seed, int from, int to, int round)
{
    return (int)(fact(seed, from, to, round, IN_ROUND) % (IN_ROUND + 1));
}

/* 1 byte to 8 MiB, small ones more often. */
static size_t message_size(uint64_t seed, int from, int to, int round, int which)
{
    const uint64_t f = fact(seed, from, to, round, which);
    if (f % 61 == 0)
        return LARGE_BYTES;
    return 1 + (size_t)(f >> 8) % ((size_t)1 << (f >> 3) % 17);
}

struct message {
    int peer, round, which;
    bool is_send;
    uint8_t *data;
    size_t size;
    struct comm_post post;
};

/* The memory of a message is of its own, and has its bytes. */
static void fill(const struct message *m, uint64_t seed, int from, int to)
{
    const uint64_t f = fact(seed, from, to, m->round, m->which);
    for (size_t i = 0; i < m->size; i++)
        m->data[i] = (uint8_t)(f + i * 7 + (i >> 8));
}

static bool is_right(const struct message *m, uint64_t seed, int from, int to)
{
    const uint64_t f = fact(seed, from, to, m->round, m->which);
    for (size_t i = 0; i < m->size; i++) {
        if (m->data[i] != (uint8_t)(f + i * 7 + (i >> 8)))
            return false;
    }
    return true;
}

struct program {
    struct comm *comm;
    const struct rank_thread *self;
    uint64_t random;          /* this rank's own: its orders are not the others' */
    struct message *messages; /* [MESSAGES_MAX] under way */
    size_t count;
    struct message *next; /* [MESSAGES_MAX] to be posted now */
    size_t next_count;
};

#define MESSAGES_MAX ((size_t)RANKS_MAX * 2 * 2 * IN_ROUND)

static void plan_round(struct program *p, int round, bool is_send)
{
    const int rank = p->self->rank;
    for (int peer = 0; peer < p->self->size && round < ROUNDS; peer++) {
        const int from = is_send ? rank : peer, to = is_send ? peer : rank;
        const int count = peer == rank ? 0 : message_count(p->self->seed, from, to, round);
        for (int which = 0; which < count; which++) {
            struct message *m = &p->next[p->next_count++];
            *m = (struct message){ .peer = peer,
                                   .round = round,
                                   .which = which,
                                   .is_send = is_send,
                                   .size = message_size(p->self->seed, from, to, round, which) };
            m->data = calloc(1, m->size);
            CHECK(m->data != NULL);
            if (is_send)
                fill(m, p->self->seed, rank, peer);
        }
    }
}

/* Takes the first message that is left of a random peer and direction: those have an order. */
static struct message take_next(struct program *p)
{
    size_t at = (size_t)(draw(&p->random) % p->next_count);
    for (size_t i = 0; i < at; i++) {
        if (p->next[i].peer == p->next[at].peer && p->next[i].is_send == p->next[at].is_send)
            at = i;
    }
    const struct message taken = p->next[at];
    p->next_count--;
    memmove(&p->next[at], &p->next[at + 1], (p->next_count - at) * sizeof(p->next[0]));
    return taken;
}

static enum status post_all(struct program *p)
{
    enum status st = ST_OK;
    while (st == ST_OK && p->next_count > 0) {
        st = comm_gloo()->post_begin(p->comm);
        for (size_t in_bundle = 1 + (size_t)(draw(&p->random) % 5);
             st == ST_OK && in_bundle > 0 && p->next_count > 0; in_bundle--) {
            struct message *m = &p->messages[p->count++];
            *m = take_next(p);
            st = m->is_send
                     ? comm_gloo()->post_send(p->comm, m->peer, 0, m->data, m->size, &m->post)
                     : comm_gloo()->post_recv(p->comm, m->peer, 0, m->data, m->size, &m->post);
        }
        if (st == ST_OK)
            st = comm_gloo()->post_end(p->comm, LONG_MS);
    }
    return st;
}

/* In a random order, those of rounds up to this one. */
static enum status wait_round(struct program *p, int round)
{
    enum status st = ST_OK;
    for (size_t left = p->count; st == ST_OK && left > 0;) {
        const size_t at = (size_t)(draw(&p->random) % left--);
        struct message m = p->messages[at];
        p->messages[at] = p->messages[left];
        p->messages[left] = m;
        if (m.round > round)
            continue;
        st = comm_gloo()->wait_one(p->comm, &m.post, LONG_MS);
        if (st == ST_OK && !m.is_send && !is_right(&m, p->self->seed, m.peer, p->self->rank))
            st = ST_CORRUPT;
        free(m.data);
        p->messages[left] = p->messages[--p->count];
    }
    return st;
}

/*
 * One direction is a round ahead of the other, by the seed: sends that wait for their reception, or
 * receptions that are there long before. A round's waits need of the others only what they post
 * before their waits of the same round.
 */
static enum status random_body(struct comm *comm, const struct rank_thread *self)
{
    struct message messages[MESSAGES_MAX], next[MESSAGES_MAX];
    struct program p = { .comm = comm,
                         .self = self,
                         .random = mix(self->seed * 16 + (uint64_t)self->rank),
                         .messages = messages,
                         .next = next };
    const bool sends_ahead = self->seed % 2 == 0;
    enum status st = ST_OK;
    plan_round(&p, 0, sends_ahead);
    for (int round = 0; st == ST_OK && round < ROUNDS; round++) {
        plan_round(&p, round + 1, sends_ahead);
        plan_round(&p, round, !sends_ahead);
        st = post_all(&p);
        for (uint64_t i = draw(&p.random) % 256; st == ST_OK && i > 0; i--)
            (void)sched_yield(); /* another interleaving */
        if (st == ST_OK)
            st = wait_round(&p, round);
    }
    if (st == ST_OK)
        st = join(comm, self); /* closing doesn't wait long for those that are behind */
    return st == ST_OK && p.count > 0 ? ST_CORRUPT : st;
}

static void posts_may_be_made_and_waited_for_in_any_order(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 24; seed++)
        run_ranks(2 + (int)(seed % 3), seed, random_body);
}

/* ---- orders that are chosen ---- */

#define ROW 100

/* Each rank to the next: all at once. */
static enum status post_row(struct comm *comm, const struct rank_thread *self, bool is_send,
                            uint32_t *row, struct comm_post *posts)
{
    const int peer = (self->rank + (is_send ? 1 : self->size - 1)) % self->size;
    enum status st = comm_gloo()->post_begin(comm);
    for (uint32_t i = 0; st == ST_OK && i < ROW; i++) {
        if (is_send)
            row[i] = (uint32_t)self->rank * 1000 + i;
        st = is_send ? comm_gloo()->post_send(comm, peer, 0, row + i, sizeof(row[i]), &posts[i])
                     : comm_gloo()->post_recv(comm, peer, 0, row + i, sizeof(row[i]), &posts[i]);
    }
    return st == ST_OK ? comm_gloo()->post_end(comm, LONG_MS) : st;
}

/* seed 0: receptions are there before anything is sent; 1: the other way round. */
static enum status row_body(struct comm *comm, const struct rank_thread *self)
{
    uint32_t rows[2][ROW] = { { 0 } };
    struct comm_post posts[2][ROW];
    const bool first_sends = self->seed == 1;
    enum status st = post_row(comm, self, first_sends, rows[first_sends], posts[first_sends]);
    if (st == ST_OK)
        st = join(comm, self);
    if (st == ST_OK)
        st = post_row(comm, self, !first_sends, rows[!first_sends], posts[!first_sends]);
    for (uint32_t i = ROW; st == ST_OK && i > 0; i--) {
        st = comm_gloo()->wait_one(comm, &posts[0][i - 1], LONG_MS);
        const uint32_t from = (uint32_t)((self->rank + self->size - 1) % self->size);
        if (st == ST_OK && rows[0][i - 1] != from * 1000 + i - 1)
            st = ST_CORRUPT;
    }
    for (uint32_t i = 0; st == ST_OK && i < ROW; i++)
        st = comm_gloo()->wait_one(comm, &posts[1][i], LONG_MS);
    return st == ST_OK ? join(comm, self) : st;
}

static void messages_arrive_in_the_order_in_which_they_were_posted(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS_MAX; size++) {
        run_ranks(size, 0, row_body);
        run_ranks(size, 1, row_body);
    }
}

/* A sent message has its place among those that are posted. */
static enum status mixed_body(struct comm *comm, const struct rank_thread *self)
{
    uint32_t values[3] = { 10, 11, 12 };
    struct comm_post posts[2];
    const bool sends = self->rank == 0;
    enum status st = comm_gloo()->post_begin(comm);
    if (st == ST_OK && sends)
        st = comm_gloo()->post_send(comm, 1, 0, &values[0], 4, &posts[0]);
    if (st == ST_OK && !sends)
        st = comm_gloo()->post_recv(comm, 0, 0, &values[2], 4, &posts[0]);
    if (st == ST_OK)
        st = comm_gloo()->post_end(comm, LONG_MS);
    if (st == ST_OK && sends)
        st = comm_gloo()->send(comm, 1, &values[1], 4, LONG_MS);
    if (st == ST_OK && !sends)
        st = comm_gloo()->recv(comm, 0, &values[1], 4, LONG_MS);
    if (st == ST_OK)
        st = comm_gloo()->wait_one(comm, &posts[0], LONG_MS);
    return st == ST_OK && !sends && (values[2] != 10 || values[1] != 11) ? ST_CORRUPT : st;
}

static void what_is_sent_and_what_is_posted_have_one_order(void **state)
{
    (void)state;
    run_ranks(2, 0, mixed_body);
}

static enum status full_body(struct comm *comm, const struct rank_thread *self)
{
    static uint8_t bytes[RANKS_MAX][COMM_POSTS_MAX + 1];
    struct comm_post posts[COMM_POSTS_MAX + 1];
    const int peer = 1 - self->rank;
    uint8_t *own = bytes[self->rank];
    enum status st = comm_gloo()->post_begin(comm);
    for (int i = 0; st == ST_OK && i < COMM_POSTS_MAX; i++) {
        own[i] = i % 2 == 0 ? 0 : (uint8_t)i;
        st = i % 2 == 0 ? comm_gloo()->post_recv(comm, peer, 0, own + i, 1, &posts[i])
                        : comm_gloo()->post_send(comm, peer, 0, own + i, 1, &posts[i]);
    }
    if (st == ST_OK && comm_gloo()->post_send(comm, peer, 0, own + COMM_POSTS_MAX, 1,
                                              &posts[COMM_POSTS_MAX]) != ST_FULL)
        return ST_CORRUPT;
    if (st == ST_OK)
        st = comm_gloo()->post_end(comm, LONG_MS);
    for (int i = COMM_POSTS_MAX - 1; st == ST_OK && i >= 0; i--) {
        st = comm_gloo()->wait_one(comm, &posts[i], LONG_MS);
        if (st == ST_OK && i % 2 == 0 && own[i] != (uint8_t)(i + 1))
            st = ST_CORRUPT;
    }
    return st;
}

/* Twice: places come back. */
static enum status full_twice_body(struct comm *comm, const struct rank_thread *self)
{
    enum status st = full_body(comm, self);
    return st == ST_OK ? full_body(comm, self) : st;
}

static void so_many_are_under_way_and_no_more(void **state)
{
    (void)state;
    run_ranks(2, 0, full_twice_body);
}

/* Asked for in another order than sent: each finds its own. */
static enum status channels_body(struct comm *comm, const struct rank_thread *self)
{
    const struct comm_table *t = comm_gloo();
    const bool sends = self->rank == 0;
    uint32_t values[3] = { 10, 11, 12 }, got[3] = { 0 };
    struct comm_post posts[3];
    enum status st = t->post_begin(comm);
    for (uint32_t i = 0; st == ST_OK && i < 3; i++) {
        const uint32_t channel = sends ? i : 2 - i;
        st = sends ? t->post_send(comm, 1, channel, &values[channel], 4, &posts[i])
                   : t->post_recv(comm, 0, channel, &got[channel], 4, &posts[i]);
    }
    if (st == ST_OK)
        st = t->post_end(comm, LONG_MS);
    for (uint32_t i = 0; st == ST_OK && i < 3; i++)
        st = t->wait_one(comm, &posts[i], LONG_MS);
    return st == ST_OK && !sends && memcmp(got, values, sizeof(got)) != 0 ? ST_CORRUPT : st;
}

static void channels_know_nothing_of_each_other(void **state)
{
    (void)state;
    run_ranks(2, 0, channels_body);
}

static enum status counted_body(struct comm *comm, const struct rank_thread *self)
{
    const struct comm_table *t = comm_gloo();
    const int rank = self->rank, peer = 1 - rank;
    uint8_t out[3000] = { 0 }, in[3000];
    struct comm_post posts[2];
    struct comm_traffic traffic;
    enum status st = t->post_begin(comm);
    if (st == ST_OK)
        st = t->post_recv(comm, peer, 0, in, 1000 + (size_t)rank, &posts[0]);
    if (st == ST_OK)
        st = t->post_send(comm, peer, 0, out, 1001 - (size_t)rank, &posts[1]);
    if (st == ST_OK)
        st = t->post_end(comm, LONG_MS);
    for (int i = 0; st == ST_OK && i < 2; i++)
        st = comm_gloo()->wait_one(comm, &posts[i], LONG_MS);
    comm_gloo()->traffic(comm, &traffic);
    if (st == ST_OK && (traffic.sent_bytes != 1001 - (uint64_t)self->rank ||
                        traffic.received_bytes != 1000 + (uint64_t)self->rank))
        st = ST_CORRUPT;
    return st;
}

static void bytes_of_posts_are_counted(void **state)
{
    (void)state;
    run_ranks(2, 0, counted_body);
}

/* ---- what is refused ---- */

static enum status refused_body(struct comm *comm, const struct rank_thread *self)
{
    const struct comm_table *t = comm_gloo();
    const int peer = 1 - self->rank;
    uint8_t in = 0, out = 1;
    struct comm_post got = { 0 }, sent = { 0 };
    CHECK(t->post_send(comm, peer, 0, &out, 1, &sent) == ST_INVALID); /* no bundle */
    CHECK(t->post_end(comm, LONG_MS) == ST_INVALID);
    CHECK(t->wait_one(comm, &got, LONG_MS) == ST_INVALID);
    CHECK(t->post_begin(comm) == ST_OK);
    CHECK(t->post_begin(comm) == ST_INVALID);
    CHECK(t->post_send(comm, peer, 0, &out, 0, &sent) == ST_INVALID);
    CHECK(t->post_send(comm, self->rank, 0, &out, 1, &sent) == ST_INVALID);
    CHECK(t->post_send(comm, peer, COMM_CHANNELS_MAX, &out, 1, &sent) == ST_INVALID);
    CHECK(t->post_recv(comm, 2, 0, &in, 1, &got) == ST_INVALID);
    CHECK(t->post_recv(comm, -1, 0, &in, 1, &got) == ST_INVALID);
    CHECK(t->post_recv(comm, peer, 0, &in, 1, &got) == ST_OK);
    CHECK(t->post_send(comm, peer, 0, &out, 1, &sent) == ST_OK);
    CHECK(t->wait_one(comm, &got, LONG_MS) == ST_INVALID); /* its bundle is open */
    CHECK(t->post_end(comm, LONG_MS) == ST_OK);
    CHECK(t->wait_one(comm, &got, LONG_MS) == ST_OK);
    CHECK(t->wait_one(comm, &got, LONG_MS) == ST_INVALID); /* it was waited for */
    CHECK(t->wait_one(comm, &sent, LONG_MS) == ST_OK);
    return in == 1 ? ST_OK : ST_CORRUPT;
}

static void posts_that_make_no_sense_are_refused_and_do_no_harm(void **state)
{
    (void)state;
    run_ranks(2, 0, refused_body);
}

/* Which of the two is through could not be told. */
static enum status twice_body(struct comm *comm, const struct rank_thread *self)
{
    const struct comm_table *t = comm_gloo();
    uint8_t byte = 0;
    struct comm_post posts[2];
    const enum status met = join(comm, self); /* rank 1 has opened its own */
    if (self->rank == 1) {
        CHECK((met == ST_OK ? t->recv(comm, 0, &byte, 1, LONG_MS) : met) == ST_PEER);
        return ST_OK;
    }
    CHECK(met == ST_OK);
    CHECK(t->post_begin(comm) == ST_OK);
    CHECK(t->post_recv(comm, 1 - self->rank, 0, &byte, 1, &posts[0]) == ST_OK);
    CHECK(t->post_recv(comm, 1 - self->rank, 0, &byte, 1, &posts[1]) == ST_INVALID);
    CHECK(t->post_end(comm, LONG_MS) == ST_INVALID);
    CHECK(t->wait_one(comm, &posts[0], LONG_MS) == ST_INVALID);
    return strlen(t->why(comm)) > 0 ? ST_OK : ST_CORRUPT;
}

static void a_buffer_that_is_posted_twice_ends_the_communicator(void **state)
{
    (void)state;
    run_ranks(2, 0, twice_body);
}

/* Rank 1 leaves what it posted, and closes. It says no farewell, which would come to rank 0 as its
 * part of the second round: for rank 0 it has died. */
static enum status left_body(struct comm *comm, const struct rank_thread *self)
{
    uint8_t byte = 0;
    struct comm_post post;
    enum status st = join(comm, self);
    if (self->rank == 0) {
        if (st == ST_OK)
            st = join(comm, self);
        return st == ST_PEER && comm_gloo()->blamed(comm) == 1 ? ST_OK : ST_CORRUPT;
    }
    CHECK(st == ST_OK);
    CHECK(comm_gloo()->post_begin(comm) == ST_OK);
    CHECK(comm_gloo()->post_recv(comm, 0, 0, &byte, 1, &post) == ST_OK);
    return comm_gloo()->post_end(comm, LONG_MS);
}

static void who_closes_before_its_posts_are_through_is_seen_to_fail(void **state)
{
    (void)state;
    run_ranks(2, 0, left_body);
}

int main(void)
{
    (void)alarm(240); /* a rank that could not open leaves the others waiting */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(posts_may_be_made_and_waited_for_in_any_order),
        cmocka_unit_test(messages_arrive_in_the_order_in_which_they_were_posted),
        cmocka_unit_test(what_is_sent_and_what_is_posted_have_one_order),
        cmocka_unit_test(so_many_are_under_way_and_no_more),
        cmocka_unit_test(channels_know_nothing_of_each_other),
        cmocka_unit_test(bytes_of_posts_are_counted),
        cmocka_unit_test(posts_that_make_no_sense_are_refused_and_do_no_harm),
        cmocka_unit_test(a_buffer_that_is_posted_twice_ends_the_communicator),
        cmocka_unit_test(who_closes_before_its_posts_are_through_is_seen_to_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
