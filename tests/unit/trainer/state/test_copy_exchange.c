/* Which rank holds whose copies: always one on another node, and the burden is even. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "trainer/state/copy_exchange.h"
#include "trainer/state/copy_peers.h"

#define RANKS 64

/* ---- allocations and threads of our own objects, of which one fails ---- */

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg);

static int allocations, fails_at = -1; /* counted from 0 */
static bool no_thread;

void *__wrap_calloc(size_t count, size_t size)
{
    return allocations++ == fails_at ? NULL : __real_calloc(count, size);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg)
{
    return no_thread ? EAGAIN : __real_pthread_create(thread, attributes, run, arg);
}

/* ---- who with whom ---- */

struct world {
    char names[RANKS][16];
    char *nodes[RANKS];
    uint32_t size;
};

/* Rank r is on node of[r]. */
static void place(struct world *world, const uint32_t *of, uint32_t size)
{
    world->size = size;
    for (uint32_t r = 0; r < size; r++) {
        (void)snprintf(world->names[r], sizeof(world->names[r]), "node-%u", (unsigned)of[r]);
        world->nodes[r] = world->names[r];
    }
}

static uint32_t on_node_of(const struct world *world, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < world->size; r++)
        count += strcmp(world->nodes[r], world->nodes[rank]) == 0;
    return count;
}

/* Every rank has a copy peer on another node; none has more peers than it must. */
static void check(const struct world *world)
{
    uint32_t copy_peers[RANKS], largest = 0, peer_copies = 0;
    assert_int_equal(copy_peers_choose(world->nodes, world->size, copy_peers), ST_OK);
    for (uint32_t r = 0; r < world->size; r++) {
        assert_true(copy_peers[r] < world->size);
        assert_string_not_equal(world->nodes[r], world->nodes[copy_peers[r]]);
        const uint32_t here = on_node_of(world, r);
        largest = here > largest ? here : largest;
    }
    const uint32_t resume = world->size - largest;
    const uint32_t most = largest <= resume ? 1 : (largest + resume - 1) / resume;
    for (uint32_t r = 0; r < world->size; r++) {
        const uint32_t own = copy_peers_count(copy_peers, world->size, r);
        assert_true(own <= most);
        peer_copies += own;
    }
    assert_int_equal(peer_copies, world->size);
}

static void ranks_of_two_equal_nodes_hold_each_others(void **unused)
{
    (void)unused;
    struct world world;
    uint32_t copy_peers[RANKS];
    place(&world, (const uint32_t[]){ 0, 0, 1, 1 }, 4);
    assert_int_equal(copy_peers_choose(world.nodes, 4, copy_peers), ST_OK);
    const uint32_t expected[] = { 2, 3, 0, 1 };
    assert_memory_equal(copy_peers, expected, sizeof(expected));
}

static void every_placing_of_six_ranks_gives_each_a_partner_elsewhere(void **unused)
{
    (void)unused;
    for (uint32_t code = 0; code < 4 * 4 * 4 * 4 * 4 * 4; code++) {
        uint32_t of[6], resume = code;
        bool several = false;
        for (uint32_t r = 0; r < 6; r++, resume /= 4) {
            of[r] = resume % 4;
            several = several || of[r] != of[0];
        }
        struct world world;
        place(&world, of, 6);
        if (several)
            check(&world);
    }
}

static void many_ranks_on_uneven_nodes_have_partners_elsewhere(void **unused)
{
    (void)unused;
    uint64_t seed = 7;
    for (int round = 0; round < 2000; round++) {
        uint32_t of[RANKS] = { 0 };
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint32_t size = 2 + (uint32_t)(seed >> 33) % (RANKS - 1);
        for (uint32_t r = 1; r < size; r++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            of[r] = (uint32_t)(seed >> 33) % 9 % (1 + (uint32_t)round % 5);
        }
        of[size - 1] = 9; /* at least two nodes */
        struct world world;
        place(&world, of, size);
        check(&world);
    }
}

static void ranks_of_one_node_have_none(void **unused)
{
    (void)unused;
    struct world world;
    uint32_t copy_peers[RANKS];
    place(&world, (const uint32_t[]){ 3, 3, 3 }, 3);
    assert_int_equal(copy_peers_choose(world.nodes, 3, copy_peers), ST_NOT_FOUND);
    assert_int_equal(copy_peers_choose(world.nodes, 1, copy_peers), ST_NOT_FOUND);
}

static void rounds_take_a_fiftieth_of_the_time_however_long_they_are(void **unused)
{
    (void)unused;
    for (int64_t round_ns = 1; round_ns < INT64_C(1000000000000); round_ns = round_ns * 3 + 1)
        assert_int_equal(round_ns + copy_exchange_pause_ns(round_ns), 50 * round_ns);
    assert_int_equal(copy_exchange_pause_ns(0), 0);
}

static void without_memory_or_a_thread_there_is_no_exchange_and_nothing_is_left(void **unused)
{
    (void)unused;
    const uint32_t copy_peers[] = { 1, 0 };
    const struct session_assignment assignment = { .rank = 0, .size = 2 };
    const struct copy_exchange_options options = { .assignment = &assignment,
                                                   .copy_peers = copy_peers };
    struct copy_exchange *exchange = NULL;
    int tries = 0;
    no_thread = true;
    for (bool failed = true; failed; tries++) {
        allocations = 0;
        fails_at = tries;
        assert_int_equal(copy_exchange_open(&options, &exchange), ST_NO_MEMORY);
        failed = allocations > tries; /* else it was the thread that was missing */
    }
    assert_true(tries > 2);
    assert_null(exchange);
    uint32_t out[2];
    char *nodes[] = { "a", "b" };
    allocations = 0;
    fails_at = 0;
    assert_int_equal(copy_peers_choose(nodes, 2, out), ST_NO_MEMORY);
    fails_at = -1;
    no_thread = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_two_equal_nodes_hold_each_others),
        cmocka_unit_test(every_placing_of_six_ranks_gives_each_a_partner_elsewhere),
        cmocka_unit_test(many_ranks_on_uneven_nodes_have_partners_elsewhere),
        cmocka_unit_test(ranks_of_one_node_have_none),
        cmocka_unit_test(without_memory_or_a_thread_there_is_no_exchange_and_nothing_is_left),
        cmocka_unit_test(rounds_take_a_fiftieth_of_the_time_however_long_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
