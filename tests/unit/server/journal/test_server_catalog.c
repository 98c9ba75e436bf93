/* Checkpoints on their way into the journal and back, and into messages. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/journal/journal.h"
#include "server/render/render.h"
#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"

/* ---- journal ---- */

static bool take_ckpt(void *arg, const struct fsm_ckpt *ckpt)
{
    *(struct fsm_ckpt *)arg = *ckpt;
    return true;
}

static struct fsm_ckpt read_back(const struct journal_files *f)
{
    struct fsm_ckpt back = { 0 };
    assert_int_equal(journal_each_ckpt(f->journal, "j-1", take_ckpt, &back), ST_OK);
    return back;
}

static void what_a_checkpoint_took_comes_back(void **state)
{
    struct journal_files *f = *state;
    struct fsm_ckpt row = { .step = 50,
                            .generation = 3,
                            .try_number = 2,
                            .state = FSM_CKPT_GOOD,
                            .eval_accuracy = 0.5,
                            .times = { 1, 2, 3, 4, 5, 6 } };
    assert_int_equal(journal_put_ckpt(f->journal, "j-1", &row), ST_OK);
    journal_reopen(f);
    struct fsm_ckpt back = read_back(f);
    assert_int_equal(back.step, 50);
    assert_int_equal(back.try_number, 2);
    assert_true(back.eval_accuracy == 0.5);
    assert_memory_equal(&back.times, &row.times, sizeof(row.times));
}

/* Makes a journal as version 2 left it. */
static void make_old(const char *path)
{
    static const char *const columns[] = { "stall_us", "encode_us", "write_us", "sync_us",
                                           "save_us",  "commit_us", "retry" };
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        char sql[96];
        (void)snprintf(sql, sizeof(sql), "ALTER TABLE checkpoints DROP COLUMN %s", columns[i]);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    }
    assert_int_equal(sqlite3_exec(db, "ALTER TABLE saves DROP COLUMN retry", NULL, NULL, NULL),
                     SQLITE_OK);
    static const char ended[] =
        TO_14 "DROP INDEX jobs_ended; DROP INDEX jobs_named;"
              "ALTER TABLE generations DROP COLUMN recovery; ALTER TABLE "
              "generations DROP COLUMN numbers; ALTER TABLE jobs "
              "DROP COLUMN ended; ALTER TABLE ranks DROP COLUMN "
              "birth; ALTER TABLE ranks DROP COLUMN parked; "
              "ALTER TABLE ranks DROP COLUMN lanes; ALTER TABLE ranks DROP COLUMN lane_us; "
              "ALTER TABLE ranks DROP COLUMN stage; "
              "ALTER TABLE ranks DROP COLUMN source; ALTER TABLE ranks DROP COLUMN "
              "number; PRAGMA user_version=2";
    assert_int_equal(sqlite3_exec(db, ended, NULL, NULL, NULL), SQLITE_OK);
    static const char map[] = "CREATE TABLE kv(job TEXT, generation INTEGER, key TEXT, value BLOB, "
                              "PRIMARY KEY(job, generation, key)) WITHOUT ROWID;"
                              "INSERT INTO kv VALUES('j-1', 1, 'gloo/0/0', 'address')";
    assert_int_equal(sqlite3_exec(db, map, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static int count_tables(const char *path, const char *name)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *row = NULL;
    static const char sql[] = "SELECT count(*) FROM sqlite_schema WHERE name=?";
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &row, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_bind_text(row, 1, name, -1, SQLITE_STATIC), SQLITE_OK);
    assert_int_equal(sqlite3_step(row), SQLITE_ROW);
    const int count = sqlite3_column_int(row, 0);
    (void)sqlite3_finalize(row);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    return count;
}

static bool take_metric(void *arg, uint64_t step, const void *row, size_t size)
{
    uint64_t *count = arg;
    assert_int_equal(step, *count + 1);
    assert_int_equal(size, 4);
    assert_memory_equal(row, step % 100 == 0 ? "eval" : "loss", 4);
    ++*count;
    return true;
}

static bool take_step(void *arg, uint64_t step, const void *row, size_t size)
{
    (void)row;
    (void)size;
    *(uint64_t *)arg = step;
    return true;
}

/* The journal is as version 6 left it: a row of the file for each step. */
static void the_metrics_of_an_older_journal_stay(void **state)
{
    struct journal_files *f = *state;
    static const char old[] =
        "CREATE TABLE metrics(job TEXT, step INTEGER, eval INTEGER, row BLOB, PRIMARY KEY(job, "
        "step)) WITHOUT ROWID;"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<1000) "
        "INSERT INTO metrics SELECT j.id, i, i%100=0, CAST(CASE WHEN i%100=0 THEN 'eval' ELSE "
        "'loss' END AS BLOB) FROM n, (SELECT 'j-1' AS id UNION SELECT 'j-2') AS j;"
        "ALTER TABLE generations DROP COLUMN recovery; ALTER TABLE "
        "generations DROP COLUMN numbers; ALTER TABLE ranks DROP COLUMN birth; ALTER "
        "TABLE ranks DROP COLUMN parked; "
        "ALTER TABLE ranks DROP COLUMN lanes; ALTER TABLE ranks DROP COLUMN lane_us; "
        "ALTER TABLE ranks DROP COLUMN stage; "
        "ALTER TABLE ranks DROP COLUMN source; ALTER TABLE ranks DROP COLUMN "
        "number; " TO_14 "PRAGMA user_version=6";
    sqlite3 *db = NULL;
    journal_close(f->journal);
    assert_int_equal(sqlite3_open(f->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, old, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    for (int i = 1; i <= 2; i++) {
        uint64_t count = 0, step = 0;
        const char *id = i == 1 ? "j-1" : "j-2";
        assert_int_equal(journal_each_metric(f->journal, id, 0, 5000, take_metric, &count), ST_OK);
        assert_int_equal(count, 1000);
        assert_int_equal(journal_last_eval(f->journal, id, 555, take_step, &step), ST_OK);
        assert_int_equal(step, 500);
        assert_int_equal(journal_metric_back(f->journal, id, 300, &step), ST_OK);
        assert_int_equal(step, 701);
    }
}

static void an_older_journal_gets_what_it_lacks_and_loses_what_nobody_needs(void **state)
{
    struct journal_files *f = *state;
    struct fsm_ckpt row = { .step = 50, .generation = 3, .loss = 0.25, .times = { .stall_us = 1 } };
    assert_int_equal(journal_put_ckpt(f->journal, "j-1", &row), ST_OK);
    journal_close(f->journal);
    make_old(f->path);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    assert_true(read_back(f).loss == 0.25);
    assert_int_equal(read_back(f).times.stall_us, 0);
    assert_int_equal(journal_put_ckpt(f->journal, "j-1", &row), ST_OK);
    assert_int_equal(read_back(f).times.stall_us, 1);
    journal_close(f->journal);
    assert_int_equal(count_tables(f->path, "kv"), 0);
    assert_int_equal(count_tables(f->path, "jobs"), 1);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
}

/* ---- messages ---- */

#define KEPT 10000 /* the most that keep.last takes */

/* A job whose catalog has steps 1 to KEPT, with paths as long as they can be. */
static int open_job(void **state)
{
    struct coord_job *job = calloc(1, sizeof(*job));
    struct fsm_config config = { .ranks = 1, .keep_last = KEPT };
    assert_int_equal(fsm_init(&job->m, "j-0123456789", &config, 1, 1), ST_OK);
    job->m.state = FSM_SUCCEEDED;
    job->spec = calloc(1, sizeof(*job->spec));
    memset(job->spec->checkpoint.store, 'x', 900);
    job->spec->checkpoint.store[0] = '/';
    job->job_file = "";
    (void)snprintf(job->id, sizeof(job->id), "j-0123456789");
    for (uint64_t step = 1; step <= KEPT; step++) {
        struct fsm_ckpt ckpt = { .step = step,
                                 .generation = 1 + (uint32_t)(step / 100),
                                 .state = FSM_CKPT_GOOD,
                                 .wall_ms = 1800000000000,
                                 .times = { 1, 2, 3, 4, 5, 6 } };
        memset(ckpt.digest, 'd', sizeof(ckpt.digest) - 1);
        assert_int_equal(fsm_add_ckpt(&job->m, &ckpt), ST_OK);
    }
    *state = job;
    return 0;
}

static int close_job(void **state)
{
    struct coord_job *job = *state;
    fsm_release(&job->m);
    free(job->spec);
    free(job);
    return 0;
}

static void a_job_is_shown_with_its_newest_checkpoints(void **state)
{
    struct coord_job *job = *state;
    Cairn__V1__Job *shown = render_job(NULL, job, RENDER_CKPTS);
    assert_non_null(shown);
    assert_int_equal(shown->n_checkpoints, RENDER_CKPTS);
    assert_int_equal(shown->checkpoints[0]->step, KEPT);
    assert_int_equal(shown->checkpoints[RENDER_CKPTS - 1]->step, KEPT - RENDER_CKPTS + 1);
    assert_true(cairn__v1__job__get_packed_size(shown) < LIMIT_MESSAGE_BYTES / 2);
    cairn__v1__job__free_unpacked(shown, NULL);
}

static void every_checkpoint_is_on_one_page_and_each_page_fits_a_message(void **state)
{
    struct coord_job *job = *state;
    job->m.catalog[KEPT - 5].state = FSM_CKPT_REMOVING; /* step KEPT - 4: on no page */
    uint64_t next = KEPT;
    size_t total = 0;
    char token[64] = "";
    do {
        Cairn__V1__ListCheckpointsReply *page = NULL;
        assert_int_equal(render_ckpts(job, 0, token, &page), ST_OK);
        assert_in_range(page->n_checkpoints, 1, RENDER_PAGE);
        for (size_t i = 0; i < page->n_checkpoints; i++, next--) {
            next -= next == KEPT - 4;
            assert_int_equal(page->checkpoints[i]->step, next);
        }
        size_t size = cairn__v1__list_checkpoints_reply__get_packed_size(page);
        assert_true(size <= LIMIT_MESSAGE_BYTES / 2);
        total += size;
        (void)snprintf(token, sizeof(token), "%s", page->next_page_token);
        cairn__v1__list_checkpoints_reply__free_unpacked(page, NULL);
    } while (token[0]);
    assert_int_equal(next, 0);
    assert_true(total > LIMIT_MESSAGE_BYTES); /* one message would not do */
}

static void pages_are_as_small_as_asked_and_go_on_where_one_was_removed(void **state)
{
    struct coord_job *job = *state;
    Cairn__V1__ListCheckpointsReply *page = NULL;
    assert_int_equal(render_ckpts(job, 2, "", &page), ST_OK);
    assert_int_equal(page->n_checkpoints, 2);
    assert_string_equal(page->next_page_token, "9999.100");
    cairn__v1__list_checkpoints_reply__free_unpacked(page, NULL);
    job->m.catalog_count = 9000; /* those of the first page went meanwhile */
    assert_int_equal(render_ckpts(job, 2, "9999.100", &page), ST_OK);
    assert_int_equal(page->checkpoints[0]->step, 9000);
    cairn__v1__list_checkpoints_reply__free_unpacked(page, NULL);
    assert_int_equal(render_ckpts(job, 2, "1.1", &page), ST_OK);
    assert_int_equal(page->n_checkpoints, 0);
    assert_string_equal(page->next_page_token, "");
    cairn__v1__list_checkpoints_reply__free_unpacked(page, NULL);
    assert_int_equal(render_ckpts(job, 2, "j-0123", &page), ST_INVALID);
}

static void any_checkpoint_is_found_by_step_and_attempt(void **state)
{
    struct coord_job *job = *state;
    for (uint64_t step = 1; step <= KEPT; step++) {
        const struct fsm_ckpt *found = fsm_find_ckpt(&job->m, step, 1 + (uint32_t)(step / 100));
        assert_ptr_equal(found, &job->m.catalog[step - 1]);
    }
    assert_null(fsm_find_ckpt(&job->m, 0, 1));
    assert_null(fsm_find_ckpt(&job->m, 50, 2));
    assert_null(fsm_find_ckpt(&job->m, KEPT + 1, 101));
}

#define STORED(name) cmocka_unit_test_setup_teardown(name, journal_setup, journal_teardown)
#define SHOWN(name)  cmocka_unit_test_setup_teardown(name, open_job, close_job)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORED(what_a_checkpoint_took_comes_back),
        STORED(an_older_journal_gets_what_it_lacks_and_loses_what_nobody_needs),
        STORED(the_metrics_of_an_older_journal_stay),
        SHOWN(a_job_is_shown_with_its_newest_checkpoints),
        SHOWN(every_checkpoint_is_on_one_page_and_each_page_fits_a_message),
        SHOWN(pages_are_as_small_as_asked_and_go_on_where_one_was_removed),
        SHOWN(any_checkpoint_is_found_by_step_and_attempt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
