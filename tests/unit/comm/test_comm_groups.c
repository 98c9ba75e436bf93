/*
 * Communicators of some ranks, over gloo: several groups from one round, and one of neighbours
 * beside them. Ranks are threads, with a second one for the neighbours.
 */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"

#define LONG_MS 120000
#define RANKS   6
#define ROUNDS  30

/* Ranks number [stage][place]: those of a stage are a group, those of one place a pipe. */
struct layout {
    int stages, width;
};

struct rank_thread {
    struct shared_rendezvous *shared;
    pthread_barrier_t *passed; /* all ranks are through with the pipe */
    struct layout layout;
    int rank;
    enum status (*body)(struct rank_thread *self);
    enum status status, pipe_status;
    pthread_t thread;
};

static void *run_rank(void *arg)
{
    struct rank_thread *self = arg;
    self->status = self->body(self);
    return NULL;
}

static void run_ranks(struct layout layout, enum status (*body)(struct rank_thread *self))
{
    struct shared_rendezvous *shared = shared_rendezvous_new();
    struct rank_thread ranks[RANKS];
    pthread_barrier_t passed;
    (void)pthread_barrier_init(&passed, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank_thread){
            .shared = shared, .passed = &passed, .layout = layout, .rank = r, .body = body
        };
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ranks[r].status, ST_OK);
        assert_int_equal(ranks[r].pipe_status, ST_OK);
    }
    (void)pthread_barrier_destroy(&passed);
    shared_rendezvous_free(shared);
}

/* ---- a group ---- */

static enum status open_group(struct rank_thread *self, struct comm **out)
{
    int members[RANKS];
    const int stage = self->rank / self->layout.width;
    for (int m = 0; m < self->layout.width; m++)
        members[m] = stage * self->layout.width + m;
    const struct comm_some some = { .round_name = "group",
                                    .members = members,
                                    .member_count = self->layout.width };
    return gloo_open_some(self->shared, &some, self->rank, RANKS, LONG_MS, out);
}

static enum status gather(struct rank_thread *self, struct comm *comm)
{
    const int width = self->layout.width;
    uint32_t values[RANKS] = { 0 };
    struct comm_segment segments[RANKS];
    for (int m = 0; m < width; m++)
        segments[m] = (struct comm_segment){ &values[m], sizeof(values[m]) };
    for (uint32_t round = 0; round < ROUNDS; round++) {
        values[self->rank % width] = (uint32_t)self->rank * 1000 + round;
        enum status st = comm_gloo()->all_gather_v(comm, segments, LONG_MS);
        if (st != ST_OK)
            return st;
        for (int m = 0; m < width; m++) {
            const int rank = self->rank / width * width + m;
            if (values[m] != (uint32_t)rank * 1000 + round)
                return ST_CORRUPT;
        }
    }
    return ST_OK;
}

/* ---- a pipe beside it ---- */

/* Opens a communicator of all ranks, in which only ranks of neighbouring stages in one place are
 * connected. */
static enum status open_pipe(struct rank_thread *self, struct comm **out)
{
    const int width = self->layout.width;
    bool connected[RANKS];
    int all[RANKS];
    for (int r = 0; r < RANKS; r++) {
        all[r] = r;
        connected[r] = r == self->rank - width || r == self->rank + width;
    }
    const struct comm_some some = {
        .round_name = "pipe", .members = all, .member_count = RANKS, .connected = connected
    };
    return gloo_open_some(self->shared, &some, self->rank, RANKS, LONG_MS, out);
}

/* In each round something goes down and something up, in one batch. */
static enum status pass(struct rank_thread *self, struct comm *comm, uint32_t round)
{
    const struct comm_table *t = comm_gloo();
    const int width = self->layout.width;
    const int peers[2] = { self->rank - width, self->rank + width };
    uint32_t out = (uint32_t)self->rank * 1000 + round, in[2] = { 0 };
    struct comm_post posts[4];
    int count = 0;
    enum status st = t->post_begin(comm);
    for (int i = 0; i < 2; i++) {
        if (peers[i] < 0 || peers[i] >= RANKS)
            continue;
        if (st == ST_OK)
            st = t->post_recv(comm, peers[i], 0, &in[i], sizeof(in[i]), &posts[count++]);
        if (st == ST_OK)
            st = t->post_send(comm, peers[i], 0, &out, sizeof(out), &posts[count++]);
    }
    if (st == ST_OK)
        st = t->post_end(comm, LONG_MS);
    for (int i = 0; st == ST_OK && i < count; i++)
        st = t->wait_one(comm, &posts[i], LONG_MS);
    for (int i = 0; st == ST_OK && i < 2; i++) {
        const bool there = peers[i] >= 0 && peers[i] < RANKS;
        if (in[i] != (there ? (uint32_t)peers[i] * 1000 + round : 0))
            st = ST_CORRUPT;
    }
    return st;
}

static void *run_pipe(void *arg)
{
    struct rank_thread *self = arg;
    struct comm *comm = NULL;
    enum status st = open_pipe(self, &comm);
    for (uint32_t round = 0; st == ST_OK && round < ROUNDS; round++)
        st = pass(self, comm, round);
    (void)pthread_barrier_wait(self->passed); /* closing doesn't wait long for who is behind */
    comm_gloo()->close(comm);
    self->pipe_status = st;
    return NULL;
}

static enum status both_body(struct rank_thread *self)
{
    pthread_t pipe;
    CHECK(pthread_create(&pipe, NULL, run_pipe, self) == 0);
    struct comm *comm = NULL;
    enum status st = open_group(self, &comm);
    if (st == ST_OK)
        st = gather(self, comm);
    comm_gloo()->close(comm);
    CHECK(pthread_join(pipe, NULL) == 0);
    return st;
}

static void groups_gather_side_by_side_while_neighbours_send_to_each_other(void **state)
{
    (void)state;
    run_ranks((struct layout){ 2, 3 }, both_body);
    run_ranks((struct layout){ 3, 2 }, both_body);
    run_ranks((struct layout){ 6, 1 }, both_body); /* each alone in its group */
    run_ranks((struct layout){ 1, 6 }, both_body); /* no neighbours */
}

/* ---- what is refused ---- */

static enum status strangers_body(struct rank_thread *self)
{
    struct comm *comm = NULL;
    uint8_t bytes[RANKS] = { 0 };
    struct comm_segment segments[RANKS];
    struct comm_post post;
    enum status st = open_pipe(self, &comm);
    if (st != ST_OK)
        return st;
    for (int r = 0; r < RANKS; r++)
        segments[r] = (struct comm_segment){ bytes + r, 1 };
    const int stranger = self->rank == 0 ? 1 : self->rank - 1; /* of the same stage, or beyond */
    const bool refused = comm_gloo()->send(comm, stranger, bytes, 1, LONG_MS) == ST_INVALID &&
                         comm_gloo()->all_gather_v(comm, segments, LONG_MS) == ST_INVALID &&
                         comm_gloo()->post_begin(comm) == ST_OK &&
                         comm_gloo()->post_recv(comm, stranger, 0, bytes, 1, &post) == ST_INVALID &&
                         comm_gloo()->post_end(comm, LONG_MS) == ST_OK;
    if (refused)
        st = pass(self, comm, 7); /* it did no harm */
    comm_gloo()->close(comm);
    return refused ? st : ST_CORRUPT;
}

static void ranks_without_a_connection_are_not_sent_to(void **state)
{
    (void)state;
    run_ranks((struct layout){ 2, 3 }, strangers_body);
}

static void members_are_in_order_in_the_generation_and_oneself_among_them(void **state)
{
    (void)state;
    static const struct {
        int members[3], count;
    } wrong[] = { { { 0, 2, 3 }, 3 }, { { 1, 0 }, 2 }, { { 1, 1 }, 2 },           { { 1, 6 }, 2 },
                  { { -1, 1 }, 2 },   { { 1 }, 0 },    { { 1, 2, 3 }, RANKS + 1 } };
    struct shared_rendezvous *shared = shared_rendezvous_new();
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const struct comm_some some = { .round_name = "group",
                                        .members = wrong[i].members,
                                        .member_count = wrong[i].count };
        struct comm *comm = NULL;
        assert_int_equal(gloo_open_some(shared, &some, 1, RANKS, LONG_MS, &comm), ST_INVALID);
        assert_null(comm);
    }
    shared_rendezvous_free(shared);
}

int main(void)
{
    (void)alarm(240); /* a rank that could not open leaves the others waiting */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_gather_side_by_side_while_neighbours_send_to_each_other),
        cmocka_unit_test(ranks_without_a_connection_are_not_sent_to),
        cmocka_unit_test(members_are_in_order_in_the_generation_and_oneself_among_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
