/* Workers: their lanes, how few may train, and what a running job may change of them. */
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "job/job.h"
#include "tests/test.h"

static const char good[] = "name: a\n"
                           "model: {arch: mlp}\n"
                           "data: {train: {format: synthetic}}\n"
                           "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n";

static void parse_good(const char *const *sets, size_t set_count, struct job *out)
{
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    const enum status st =
        job_parse(good, strlen(good), "job.yaml", "/base", sets, set_count, out, &errors);
    if (st != ST_OK)
        fail_msg("%s", errors.size > 0 ? errors.data : status_string(st));
}

static void shares_are_even_and_the_first_ones_larger(void **state)
{
    (void)state;
    static const struct {
        int64_t lanes, count;
        uint32_t shares[8];
    } cases[] = {
        { 4, 3, { 2, 1, 1 } }, { 4, 2, { 2, 2 } },
        { 8, 3, { 3, 3, 2 } }, { 8, 5, { 2, 2, 2, 1, 1 } },
        { 5, 2, { 3, 2 } },    { 6, 4, { 2, 2, 1, 1 } },
        { 1, 1, { 1 } },       { 7, 3, { 3, 2, 2 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t shares[8] = { 0 };
        assert_int_equal(job_shares(cases[i].lanes, cases[i].count, shares), ST_OK);
        for (int64_t w = 0; w < cases[i].count; w++)
            assert_int_equal(shares[w], cases[i].shares[w]);
    }
    uint32_t one = 0;
    assert_int_equal(job_shares(2, 3, &one), ST_INVALID);
    assert_int_equal(job_shares(LIMIT_LANES + 1, 1, &one), ST_INVALID);
}

static void any_lanes_on_any_workers_are_all_given_out(void **state)
{
    (void)state;
    static uint32_t shares[LIMIT_RANKS];
    for (int64_t lanes = 1; lanes <= 70; lanes++) {
        for (int64_t count = 1; count <= lanes; count++) {
            assert_int_equal(job_shares(lanes, count, shares), ST_OK);
            int64_t sum = 0;
            for (int64_t w = 0; w < count; w++) {
                assert_in_range(shares[w], lanes / count, lanes / count + 1);
                sum += shares[w];
            }
            assert_int_equal(sum, lanes);
        }
    }
    assert_int_equal(job_shares(LIMIT_LANES, LIMIT_RANKS - 1, shares), ST_OK);
}

static void other_numbers_of_workers_than_the_files_share_evenly(void **state)
{
    (void)state;
    struct job *job auto_free = calloc(1, sizeof(*job));
    static const char *const sets[] = { "train.lanes=4", "workers={shares: [1, 3]}" };
    parse_good(sets, 2, job);
    struct job_layout layout;
    assert_int_equal(job_layout_of(job, 2, &layout), ST_OK);
    assert_int_equal(layout.stage_count, 1);
    assert_int_equal(layout.workers[0], 2);
    assert_int_equal(layout.shares[0], 1);
    assert_int_equal(layout.shares[1], 3);
    assert_int_equal(job_layout_of(job, 1, &layout), ST_OK);
    assert_int_equal(layout.shares[0], 4);
    assert_int_equal(job_layout_of(job, 3, &layout), ST_OK);
    assert_int_equal(layout.shares[0], 2);
    assert_int_equal(job_layout_of(job, 0, &layout), ST_INVALID);
    assert_int_equal(job_layout_of(job, 5, &layout), ST_INVALID);
}

static void fewer_workers_are_for_who_asks_for_them(void **state)
{
    (void)state;
    struct job *job auto_free = calloc(1, sizeof(*job));
    static const char *const three[] = { "workers.count=3" };
    parse_good(three, 1, job);
    assert_int_equal(job->workers.min, 3);
    assert_int_equal(job->workers.spares, 0);
    static const char *const asked[] = { "workers={shares: [3, 5], min: 1, spares: 2}" };
    parse_good(asked, 1, job);
    assert_int_equal(job->workers.count, 2);
    assert_int_equal(job->workers.min, 1);
    assert_int_equal(job->workers.spares, 2);
    static const char *const fast[] = { "workers={count: 2, min: 2, spares: 1, device: cuda}",
                                        "parallel.reduction=fast" };
    parse_good(fast, 2, job);
}

/* ---- changes of a running job ---- */

static void the_number_of_workers_can_be_changed(void **state)
{
    (void)state;
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    struct job_change change;
    const char *const plain[] = { "workers.count=3" };
    assert_int_equal(job_parse_change(plain, 1, &change, &errors), ST_OK);
    assert_int_equal(change.workers, 3);
    const char *const last[] = { "workers.count=3", "workers={count: 5}" };
    assert_int_equal(job_parse_change(last, 2, &change, &errors), ST_OK);
    assert_int_equal(change.workers, 5);
    assert_int_equal(errors.size, 0);
}

static void other_changes_are_refused_with_a_way_out(void **state)
{
    (void)state;
    static const struct {
        const char *sets[3], *errors;
    } cases[] = {
        { { NULL }, "set:1:1: nothing is to be changed\n  write workers.count=NUMBER\n" },
        { { "train.lanes=8" },
          "set:1:7: train.lanes can't be changed in a running job\n  train.lanes=8\n"
          "        ^~~~~\n  workers.count can; with other values submit another job\n" },
        { { "workers.cuont=3" },
          "set:1:9: unknown key 'cuont' in workers\n  workers.cuont=3\n          ^~~~~\n"
          "  did you mean 'count'?\n" },
        { { "num_workers=3" },
          "set:1:1: unknown key 'num_workers'\n  num_workers=3\n  ^~~~~~~~~~~\n"
          "  did you mean 'workers.count'?\n" },
        { { "workers.count=0" },
          "set:1:15: workers.count can't be 0\n  workers.count=0\n                ^\n"
          "  write a number from 1 to 1024\n" },
        { { "workers.count=3", "nonsense" },
          "set:2:1: a setting is key=value\n  nonsense\n  ^~~~~~~~\n"
          "  write it as in train.global_batch=64\n" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        auto_buf struct buf errors;
        buf_init(&errors, 1 << 20);
        struct job_change change;
        size_t count = 0;
        while (count < 3 && cases[i].sets[count] != NULL)
            count++;
        assert_int_equal(job_parse_change(cases[i].sets, count, &change, &errors), ST_CONFIG);
        assert_string_equal(errors.data, cases[i].errors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_even_and_the_first_ones_larger),
        cmocka_unit_test(any_lanes_on_any_workers_are_all_given_out),
        cmocka_unit_test(other_numbers_of_workers_than_the_files_share_evenly),
        cmocka_unit_test(fewer_workers_are_for_who_asks_for_them),
        cmocka_unit_test(the_number_of_workers_can_be_changed),
        cmocka_unit_test(other_changes_are_refused_with_a_way_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
