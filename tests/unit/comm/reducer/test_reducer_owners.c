/* Sums that stay with their owners, and what the owners gather. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/reducer.h"
#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/rng.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "tests/unit/comm/reducer/reducer_fixture.h"

#define LANES       9
#define RANKS_MAX   5
#define BUCKETS_MAX 4
#define LONG_MS     60000

struct world {
    const struct comm_table *table;
    int size;
    bool fast;
    uint32_t shares[RANKS_MAX];
    size_t count, bucket_count, kept;
    size_t bucket_begin[BUCKETS_MAX + 1]; /* count follows the last */
    bool even;                            /* borders aren't given */
    size_t borders[BUCKETS_MAX * (RANKS_MAX + 1)];
    struct local_hub hub;
    struct comm *comm[RANKS_MAX];
    struct reducer *reducer[RANKS_MAX];
    float *data[RANKS_MAX]; /* [count] what is gathered */
};

static uint32_t draw(uint32_t round, uint32_t what, uint32_t below)
{
    return rng_below(rng_words(11, round, what, 0, 0).word[0], below);
}

/* ---- a world ---- */

/* Each at least one lane. */
static void draw_shares(struct world *world, uint32_t round)
{
    for (int r = 0; r < world->size; r++)
        world->shares[r] = 1;
    for (uint32_t lane = (uint32_t)world->size; lane < LANES; lane++)
        world->shares[draw(round, 100 + lane, (uint32_t)world->size)]++;
}

static void draw_buckets(struct world *world, uint32_t round)
{
    world->count = 40 + draw(round, 0, 160);
    world->bucket_count = 1 + draw(round, 1, BUCKETS_MAX);
    for (uint32_t b = 1; b < world->bucket_count; b++)
        world->bucket_begin[b] = world->bucket_begin[b - 1] + 1 + draw(round, 2 + b, 9);
    world->bucket_begin[world->bucket_count] = world->count;
}

/* Anywhere; often two at one place, so that a chunk is empty. */
static void draw_borders(struct world *world, uint32_t round)
{
    const size_t size = (size_t)world->size;
    for (uint32_t b = 0; b < world->bucket_count; b++) {
        size_t *row = world->borders + b * (size + 1);
        const size_t end = world->bucket_begin[b + 1];
        row[0] = world->bucket_begin[b];
        for (uint32_t r = 1; r < size; r++) {
            const uint32_t what = 200 + b * RANKS_MAX + r, left = (uint32_t)(end - row[r - 1]);
            const bool empty = draw(round, what + 50, 2) == 0;
            row[r] = row[r - 1] + (empty ? 0 : draw(round, what, left + 1));
        }
        row[size] = end;
    }
}

static struct reducer_options options_of(struct world *world, int rank)
{
    return (struct reducer_options){ .table = world->size > 1 ? world->table : NULL,
                                     .comm = world->size > 1 ? world->comm[rank] : NULL,
                                     .rank = rank,
                                     .size = world->size,
                                     .shares = world->shares,
                                     .count = world->count,
                                     .bucket_begin = world->bucket_begin,
                                     .bucket_count = world->bucket_count,
                                     .borders = world->even ? NULL : world->borders,
                                     .kept = world->kept,
                                     .timeout_ms = LONG_MS,
                                     .fast = world->fast };
}

struct opening {
    struct shared_rendezvous *shared;
    int rank, size;
    struct comm *comm;
};

static void *open_gloo_rank(void *arg)
{
    struct opening *o = arg;
    CHECK(gloo_open_rank(o->shared, o->rank, o->size, LONG_MS, &o->comm) == ST_OK);
    return NULL;
}

static void open_gloo(struct world *world)
{
    struct opening opening[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    struct shared_rendezvous *shared = shared_rendezvous_new();
    for (int r = 0; r < world->size; r++) {
        opening[r] = (struct opening){ .shared = shared, .rank = r, .size = world->size };
        assert_int_equal(pthread_create(&thread[r], NULL, open_gloo_rank, &opening[r]), 0);
    }
    for (int r = 0; r < world->size; r++) {
        assert_int_equal(pthread_join(thread[r], NULL), 0);
        world->comm[r] = opening[r].comm;
    }
    shared_rendezvous_free(shared);
}

static void open_comms(struct world *world)
{
    if (world->table == comm_gloo()) {
        open_gloo(world);
        return;
    }
    local_hub_init(&world->hub, world->size);
    for (int r = 0; r < world->size; r++)
        world->comm[r] = local_comm_new(&world->hub, r);
}

static void close_comms(struct world *world)
{
    for (int r = 0; r < world->size; r++) {
        if (world->table == comm_gloo()) {
            comm_gloo()->abort(
                world->comm[r]); /* one thread can't close them one after the other */
            comm_gloo()->close(world->comm[r]);
        } else {
            local_comm_free(world->comm[r]);
        }
    }
    if (world->table != comm_gloo())
        local_hub_release(&world->hub);
}

static void open_world(struct world *world)
{
    open_comms(world);
    for (int r = 0; r < world->size; r++) {
        const struct reducer_options options = options_of(world, r);
        assert_int_equal(reducer_open(&options, &world->reducer[r]), ST_OK);
        world->data[r] = malloc(world->count * sizeof(float));
        assert_non_null(world->data[r]);
    }
}

static void close_rank(struct world *world, int rank)
{
    reducer_close(world->reducer[rank]);
    free(world->data[rank]);
}

static void close_world(struct world *world)
{
    for (int r = 0; r < world->size; r++)
        close_rank(world, r);
    close_comms(world);
}

/* ---- a step ---- */

static void fill_lanes(const struct world *world, int rank)
{
    lanes_fill(world->reducer[rank], world->shares, world->size, rank, world->count,
               world->bucket_count);
}

static void reduce(const struct world *world)
{
    for (int r = 0; r < world->size; r++)
        fill_lanes(world, r);
    for (int r = 0; r < world->size; r++) {
        int64_t exposed_ns = -1;
        assert_int_equal(reducer_wait(world->reducer[r], &exposed_ns), ST_OK);
    }
}

static void check_own(const struct world *world, int rank, size_t bucket, const float *reference)
{
    size_t begin = 0, end = 0;
    reducer_own_chunk(world->reducer[rank], bucket, &begin, &end);
    if (world->even) {
        size_t want_begin = 0, want_end = 0;
        reducer_chunk(world->bucket_begin[bucket], world->bucket_begin[bucket + 1], (uint32_t)rank,
                      (uint32_t)world->size, &want_begin, &want_end);
        assert_int_equal(begin, want_begin);
        assert_int_equal(end, want_end);
    } else {
        const size_t *row = world->borders + bucket * ((size_t)world->size + 1);
        assert_int_equal(begin, row[rank]);
        assert_int_equal(end, row[rank + 1]);
    }
    const float *sum = reducer_sum(world->reducer[rank]);
    assert_memory_equal(sum + begin, reference + begin, (end - begin) * sizeof(float));
}

/* Own chunks have the bits of the tree sum, and of what is gathered all has. */
static void check_sums(const struct world *world, const float *reference)
{
    const size_t from = world->bucket_begin[world->kept];
    for (int r = 0; r < world->size; r++) {
        for (size_t b = 0; b < world->bucket_count; b++)
            check_own(world, r, b, reference);
        assert_memory_equal(reducer_sum(world->reducer[r]) + from, reference + from,
                            (world->count - from) * sizeof(float));
    }
}

/* ---- gathering ---- */

static float parameter(size_t i)
{
    return lane_value(77, i);
}

struct gathering {
    struct reducer *reducer;
    float *data;
    size_t buckets;
    enum status st;
};

static void *gather_rank(void *arg)
{
    struct gathering *g = arg;
    g->st = reducer_gather(g->reducer, g->data, g->buckets);
    return NULL;
}

/* Every rank has its own chunks, and elsewhere what tells that it was left alone. */
static void fill_own(const struct world *world, int rank)
{
    for (size_t i = 0; i < world->count; i++)
        world->data[rank][i] = -5000.0f - (float)rank;
    for (size_t b = 0; b < world->bucket_count; b++) {
        size_t begin = 0, end = 0;
        reducer_own_chunk(world->reducer[rank], b, &begin, &end);
        for (size_t i = begin; i < end; i++)
            world->data[rank][i] = parameter(i);
    }
}

static void gather(const struct world *world, size_t buckets)
{
    struct gathering gathering[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    for (int r = 0; r < world->size; r++) {
        fill_own(world, r);
        gathering[r] = (struct gathering){ world->reducer[r], world->data[r], buckets, ST_STALE };
        assert_int_equal(pthread_create(&thread[r], NULL, gather_rank, &gathering[r]), 0);
    }
    for (int r = 0; r < world->size; r++) {
        assert_int_equal(pthread_join(thread[r], NULL), 0);
        assert_int_equal(gathering[r].st, ST_OK);
    }
}

static void check_gathered(const struct world *world, size_t buckets)
{
    gather(world, buckets);
    const size_t end = world->bucket_begin[buckets];
    for (int r = 0; r < world->size; r++) {
        for (size_t i = 0; i < end; i++) {
            const float want = parameter(i);
            assert_memory_equal(&world->data[r][i], &want, sizeof(want));
        }
        for (size_t b = buckets; b < world->bucket_count; b++) {
            size_t own = 0, own_end = 0;
            reducer_own_chunk(world->reducer[r], b, &own, &own_end);
            for (size_t i = world->bucket_begin[b]; i < world->bucket_begin[b + 1]; i++) {
                const bool is_own = i >= own && i < own_end;
                assert_true(world->data[r][i] == (is_own ? parameter(i) : -5000.0f - (float)r));
            }
        }
    }
}

static void check_steps(struct world *world, const float *reference)
{
    for (int step = 0; step < 2; step++) { /* buffers hold the last step's sums then */
        reduce(world);
        check_sums(world, reference);
        check_gathered(world, world->kept);
    }
    check_gathered(world, world->bucket_count);
    reduce(world);
    check_sums(world, reference);
}

static void owners_have_the_bits_of_the_gathered_sum_and_gather_what_is_theirs(void **state)
{
    (void)state;
    float *reference = lane_sums_new(LANES, 200);
    int empty = 0;
    for (uint32_t round = 0; round < 300; round++) {
        struct world world = { .table = local_comm_table(),
                               .size = 1 + (int)(round % RANKS_MAX),
                               .even = round % 7 == 0 };
        draw_shares(&world, round);
        draw_buckets(&world, round);
        draw_borders(&world, round);
        world.kept = draw(round, 900, 3) == 0 ? world.bucket_count
                                              : draw(round, 901, (uint32_t)world.bucket_count + 1);
        for (size_t i = 0; i < world.bucket_count * ((size_t)world.size + 1) - 1; i++)
            empty += world.borders[i] == world.borders[i + 1];
        open_world(&world);
        check_steps(&world, reference);
        close_world(&world);
    }
    assert_true(empty > 300);
    free(reference);
}

/* ---- from one generation to the next ---- */

static void reconnect(struct world *world, int size, uint32_t round)
{
    const int before = world->size;
    for (int r = 0; r < before; r++)
        reducer_disconnect(world->reducer[r]);
    close_comms(world);
    for (int r = size; r < before; r++)
        close_rank(world, r);
    world->size = size;
    draw_shares(world, round);
    draw_borders(world, round);
    world->kept = draw(round, 901, (uint32_t)world->bucket_count + 1);
    open_comms(world);
    for (int r = 0; r < size; r++) {
        const struct reducer_options options = options_of(world, r);
        if (r < before) {
            assert_int_equal(reducer_reconnect(world->reducer[r], &options), ST_OK);
            continue;
        }
        assert_int_equal(reducer_open(&options, &world->reducer[r]), ST_OK);
        world->data[r] = malloc(world->count * sizeof(float));
        assert_non_null(world->data[r]);
    }
}

static void other_owners_go_on_in_the_next_generation(void **state)
{
    (void)state;
    float *reference = lane_sums_new(LANES, 200);
    for (uint32_t round = 0; round < 20; round++) {
        struct world world = { .table = local_comm_table(), .size = 3, .kept = 1 };
        const int sizes[] = { 2, 5, 1, 4, 3 };
        draw_shares(&world, round);
        draw_buckets(&world, round);
        draw_borders(&world, round);
        open_world(&world);
        check_steps(&world, reference);
        for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            reconnect(&world, sizes[i], 1000 + 10 * round + i);
            check_steps(&world, reference);
        }
        close_world(&world);
    }
    free(reference);
}

/* Two ranks, two buckets. */
static struct world pair_of(const struct comm_table *table, const size_t borders[6])
{
    struct world world = {
        .table = table, .size = 2, .shares = { 5, 4 }, .count = 100, .bucket_count = 2, .kept = 1
    };
    world.bucket_begin[1] = 40;
    world.bucket_begin[2] = 100;
    memcpy(world.borders, borders, 6 * sizeof(*borders));
    return world;
}

static void borders_that_do_not_cover_the_buckets_are_refused(void **state)
{
    (void)state;
    static const size_t good[6] = { 0, 40, 40, 40, 70, 100 };
    static const struct {
        size_t at, value;
    } wrong[] = { { 0, 1 },   { 1, 41 }, { 2, 39 }, { 2, 41 }, { 3, 39 },
                  { 4, 101 }, { 4, 39 }, { 5, 99 }, { 5, 101 } };
    struct world world = pair_of(local_comm_table(), good);
    open_world(&world);
    reducer_disconnect(world.reducer[0]);
    for (size_t i = 0; i <= sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct reducer *reducer = NULL;
        struct world other = pair_of(local_comm_table(), good);
        if (i < sizeof(wrong) / sizeof(wrong[0])) {
            other.borders[wrong[i].at] = wrong[i].value;
        } else {
            other.kept = 3;
        }
        const struct reducer_options options = options_of(&other, 0);
        assert_int_equal(reducer_open(&options, &reducer), ST_INVALID);
        assert_int_equal(reducer_reconnect(world.reducer[0], &options), ST_INVALID);
    }
    const struct reducer_options options = options_of(&world, 0);
    assert_int_equal(reducer_reconnect(world.reducer[0], &options), ST_OK);
    float *reference = lane_sums_new(LANES, world.count);
    check_steps(&world, reference);
    free(reference);
    close_world(&world);
}

/* ---- over Gloo ---- */

static uint64_t sent_bytes(const struct world *world)
{
    uint64_t sum = 0;
    for (int r = 0; r < world->size; r++) {
        struct comm_traffic traffic;
        comm_gloo()->traffic(world->comm[r], &traffic);
        sum += traffic.sent_bytes;
    }
    return sum;
}

static struct world large_world(int size, bool kept)
{
    struct world world = { .table = comm_gloo(), .size = size, .count = 60000, .bucket_count = 3 };
    world.bucket_begin[1] = 7000;
    world.bucket_begin[2] = 59900;
    world.bucket_begin[3] = world.count;
    world.kept = kept ? 2 : 0;
    draw_shares(&world, 5);
    draw_borders(&world, 5);
    world.even = !kept;
    return world;
}

static void reducing_and_gathering_move_no_more_bytes_than_before(void **state)
{
    (void)state;
    for (int size = 2; size <= RANKS_MAX; size++) {
        /* Each rank has as many partial sums; otherwise, with random borders, the bytes would
         * depend on who owns much. */
        struct world whole = large_world(size, false), kept = large_world(size, true);
        for (int r = 0; r < size; r++)
            whole.shares[r] = kept.shares[r] = 1;
        open_world(&whole);
        reduce(&whole);
        const uint64_t before = sent_bytes(&whole);
        close_world(&whole);
        open_world(&kept);
        reduce(&kept);
        const uint64_t left = sent_bytes(&kept);
        gather(&kept, kept.kept);
        const uint64_t after = sent_bytes(&kept);
        close_world(&kept);
        assert_true((double)left < 0.51 * (double)before);
        assert_true((double)after < 1.02 * (double)before);
        assert_true((double)after > 0.98 * (double)before);
    }
}

static void the_fast_reduction_leaves_nothing_with_owners(void **state)
{
    (void)state;
    struct world world = large_world(3, true);
    world.fast = true;
    float *reference = lane_sums_new(LANES, world.count);
    open_world(&world);
    reduce(&world);
    for (int r = 0; r < 3; r++) {
        for (size_t i = 0; i < world.count; i++)
            assert_float_equal(reducer_sum(world.reducer[r])[i], reference[i], 0.01);
    }
    check_gathered(&world, world.kept);
    close_world(&world);
    free(reference);
}

/* ---- a rank that dies ---- */

/* The last rank dies when the first bucket is gathered. Exit code 0: ST_PEER, and not by time. */
static int dying_body(struct world *world, struct comm *comm, int rank)
{
    world->comm[rank] = comm;
    const struct reducer_options options = options_of(world, rank);
    CHECK(reducer_open(&options, &world->reducer[rank]) == ST_OK);
    fill_lanes(world, rank);
    int64_t exposed_ns = 0;
    CHECK(reducer_wait(world->reducer[rank], &exposed_ns) == ST_OK);
    float *data = calloc(world->count, sizeof(float));
    CHECK(data != NULL);
    const bool dies = rank + 1 == world->size;
    const enum status st = reducer_gather(world->reducer[rank], data, dies ? 1 : 2);
    if (dies)
        (void)raise(SIGKILL);
    const bool timed_out = strstr(comm_gloo()->why(comm), "Timed out") != NULL;
    reducer_close(world->reducer[rank]);
    free(data);
    return st == ST_PEER && !timed_out ? 0 : 1;
}

static void a_death_amid_gathering_is_noticed_by_all(void **state)
{
    (void)state;
    struct world world = large_world(3, true);
    world.even = true; /* nobody's chunk is empty */
    struct shared_rendezvous *shared = shared_rendezvous_new();
    pid_t child[3];
    for (int r = 0; r < 3; r++) {
        child[r] = fork();
        assert_true(child[r] >= 0);
        if (child[r] > 0)
            continue;
        struct comm *comm = NULL;
        if (gloo_open_rank(shared, r, 3, LONG_MS, &comm) != ST_OK)
            _exit(100);
        const int code = dying_body(&world, comm, r);
        comm_gloo()->close(comm);
        _exit(code);
    }
    for (int r = 0; r < 3; r++) {
        int code = -1;
        assert_int_equal(waitpid(child[r], &code, 0), child[r]);
        assert_true(r == 2 ? WIFSIGNALED(code) : WIFEXITED(code) && WEXITSTATUS(code) == 0);
    }
    shared_rendezvous_free(shared);
}

int main(void)
{
    (void)alarm(240); /* a rank that could not open leaves the others waiting */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_have_the_bits_of_the_gathered_sum_and_gather_what_is_theirs),
        cmocka_unit_test(other_owners_go_on_in_the_next_generation),
        cmocka_unit_test(borders_that_do_not_cover_the_buckets_are_refused),
        cmocka_unit_test(reducing_and_gathering_move_no_more_bytes_than_before),
        cmocka_unit_test(the_fast_reduction_leaves_nothing_with_owners),
        cmocka_unit_test(a_death_amid_gathering_is_noticed_by_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
