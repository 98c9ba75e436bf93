/* The exact reduction over NCCL (a fake one) with vectors on a device (a fake one). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exact.h"
#include "comm/exact_order.h"
#include "comm/nccl.h"
#include "common/check.h"
#include "common/limits.h"
#include "tests/gpu/fake_nccl.h"
#include "tests/test.h"
#include "tests/unit/comm/nccl_fixture.h"

#define LANES   6
#define COUNT   ((size_t)200000)
#define BUCKETS 3

struct reduction {
    uint32_t shares[NCCL_RANKS_MAX];
    bool fast;
    float result[NCCL_RANKS_MAX][COUNT];
};

static float value_of(uint32_t lane, size_t i)
{
    const uint32_t z = ((uint32_t)i * 0x9E3779B9u) ^ (lane * 0x85EBCA6Bu + 0x165667B1u);
    return (float)(int32_t)(z * 0x7feb352du) / 2147483648.0f * ((z & 7) != 0 ? 1.0f : 1024.0f);
}

static void fill_lane(struct nccl_rank *r, float *lane, uint32_t number)
{
    float *host = NULL;
    CHECK(r->table->alloc_host(r->backend, COUNT * sizeof(float), (void **)&host) == ST_OK);
    for (size_t i = 0; i < COUNT; i++)
        host[i] = value_of(number, i);
    CHECK(r->table->vector.copy(r->backend, lane, host, COUNT * sizeof(float), r->compute) ==
          ST_OK);
    CHECK(r->table->stream_sync(r->backend, r->compute) == ST_OK);
    r->table->free_host(r->backend, host);
}

static enum status reduce_body(struct nccl_rank *r)
{
    struct reduction *reduction = r->arg;
    static const size_t buckets[BUCKETS] = { 0, 65536, 131072 };
    const struct exact_options options = { .table = r->size > 1 ? comm_nccl() : NULL,
                                           .comm = r->size > 1 ? r->comm : NULL,
                                           .rank = r->rank,
                                           .size = r->size,
                                           .shares = reduction->shares,
                                           .count = COUNT,
                                           .bucket_begin = buckets,
                                           .bucket_count = BUCKETS,
                                           .timeout_ms = NCCL_LONG_MS,
                                           .fast = reduction->fast,
                                           .device = r->table,
                                           .backend = r->backend,
                                           .compute = r->compute,
                                           .communication = r->stream };
    struct exact *exact = NULL;
    CHECK(exact_open(&options, &exact) == ST_OK);
    uint32_t order[LIMIT_LANES], first = 0;
    exact_spread(reduction->shares, (uint32_t)r->size, order);
    for (int p = 0; p < r->rank; p++)
        first += reduction->shares[p];
    const uint32_t n = reduction->shares[r->rank];
    enum status st = ST_OK;
    for (int step = 0; st == ST_OK && step < 3; step++) {
        exact_begin(exact);
        for (uint32_t i = 0; st == ST_OK && i < n; i++) {
            fill_lane(r, exact_lane(exact), order[first + i]);
            if (i + 1 < n)
                st = exact_lane_done(exact);
        }
        for (size_t b = BUCKETS; b-- > 0;)
            exact_bucket_done(exact, b);
        int64_t exposed_ns = 0;
        st = exact_wait(exact, &exposed_ns);
        if (st == ST_OK) {
            st = r->table->vector.copy(r->backend, reduction->result[r->rank], exact_sum(exact),
                                       COUNT * sizeof(float), r->compute);
        }
    }
    exact_close(exact);
    return st;
}

static float *reduce(uint32_t a, uint32_t b, uint32_t c, bool fast)
{
    struct reduction *reduction = calloc(1, sizeof(*reduction));
    assert_non_null(reduction);
    const uint32_t shares[NCCL_RANKS_MAX] = { a, b, c };
    memcpy(reduction->shares, shares, sizeof(shares));
    reduction->fast = fast;
    const int size = c > 0 ? 3 : b > 0 ? 2 : 1;
    nccl_run_well(size, reduce_body, reduction);
    for (int r = 1; r < size; r++)
        assert_memory_equal(reduction->result[0], reduction->result[r], COUNT * sizeof(float));
    float *sum = malloc(COUNT * sizeof(float));
    assert_non_null(sum);
    memcpy(sum, reduction->result[0], COUNT * sizeof(float));
    free(reduction);
    return sum;
}

static void the_reduction_gives_the_same_bits_for_every_spread(void **state)
{
    (void)state;
    float *one = reduce(6, 0, 0, false);
    for (size_t i = 0; i < COUNT; i += 997) {
        const float want = ((value_of(0, i) + value_of(1, i)) + (value_of(2, i) + value_of(3, i))) +
                           (value_of(4, i) + value_of(5, i));
        assert_memory_equal(&one[i], &want, sizeof(want));
    }
    static const uint32_t spreads[][3] = { { 3, 3, 0 }, { 2, 2, 2 }, { 1, 4, 1 }, { 5, 1, 0 } };
    for (size_t s = 0; s < 4; s++) {
        float *other = reduce(spreads[s][0], spreads[s][1], spreads[s][2], false);
        assert_memory_equal(one, other, COUNT * sizeof(float));
        free(other);
    }
    free(one);
}

static void the_fast_reduction_is_nearly_the_sum(void **state)
{
    (void)state;
    const int before = fake_nccl_counts().all_reduces;
    float *exact = reduce(6, 0, 0, false);
    float *fast = reduce(3, 2, 1, true);
    assert_int_equal(fake_nccl_counts().all_reduces - before, 3 * 3 * BUCKETS);
    size_t different = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_float_equal(fast[i], exact[i], 0.01);
        different += memcmp(&fast[i], &exact[i], sizeof(float)) != 0;
    }
    assert_true(different > COUNT / 100);
    free(exact);
    free(fast);
}

static enum status left_body(struct nccl_rank *r)
{
    struct reduction *reduction = r->arg;
    static const size_t border = 0;
    const struct exact_options options = { .table = comm_nccl(),
                                           .comm = r->comm,
                                           .rank = r->rank,
                                           .size = r->size,
                                           .shares = reduction->shares,
                                           .count = COUNT,
                                           .bucket_begin = &border,
                                           .bucket_count = 1,
                                           .timeout_ms = NCCL_LONG_MS,
                                           .device = r->table,
                                           .backend = r->backend,
                                           .compute = r->compute,
                                           .communication = r->stream };
    struct exact *exact = NULL;
    CHECK(exact_open(&options, &exact) == ST_OK);
    exact_begin(exact);
    if (r->rank == 0)
        exact_bucket_done(exact, 0); /* the other never does */
    exact_close(exact);
    return ST_OK;
}

static void closing_the_reduction_amid_a_step_ends_its_thread(void **state)
{
    (void)state;
    struct nccl_rank ranks[NCCL_RANKS_MAX];
    struct reduction *reduction = calloc(1, sizeof(*reduction));
    assert_non_null(reduction);
    reduction->shares[0] = reduction->shares[1] = 1;
    nccl_run_some(ranks, 2, 2, NCCL_LONG_MS, left_body, reduction);
    assert_int_equal(ranks[0].st, ST_OK);
    assert_int_equal(fake_nccl_counts().live, 0);
    free(reduction);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reduction_gives_the_same_bits_for_every_spread),
        cmocka_unit_test(the_fast_reduction_is_nearly_the_sum),
        cmocka_unit_test(closing_the_reduction_amid_a_step_ends_its_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
