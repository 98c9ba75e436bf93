/* The journal: what was committed comes back, what is bounded stays so. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/journal/journal.h"
#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"

static bool count_jobs(void *arg, const struct journal_job *job)
{
    (void)job;
    (*(int *)arg)++;
    return true;
}

static void put_job(struct journal_files *f, const char *id, int64_t seq)
{
    struct journal_job job = {
        .id = id, .name = "name", .seq = seq, .job_file = "a: 1\n", .pins = "", .state = "{}"
    };
    assert_int_equal(journal_put_job(f->journal, &job), ST_OK);
}

static void what_was_committed_survives_and_what_was_not_does_not(void **state)
{
    struct journal_files *f = *state;
    int count = 0;
    assert_int_equal(journal_begin(f->journal), ST_OK);
    put_job(f, "j-1", 1);
    assert_int_equal(journal_commit(f->journal), ST_OK);
    assert_int_equal(journal_begin(f->journal), ST_OK);
    put_job(f, "j-2", 2);
    journal_reopen(f); /* in the middle of a transaction */
    assert_int_equal(journal_each_job(f->journal, count_jobs, &count), ST_OK);
    assert_int_equal(count, 1);
}

static void a_frozen_journal_commits_nothing(void **state)
{
    struct journal_files *f = *state;
    int count = 0;
    journal_freeze(f->journal);
    assert_int_equal(journal_begin(f->journal), ST_OK);
    put_job(f, "j-1", 1);
    assert_int_equal(journal_commit(f->journal), ST_OK);
    journal_reopen(f);
    assert_int_equal(journal_each_job(f->journal, count_jobs, &count), ST_OK);
    assert_int_equal(count, 0);
}

static void a_second_coordinator_is_kept_out(void **state)
{
    struct journal_files *f = *state;
    struct journal *second;
    assert_int_equal(journal_open(f->path, &second), ST_EXISTS);
}

static bool take_save(void *arg, const struct journal_save *save)
{
    struct journal_save *out = arg;
    *out = *save;
    assert_int_equal(save->manifest_size, 5);
    assert_memory_equal(save->manifest, "bytes", 5);
    assert_string_equal(save->digest, "0123");
    return true;
}

static bool count_reports(void *arg, uint32_t rank, const void *report, size_t size)
{
    int *count = arg;
    assert_int_equal(size, 3);
    assert_memory_equal(report, rank == 0 ? "abc" : "def", 3);
    (*count)++;
    return true;
}

static void the_decision_comes_back_with_its_manifest_and_reports(void **state)
{
    struct journal_files *f = *state;
    struct journal_save row = { .step = 50,
                                .generation = 3,
                                .state = FSM_SAVE_COMMITTING,
                                .wall_ms = 7,
                                .manifest = "bytes",
                                .manifest_size = 5,
                                .digest = "0123",
                                .bytes = 10,
                                .raw_bytes = 20,
                                .shards = 2 };
    assert_int_equal(journal_begin(f->journal), ST_OK);
    assert_int_equal(journal_put_save(f->journal, "j-1", &row), ST_OK);
    assert_int_equal(journal_put_report(f->journal, "j-1", 50, 3, 0, "abc", 3), ST_OK);
    assert_int_equal(journal_put_report(f->journal, "j-1", 50, 3, 1, "def", 3), ST_OK);
    assert_int_equal(journal_commit(f->journal), ST_OK);
    journal_reopen(f);
    struct journal_save back = { 0 };
    int reports = 0;
    assert_int_equal(journal_each_save(f->journal, "j-1", take_save, &back), ST_OK);
    assert_int_equal(back.step, 50);
    assert_int_equal(back.generation, 3);
    assert_int_equal(back.state, FSM_SAVE_COMMITTING);
    assert_int_equal(back.raw_bytes, 20);
    assert_int_equal(journal_each_report(f->journal, "j-1", 50, 3, count_reports, &reports), ST_OK);
    assert_int_equal(reports, 2);
    assert_int_equal(journal_drop_save(f->journal, "j-1", 50, 3), ST_OK);
    reports = 0;
    assert_int_equal(journal_each_report(f->journal, "j-1", 50, 3, count_reports, &reports), ST_OK);
    assert_int_equal(reports, 0);
}

static bool count_events(void *arg, const struct journal_event *event)
{
    uint64_t *newest = arg;
    assert_true(event->step > newest[0] || newest[1] == 0);
    newest[0] = event->step;
    newest[1]++;
    return true;
}

static void events_are_bounded_and_come_oldest_first(void **state)
{
    struct journal_files *f = *state;
    assert_int_equal(journal_begin(f->journal), ST_OK);
    for (uint64_t i = 1; i <= LIMIT_EVENTS_PER_JOB + 500; i++) {
        struct journal_event event = { .step = i, .kind = "k", .message = "m" };
        assert_int_equal(journal_put_event(f->journal, "j-1", &event), ST_OK);
    }
    assert_int_equal(journal_commit(f->journal), ST_OK);
    uint64_t newest[2] = { 0, 0 };
    assert_int_equal(journal_each_event(f->journal, "j-1", 1u << 30, count_events, newest), ST_OK);
    assert_int_equal(newest[0], LIMIT_EVENTS_PER_JOB + 500);
    assert_in_range(newest[1], LIMIT_EVENTS_PER_JOB, LIMIT_EVENTS_PER_JOB + 100);
    newest[0] = newest[1] = 0;
    assert_int_equal(journal_each_event(f->journal, "j-1", 5, count_events, newest), ST_OK);
    assert_int_equal(newest[1], 5);
}

struct metrics {
    uint64_t count, evals, last;
};

static bool count_metrics(void *arg, uint64_t step, const void *row, size_t size)
{
    struct metrics *m = arg;
    (void)size;
    m->count++;
    m->evals += memcmp(row, "eval", 4) == 0;
    m->last = step;
    return true;
}

static void metrics_are_thinned_but_evaluations_and_the_newest_stay(void **state)
{
    struct journal_files *f = *state;
    const uint64_t all = 100000;
    assert_int_equal(journal_begin(f->journal), ST_OK);
    for (uint64_t i = 1; i <= all; i++) {
        bool eval = i % 1001 == 0;
        assert_int_equal(
            journal_put_metrics(f->journal, "j-1",
                                &(struct journal_metric){ i, eval, eval ? "eval" : "loss", 4 }, 1),
            ST_OK);
    }
    assert_int_equal(journal_commit(f->journal), ST_OK);
    struct metrics m = { 0 };
    assert_int_equal(journal_each_metric(f->journal, "j-1", 0, UINT32_MAX, count_metrics, &m),
                     ST_OK);
    assert_true(m.count <= LIMIT_METRIC_ROWS);
    assert_int_equal(m.evals, all / 1001);
    assert_int_equal(m.last, all);
    uint64_t step = 0;
    assert_int_equal(journal_metric_back(f->journal, "j-1", 100, &step), ST_OK);
    assert_int_equal(step, all - 99);
    assert_int_equal(journal_metric_back(f->journal, "j-2", 100, &step), ST_NOT_FOUND);
}

static bool count_low(void *arg, uint64_t step, const void *row, size_t size)
{
    uint64_t *count = arg;
    (void)row;
    (void)size;
    *count += step < 3600;
    return step < 3600;
}

/* The job has rows beyond those that came last: no more of these go than of others that are as
 * old. */
static void rows_of_a_job_that_went_far_back_are_thinned_like_others(void **state)
{
    struct journal_files *f = *state;
    static struct journal_metric rows[500];
    assert_int_equal(journal_begin(f->journal), ST_OK);
    for (uint64_t i = 0; i < 65000; i += 500) {
        for (uint64_t j = 0; j < 500; j++)
            rows[j] = (struct journal_metric){ 1000000 + 16 * (i + j), false, "loss", 4 };
        assert_int_equal(journal_put_metrics(f->journal, "j-1", rows, 500), ST_OK);
    }
    for (uint64_t i = 1; i < 20000; i += 500) {
        for (uint64_t j = 0; j < 500; j++)
            rows[j] = (struct journal_metric){ i + j, false, "loss", 4 };
        assert_int_equal(journal_put_metrics(f->journal, "j-1", rows, 500), ST_OK);
    }
    assert_int_equal(journal_commit(f->journal), ST_OK);
    uint64_t low = 0;
    assert_int_equal(journal_each_metric(f->journal, "j-1", 0, UINT32_MAX, count_low, &low), ST_OK);
    assert_true(low > 50);
}

static void a_row_of_a_repeated_step_takes_the_place_of_the_older(void **state)
{
    struct journal_files *f = *state;
    struct metrics m = { 0 };
    assert_int_equal(
        journal_put_metrics(f->journal, "j-1", &(struct journal_metric){ 5, false, "loss", 4 }, 1),
        ST_OK);
    assert_int_equal(
        journal_put_metrics(f->journal, "j-1", &(struct journal_metric){ 5, true, "eval", 4 }, 1),
        ST_OK);
    assert_int_equal(journal_each_metric(f->journal, "j-1", 0, 10, count_metrics, &m), ST_OK);
    assert_int_equal(m.count, 1);
    assert_int_equal(m.evals, 1);
}

static void put_rows(struct journal_files *f, uint64_t first, uint64_t last, const char *text)
{
    struct journal_metric rows[64];
    size_t count = 0;
    for (uint64_t step = last; step + 1 > first; step--) { /* as they don't come, but may */
        const bool eval = step % 10 == 0;
        rows[count++] = (struct journal_metric){ step, eval, text, 4 };
    }
    assert_int_equal(journal_put_metrics(f->journal, "j-1", rows, count), ST_OK);
}

struct steps {
    uint64_t next; /* the step that comes */
    char text[128];
};

static bool take_step(void *arg, uint64_t step, const void *row, size_t size)
{
    struct steps *steps = arg;
    assert_int_equal(step, steps->next);
    assert_int_equal(size, 4);
    steps->next++;
    steps->text[step] = *(const char *)row;
    return true;
}

static bool take_newest(void *arg, uint64_t step, const void *row, size_t size)
{
    (void)row;
    (void)size;
    *(uint64_t *)arg = step;
    return true;
}

/* A restart goes back, to the middle of a block, and ends in the middle of another. */
static void rows_that_come_again_split_the_blocks_that_have_them(void **state)
{
    struct journal_files *f = *state;
    for (uint64_t first = 0; first < 60; first += 20)
        put_rows(f, first, first + 19, "aaaa");
    put_rows(f, 15, 44, "bbbb");
    put_rows(f, 44, 44, "cccc");
    struct steps steps = { .next = 0 };
    assert_int_equal(journal_each_metric(f->journal, "j-1", 0, 1000, take_step, &steps), ST_OK);
    assert_int_equal(steps.next, 60);
    for (uint64_t step = 0; step < 60; step++)
        assert_int_equal(steps.text[step], step == 44 ? 'c' : step < 15 || step > 44 ? 'a' : 'b');
    steps.next = 42; /* from within a block */
    assert_int_equal(journal_each_metric(f->journal, "j-1", 42, 3, take_step, &steps), ST_OK);
    assert_int_equal(steps.next, 45);
    static const struct {
        uint32_t n;
        uint64_t step;
    } back[] = { { 1, 59 }, { 15, 45 }, { 16, 44 }, { 17, 43 }, { 60, 0 }, { 100, 0 } };
    for (size_t i = 0; i < sizeof(back) / sizeof(back[0]); i++) {
        uint64_t step = 77;
        assert_int_equal(journal_metric_back(f->journal, "j-1", back[i].n, &step), ST_OK);
        assert_int_equal(step, back[i].step);
    }
    static const uint64_t evals[][2] = { { 59, 50 }, { 50, 50 }, { 49, 40 }, { 19, 10 }, { 9, 0 } };
    for (size_t i = 0; i < sizeof(evals) / sizeof(evals[0]); i++) {
        uint64_t step = 77;
        assert_int_equal(journal_last_eval(f->journal, "j-1", evals[i][0], take_newest, &step),
                         ST_OK);
        assert_int_equal(step, evals[i][1]);
    }
}

static void keys_are_remembered(void **state)
{
    struct journal_files *f = *state;
    char what[32];
    assert_int_equal(journal_get_key(f->journal, "k", what, sizeof(what)), ST_NOT_FOUND);
    assert_int_equal(journal_put_key(f->journal, "k", "j-1", 5), ST_OK);
    assert_int_equal(journal_get_key(f->journal, "k", what, sizeof(what)), ST_OK);
    assert_string_equal(what, "j-1");
}

static bool count_ckpts(void *arg, const struct fsm_ckpt *ckpt)
{
    (void)ckpt;
    (*(int *)arg)++;
    return true;
}

static bool count_generations(void *arg, const struct journal_generation *row)
{
    (void)row;
    (*(int *)arg)++;
    return true;
}

static bool count_saves(void *arg, const struct journal_save *save)
{
    (void)save;
    (*(int *)arg)++;
    return true;
}

static bool take_generation(void *arg, const struct journal_generation *row)
{
    size_t *count = arg;
    static const char *const texts[] = { "", "two", "three, done" };
    assert_int_equal(row->generation, *count + 1);
    assert_string_equal(row->recovery, texts[*count]);
    assert_int_equal(row->restore_step, *count == 2 ? 30 : 0);
    (*count)++;
    return true;
}

/* The one that is looked for; becomes 0. */
static bool is_generation(void *arg, const struct journal_generation *row)
{
    assert_int_equal(row->generation, *(uint32_t *)arg);
    *(uint32_t *)arg = 0;
    return true;
}

static bool take_recovery(void *arg, uint32_t generation, const char *recovery)
{
    *(uint32_t *)arg = *(uint32_t *)arg * 10 + generation;
    assert_string_equal(recovery, generation == 3 ? "three, done" : "two");
    return true;
}

static void a_generation_has_how_its_job_came_to_it(void **state)
{
    struct journal_files *f = *state;
    static const char *const texts[] = { "", "two", "three" };
    for (uint32_t g = 1; g <= 3; g++) {
        struct journal_generation row = { .generation = g, .nodes = "n", .recovery = texts[g - 1] };
        assert_int_equal(journal_put_generation(f->journal, "j-1", &row), ST_OK);
    }
    assert_int_equal(journal_put_recovery(f->journal, "j-1", 3, 30, "three, done"), ST_OK);
    journal_reopen(f);
    size_t count = 0;
    assert_int_equal(journal_each_generation(f->journal, "j-1", 9, take_generation, &count), ST_OK);
    assert_int_equal(count, 3);
    uint32_t seen = 0;
    assert_int_equal(journal_each_recovery(f->journal, "j-1", 64, take_recovery, &seen), ST_OK);
    assert_int_equal(seen, 23); /* the first has none */
    seen = 0;
    assert_int_equal(journal_each_recovery(f->journal, "j-1", 1, take_recovery, &seen), ST_OK);
    assert_int_equal(seen, 3); /* the newest */
}

static void a_job_that_goes_on_keeps_its_newest_generations(void **state)
{
    struct journal_files *f = *state;
    const uint32_t all = 3 * LIMIT_GENERATIONS;
    assert_int_equal(journal_begin(f->journal), ST_OK);
    for (uint32_t g = 1; g <= all; g++) {
        struct journal_generation row = { .generation = g, .nodes = "n", .recovery = "" };
        assert_int_equal(journal_put_generation(f->journal, "j-1", &row), ST_OK);
    }
    assert_int_equal(journal_commit(f->journal), ST_OK);
    int count = 0;
    assert_int_equal(journal_each_generation(f->journal, "j-1", all, count_generations, &count),
                     ST_OK);
    assert_in_range(count, LIMIT_GENERATIONS, LIMIT_GENERATIONS + 100);
    count = 0;
    assert_int_equal(journal_each_generation(f->journal, "j-1", 5, count_generations, &count),
                     ST_OK);
    assert_int_equal(count, 5);
    uint32_t one = all - 1000;
    assert_int_equal(journal_get_generation(f->journal, "j-1", one, is_generation, &one), ST_OK);
    assert_int_equal(one, 0);
    assert_int_equal(journal_get_generation(f->journal, "j-1", 1, is_generation, &one), ST_OK);
    assert_int_equal(one, 0); /* it is gone */
}

/* A row of the job in every table. */
static void put_everywhere(struct journal_files *f, const char *id, int64_t seq)
{
    struct journal *journal = f->journal;
    struct journal_event event = { .step = 1, .kind = "k", .message = "m" };
    struct journal_generation generation = { .generation = 1, .nodes = "n", .recovery = "" };
    struct journal_save save = { .step = 5, .generation = 1, .digest = "" };
    struct fsm_ckpt ckpt = { .step = 4, .generation = 1, .state = FSM_CKPT_GOOD };
    put_job(f, id, seq);
    assert_int_equal(journal_put_event(journal, id, &event), ST_OK);
    assert_int_equal(journal_put_generation(journal, id, &generation), ST_OK);
    assert_int_equal(journal_put_save(journal, id, &save), ST_OK);
    assert_int_equal(journal_put_report(journal, id, 5, 1, 0, "abc", 3), ST_OK);
    assert_int_equal(journal_put_ckpt(journal, id, &ckpt), ST_OK);
    assert_int_equal(
        journal_put_metrics(journal, id, &(struct journal_metric){ 1, false, "loss", 4 }, 1),
        ST_OK);
    assert_int_equal(journal_put_key(journal, id, id, 5), ST_OK);
}

/* How many rows of the job there are; -1: not one in each table, and not none. */
static int rows_of(struct journal_files *f, const char *id)
{
    struct journal *journal = f->journal;
    int n[6] = { 0 };
    uint64_t events[2] = { 0, 0 };
    struct metrics metrics = { 0 };
    char what[32];
    assert_int_equal(journal_each_event(journal, id, 10, count_events, events), ST_OK);
    assert_int_equal(journal_each_generation(journal, id, 9, count_generations, &n[0]), ST_OK);
    assert_int_equal(journal_each_save(journal, id, count_saves, &n[1]), ST_OK);
    assert_int_equal(journal_each_report(journal, id, 5, 1, count_reports, &n[2]), ST_OK);
    assert_int_equal(journal_each_ckpt(journal, id, count_ckpts, &n[3]), ST_OK);
    assert_int_equal(journal_each_metric(journal, id, 0, 10, count_metrics, &metrics), ST_OK);
    n[4] = journal_get_key(journal, id, what, sizeof(what)) == ST_OK;
    n[5] = (int)metrics.count;
    int all = (int)events[1];
    for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++)
        all += n[i];
    return all == 0 || all == 7 ? all : -1;
}

static void a_forgotten_job_leaves_no_row_in_any_table(void **state)
{
    struct journal_files *f = *state;
    int count = 0;
    put_everywhere(f, "j-1", 1);
    put_everywhere(f, "j-2", 2);
    assert_int_equal(rows_of(f, "j-1"), 7);
    assert_int_equal(journal_forget_job(f->journal, "j-1"), ST_OK);
    struct journal_tidied done = { .more = true };
    while (done.more)
        assert_int_equal(journal_tidy(f->journal, &done), ST_OK);
    assert_int_equal(rows_of(f, "j-1"), 0);
    assert_int_equal(rows_of(f, "j-2"), 7);
    assert_int_equal(journal_each_job(f->journal, count_jobs, &count), ST_OK);
    assert_int_equal(count, 1);
}

struct drain_seen {
    int count;
    int64_t until_ms;
};

static bool see_drain(void *arg, const char *node, const char *reason, int64_t until_ms)
{
    struct drain_seen *seen = arg;
    assert_string_equal(node, "a");
    assert_string_equal(reason, "disks");
    seen->count++;
    seen->until_ms = until_ms;
    return true;
}

/* -1: it is not drained. */
static int64_t deadline_of(struct journal_files *f)
{
    struct drain_seen seen = { 0 };
    assert_int_equal(journal_each_drain(f->journal, see_drain, &seen), ST_OK);
    return seen.count == 0 ? -1 : seen.until_ms;
}

/* An older version ran in between, which knows of drains, but not of their deadlines. */
static void a_deadline_is_of_the_drain_that_it_came_with(void **state)
{
    static const char drain[] = "INSERT OR REPLACE INTO drains(node,reason) VALUES('a','disks')";
    struct journal_files *f = *state;
    assert_int_equal(journal_put_drain(f->journal, "a", "disks", 77), ST_OK);
    assert_int_equal(deadline_of(f), 77);
    journal_edit(f->path, drain); /* anew */
    assert_int_equal(deadline_of(f), 0);
    assert_int_equal(journal_put_drain(f->journal, "a", "disks", 78), ST_OK);
    assert_int_equal(journal_put_drain(f->journal, "a", "disks", 79), ST_OK);
    journal_reopen(f);
    assert_int_equal(deadline_of(f), 79);
    journal_edit(f->path, "DELETE FROM drains WHERE node='a'");
    assert_int_equal(deadline_of(f), -1);
    journal_edit(f->path, drain);
    assert_int_equal(deadline_of(f), 0);
    assert_int_equal(journal_put_drain(f->journal, "a", "disks", 80), ST_OK);
    assert_int_equal(journal_drop_drain(f->journal, "a"), ST_OK);
    assert_int_equal(deadline_of(f), -1);
}

/* The file is on another disk, with its WAL; both are for its owner only. */
static void a_journal_may_be_a_link(void **state)
{
    static const char *const ends[] = { "", "-wal", "-shm" };
    struct journal_files *f = *state;
    struct stat stat_of;
    char disk[80], name[96];
    int count = 0;
    journal_close(f->journal);
    (void)snprintf(disk, sizeof(disk), "%s/disk.db", f->dir);
    assert_int_equal(rename(f->path, disk), 0);
    assert_int_equal(chmod(disk, 0644), 0);
    assert_int_equal(symlink("disk.db", f->path), 0);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    assert_int_equal(journal_begin(f->journal), ST_OK);
    put_job(f, "j-1", 1);
    assert_int_equal(journal_commit(f->journal), ST_OK);
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof(name), "%s%s", disk, ends[i]);
        assert_int_equal(stat(name, &stat_of), 0);
        assert_int_equal(stat_of.st_mode & 0777, 0600);
    }
    assert_false(journal_is_exposed(f->journal));
    journal_reopen(f);
    assert_int_equal(journal_each_job(f->journal, count_jobs, &count), ST_OK);
    assert_int_equal(count, 1);
    journal_close(f->journal);
    f->journal = NULL;
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(rename(disk, f->path), 0);
    (void)snprintf(name, sizeof(name), "%s-wal", disk);
    (void)unlink(name);
    (void)snprintf(name, sizeof(name), "%s-shm", disk);
    (void)unlink(name);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, journal_setup, journal_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_committed_survives_and_what_was_not_does_not),
        TEST(a_frozen_journal_commits_nothing),
        TEST(a_second_coordinator_is_kept_out),
        TEST(the_decision_comes_back_with_its_manifest_and_reports),
        TEST(events_are_bounded_and_come_oldest_first),
        TEST(metrics_are_thinned_but_evaluations_and_the_newest_stay),
        TEST(rows_of_a_job_that_went_far_back_are_thinned_like_others),
        TEST(a_row_of_a_repeated_step_takes_the_place_of_the_older),
        TEST(rows_that_come_again_split_the_blocks_that_have_them),
        TEST(keys_are_remembered),
        TEST(a_forgotten_job_leaves_no_row_in_any_table),
        TEST(a_deadline_is_of_the_drain_that_it_came_with),
        TEST(a_generation_has_how_its_job_came_to_it),
        TEST(a_job_that_goes_on_keeps_its_newest_generations),
        TEST(a_journal_may_be_a_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
