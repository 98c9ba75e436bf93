/* Memory of which each rank has a part, exchanged over Gloo on loopback. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "trainer/state/part_exchange.h"

#define RANKS  5
#define PIECES 12
#define GAP    3 /* bytes between pieces, which are nobody's */
#define NOBODY 0xEE

/* What goes wrong, on one rank's thread. */
static _Thread_local int gathers, damage_at = -1, dies_at = -1;

static enum status bad_all_gather_v(struct comm *comm, const struct comm_segment *segments,
                                    int64_t timeout_ms)
{
    const int now = gathers++;
    if (now == dies_at)
        comm_gloo()->abort(comm);
    enum status st = comm_gloo()->all_gather_v(comm, segments, timeout_ms);
    if (st == ST_OK && now == damage_at) /* what came from rank 0 */
        ((uint8_t *)segments[0].data)[segments[0].size / 2] ^= 1;
    return st;
}

struct world {
    uint32_t size;
    struct {
        uint32_t rank;
        size_t bytes;
    } piece[PIECES];
    size_t piece_count;
    int damaged, damage_at; /* which rank, in which gathering; -1: none */
    int dying, dies_at;
    int odd; /* the rank that has cut the memory differently; -1: none */
    struct shared_rendezvous *shared;
    pthread_barrier_t *opened; /* who dies does so when all others are there */
};

struct one {
    const struct world *world;
    uint32_t rank;
    uint8_t *memory;
    enum status st;
    uint32_t blamed;
    int ticks;
    struct reason reason;
    pthread_t thread;
};

static uint8_t byte_of(size_t i)
{
    return (uint8_t)((i * 2654435761u) >> 13);
}

static size_t all_bytes(const struct world *world)
{
    size_t all = GAP;
    for (size_t i = 0; i < world->piece_count; i++)
        all += world->piece[i].bytes + GAP;
    return all;
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
    struct part_piece pieces[PIECES];
    size_t at = GAP;
    table.all_gather_v = bad_all_gather_v;
    gathers = 0;
    damage_at = (int)one->rank == world->damaged ? world->damage_at : -1;
    dies_at = (int)one->rank == world->dying ? world->dies_at : -1;
    for (size_t i = 0; i < world->piece_count; at += world->piece[i].bytes + GAP, i++) {
        pieces[i] = (struct part_piece){ .rank = world->piece[i].rank,
                                         .data = one->memory + at,
                                         .bytes = world->piece[i].bytes };
    }
    if ((int)one->rank == world->odd)
        pieces[0].bytes--;
    CHECK(gloo_open_rank(world->shared, (int)one->rank, (int)world->size, 60000, &comm) == ST_OK);
    (void)pthread_barrier_wait(world->opened);
    const struct part_exchange_options options = { .table = &table,
                                                   .comm = comm,
                                                   .rank = one->rank,
                                                   .size = world->size,
                                                   .pieces = pieces,
                                                   .piece_count = world->piece_count,
                                                   .tick = count_tick,
                                                   .tick_arg = &one->ticks };
    one->st = part_exchange(&options, &one->blamed, &one->reason);
    if (world->odd >= 0) /* who refuses first doesn't hang up on who hasn't heard yet */
        (void)pthread_barrier_wait(world->opened);
    if (one->st != ST_OK)
        comm_gloo()->abort(comm);
    comm_gloo()->close(comm);
    return NULL;
}

/* Each rank has its own part; all else is nobody's. */
static void fill(struct one *one)
{
    const struct world *world = one->world;
    size_t at = GAP;
    memset(one->memory, NOBODY, all_bytes(world));
    for (size_t i = 0; i < world->piece_count; at += world->piece[i].bytes + GAP, i++) {
        for (size_t k = at; world->piece[i].rank == one->rank && k < at + world->piece[i].bytes;
             k++)
            one->memory[k] = byte_of(k);
    }
}

static void run(struct world *world, struct one *ones)
{
    pthread_barrier_t opened;
    world->shared = shared_rendezvous_new();
    world->opened = &opened;
    assert_int_equal(pthread_barrier_init(&opened, NULL, world->size), 0);
    memset(ones, 0, RANKS * sizeof(*ones));
    for (uint32_t r = 0; r < world->size; r++) {
        ones[r] = (struct one){ .world = world, .rank = r, .memory = malloc(all_bytes(world)) };
        assert_non_null(ones[r].memory);
        fill(&ones[r]);
        assert_int_equal(pthread_create(&ones[r].thread, NULL, run_rank, &ones[r]), 0);
    }
    for (uint32_t r = 0; r < world->size; r++)
        assert_int_equal(pthread_join(ones[r].thread, NULL), 0);
    shared_rendezvous_free(world->shared);
    (void)pthread_barrier_destroy(&opened);
}

static void release(const struct world *world, struct one *ones)
{
    for (uint32_t r = 0; r < world->size; r++)
        free(ones[r].memory);
}

/* Everybody has all pieces, and nothing else was touched. */
static void assert_whole(const struct world *world, const struct one *ones)
{
    for (uint32_t r = 0; r < world->size; r++) {
        size_t at = 0;
        if (ones[r].st != ST_OK)
            fail_msg("rank %u: %s", r, ones[r].reason.text);
        for (size_t i = 0; i <= world->piece_count; i++) {
            for (size_t k = 0; k < GAP; k++)
                assert_int_equal(ones[r].memory[at++], NOBODY);
            for (size_t k = 0; i < world->piece_count && k < world->piece[i].bytes; k++, at++) {
                if (ones[r].memory[at] != byte_of(at))
                    fail_msg("rank %u, piece %zu, byte %zu", r, i, k);
            }
        }
    }
}

#define KIB ((size_t)1024)
#define MIB (KIB * 1024)

static void everybody_gets_the_others_parts(void **state)
{
    (void)state;
    struct world worlds[] = {
        { .size = 1, .piece = { { 0, 100 } }, .piece_count = 1 },
        { .size = 2, .piece = { { 0, 1 }, { 1, 40 * MIB + 1 } }, .piece_count = 2 },
        { .size = 3,
          .piece = { { 0, 64 * KIB }, { 0, 7 }, { 2, 25 * MIB }, { 2, 1 } },
          .piece_count = 4 }, /* one has nothing */
        { .size = 5,
          .piece = { { 0, 9 * MIB },
                     { 1, 8 * MIB },
                     { 1, 5 },
                     { 2, 13 * MIB },
                     { 3, 3 * MIB + 3 },
                     { 4, 1 } },
          .piece_count = 6 },
        { .size = 2, .piece_count = 0 },
    };
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct one ones[RANKS];
        worlds[i].damaged = worlds[i].dying = worlds[i].odd = -1;
        run(&worlds[i], ones);
        assert_whole(&worlds[i], ones);
        for (uint32_t r = 1; r < worlds[i].size; r++)
            assert_int_equal(ones[r].ticks, ones[0].ticks);
        release(&worlds[i], ones);
    }
}

/* Two parts of several rounds each. */
static struct world two_parts(void)
{
    return (struct world){ .size = 2,
                           .piece = { { 0, 40 * MIB }, { 1, 40 * MIB } },
                           .piece_count = 2,
                           .damaged = -1,
                           .dying = -1,
                           .odd = -1 };
}

/* The first gathering is the round; then each round has two, of bytes and of their hashes. */
static void what_came_damaged_is_refused_by_name(void **state)
{
    (void)state;
    for (int at = 1; at < 7; at++) {
        struct world world = two_parts();
        struct one ones[RANKS];
        world.damaged = 1;
        world.damage_at = at;
        run(&world, ones);
        assert_int_equal(ones[1].st, ST_CORRUPT);
        assert_int_equal(ones[1].blamed, 0);
        assert_non_null(strstr(ones[1].reason.text, "rank 0"));
        release(&world, ones);
    }
}

static void who_has_cut_differently_is_refused(void **state)
{
    (void)state;
    struct world world = two_parts();
    struct one ones[RANKS];
    world.odd = 1;
    run(&world, ones);
    assert_int_equal(ones[0].st, ST_INVALID);
    assert_non_null(strstr(ones[0].reason.text, "rank 1"));
    assert_int_equal(ones[1].st, ST_INVALID);
    release(&world, ones);
}

static void who_dies_is_a_peer_that_failed(void **state)
{
    (void)state;
    for (int at = 0; at < 4; at++) {
        struct world world = two_parts();
        struct one ones[RANKS];
        world.dying = 1;
        world.dies_at = at;
        run(&world, ones);
        assert_int_equal(ones[0].st, ST_PEER);
        assert_int_equal(ones[1].st, ST_STALE);
        release(&world, ones);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_gets_the_others_parts),
        cmocka_unit_test(what_came_damaged_is_refused_by_name),
        cmocka_unit_test(who_has_cut_differently_is_refused),
        cmocka_unit_test(who_dies_is_a_peer_that_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
