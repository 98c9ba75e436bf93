/* How large the journal gets: metrics, generations, jobs that ended, and the file as a whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"
#include "tests/unit/server/journal/journal_vfs.h"

#define ROW_BYTES 200 /* of a row of metrics as they are */

static const char *id_of(int n)
{
    static char id[16];
    (void)snprintf(id, sizeof(id), "j-%08d", n);
    return id;
}

static void begin(struct journal_files *f)
{
    assert_int_equal(journal_begin(f->journal), ST_OK);
}

static void commit(struct journal_files *f)
{
    assert_int_equal(journal_commit(f->journal), ST_OK);
}

static void put_job(struct journal_files *f, int n)
{
    struct journal_job job = {
        .id = id_of(n), .name = "a", .seq = n, .job_file = "file", .pins = "", .state = "{}"
    };
    assert_int_equal(journal_put_job(f->journal, &job), ST_OK);
}

static void end_job(struct journal_files *f, int n)
{
    assert_int_equal(journal_put_ended(f->journal, id_of(n), JOURNAL_OVER, "row", 3), ST_OK);
}

/* Rows of steps from `from` on, one by one of so many bytes; every eval-th is an evaluation. */
static void put_rows(struct journal_files *f, int n, uint64_t from, uint64_t count, size_t bytes,
                     uint64_t eval)
{
    enum { AT_ONCE = 500 };
    static struct journal_metric rows[AT_ONCE];
    char *data = calloc(1, bytes);
    assert_non_null(data);
    for (uint64_t i = 0; i < count; i += AT_ONCE) {
        const size_t some = count - i < AT_ONCE ? (size_t)(count - i) : AT_ONCE;
        for (size_t k = 0; k < some; k++) {
            const uint64_t step = from + i + k;
            rows[k] = (struct journal_metric){ step, eval > 0 && step % eval == 0, data, bytes };
        }
        assert_int_equal(journal_put_metrics(f->journal, id_of(n), rows, some), ST_OK);
    }
    free(data);
}

struct seen {
    int64_t rows, bytes, low; /* low: of steps below 100,000 */
    uint64_t last;
};

static bool see_row(void *arg, uint64_t step, const void *row, size_t size)
{
    struct seen *seen = arg;
    (void)row;
    seen->rows++;
    seen->bytes += (int64_t)size;
    seen->low += step < 100000;
    seen->last = step;
    return true;
}

static struct seen see(struct journal_files *f, int n)
{
    struct seen seen = { 0 };
    assert_int_equal(journal_each_metric(f->journal, id_of(n), 0, UINT32_MAX, see_row, &seen),
                     ST_OK);
    return seen;
}

static void count_write(void *arg, enum journal_call call)
{
    *(long *)arg += call == JOURNAL_WRITE;
}

/* ---- metrics ---- */

/* The rows are those of a job that evaluates every ten steps, for a month. */
static void evaluations_are_thinned_too_and_that_is_rare(void **state)
{
    struct journal_files *f = *state;
    static long writes;
    journal_close(f->journal);
    journal_vfs_watch(count_write, &writes);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    begin(f);
    put_rows(f, 1, 0, 100000, ROW_BYTES, 1);
    commit(f);
    writes = 0;
    for (uint64_t turn = 0; turn < 600; turn++) { /* a second each */
        begin(f);
        put_rows(f, 1, 100000 + 10 * turn, 10, ROW_BYTES, 1);
        commit(f);
    }
    assert_in_range(writes, 600, 600 * 60);
    const struct seen seen = see(f, 1);
    assert_in_range(seen.rows, LIMIT_METRIC_ROWS / 4, LIMIT_METRIC_ROWS);
    assert_true(seen.low > 1000);
    assert_int_equal(seen.last, 105999);
    journal_vfs_watch(NULL, NULL);
}

static bool see_eval(void *arg, uint64_t step, const void *row, size_t size)
{
    (void)row;
    (void)size;
    *(uint64_t *)arg = step;
    return true;
}

static void evaluations_have_room_of_their_own(void **state)
{
    struct journal_files *f = *state;
    int64_t evals = 0;
    begin(f);
    put_rows(f, 1, 0, 500000, ROW_BYTES, 100);
    commit(f);
    assert_in_range(see(f, 1).rows, LIMIT_METRIC_ROWS / 4, LIMIT_METRIC_ROWS);
    for (uint64_t step = 0; step < 500000; step += 100) {
        uint64_t found = UINT64_MAX;
        assert_int_equal(journal_last_eval(f->journal, id_of(1), step, see_eval, &found), ST_OK);
        evals += found == step;
    }
    assert_int_equal(evals, 5000); /* all: they take less than half of the room */
}

static void metrics_of_a_job_are_bounded_in_bytes(void **state)
{
    struct journal_files *f = *state;
    begin(f);
    for (uint64_t step = 0; step < 12000; step += 500) {
        put_rows(f, 1, step, 500, JOURNAL_ROW_BYTES, 3);
        assert_true(see(f, 1).bytes <= JOURNAL_METRIC_BYTES);
    }
    commit(f);
    assert_true(see(f, 1).rows > 500);
    assert_int_equal(see(f, 1).last, 11999);
}

static void a_row_that_no_trainer_sends_is_left_out(void **state)
{
    struct journal_files *f = *state;
    const size_t huge = (size_t)300 * 1024 * 1024; /* more than a block may have */
    char *data = calloc(1, huge);
    assert_non_null(data);
    const struct journal_metric rows[] = { { 1, false, data, 8 },
                                           { 2, false, data, huge },
                                           { 3, true, data, JOURNAL_ROW_BYTES } };
    assert_int_equal(journal_put_metrics(f->journal, id_of(1), rows, 3), ST_OK);
    assert_int_equal(journal_put_metrics(f->journal, id_of(1), rows + 1, 1), ST_OK);
    assert_int_equal(see(f, 1).rows, 2);
    free(data);
}

/* ---- generations ---- */

static bool see_generation(void *arg, const struct journal_generation *row)
{
    struct seen *seen = arg;
    seen->rows++;
    seen->bytes += (int64_t)strlen(row->nodes);
    seen->last = row->generation;
    return true;
}

static struct seen begin_generations(struct journal_files *f, uint32_t count, const char *nodes)
{
    struct seen seen = { 0 };
    begin(f);
    for (uint32_t g = 1; g <= count; g++) {
        const struct journal_generation row = {
            .generation = g, .nodes = nodes, .numbers = "", .recovery = ""
        };
        assert_int_equal(journal_put_generation(f->journal, id_of(1), &row), ST_OK);
    }
    commit(f);
    assert_int_equal(
        journal_each_generation(f->journal, id_of(1), UINT32_MAX, see_generation, &seen), ST_OK);
    return seen;
}

static void generations_of_a_job_that_lives_are_bounded_in_bytes(void **state)
{
    struct journal_files *f = *state;
    static char nodes[256 * 1024];
    memset(nodes, 'n', sizeof(nodes) - 1);
    struct seen seen = begin_generations(f, 200, nodes);
    assert_in_range(seen.rows, JOURNAL_GENERATIONS_MIN, JOURNAL_GENERATIONS_MIN + 16);
    nodes[20 * 1024] = '\0';
    seen = begin_generations(f, 3000, nodes);
    assert_in_range(seen.bytes, JOURNAL_GENERATIONS_BYTES / 2,
                    JOURNAL_GENERATIONS_BYTES + 16 * 20 * 1024);
    assert_int_equal(seen.last, 3000);
}

/* ---- who is forgotten first ---- */

static bool count_event(void *arg, const struct journal_event *event)
{
    (void)event;
    (*(int *)arg)++;
    return true;
}

static int count_events(struct journal_files *f, int n)
{
    int count = 0;
    assert_int_equal(journal_each_event(f->journal, id_of(n), 1u << 30, count_event, &count),
                     ST_OK);
    return count;
}

static void put_events(struct journal_files *f, int n, int count, int64_t wall_ms)
{
    const struct journal_event event = { .wall_ms = wall_ms, .kind = "k", .message = "m" };
    for (int i = 0; i < count; i++)
        assert_int_equal(journal_put_event(f->journal, id_of(n), &event), ST_OK);
}

/* Until nothing is left to do; forgotten: the jobs that were, one after the other. */
static void tidy(struct journal_files *f, char *forgotten, size_t capacity)
{
    struct journal_tidied done = { .more = true };
    forgotten[0] = '\0';
    for (int turns = 0; done.more; turns++) {
        assert_true(turns < 100000);
        begin(f);
        assert_int_equal(journal_tidy(f->journal, &done), ST_OK);
        commit(f);
        const size_t used = strlen(forgotten);
        if (done.forgotten)
            (void)snprintf(forgotten + used, capacity - used, "%s ", done.id);
    }
}

static void check_long_run(struct journal_files *f)
{
    char id[16], forgotten[64];
    tidy(f, forgotten, sizeof(forgotten));
    assert_int_equal(count_events(f, 1), 3000);
    assert_int_equal(journal_oldest_ended(f->journal, id), ST_OK);
    assert_string_equal(id, id_of(2)); /* not the one that was submitted first */
}

/* A job of six weeks, and many short ones meanwhile. */
static void what_ended_last_is_forgotten_last(void **state)
{
    struct journal_files *f = *state;
    begin(f);
    put_job(f, 1);
    put_events(f, 1, 3000, 100);
    for (int n = 2; n <= JOURNAL_WHOLE_JOBS + 2; n++) {
        put_job(f, n);
        end_job(f, n);
    }
    end_job(f, 1);
    end_job(f, 2); /* something of it was left to do, and is done: its end was before */
    commit(f);
    check_long_run(f);
}

static void of_an_older_journal_events_say_what_ended_last(void **state)
{
    struct journal_files *f = *state;
    begin(f);
    for (int n = 1; n <= JOURNAL_WHOLE_JOBS + 2; n++) {
        put_job(f, n);
        put_events(f, n, n == 1 ? 2999 : 1, n);
        end_job(f, n);
    }
    put_events(f, 1, 1, 1000000);
    commit(f);
    journal_close(f->journal);
    journal_edit(f->path, TO_14 "PRAGMA user_version=14");
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    check_long_run(f);
}

/* ---- the file as a whole ---- */

static int64_t file_bytes(struct journal_files *f)
{
    struct stat of;
    journal_reopen(f); /* what is in the WAL goes into the file */
    assert_int_equal(stat(f->path, &of), 0);
    return of.st_size;
}

static void fill(struct journal_files *f, int jobs)
{
    begin(f);
    for (int n = 1; n <= jobs; n++) {
        put_job(f, n);
        put_rows(f, n, 0, 10000, ROW_BYTES, 10);
    }
    for (int n = jobs; n >= 1; n--)
        end_job(f, n);
    commit(f);
}

static void a_journal_that_grows_too_large_drops_rows_of_what_ended_first(void **state)
{
    struct journal_files *f = *state;
    char forgotten[256];
    const int64_t most = INT64_C(8) * 1024 * 1024;
    fill(f, 10);
    const int64_t before = file_bytes(f);
    assert_true(before > 2 * most);
    journal_bound(f->journal, most);
    tidy(f, forgotten, sizeof(forgotten));
    assert_string_equal(forgotten, "");
    for (int n = 1; n <= 10; n++) {
        const struct seen seen = see(f, n);
        assert_int_equal(seen.last, 9999);
        if (n <= 2)
            assert_int_equal(seen.rows, 10000); /* they ended last */
        if (n >= 9)
            assert_in_range(seen.rows, 200, JOURNAL_BARE_ROWS);
    }
    assert_in_range(file_bytes(f), most / 4, most + most / 2); /* and it shrinks */

    journal_bound(f->journal, most / 16);
    tidy(f, forgotten, sizeof(forgotten));
    assert_memory_equal(forgotten, "j-00000010 j-00000009 j-00000008 ", 33);
    assert_null(strstr(forgotten, "j-00000001 "));
    assert_in_range(file_bytes(f), 1, most);
}

static void a_file_that_could_not_shrink_learns_it(void **state)
{
    struct journal_files *f = *state;
    char forgotten[256];
    fill(f, 4);
    journal_close(f->journal);
    journal_edit(f->path, "PRAGMA journal_mode=DELETE; PRAGMA auto_vacuum=NONE; VACUUM; " TO_14
                          "PRAGMA user_version=14");
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    const int64_t before = file_bytes(f);
    journal_bound(f->journal, INT64_C(1024) * 1024);
    tidy(f, forgotten, sizeof(forgotten));
    assert_true(file_bytes(f) < before - INT64_C(2) * 1024 * 1024);
    assert_int_equal(see(f, 1).last, 9999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, journal_setup, journal_teardown)
        TEST(evaluations_are_thinned_too_and_that_is_rare),
        TEST(evaluations_have_room_of_their_own),
        TEST(metrics_of_a_job_are_bounded_in_bytes),
        TEST(a_row_that_no_trainer_sends_is_left_out),
        TEST(generations_of_a_job_that_lives_are_bounded_in_bytes),
        TEST(what_ended_last_is_forgotten_last),
        TEST(of_an_older_journal_events_say_what_ended_last),
        TEST(a_journal_that_grows_too_large_drops_rows_of_what_ended_first),
        TEST(a_file_that_could_not_shrink_learns_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
