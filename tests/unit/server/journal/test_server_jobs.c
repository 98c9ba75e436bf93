/* Jobs in the journal: found, listed, ended, thinned, forgotten; those of an older journal. */
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"

/* ---- rows ---- */

static void put_job(struct journal_files *f, const char *id, const char *name, int64_t seq)
{
    struct journal_job job = {
        .id = id, .name = name, .seq = seq, .job_file = "file", .pins = "", .state = "{}"
    };
    assert_int_equal(journal_put_job(f->journal, &job), ST_OK);
}

static const char *id_of(int n)
{
    static char id[16];
    (void)snprintf(id, sizeof(id), "j-%08d", n);
    return id;
}

static void put_ended(struct journal_files *f, int n, enum journal_ended ended)
{
    put_job(f, id_of(n), "old", n);
    assert_int_equal(journal_put_ended(f->journal, id_of(n), ended, "row", 3), ST_OK);
}

static void begin(struct journal_files *f)
{
    assert_int_equal(journal_begin(f->journal), ST_OK);
}

static void commit(struct journal_files *f)
{
    assert_int_equal(journal_commit(f->journal), ST_OK);
}

static bool count_job(void *arg, const struct journal_job *job)
{
    assert_int_equal(job->ended, JOURNAL_LIVE);
    (*(int *)arg)++;
    return true;
}

static int count_live(struct journal_files *f)
{
    int count = 0;
    assert_int_equal(journal_each_job(f->journal, count_job, &count), ST_OK);
    return count;
}

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

static bool count_metric(void *arg, uint64_t step, const void *row, size_t size)
{
    (void)step;
    (void)row;
    (void)size;
    (*(int *)arg)++;
    return true;
}

static int count_metrics(struct journal_files *f, int n)
{
    int count = 0;
    assert_int_equal(journal_each_metric(f->journal, id_of(n), 0, 1u << 30, count_metric, &count),
                     ST_OK);
    return count;
}

static void put_events(struct journal_files *f, int n, int count)
{
    struct journal_event event = { .kind = "k", .message = "m" };
    for (int i = 0; i < count; i++)
        assert_int_equal(journal_put_event(f->journal, id_of(n), &event), ST_OK);
}

static void put_metrics(struct journal_files *f, int n, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(journal_put_metrics(f->journal, id_of(n),
                                             &(struct journal_metric){ i, false, "loss", 4 }, 1),
                         ST_OK);
}

/* ---- found ---- */

static void a_job_is_found_by_id_prefix_or_name(void **state)
{
    struct journal_files *f = *state;
    char id[16];
    put_job(f, "j-aa1", "a", 1);
    put_job(f, "j-aa11", "b", 2);
    put_job(f, "j-ab", "a", 3);
    put_job(f, "j-b", "j-x", 4);
    assert_int_equal(journal_find_job(f->journal, "j-aa1", id), ST_OK); /* not the longer one */
    assert_string_equal(id, "j-aa1");
    assert_int_equal(journal_find_job(f->journal, "j-aa", id), ST_INVALID);
    assert_int_equal(journal_find_job(f->journal, "j-aa11", id), ST_OK);
    assert_int_equal(journal_find_job(f->journal, "j-ab", id), ST_OK);
    assert_string_equal(id, "j-ab");
    assert_int_equal(journal_find_job(f->journal, "a", id), ST_OK); /* the newest */
    assert_string_equal(id, "j-ab");
    assert_int_equal(journal_find_job(f->journal, "j-x", id), ST_OK);
    assert_string_equal(id, "j-b");
    assert_int_equal(journal_find_job(f->journal, "j-", id), ST_NOT_FOUND);
    assert_int_equal(journal_find_job(f->journal, "j-c", id), ST_NOT_FOUND);
    assert_int_equal(journal_find_job(f->journal, "", id), ST_NOT_FOUND);
    assert_int_equal(journal_find_job(f->journal, "j-a%", id), ST_NOT_FOUND);
}

struct seen {
    char ids[8][16];
    size_t sizes[8];
    int count;
};

static bool note_listed(void *arg, const char *id, const void *row, size_t size)
{
    struct seen *seen = arg;
    assert_true(size == 0 || memcmp(row, "row", 3) == 0);
    (void)snprintf(seen->ids[seen->count], sizeof(seen->ids[0]), "%s", id);
    seen->sizes[seen->count++] = size;
    return seen->count < 8;
}

static void a_list_begins_with_the_newest_and_goes_on_where_it_ended(void **state)
{
    struct journal_files *f = *state;
    struct seen seen = { .count = 0 };
    put_ended(f, 1, JOURNAL_OVER);
    put_job(f, id_of(2), "b", 2);
    put_ended(f, 3, JOURNAL_LEFT);
    assert_int_equal(journal_list_jobs(f->journal, "", 2, note_listed, &seen), ST_OK);
    assert_int_equal(seen.count, 2);
    assert_string_equal(seen.ids[0], "j-00000003");
    assert_string_equal(seen.ids[1], "j-00000002");
    assert_int_equal(seen.sizes[0], 3);
    assert_int_equal(seen.sizes[1], 0);
    assert_int_equal(journal_list_jobs(f->journal, seen.ids[1], 2, note_listed, &seen), ST_OK);
    assert_int_equal(seen.count, 3);
    assert_string_equal(seen.ids[2], "j-00000001");
    assert_int_equal(journal_put_ended(f->journal, "j-00000001", JOURNAL_LIVE, NULL, 0), ST_OK);
    assert_int_equal(journal_list_jobs(f->journal, "j-00000002", 2, note_listed, &seen), ST_OK);
    assert_int_equal(seen.sizes[3], 0); /* no more what it was */
}

/* ---- ended ---- */

static void what_ended_is_not_read_at_the_start_but_one_by_one(void **state)
{
    struct journal_files *f = *state;
    char id[16];
    int64_t seq = 0;
    size_t count;
    put_ended(f, 1, JOURNAL_OVER);
    put_ended(f, 2, JOURNAL_LEFT);
    put_job(f, id_of(3), "c", 3);
    put_ended(f, 4, JOURNAL_LEFT);
    put_ended(f, 5, JOURNAL_THIN);
    assert_int_equal(count_live(f), 1);
    assert_int_equal(journal_next_left(f->journal, &seq, id), ST_OK);
    assert_string_equal(id, "j-00000002");
    assert_int_equal(journal_next_left(f->journal, &seq, id), ST_OK);
    assert_string_equal(id, "j-00000004");
    assert_int_equal(journal_next_left(f->journal, &seq, id), ST_NOT_FOUND);
    assert_int_equal(journal_oldest_ended(f->journal, id), ST_OK);
    assert_string_equal(id, "j-00000001");
    assert_int_equal(journal_count_jobs(f->journal, &count, &seq), ST_OK);
    assert_int_equal(count, 5);
    assert_int_equal(seq, 5);
}

#define MANY 1200 /* more rows than one step deletes */

static void a_job_is_forgotten_some_rows_at_a_time(void **state)
{
    struct journal_files *f = *state;
    char id[16];
    bool more = true;
    begin(f);
    put_ended(f, 1, JOURNAL_OVER);
    put_ended(f, 2, JOURNAL_OVER);
    put_events(f, 1, MANY);
    put_metrics(f, 1, MANY);
    put_metrics(f, 2, 5);
    assert_int_equal(journal_forget_job(f->journal, id_of(1)), ST_OK);
    commit(f);
    assert_int_equal(journal_find_job(f->journal, id_of(1), id), ST_NOT_FOUND); /* at once */
    int steps = 0;
    struct journal_tidied done;
    for (int left = 2 * MANY; more; steps++) {
        begin(f);
        assert_int_equal(journal_tidy(f->journal, &done), ST_OK);
        more = done.more;
        commit(f);
        int now = count_events(f, 1) + count_metrics(f, 1);
        assert_in_range(left - now, 0, JOURNAL_TIDY_ROWS);
        left = now;
        journal_reopen(f); /* whoever goes on with it */
    }
    assert_true(steps > 2 * MANY / JOURNAL_TIDY_ROWS);
    assert_int_equal(count_events(f, 1) + count_metrics(f, 1), 0);
    assert_int_equal(count_metrics(f, 2), 5);
}

static void only_the_newest_jobs_that_ended_keep_all_their_events(void **state)
{
    struct journal_files *f = *state;
    struct fsm_ckpt ckpt = { .step = 4, .generation = 1, .state = FSM_CKPT_GOOD };
    begin(f);
    for (int n = 1; n <= JOURNAL_WHOLE_JOBS + 2; n++)
        put_ended(f, n, JOURNAL_OVER);
    for (int n = 1; n <= 3; n++) {
        put_events(f, n, MANY);
        put_metrics(f, n, 5);
        assert_int_equal(journal_put_ckpt(f->journal, id_of(n), &ckpt), ST_OK);
    }
    commit(f);
    struct journal_tidied done;
    for (bool more = true; more;) {
        begin(f);
        assert_int_equal(journal_tidy(f->journal, &done), ST_OK);
        more = done.more;
        commit(f);
    }
    assert_int_equal(count_events(f, 1), JOURNAL_THIN_ROWS);
    assert_int_equal(count_events(f, 2), JOURNAL_THIN_ROWS);
    assert_int_equal(count_events(f, 3), MANY);
    assert_int_equal(count_metrics(f, 1), 5); /* they stay */
}

/* ---- an older journal ---- */

static void make_version_4(const char *path)
{
    static const char sql[] =
        TO_14 "DROP INDEX jobs_ended; DROP INDEX jobs_named;"
              "ALTER TABLE generations DROP COLUMN recovery; ALTER TABLE "
              "generations DROP COLUMN numbers; ALTER TABLE jobs DROP COLUMN ended;"
              "DROP TABLE summaries; DROP TABLE forgotten;"
              "ALTER TABLE ranks DROP COLUMN birth; ALTER TABLE ranks DROP COLUMN parked; "
              "ALTER TABLE ranks DROP COLUMN lanes; ALTER TABLE ranks DROP COLUMN lane_us; "
              "ALTER TABLE ranks DROP COLUMN stage; "
              "ALTER TABLE ranks DROP COLUMN source; ALTER TABLE ranks DROP COLUMN "
              "number; PRAGMA user_version=4";
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static bool keep_file(void *arg, const struct journal_job *row)
{
    (void)snprintf(arg, 256, "%s", row->job_file);
    return true;
}

/* Older versions wrote a min into every job's file, where it meant nothing. */
static void a_job_of_before_there_was_a_min_does_not_get_one(void **state)
{
    struct journal_files *f = *state;
    const struct journal_job job = { .id = id_of(1),
                                     .name = "a",
                                     .seq = 1,
                                     .job_file = "workers:\n  count: 4\n  min: 1\n  spares: 0\n"
                                                 "checkpoint:\n  min: 16\n",
                                     .pins = "",
                                     .state = "{\"state\":4}" };
    char file[256] = "";
    begin(f);
    assert_int_equal(journal_put_job(f->journal, &job), ST_OK);
    commit(f);
    journal_close(f->journal);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    assert_int_equal(journal_get_job(f->journal, id_of(1), keep_file, file), ST_OK);
    assert_string_equal(file, job.job_file); /* of this version it is what its user wrote */
    journal_close(f->journal);
    make_version_4(f->path);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    assert_int_equal(journal_get_job(f->journal, id_of(1), keep_file, file), ST_OK);
    assert_string_equal(file, "workers:\n  count: 4\n  spares: 0\ncheckpoint:\n  min: 16\n");
}

static void note_beat(void *arg)
{
    (*(int *)arg)++;
}

static void an_older_journal_is_brought_up_to_date_with_beats(void **state)
{
    struct journal_files *f = *state;
    static const char *const states[] = { "{\"state\":8}", "{\"state\":4}", "{\"state\":11}", "[1",
                                          "" };
    enum { COUNT = 5000 };
    begin(f);
    for (int n = 0; n < COUNT; n++) {
        struct journal_job job = { .id = id_of(n),
                                   .name = "a",
                                   .seq = n,
                                   .job_file = "file",
                                   .pins = "",
                                   .state = states[n % 5] };
        assert_int_equal(journal_put_job(f->journal, &job), ST_OK);
    }
    commit(f);
    journal_close(f->journal);
    make_version_4(f->path);
    int beats = 0;
    struct journal_watch watch = { note_beat, &beats };
    assert_int_equal(journal_open_watched(f->path, &watch, &f->journal), ST_OK);
    assert_true(beats > 20);
    assert_int_equal(count_live(f), COUNT / 5 * 3); /* whose state can't be read, too */
    int64_t seq = -1;
    int left = 0;
    char id[16];
    while (journal_next_left(f->journal, &seq, id) == ST_OK)
        left++;
    assert_int_equal(left, COUNT / 5 * 2);
    beats = 0;
    journal_close(f->journal);
    assert_int_equal(journal_open_watched(f->path, &watch, &f->journal), ST_OK);
    assert_int_equal(beats, 0); /* once */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, journal_setup, journal_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_job_is_found_by_id_prefix_or_name),
        TEST(a_list_begins_with_the_newest_and_goes_on_where_it_ended),
        TEST(what_ended_is_not_read_at_the_start_but_one_by_one),
        TEST(a_job_is_forgotten_some_rows_at_a_time),
        TEST(only_the_newest_jobs_that_ended_keep_all_their_events),
        TEST(a_job_of_before_there_was_a_min_does_not_get_one),
        TEST(an_older_journal_is_brought_up_to_date_with_beats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
