/* The exact reduction against a brute-force tree sum: equal bits for every spread of lanes. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

#include "comm/reducer.h"
#include "comm/reducer_order.h"
#include "comm/sum.h"
#include "common/limits.h"
#include "common/rng.h"
#include "common/tree_sum.h"
#include "tests/test.h"
#include "tests/unit/comm/comm_fixture.h"
#include "tests/unit/comm/reducer/reducer_fixture.h"

#define LANES_MAX 16
#define RANKS_MAX 5

struct world {
    int size;
    uint32_t shares[RANKS_MAX];
    struct local_hub hub;
    struct comm *comm[RANKS_MAX];
    struct reducer *reducer[RANKS_MAX];
    struct watched {
        uint32_t begun, ended; /* of a rank's exchanges */
        bool odd;              /* one began within another, or none ended */
    } watched[RANKS_MAX];
    size_t count, bucket_count;
    const size_t *bucket_begin;
};

/* The rank's communication thread; read after reducer_close. */
static void watch(void *arg, bool inside)
{
    struct watched *watched = arg;
    const bool was = watched->begun != watched->ended;
    watched->odd = watched->odd || was == inside;
    watched->begun += inside;
    watched->ended += !inside;
}

static struct reducer_options options_of(struct world *world, int rank)
{
    return (struct reducer_options){ .table = world->size > 1 ? local_comm_table() : NULL,
                                     .comm = world->comm[rank],
                                     .rank = rank,
                                     .size = world->size,
                                     .shares = world->shares,
                                     .count = world->count,
                                     .bucket_begin = world->bucket_begin,
                                     .bucket_count = world->bucket_count,
                                     .timeout_ms = 60000,
                                     .watch = { watch, &world->watched[rank] } };
}

static void open_world(struct world *world)
{
    local_hub_init(&world->hub, world->size);
    for (int r = 0; r < world->size; r++) {
        world->comm[r] = local_comm_new(&world->hub, r);
        const struct reducer_options options = options_of(world, r);
        assert_int_equal(reducer_open(&options, &world->reducer[r]), ST_OK);
    }
}

static void close_world(struct world *world)
{
    for (int r = 0; r < world->size; r++) {
        reducer_close(world->reducer[r]);
        local_comm_free(world->comm[r]);
    }
    local_hub_release(&world->hub);
    for (int r = 0; r < world->size; r++) { /* all did the same ones */
        assert_false(world->watched[r].odd);
        assert_int_equal(world->watched[r].ended, world->watched[r].begun);
        assert_int_equal(world->watched[r].begun, world->watched[0].begun);
        assert_true(world->size == 1 ? world->watched[r].begun == 0 : world->watched[r].begun > 0);
    }
}

static void fill_lanes(const struct world *world, int rank)
{
    lanes_fill(world->reducer[rank], world->shares, world->size, rank, world->count,
               world->bucket_count);
}

static void run_step(const struct world *world, const float *reference)
{
    for (int r = 0; r < world->size; r++)
        fill_lanes(world, r);
    for (int r = 0; r < world->size; r++) {
        int64_t exposed_ns = -1;
        assert_int_equal(reducer_wait(world->reducer[r], &exposed_ns), ST_OK);
        assert_true(exposed_ns >= 0);
        assert_memory_equal(reducer_sum(world->reducer[r]), reference,
                            world->count * sizeof(float));
    }
}

static void check_split(const uint32_t *shares, int size, const float *reference, size_t count)
{
    const size_t borders[] = { 0, count / 3, count / 2 };
    struct world world = { .size = size, .count = count, .bucket_count = 3 };
    world.bucket_begin = borders;
    memcpy(world.shares, shares, (size_t)size * sizeof(*shares));
    open_world(&world);
    run_step(&world, reference);
    run_step(&world, reference); /* buffers hold the last step's sums now */
    close_world(&world);
}

/* All ways to give `left` lanes to ranks [rank, size), each at least one. Returns how many. */
static int check_splits(uint32_t *shares, int rank, int size, uint32_t left, const float *reference,
                        size_t count)
{
    if (rank + 1 == size) {
        shares[rank] = left;
        check_split(shares, size, reference, count);
        return 1;
    }
    int splits = 0;
    for (uint32_t n = 1; n + (uint32_t)(size - rank - 1) <= left; n++) {
        shares[rank] = n;
        splits += check_splits(shares, rank + 1, size, left - n, reference, count);
    }
    return splits;
}

static void sums_have_equal_bits_for_every_spread_of_up_to_16_lanes_over_up_to_5_ranks(void **state)
{
    (void)state;
    const size_t count = 150;
    int splits = 0;
    for (uint32_t lanes = 1; lanes <= LANES_MAX; lanes++) {
        float *reference = lane_sums_new(lanes, count);
        for (int size = 1; size <= RANKS_MAX && size <= (int)lanes; size++) {
            uint32_t shares[RANKS_MAX];
            splits += check_splits(shares, 0, size, lanes, reference, count);
        }
        free(reference);
    }
    assert_int_equal(splits, 6884); /* sum of binomials: none was left out */
}

static void other_orders_of_the_same_values_give_other_bits(void **state)
{
    (void)state;
    /* If they didn't, the test above would prove nothing. */
    int differences = 0;
    for (size_t i = 0; i < 1000; i++) {
        float sum = 0;
        for (uint32_t lane = 0; lane < 8; lane++)
            sum += lane_value(lane, i);
        differences += sum != lane_sum(0, 8, 8, i);
    }
    assert_true(differences > 100);
}

/* ---- from one generation to the next ---- */

/* The ranks that stay go on as the first ones of the next; others are new, or gone. */
static void regroup(struct world *world, int size, const uint32_t *shares)
{
    const int before = world->size;
    for (int r = 0; r < before; r++) {
        reducer_disconnect(world->reducer[r]);
        local_comm_free(world->comm[r]);
    }
    local_hub_release(&world->hub);
    for (int r = size; r < before; r++)
        reducer_close(world->reducer[r]);
    world->size = size;
    memcpy(world->shares, shares, (size_t)size * sizeof(*shares));
    local_hub_init(&world->hub, size);
    for (int r = 0; r < size; r++) {
        world->comm[r] = local_comm_new(&world->hub, r);
        const struct reducer_options options = options_of(world, r);
        assert_int_equal(r < before ? reducer_reconnect(world->reducer[r], &options)
                                    : reducer_open(&options, &world->reducer[r]),
                         ST_OK);
    }
}

static void sums_have_equal_bits_from_one_generation_to_the_next(void **state)
{
    (void)state;
    const size_t count = 150, borders[] = { 0, 50, 75 };
    const uint32_t spreads[][RANKS_MAX] = { { 3, 3, 2 }, { 4, 4 },    { 8 },   { 1, 1, 1, 1, 4 },
                                            { 7, 1 },    { 2, 3, 3 }, { 4, 4 } };
    const int sizes[] = { 3, 2, 1, 5, 2, 3, 2 };
    float *reference = lane_sums_new(8, count);
    struct world world = { .size = 3, .count = count, .bucket_count = 3, .bucket_begin = borders };
    memcpy(world.shares, spreads[0], sizeof(world.shares));
    open_world(&world);
    run_step(&world, reference);
    for (size_t i = 1; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        regroup(&world, sizes[i], spreads[i]);
        run_step(&world, reference);
        run_step(&world, reference);
    }
    close_world(&world);
    free(reference);
}

static void buffers_stay_where_they_are(void **state)
{
    (void)state;
    const size_t count = 150, borders[] = { 0, 50, 75 };
    struct world world = {
        .size = 2, .shares = { 5, 3 }, .count = count, .bucket_count = 3, .bucket_begin = borders
    };
    float *reference = lane_sums_new(8, count), *lanes[5];
    open_world(&world);
    for (int generation = 0; generation < 3; generation++) {
        reducer_begin(world.reducer[0]);
        for (int lane = 0; lane < 5; lane++) {
            float *at = reducer_lane(world.reducer[0], 0);
            assert_true(generation == 0 || at == lanes[lane]);
            lanes[lane] = at;
            if (lane < 4)
                assert_int_equal(reducer_lane_done(world.reducer[0], 0), ST_OK);
        }
        run_step(&world, reference);
        regroup(&world, 1, (const uint32_t[]){ 8 }); /* needs more of them */
        run_step(&world, reference);
        regroup(&world, 2, (const uint32_t[]){ 5, 3 });
    }
    close_world(&world);
    free(reference);
}

static void only_the_same_vector_goes_on(void **state)
{
    (void)state;
    const size_t borders[] = { 0, 50, 75 };
    struct world world = {
        .size = 1, .shares = { 8 }, .count = 150, .bucket_count = 3, .bucket_begin = borders
    };
    open_world(&world);
    reducer_disconnect(world.reducer[0]);
    struct reducer_options options = options_of(&world, 0);
    options.count = 151;
    assert_int_equal(reducer_reconnect(world.reducer[0], &options), ST_INVALID);
    options = options_of(&world, 0);
    options.fast = true;
    assert_int_equal(reducer_reconnect(world.reducer[0], &options), ST_INVALID);
    options = options_of(&world, 0);
    options.shares = (const uint32_t[]){ 7 };
    assert_int_equal(reducer_reconnect(world.reducer[0], &options), ST_INVALID);
    options = options_of(&world, 0);
    assert_int_equal(reducer_reconnect(world.reducer[0], &options), ST_OK);
    reducer_disconnect(world.reducer[0]); /* so it may be closed, too */
    close_world(&world);
}

struct opening {
    struct shared_rendezvous *shared;
    struct comm *comm;
};

static void *open_peer(void *arg)
{
    struct opening *opening = arg;
    assert_int_equal(gloo_open_rank(opening->shared, 1, 2, 60000, &opening->comm), ST_OK);
    return NULL;
}

static void open_pair(struct comm **out)
{
    struct opening opening = { .shared = shared_rendezvous_new() };
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, open_peer, &opening), 0);
    assert_int_equal(gloo_open_rank(opening.shared, 0, 2, 60000, &out[0]), ST_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    out[1] = opening.comm;
    shared_rendezvous_free(opening.shared);
}

/* Rank 0 waits in its exchange for a peer that never comes to it. */
static void a_step_that_was_under_way_is_broken_off_and_done_again(void **state)
{
    (void)state;
    const size_t borders[] = { 0, 50, 75 };
    float *reference = lane_sums_new(8, 150);
    struct world world = {
        .size = 2, .shares = { 4, 4 }, .count = 150, .bucket_count = 3, .bucket_begin = borders
    };
    for (int generation = 0; generation < 3; generation++) {
        open_pair(world.comm);
        for (int r = 0; r < 2; r++) {
            struct reducer_options options = options_of(&world, r);
            options.table = comm_gloo();
            assert_int_equal(generation == 0 ? reducer_open(&options, &world.reducer[r])
                                             : reducer_reconnect(world.reducer[r], &options),
                             ST_OK);
        }
        run_step(&world, reference);
        fill_lanes(&world, 0);
        if (generation == 1)
            comm_gloo()->abort(world.comm[0]); /* as an order to park does */
        for (int r = 0; r < 2; r++) {
            reducer_disconnect(world.reducer[r]);
            comm_gloo()->abort(world.comm[r]);
            comm_gloo()->close(world.comm[r]);
        }
    }
    for (int r = 0; r < 2; r++)
        reducer_close(world.reducer[r]);
    free(reference);
}

static void buckets_of_many_pieces_are_cut_at_pieces_and_summed_right(void **state)
{
    (void)state;
    const size_t piece = PIECE_ELEMENTS, count = 7 * piece + 1234;
    const size_t borders[] = { 0, piece, 6 * piece };
    float *reference = lane_sums_new(3, count);
    struct world world = { .size = 2, .shares = { 2, 1 }, .count = count, .bucket_count = 3 };
    world.bucket_begin = borders;
    open_world(&world);
    run_step(&world, reference);
    close_world(&world);
    free(reference);
}

static void chunks_cover_a_bucket_and_lie_on_pieces_where_there_are_enough(void **state)
{
    (void)state;
    const size_t piece = PIECE_ELEMENTS;
    const size_t counts[] = { 1, 15, 16, 17, 1000, piece, 4 * piece, 5 * piece + 1, 100 * piece };
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (uint32_t size = 1; size <= 7; size++) {
            size_t at = 3 * piece;
            for (uint32_t r = 0; r < size; r++) {
                size_t begin = 0, end = 0;
                reducer_chunk(3 * piece, 3 * piece + counts[c], r, size, &begin, &end);
                assert_int_equal(begin, at);
                assert_true(end >= begin);
                if (counts[c] >= size * piece)
                    assert_true(begin % piece == 0 && end > begin);
                at = end;
            }
            assert_int_equal(at, 3 * piece + counts[c]);
        }
    }
}

/* ---- who carries which lanes ---- */

static uint32_t count_ones(uint32_t n)
{
    return n == 0 ? 0 : n % 2 + count_ones(n / 2);
}

/* Partial sums of rank r, which uses as many buffers as it says. */
static uint32_t count_partials(const uint32_t *lane, uint32_t n, uint32_t lanes)
{
    struct reducer_local local;
    uint32_t used = 0;
    assert_int_equal(reducer_local_init(&local, lane, n, lanes), ST_OK);
    for (uint32_t i = 0; i < n; i++)
        used = local.buffer_of[i] + 1 > used ? local.buffer_of[i] + 1 : used;
    assert_int_equal(used, reducer_gradient_buffers(n));
    const uint32_t partials = local.partial_count;
    reducer_local_release(&local);
    return partials;
}

/* What the same shares leave as ranges of lanes, one after the other. */
static uint32_t count_of_ranges(const uint32_t *shares, uint32_t size, uint32_t lanes)
{
    struct reducer_counter counter;
    uint32_t lane = 0, partials = 0;
    for (uint32_t r = 0; r < size; r++) {
        reducer_counter_init(&counter, lanes, NULL);
        for (uint32_t i = 0; i < shares[r]; i++)
            reducer_counter_push(&counter, (struct reducer_tree_node){ 0, lane++, 0 });
        partials += counter.count;
    }
    return partials;
}

static uint32_t draw(int round, uint32_t what)
{
    return rng_words(7, (uint32_t)round, what, 0, 0).word[0];
}

/* Random shares of random numbers of lanes. */
static void a_share_leaves_a_partial_sum_for_each_power_of_two(void **state)
{
    (void)state;
    uint32_t fewer = 0, more = 0;
    for (int round = 0; round < 20000; round++) {
        uint32_t shares[8], order[512], lanes = 0, sum = 0;
        bool seen[512] = { false };
        const uint32_t size = 1 + draw(round, 8) % 8;
        for (uint32_t r = 0; r < size; r++)
            lanes += shares[r] = 1 + draw(round, r) % 63;
        reducer_spread(shares, size, order);
        for (uint32_t r = 0, first = 0; r < size; first += shares[r++]) {
            for (uint32_t i = first; i < first + shares[r]; i++) {
                assert_true(order[i] < lanes && !seen[order[i]]);
                assert_true(i == first || order[i - 1] < order[i]);
                seen[order[i]] = true;
            }
            const uint32_t partials = count_partials(order + first, shares[r], lanes);
            assert_in_range(partials, 1, count_ones(shares[r]));
            sum += partials;
        }
        const uint32_t of_ranges = count_of_ranges(shares, size, lanes);
        fewer += sum < of_ranges;
        more += sum > of_ranges; /* by a node without a sibling at the end */
        assert_false(sum > of_ranges && (lanes & (lanes - 1)) == 0);
    }
    assert_true(fewer > 10000);
    assert_true(more < fewer / 10);
}

static void even_shares_of_a_power_of_two_are_ranges(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 64; n *= 2) {
        uint32_t shares[128], order[128];
        for (uint32_t r = 0; r < 128 / n; r++)
            shares[r] = n;
        reducer_spread(shares, 128 / n, order);
        for (uint32_t i = 0; i < 128; i++)
            assert_int_equal(order[i], i);
        for (uint32_t r = 0; r < 128 / n; r++)
            assert_int_equal(count_partials(order + r * n, n, 128), 1);
    }
}

/* All lanes on one rank: what its binary counter adds is the tree of common/tree_sum.h. */
static void counter_adds_in_the_order_of_the_tree(void **state)
{
    (void)state;
    for (uint32_t lanes = 1; lanes <= 300; lanes++) {
        double values[300], buffer[REDUCER_PARTIALS_MAX];
        struct reducer_local local;
        size_t added = 0;
        uint32_t order[300];
        reducer_spread(&lanes, 1, order);
        assert_int_equal(reducer_local_init(&local, order, lanes, lanes), ST_OK);
        assert_int_equal(local.partial_count, 1);
        for (uint32_t lane = 0; lane < lanes; lane++) {
            values[lane] = (double)lane_value(lane, 7);
            buffer[local.buffer_of[lane]] = values[lane];
            for (; added < local.add_begin[lane + 1]; added++)
                buffer[local.adds[added].into] += buffer[local.adds[added].from];
        }
        assert_true(buffer[local.partial[0].place] == tree_sum(values, lanes));
        reducer_local_release(&local);
    }
}

static void impossible_shares_and_buckets_are_refused(void **state)
{
    (void)state;
    const uint32_t shares[] = { 1, 0 };
    const size_t borders[] = { 0, 10, 10 };
    struct reducer *reducer = NULL;
    struct reducer_options options = { .size = 2,
                                       .shares = shares,
                                       .count = 20,
                                       .bucket_begin = borders,
                                       .bucket_count = 1,
                                       .timeout_ms = 1000 };
    assert_int_equal(reducer_open(&options, &reducer), ST_INVALID); /* an empty share */
    options.size = 1;
    options.bucket_count = 3;
    assert_int_equal(reducer_open(&options, &reducer), ST_INVALID); /* an empty bucket */
    options.bucket_count = 2;
    options.count = 10;
    assert_int_equal(reducer_open(&options, &reducer), ST_INVALID); /* begins at the end */
    options.bucket_count = 1;
    options.rank = 1;
    assert_int_equal(reducer_open(&options, &reducer), ST_INVALID);
    assert_null(reducer);
}

/* One rank adds on the step's thread, which flushes denormals; several on a thread of their own. */
static void denormals_are_zero_whatever_the_mode_of_the_thread(void **state)
{
    (void)state;
    const float tiny[3] = { 1e-40f, 3e-39f, 1.5e-38f };
    const unsigned mode = _mm_getcsr();
    for (unsigned flush = 0; flush < 2; flush++) {
        const unsigned set = (mode & ~0x8040u) | flush * 0x8040u;
        const float minus[3] = { 1e-40f, -1e-40f, -1.4e-38f };
        float out[3] = { 1, 1, 1 };
        _mm_setcsr(set);
        sum_f32(out, tiny, minus, 3);
        const unsigned after = _mm_getcsr() & 0x8040u;
        _mm_setcsr(mode);
        assert_int_equal(after, set & 0x8040u);
        assert_memory_equal(out, ((const float[3]){ 0, 0, 0 }), sizeof(out));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(denormals_are_zero_whatever_the_mode_of_the_thread),
        cmocka_unit_test(
            sums_have_equal_bits_for_every_spread_of_up_to_16_lanes_over_up_to_5_ranks),
        cmocka_unit_test(sums_have_equal_bits_from_one_generation_to_the_next),
        cmocka_unit_test(buffers_stay_where_they_are),
        cmocka_unit_test(only_the_same_vector_goes_on),
        cmocka_unit_test(a_step_that_was_under_way_is_broken_off_and_done_again),
        cmocka_unit_test(other_orders_of_the_same_values_give_other_bits),
        cmocka_unit_test(buckets_of_many_pieces_are_cut_at_pieces_and_summed_right),
        cmocka_unit_test(chunks_cover_a_bucket_and_lie_on_pieces_where_there_are_enough),
        cmocka_unit_test(a_share_leaves_a_partial_sum_for_each_power_of_two),
        cmocka_unit_test(even_shares_of_a_power_of_two_are_ranges),
        cmocka_unit_test(counter_adds_in_the_order_of_the_tree),
        cmocka_unit_test(impossible_shares_and_buckets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
