/* Workers: their lanes, how few may train, and what a running job may change of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "jobspec/jobspec.h"
#include "tests/test.h"

static const char good[] = "name: a\n"
                           "model: {arch: mlp}\n"
                           "data: {train: {format: synthetic}}\n"
                           "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n";

static void parse_good(const char *const *sets, size_t set_count, struct jobspec *out)
{
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    const enum status st =
        jobspec_parse(good, strlen(good), "job.yaml", "/base", sets, set_count, out, &errors);
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
        assert_int_equal(jobspec_shares(cases[i].lanes, cases[i].count, shares), ST_OK);
        for (int64_t w = 0; w < cases[i].count; w++)
            assert_int_equal(shares[w], cases[i].shares[w]);
    }
    uint32_t one = 0;
    assert_int_equal(jobspec_shares(2, 3, &one), ST_INVALID);
    assert_int_equal(jobspec_shares(LIMIT_LANES + 1, 1, &one), ST_INVALID);
}

static void any_lanes_on_any_workers_are_all_given_out(void **state)
{
    (void)state;
    static uint32_t shares[LIMIT_RANKS];
    for (int64_t lanes = 1; lanes <= 70; lanes++) {
        for (int64_t count = 1; count <= lanes; count++) {
            assert_int_equal(jobspec_shares(lanes, count, shares), ST_OK);
            int64_t sum = 0;
            for (int64_t w = 0; w < count; w++) {
                assert_in_range(shares[w], lanes / count, lanes / count + 1);
                sum += shares[w];
            }
            assert_int_equal(sum, lanes);
        }
    }
    assert_int_equal(jobspec_shares(LIMIT_LANES, LIMIT_RANKS - 1, shares), ST_OK);
}

static void other_numbers_of_workers_than_the_files_share_evenly(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    static const char *const sets[] = { "train.lanes=4", "workers={shares: [1, 3]}" };
    parse_good(sets, 2, job);
    struct jobspec_layout layout;
    assert_int_equal(jobspec_layout_of(job, 2, &layout), ST_OK);
    assert_int_equal(layout.stage_count, 1);
    assert_int_equal(layout.workers[0], 2);
    assert_int_equal(layout.shares[0], 1);
    assert_int_equal(layout.shares[1], 3);
    assert_int_equal(jobspec_layout_of(job, 1, &layout), ST_OK);
    assert_int_equal(layout.shares[0], 4);
    assert_int_equal(jobspec_layout_of(job, 3, &layout), ST_OK);
    assert_int_equal(layout.shares[0], 2);
    assert_int_equal(jobspec_layout_of(job, 0, &layout), ST_INVALID);
    assert_int_equal(jobspec_layout_of(job, 5, &layout), ST_INVALID);
}

/* ---- pipelines ---- */

static void a_pipeline_has_workers_for_each_stage(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    static const char *const plain[] = { "parallel.pipeline=3" };
    parse_good(plain, 1, job);
    assert_int_equal(job->workers.count, 3);
    assert_int_equal(job->parallel.schedule, JOBSPEC_PIPELINE_1F1B);
    assert_int_equal(job->parallel.pipeline.stages, 3);
    assert_int_equal(job->audit.every, 0);
    assert_int_equal(job->audit.checksum, 100);
    assert_int_equal(job->workers.shares[2], 8);
    assert_true(jobspec_shares_even(job));
    assert_int_equal(jobspec_workers_most(job), 24);
    static const char *const cut[] = { "parallel={pipeline: [5, 9], schedule: gpipe}",
                                       "workers.count=6" };
    parse_good(cut, 2, job);
    assert_int_equal(job->parallel.schedule, JOBSPEC_PIPELINE_GPIPE);
    for (int s = 0; s < 3; s++)
        assert_int_equal(job->parallel.stages[s], 2);
    assert_int_equal(job->parallel.pipeline.first_node[0], 0);
    assert_int_equal(job->parallel.pipeline.first_node[1], 5);
    assert_int_equal(job->parallel.pipeline.first_node[2], 9);
    static const char *const wide[] = { "parallel={stages: [{shares: [7, 1]}, {workers: 1}]}" };
    parse_good(wide, 1, job);
    assert_int_equal(job->workers.count, 3);
    assert_int_equal(job->parallel.pipeline.stages, 2);
    assert_false(jobspec_shares_even(job));
    static const char *const one[] = { "parallel={pipeline: 1, schedule: gpipe}" };
    parse_good(one, 1, job);
    assert_int_equal(job->parallel.schedule, JOBSPEC_PIPELINE_NONE);
    assert_int_equal(job->parallel.pipeline.stages, 1);
    assert_int_equal(job->audit.every, 200);
}

/* Checks that the shares of each stage are all lanes, and that the first nodes fit the number of
 * stages. */
static void check_layout(const struct jobspec *job, int64_t workers,
                         const struct jobspec_layout *layout)
{
    uint32_t rank = 0;
    for (uint32_t s = 0; s < layout->stage_count; s++) {
        int64_t lanes = 0;
        assert_in_range(layout->workers[s], 1, job->train.lanes);
        for (uint32_t w = 0; w < layout->workers[s]; w++, rank++) {
            assert_in_range(layout->shares[rank], 1, job->train.lanes);
            lanes += layout->shares[rank];
        }
        assert_int_equal(lanes, job->train.lanes);
        if (s > 0 && job->parallel.pipeline.first_node[1] > 0)
            assert_true(layout->first_node[s] > layout->first_node[s - 1]);
    }
    assert_int_equal(layout->first_node[0], 0);
    assert_int_equal(rank, workers);
}

static void any_number_of_workers_has_a_layout(void **state)
{
    (void)state;
    static const struct {
        const char *sets[3];
        const char *widths[13]; /* by the number of workers; NULL: only legal */
    } cases[] = {
        { { "parallel.pipeline=2", "workers.count=4" },
          { "", "1", "1 1", "2 1", "2 2", "3 2", "3 3", "4 3", "4 4", "5 4", "5 5", "6 5",
            "6 6" } },
        { { "parallel.pipeline=[7, 20, 41]" },
          { "", "1", "1 1", "1 1 1", "1 1 1 1", "2 1 1 1", "2 2 1 1", "2 2 2 1", "2 2 2 2",
            "3 2 2 2", "3 3 2 2", "3 3 3 2", "3 3 3 3" } },
        { { "parallel={stages: [{workers: 3}, {workers: 1}]}" },
          { "", "1", "1 1", "2 1", "3 1", "4 1", "5 1", "6 1", "6 2", "7 2", "8 2", "8 3",
            "8 4" } },
        { { "parallel={stages: [{shares: [1, 7]}, {shares: [2, 3, 3]}, {workers: 1}]}" },
          { "", "1", "1 1", "1 1 1", "1 2 1", "2 2 1", "2 3 1" } },
        { { "workers.count=3" }, { "", "1", "2", "3", "4", "5", "6", "7", "8" } },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t sets = 0;
        while (cases[i].sets[sets] != NULL)
            sets++;
        parse_good(cases[i].sets, sets, job);
        const int64_t most = jobspec_workers_most(job);
        assert_int_equal(most, 8 * job->parallel.pipeline.stages);
        for (int64_t workers = 1; workers <= most; workers++) {
            struct jobspec_layout layout, again;
            char widths[64] = "";
            size_t used = 0;
            assert_int_equal(jobspec_layout_of(job, workers, &layout), ST_OK);
            check_layout(job, workers, &layout);
            assert_int_equal(jobspec_layout_with(job, layout.workers, layout.stage_count, &again),
                             ST_OK);
            assert_memory_equal(&layout, &again, sizeof(layout));
            if (workers > 12 || cases[i].widths[workers] == NULL)
                continue;
            for (uint32_t s = 0; s < layout.stage_count; s++) {
                used += (size_t)snprintf(widths + used, sizeof(widths) - used, "%s%u",
                                         s > 0 ? " " : "", layout.workers[s]);
            }
            assert_string_equal(widths, cases[i].widths[workers]);
        }
        struct jobspec_layout layout;
        assert_int_equal(jobspec_layout_of(job, 0, &layout), ST_INVALID);
        assert_int_equal(jobspec_layout_of(job, most + 1, &layout), ST_INVALID);
    }
}

static void the_wish_is_as_the_file_says(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    static const char *const sets[] = {
        "parallel={pipeline: [7, 20, 41], stages: [{shares: [1, 7]}, {workers: 1}, {workers: 3}, "
        "{shares: [3, 5]}]}"
    };
    static const uint32_t shares[] = { 1, 7, 8, 3, 3, 2, 3, 5 };
    static const uint32_t wider[] = { 1, 2, 3, 2 };
    static const uint32_t none[] = { 1, 0, 3, 2 }, many[] = { 1, 9, 3, 2 };
    struct jobspec_layout layout;
    parse_good(sets, 1, job);
    assert_int_equal(jobspec_layout_of(job, 8, &layout), ST_OK);
    assert_memory_equal(layout.shares, shares, sizeof(shares));
    assert_int_equal(layout.first_node[3], 41);
    /* A stage as wide as the file says has its shares. */
    static const uint32_t shares_wider[] = { 8, 4, 4, 3, 3, 2, 3, 5 };
    assert_int_equal(jobspec_layout_with(job, wider, 4, &layout), ST_OK);
    assert_memory_equal(layout.shares, shares_wider, sizeof(shares_wider));
    assert_int_equal(jobspec_layout_with(job, none, 4, &layout), ST_INVALID);
    assert_int_equal(jobspec_layout_with(job, many, 4, &layout), ST_INVALID);
    assert_int_equal(jobspec_layout_with(job, wider, 5, &layout), ST_INVALID);
    assert_int_equal(jobspec_layout_with(job, wider, 0, &layout), ST_INVALID);
    /* With two stages the second begins in the middle. */
    assert_int_equal(jobspec_layout_of(job, 2, &layout), ST_OK);
    assert_int_equal(layout.first_node[1], 20);
    assert_int_equal(jobspec_layout_of(job, 3, &layout), ST_OK);
    assert_int_equal(layout.first_node[1], 7);
    assert_int_equal(layout.first_node[2], 20);
}

static void fewer_workers_are_for_who_asks_for_them(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
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
    struct jobspec_change change;
    const char *const plain[] = { "workers.count=3" };
    assert_int_equal(jobspec_parse_change(plain, 1, &change, &errors), ST_OK);
    assert_int_equal(change.workers, 3);
    const char *const last[] = { "workers.count=3", "workers={count: 5}" };
    assert_int_equal(jobspec_parse_change(last, 2, &change, &errors), ST_OK);
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
          "set:1:7: train.lanes can't be changed in a job that was submitted\n  "
          "train.lanes=8\n"
          "        ^~~~~\n  workers.count can; with other values submit another job\n" },
        { { "workers.cuont=3" },
          "set:1:9: unknown key 'cuont' in workers\n  workers.cuont=3\n          ^~~~~\n"
          "  did you mean 'count'?\n" },
        { { "num_workers=3" },
          "set:1:1: unknown key 'num_workers'\n  num_workers=3\n  ^~~~~~~~~~~\n"
          "  did you mean 'workers.count'?\n" },
        { { "lr=0.1" },
          "set:1:1: unknown key 'lr'\n  lr=0.1\n  ^~\n"
          "  workers.count can; with other values submit another job\n" },
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
        struct jobspec_change change;
        size_t count = 0;
        while (count < 3 && cases[i].sets[count] != NULL)
            count++;
        assert_int_equal(jobspec_parse_change(cases[i].sets, count, &change, &errors), ST_CONFIG);
        assert_string_equal(errors.data, cases[i].errors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_even_and_the_first_ones_larger),
        cmocka_unit_test(any_lanes_on_any_workers_are_all_given_out),
        cmocka_unit_test(other_numbers_of_workers_than_the_files_share_evenly),
        cmocka_unit_test(a_pipeline_has_workers_for_each_stage),
        cmocka_unit_test(any_number_of_workers_has_a_layout),
        cmocka_unit_test(the_wish_is_as_the_file_says),
        cmocka_unit_test(fewer_workers_are_for_who_asks_for_them),
        cmocka_unit_test(the_number_of_workers_can_be_changed),
        cmocka_unit_test(other_changes_are_refused_with_a_way_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
