/* Ranks that have but extents of the vector: as the whole's sum there, and no memory elsewhere. */
#include <errno.h>
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
#include "common/rng.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "tests/unit/comm/reducer/reducer_fixture.h"

#define LANES       9
#define RANKS_MAX   4
#define RUNS_MAX    3
#define BUCKETS_MAX (3 * RUNS_MAX)
#define PAGE        ((size_t)1024) /* elements of a page of memory */
#define COUNT       (40 * PAGE + 123)

struct world {
    int size;
    uint32_t shares[RANKS_MAX];
    struct reducer_extent extents[RUNS_MAX];
    size_t extent_count; /* 0: all of the vector */
    size_t bucket_count, kept;
    size_t bucket_begin[BUCKETS_MAX], bucket_end[BUCKETS_MAX];
    bool even; /* borders aren't given */
    size_t borders[BUCKETS_MAX * (RANKS_MAX + 1)];
    struct local_hub hub;
    struct comm *comm[RANKS_MAX];
    struct reducer *reducer[RANKS_MAX];
};

static uint32_t draw(uint32_t round, uint32_t what, uint32_t below)
{
    return rng_below(rng_words(12, round, what, 0, 0).word[0], below);
}

/* ---- a world ---- */

static void draw_shares(struct world *world, uint32_t round)
{
    for (int r = 0; r < world->size; r++)
        world->shares[r] = 1;
    for (uint32_t lane = (uint32_t)world->size; lane < LANES; lane++)
        world->shares[draw(round, 100 + lane, (uint32_t)world->size)]++;
}

/* Between 0 and 3 pages apart, so that some follow at once and others share a page; no extents: all
 * of the vector. */
static void draw_runs(struct world *world, uint32_t round)
{
    world->extent_count = draw(round, 200, RUNS_MAX + 1);
    size_t from = 0;
    for (uint32_t i = 0; i < world->extent_count; i++) {
        from += draw(round, 210 + i, 4) * PAGE + draw(round, 220 + i, 18);
        world->extents[i] = (struct reducer_extent){ from, 1 + draw(round, 230 + i, 5 * PAGE),
                                                     draw(round, 250 + i, REDUCER_SECTIONS_MAX) };
        from += world->extents[i].count;
    }
    if (draw(round, 240, 3) == 0 && world->extent_count > 0) {
        world->extents[world->extent_count - 1].count =
            COUNT - world->extents[world->extent_count - 1].first; /* to the vector's end */
    }
}

/* Up to three in each extent; draws their chunks, too. */
static void draw_buckets(struct world *world, uint32_t round)
{
    const struct reducer_extent all = { .count = COUNT };
    world->bucket_count = 0;
    for (uint32_t i = 0; i < (world->extent_count == 0 ? 1 : world->extent_count); i++) {
        const struct reducer_extent *extent = world->extent_count == 0 ? &all : &world->extents[i];
        size_t at = extent->first;
        const size_t end = extent->first + extent->count;
        for (uint32_t k = 0; k < 3 && at < end; k++) {
            const size_t count = k == 2 ? end - at : 1 + draw(round, 300 + 3 * i + k, 3 * PAGE);
            world->bucket_begin[world->bucket_count] = at;
            at = end - at < count ? end : at + count;
            world->bucket_end[world->bucket_count++] = at;
        }
    }
    for (uint32_t b = 0; b < world->bucket_count; b++) {
        size_t *row = world->borders + b * ((size_t)world->size + 1);
        row[0] = world->bucket_begin[b];
        row[world->size] = world->bucket_end[b];
        for (uint32_t r = 1; r < (uint32_t)world->size; r++) {
            const size_t left = row[world->size] - row[r - 1];
            row[r] = row[r - 1] + draw(round, 400 + b * RANKS_MAX + r, (uint32_t)left + 1);
        }
    }
    world->even = draw(round, 500, 3) == 0;
    world->kept = draw(round, 501, (uint32_t)world->bucket_count + 1);
}

static void draw_world(struct world *world, uint32_t round)
{
    draw_shares(world, round);
    draw_runs(world, round);
    draw_buckets(world, round);
}

static struct reducer_options options_of(struct world *world, int rank)
{
    return (struct reducer_options){ .table = world->size > 1 ? local_comm_table() : NULL,
                                     .comm = world->size > 1 ? world->comm[rank] : NULL,
                                     .rank = rank,
                                     .size = world->size,
                                     .shares = world->shares,
                                     .count = COUNT,
                                     .extents = world->extent_count == 0 ? NULL : world->extents,
                                     .extent_count = world->extent_count,
                                     .bucket_begin = world->bucket_begin,
                                     .bucket_count = world->bucket_count,
                                     .borders = world->even ? NULL : world->borders,
                                     .kept = world->kept,
                                     .timeout_ms = 60000 };
}

/* Ranks [0, before) go on, the others are new. */
static void open_ranks(struct world *world, int before)
{
    local_hub_init(&world->hub, world->size);
    for (int r = 0; r < world->size; r++)
        world->comm[r] = local_comm_new(&world->hub, r);
    for (int r = 0; r < world->size; r++) {
        const struct reducer_options options = options_of(world, r);
        assert_int_equal(r < before ? reducer_reconnect(world->reducer[r], &options)
                                    : reducer_open(&options, &world->reducer[r]),
                         ST_OK);
    }
}

static void close_comms(struct world *world)
{
    for (int r = 0; r < world->size; r++)
        local_comm_free(world->comm[r]);
    local_hub_release(&world->hub);
}

static void close_world(struct world *world)
{
    for (int r = 0; r < world->size; r++)
        reducer_close(world->reducer[r]);
    close_comms(world);
}

/* To another size; what else is other is drawn by the round. */
static void regroup(struct world *world, int size, uint32_t round)
{
    const int before = world->size;
    for (int r = 0; r < before; r++)
        reducer_disconnect(world->reducer[r]);
    close_comms(world);
    for (int r = size; r < before; r++)
        reducer_close(world->reducer[r]);
    world->size = size;
    draw_world(world, round);
    open_ranks(world, before < size ? before : size);
}

/* ---- memory ---- */

/* Without touching it: Linux says EFAULT where reading would be a segmentation fault. */
static bool is_memory(const int pipe_ends[2], const float *at)
{
    char byte = 0;
    if (write(pipe_ends[1], at, 1) != 1) {
        assert_int_equal(errno, EFAULT);
        return false;
    }
    assert_int_equal(read(pipe_ends[0], &byte, 1), 1);
    return true;
}

static bool is_near_a_run(const struct world *world, size_t page)
{
    bool is_near = world->extent_count == 0;
    for (size_t i = 0; i < world->extent_count; i++) {
        const size_t end = world->extents[i].first + world->extents[i].count;
        is_near = is_near || (world->extents[i].first < (page + 1) * PAGE && end > page * PAGE);
    }
    return is_near;
}

/* Each buffer's pages are memory if an extent has something in them, and no others. Returns how
 * many are none. */
static int check_memory(const struct world *world, const float *buffer)
{
    int ends[2], gaps = 0;
    assert_int_equal(pipe(ends), 0);
    for (size_t page = 0; page * PAGE < COUNT; page++) {
        const bool is_near = is_near_a_run(world, page);
        assert_int_equal(is_memory(ends, buffer + page * PAGE), is_near);
        gaps += !is_near;
    }
    (void)close(ends[0]);
    (void)close(ends[1]);
    return gaps;
}

/* ---- a step ---- */

static bool is_in_a_bucket(const struct world *world, size_t i, size_t *bucket)
{
    for (*bucket = 0; *bucket < world->bucket_count; ++*bucket) {
        if (i >= world->bucket_begin[*bucket] && i < world->bucket_end[*bucket])
            return true;
    }
    return false;
}

static size_t section_of(const struct world *world, size_t bucket)
{
    for (size_t i = 0; i < world->extent_count; i++) {
        const struct reducer_extent *extent = &world->extents[i];
        if (world->bucket_begin[bucket] >= extent->first &&
            world->bucket_begin[bucket] < extent->first + extent->count)
            return extent->section;
    }
    return 0;
}

/* Fills the next lane of a section. false: there is no such section. */
static bool fill_lane(const struct world *world, struct reducer *reducer, uint32_t lane,
                      size_t section, int *gaps)
{
    float *buffer = reducer_lane(reducer, section);
    bool any = false;
    for (size_t b = 0; b < world->bucket_count; b++) {
        if (section_of(world, b) != section)
            continue;
        any = true;
        for (size_t i = world->bucket_begin[b]; i < world->bucket_end[b]; i++)
            buffer[i] = lane_value(lane, i);
    }
    *gaps += check_memory(world, buffer);
    return any;
}

/* Each section's lanes for themselves, in turns that differ from rank to rank. */
static void fill_lanes(const struct world *world, int rank, int *gaps)
{
    struct reducer *reducer = world->reducer[rank];
    uint32_t order[LANES], first = 0, at[REDUCER_SECTIONS_MAX] = { 0 };
    reducer_spread(world->shares, (uint32_t)world->size, order);
    for (int r = 0; r < rank; r++)
        first += world->shares[r];
    reducer_begin(reducer);
    const uint32_t own = world->shares[rank];
    for (uint32_t turn = 0; at[0] < own || at[1] < own; turn++) {
        const size_t drawn = draw((uint32_t)rank, 600 + turn, REDUCER_SECTIONS_MAX);
        const size_t s = at[drawn] < own ? drawn : 1 - drawn;
        const bool any = fill_lane(world, reducer, order[first + at[s]], s, gaps);
        if (any && at[s] + 1 < own)
            assert_int_equal(reducer_lane_done(reducer, s), ST_OK);
        at[s]++;
    }
    for (size_t b = world->bucket_count; b > 0; b--)
        reducer_bucket_done(reducer, b - 1);
}

/* Gathered buckets whole, own chunks of kept ones. */
static void check_rank(const struct world *world, int rank, const float *reference)
{
    const float *sum = reducer_sum(world->reducer[rank]);
    for (size_t b = 0; b < world->bucket_count; b++) {
        size_t begin = 0, end = 0;
        reducer_own_chunk(world->reducer[rank], b, &begin, &end);
        if (!world->even) {
            assert_int_equal(begin, world->borders[b * ((size_t)world->size + 1) + (size_t)rank]);
        } else if (rank == 0) {
            assert_int_equal(begin, world->bucket_begin[b]);
        }
        if (b >= world->kept) {
            begin = world->bucket_begin[b];
            end = world->bucket_end[b];
        }
        assert_memory_equal(sum + begin, reference + begin, (end - begin) * sizeof(float));
    }
}

static int reduce(const struct world *world, const float *reference)
{
    int gaps = 0;
    for (int r = 0; r < world->size; r++)
        fill_lanes(world, r, &gaps);
    for (int r = 0; r < world->size; r++) {
        int64_t exposed_ns = -1;
        assert_int_equal(reducer_wait(world->reducer[r], &exposed_ns), ST_OK);
    }
    for (int r = 0; r < world->size; r++)
        check_rank(world, r, reference);
    return gaps;
}

/* ---- gathering ---- */

struct gathering {
    struct reducer *reducer;
    float *data;
    size_t buckets;
};

static void *gather_rank(void *arg)
{
    struct gathering *g = arg;
    CHECK(reducer_gather(g->reducer, g->data, g->buckets) == ST_OK);
    return NULL;
}

/* Gathers: each rank gets everything of the kept buckets, and nothing beside them is touched. */
static void gather(const struct world *world)
{
    struct gathering gathering[RANKS_MAX];
    pthread_t thread[RANKS_MAX];
    for (int r = 0; r < world->size; r++) {
        float *data = calloc(COUNT, sizeof(float));
        assert_non_null(data);
        for (size_t b = 0; b < world->kept; b++) {
            size_t begin = 0, end = 0;
            reducer_own_chunk(world->reducer[r], b, &begin, &end);
            for (size_t i = begin; i < end; i++)
                data[i] = (float)(i + 1);
        }
        gathering[r] = (struct gathering){ world->reducer[r], data, world->kept };
        assert_int_equal(pthread_create(&thread[r], NULL, gather_rank, &gathering[r]), 0);
    }
    for (int r = 0; r < world->size; r++)
        assert_int_equal(pthread_join(thread[r], NULL), 0);
    for (int r = 0; r < world->size; r++) {
        for (size_t i = 0, b = 0; i < COUNT; i++) {
            const bool kept = is_in_a_bucket(world, i, &b) && b < world->kept;
            assert_true(gathering[r].data[i] == (kept ? (float)(i + 1) : 0));
        }
        free(gathering[r].data);
    }
}

static int check_steps(const struct world *world, const float *reference)
{
    int gaps = reduce(world, reference);
    gather(world);
    gaps += reduce(world, reference); /* buffers hold the last step's sums then */
    return gaps;
}

static void sums_of_runs_have_the_bits_of_the_whole_vectors(void **state)
{
    (void)state;
    float *reference = lane_sums_new(LANES, COUNT);
    int gaps = 0;
    for (uint32_t round = 0; round < 40; round++) {
        struct world world = { .size = 1 + (int)(round % RANKS_MAX) };
        draw_world(&world, round);
        open_ranks(&world, 0);
        gaps += check_steps(&world, reference);
        close_world(&world);
    }
    assert_true(gaps > 1000);
    free(reference);
}

static void ranks_go_on_with_other_runs(void **state)
{
    (void)state;
    static const int sizes[] = { 2, 4, 1, 3, 3, 1, 2 };
    float *reference = lane_sums_new(LANES, COUNT);
    for (uint32_t round = 0; round < 5; round++) {
        struct world world = { .size = 3 };
        draw_world(&world, 100 * round);
        open_ranks(&world, 0);
        (void)check_steps(&world, reference);
        for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            regroup(&world, sizes[i], 100 * round + 1 + i);
            (void)check_steps(&world, reference);
        }
        close_world(&world);
    }
    free(reference);
}

/* One rank with extents in two places, four buckets. */
static struct world two_runs(void)
{
    struct world world = { .size = 1,
                           .shares = { LANES },
                           .extents = { { 2 * PAGE, 3 * PAGE }, { 20 * PAGE + 5, 7000 } },
                           .extent_count = 2,
                           .bucket_count = 4,
                           .even = true };
    const size_t begin[] = { 2 * PAGE, 3 * PAGE + 7, 20 * PAGE + 5, 20 * PAGE + 6 };
    const size_t end[] = { 3 * PAGE + 7, 5 * PAGE, 20 * PAGE + 6, 20 * PAGE + 7005 };
    memcpy(world.bucket_begin, begin, sizeof(begin));
    memcpy(world.bucket_end, end, sizeof(end));
    return world;
}

static void buffers_stay_where_they_are_with_equal_runs(void **state)
{
    (void)state;
    struct world world = two_runs();
    float *reference = lane_sums_new(LANES, COUNT);
    open_ranks(&world, 0);
    reducer_begin(world.reducer[0]);
    const float *before = reducer_lane(world.reducer[0], 0);
    for (int generation = 0; generation < 2; generation++) {
        reducer_disconnect(world.reducer[0]);
        close_comms(&world);
        if (generation == 1) { /* other buckets of the same extents */
            world.bucket_end[0] = world.bucket_begin[1] = 4 * PAGE;
            world.bucket_end[2] = 20 * PAGE + 7005;
            world.bucket_count = 3;
        }
        open_ranks(&world, 1);
        reducer_begin(world.reducer[0]);
        assert_ptr_equal(reducer_lane(world.reducer[0], 0), before);
        assert_true(check_steps(&world, reference) > 0);
    }
    close_world(&world);
    free(reference);
}

static void touching_what_is_in_no_run_ends_the_process(void **state)
{
    (void)state;
    struct world world = two_runs();
    open_ranks(&world, 0);
    reducer_begin(world.reducer[0]);
    float *lane = reducer_lane(world.reducer[0], 0);
    const size_t outside[] = { 0, 2 * PAGE - 1, 5 * PAGE, 20 * PAGE - 1, 30 * PAGE, COUNT - 1 };
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
            *(volatile float *)(lane + outside[i]) = 1.0f;
            _exit(0);
        }
        int code = 0;
        assert_int_equal(waitpid(child, &code, 0), child);
        assert_true(WIFSIGNALED(code));
        assert_int_equal(WTERMSIG(code), SIGSEGV);
    }
    close_world(&world);
}

static void runs_that_buckets_do_not_cover_are_refused(void **state)
{
    (void)state;
    struct world good = two_runs();
    open_ranks(&good, 0);
    reducer_disconnect(good.reducer[0]);
    for (int wrong = 0; wrong < 12; wrong++) {
        struct world world = two_runs();
        struct reducer *reducer = NULL;
        struct reducer_options options = options_of(&world, 0);
        switch (wrong) {
        case 0:
            world.bucket_begin[0]++;
            break; /* an extent's begin is in no bucket */
        case 1:
            world.bucket_begin[0]--;
            break; /* a bucket begins in no extent */
        case 2:
            world.bucket_begin[2]++;
            break; /* so of the second extent */
        case 3:
            world.bucket_begin[1] = 5 * PAGE;
            break; /* behind the first extent */
        case 4:
            world.bucket_begin[3]--;
            break; /* an empty bucket */
        case 5:
            options.bucket_count = 2;
            break; /* the second extent has none */
        case 6:
            world.extents[1].count = COUNT;
            break; /* beyond the vector */
        case 7:
            world.extents[1].count = SIZE_MAX - 9;
            break; /* far beyond it */
        case 8:
            world.extents[0].count = 19 * PAGE;
            break; /* into the second */
        case 9:
            world.extents[0].count = 0;
            break; /* nothing */
        case 10:
            options.extent_count = 0;
            break; /* nothing at all */
        default:
            options.bucket_count = 0;
            break;
        }
        assert_int_equal(reducer_open(&options, &reducer), ST_INVALID);
        assert_int_equal(reducer_reconnect(good.reducer[0], &options), ST_INVALID);
        assert_null(reducer);
    }
    const struct reducer_options options = options_of(&good, 0);
    assert_int_equal(reducer_reconnect(good.reducer[0], &options), ST_OK);
    close_world(&good);
}

int main(void)
{
    (void)alarm(240);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_runs_have_the_bits_of_the_whole_vectors),
        cmocka_unit_test(ranks_go_on_with_other_runs),
        cmocka_unit_test(buffers_stay_where_they_are_with_equal_runs),
        cmocka_unit_test(touching_what_is_in_no_run_ends_the_process),
        cmocka_unit_test(runs_that_buckets_do_not_cover_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
