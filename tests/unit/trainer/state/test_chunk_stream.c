/* Memory streamed from ranks that have it to those that lack it, over Gloo on loopback. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "trainer/state/chunk_stream.h"

#define RANKS 4
#define BYTES ((size_t)49 * 1024 * 1024 + 13) /* of all buffers: some chunks for every source */

static const size_t sizes[] = { 18 * 1024 * 1024 + 1, 64, 0, 31 * 1024 * 1024 - 52 };
#define BUFFERS (sizeof(sizes) / sizeof(sizes[0]))

/* ---- a table that damages what comes ---- */

/* What goes wrong on one rank's thread. */
static _Thread_local int damage_at = -1; /* number of the exchange in which a byte goes wrong */
static _Thread_local int damage_count;   /* exchanges so far */
static _Thread_local bool damages_again; /* what is asked for once more, too */
static _Thread_local int dies_at = -1;

static enum status bad_all_to_all_v(struct comm *comm, const struct comm_segment *send,
                                    const struct comm_segment *recv, int64_t timeout_ms)
{
    const int now = damage_count++;
    if (now == dies_at)
        comm_gloo()->abort(comm);
    enum status st = comm_gloo()->all_to_all_v(comm, send, recv, timeout_ms);
    for (int r = 0; st == ST_OK && now == damage_at && r < RANKS; r++) {
        if (recv[r].size > 0) {
            ((uint8_t *)recv[r].data)[recv[r].size / 2] ^= 1;
            break;
        }
    }
    return st;
}

static enum status bad_recv(struct comm *comm, int peer, void *data, size_t size,
                            int64_t timeout_ms)
{
    enum status st = comm_gloo()->recv(comm, peer, data, size, timeout_ms);
    if (st == ST_OK && damages_again && size > 16)
        *(uint8_t *)data ^= 1;
    return st;
}

/* ---- ranks ---- */

struct world {
    int size;
    uint32_t sources[RANKS];
    size_t source_count;
    int damaged, damage_at; /* which rank, in which exchange; -1: none */
    bool again;
    int dying, dies_at;
    struct shared_rendezvous *shared;
    pthread_barrier_t *opened; /* who dies does so when all others are there */
};

struct one {
    struct world *world;
    int rank;
    uint8_t *memory;
    enum status status;
    uint32_t blamed;
    int ticks;
    struct reason reason;
    pthread_t thread;
};

/* What the sources have: made once, a byte at a time takes long under a sanitizer. */
static uint8_t *content;

static int make_content(void **state)
{
    (void)state;
    content = malloc(BYTES);
    for (size_t i = 0; content != NULL && i < BYTES; i++)
        content[i] = (uint8_t)((i * 2654435761u) >> 13);
    return content == NULL;
}

static int drop_content(void **state)
{
    (void)state;
    free(content);
    return 0;
}

static bool is_source(const struct world *world, int rank)
{
    for (size_t i = 0; i < world->source_count; i++) {
        if (world->sources[i] == (uint32_t)rank)
            return true;
    }
    return false;
}

static void count_tick(void *arg)
{
    ++*(int *)arg;
}

static void *run_rank(void *arg)
{
    struct one *one = arg;
    const struct world *world = one->world;
    struct comm_table table = *comm_gloo();
    struct comm *comm = NULL;
    struct chunk_buffer buffers[BUFFERS];
    size_t at = 0;
    table.all_to_all_v = bad_all_to_all_v;
    table.recv = bad_recv;
    damage_at = one->rank == world->damaged ? world->damage_at : -1;
    damages_again = one->rank == world->damaged && world->again;
    dies_at = one->rank == world->dying ? world->dies_at : -1;
    damage_count = 0;
    for (size_t i = 0; i < BUFFERS; at += sizes[i], i++)
        buffers[i] = (struct chunk_buffer){ one->memory + at, sizes[i] };
    CHECK(at == BYTES);
    CHECK(gloo_open_rank(world->shared, one->rank, world->size, 60000, &comm) == ST_OK);
    (void)pthread_barrier_wait(world->opened);
    const struct chunk_stream_options options = { .table = &table,
                                                  .comm = comm,
                                                  .rank = (uint32_t)one->rank,
                                                  .size = (uint32_t)world->size,
                                                  .sources = world->sources,
                                                  .source_count = world->source_count,
                                                  .buffers = buffers,
                                                  .buffer_count = BUFFERS,
                                                  .tick = count_tick,
                                                  .tick_arg = &one->ticks };
    one->status = chunk_stream_run(&options, &one->blamed, &one->reason);
    if (one->status != ST_OK)
        comm_gloo()->abort(comm);
    comm_gloo()->close(comm);
    return NULL;
}

static void run(struct world *world, struct one *ones)
{
    pthread_barrier_t opened;
    world->shared = shared_rendezvous_new();
    world->opened = &opened;
    assert_int_equal(pthread_barrier_init(&opened, NULL, (unsigned)world->size), 0);
    memset(ones, 0, RANKS * sizeof(*ones));
    for (int r = 0; r < world->size; r++) {
        ones[r] = (struct one){ .world = world, .rank = r, .memory = malloc(BYTES) };
        assert_non_null(ones[r].memory);
        if (is_source(world, r))
            memcpy(ones[r].memory, content, BYTES);
        else
            memset(ones[r].memory, 0xEE, BYTES);
        assert_int_equal(pthread_create(&ones[r].thread, NULL, run_rank, &ones[r]), 0);
    }
    for (int r = 0; r < world->size; r++)
        assert_int_equal(pthread_join(ones[r].thread, NULL), 0);
    shared_rendezvous_free(world->shared);
    (void)pthread_barrier_destroy(&opened);
}

static void release(const struct world *world, struct one *ones)
{
    for (int r = 0; r < world->size; r++)
        free(ones[r].memory);
}

static void check_whole(const struct world *world, const struct one *ones)
{
    for (int r = 0; r < world->size; r++) {
        assert_int_equal(ones[r].status, ST_OK);
        assert_true(memcmp(ones[r].memory, content, BYTES) == 0);
    }
}

static void everybody_has_the_bytes_of_the_sources(void **state)
{
    (void)state;
    struct world worlds[] = {
        { .size = 2, .sources = { 0 }, .source_count = 1 },
        { .size = 2, .sources = { 1 }, .source_count = 1 },
        { .size = 3, .sources = { 1 }, .source_count = 1 },
        { .size = 3, .sources = { 0, 2 }, .source_count = 2 },
        { .size = 4, .sources = { 0, 1, 3 }, .source_count = 3 },
        { .size = 4, .sources = { 1, 2 }, .source_count = 2 },
        { .size = 3, .sources = { 0, 1, 2 }, .source_count = 3 }, /* nobody lacks anything */
    };
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct one ones[RANKS];
        worlds[i].damaged = worlds[i].dying = -1;
        run(&worlds[i], ones);
        check_whole(&worlds[i], ones);
        const bool all = worlds[i].source_count == (size_t)worlds[i].size;
        assert_true(all ? ones[0].ticks == 0 : ones[0].ticks >= 2);
        release(&worlds[i], ones);
    }
}

static void what_came_damaged_is_asked_for_once_more(void **state)
{
    (void)state;
    for (int at = 0; at < 6; at++) { /* chunks, and hashes of them; the first rounds */
        for (size_t sources = 1; sources <= 2; sources++) {
            struct world world = { .size = 3,
                                   .sources = { 0, 2 },
                                   .source_count = sources,
                                   .damaged = 1,
                                   .damage_at = at,
                                   .dying = -1 };
            struct one ones[RANKS];
            run(&world, ones);
            check_whole(&world, ones);
            release(&world, ones);
        }
    }
}

static void damaged_twice_it_is_refused_by_name(void **state)
{
    (void)state;
    struct world world = {
        .size = 3, .sources = { 0, 2 }, .source_count = 2, .damaged = 1, .again = true, .dying = -1
    };
    struct one ones[RANKS];
    run(&world, ones);
    assert_int_equal(ones[1].status, ST_CORRUPT);
    assert_int_equal(ones[1].blamed, 2); /* chunk 0 came from 0, and then from the next */
    assert_non_null(strstr(ones[1].reason.text, "rank 2"));
    release(&world, ones);
}

static void a_source_that_dies_is_a_peer_that_failed(void **state)
{
    (void)state;
    for (int at = 0; at < 4; at++) {
        struct world world = { .size = 3,
                               .sources = { 0, 2 },
                               .source_count = 2,
                               .damaged = -1,
                               .dying = 2,
                               .dies_at = at };
        struct one ones[RANKS];
        run(&world, ones);
        assert_int_equal(ones[1].status, ST_PEER);
        assert_int_equal(ones[2].status, ST_STALE);
        release(&world, ones);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_has_the_bytes_of_the_sources),
        cmocka_unit_test(what_came_damaged_is_asked_for_once_more),
        cmocka_unit_test(damaged_twice_it_is_refused_by_name),
        cmocka_unit_test(a_source_that_dies_is_a_peer_that_failed),
    };
    return cmocka_run_group_tests(tests, make_content, drop_content);
}
