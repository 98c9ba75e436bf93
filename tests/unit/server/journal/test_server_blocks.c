/* Blocks of metrics: rows that come a few at a time, and again, and those of an older file. */
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"
#include "tests/unit/server/journal/journal_vfs.h"

#define STEPS  6000
#define FULL   256 /* rows that a block has at least, once so many came after it */
#define AT_ONE 40  /* rows that come at a time, at most */

/* What each step's row says, the last that came; 0: none did. */
static uint32_t model[STEPS];

static void put_rows(struct journal *journal, uint64_t first, size_t count, uint32_t word)
{
    struct journal_metric rows[AT_ONE];
    for (size_t i = 0; i < count; i++) {
        rows[i] = (struct journal_metric){ first + i, false, &word, sizeof(word) };
        model[first + i] = word;
    }
    assert_int_equal(journal_put_metrics(journal, "j-1", rows, count), ST_OK);
}

/* A job that goes back now and then, by up to 600 steps. */
static void put_run(struct journal *journal)
{
    unsigned seed = 5;
    uint64_t step = 0;
    memset(model, 0, sizeof(model));
    assert_int_equal(journal_begin(journal), ST_OK);
    for (uint32_t word = 1; step < STEPS - AT_ONE; word++) {
        const size_t count = 1 + (size_t)rand_r(&seed) % AT_ONE;
        put_rows(journal, step, count, word);
        step += count;
        const uint64_t back = (uint64_t)rand_r(&seed) % 600;
        if (rand_r(&seed) % 100 == 0)
            step -= back < step ? back : step;
    }
    assert_int_equal(journal_commit(journal), ST_OK);
}

struct look {
    uint64_t next;
    uint32_t count;
};

static bool check_row(void *arg, uint64_t step, const void *row, size_t size)
{
    struct look *look = arg;
    uint32_t word;
    assert_int_equal(step, look->next);
    assert_int_equal(size, sizeof(word));
    memcpy(&word, row, sizeof(word));
    assert_int_equal(word, model[step]);
    look->next++;
    look->count++;
    return true;
}

/* All of the model's rows, and where each is, are in the journal. */
static void check_all(struct journal *journal)
{
    uint32_t all = 0;
    while (all < STEPS && model[all] != 0)
        all++;
    struct look look = { 0 };
    assert_int_equal(journal_each_metric(journal, "j-1", 0, UINT32_MAX, check_row, &look), ST_OK);
    assert_int_equal(look.count, all);
    for (uint32_t n = 1; n <= all; n += 97) {
        uint64_t step = 0;
        assert_int_equal(journal_metric_back(journal, "j-1", n, &step), ST_OK);
        assert_int_equal(step, all - n);
        look = (struct look){ .next = step };
        assert_int_equal(journal_each_metric(journal, "j-1", step, 10, check_row, &look), ST_OK);
        assert_int_equal(look.count, n < 10 ? n : 10);
    }
}

static int64_t ask(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *row = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &row, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(row), SQLITE_ROW);
    const int64_t answer = sqlite3_column_int64(row, 0);
    assert_int_equal(sqlite3_finalize(row), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    return answer;
}

static void rows_that_come_a_few_at_a_time_end_up_in_large_blocks(void **state)
{
    struct journal_files *f = *state;
    for (uint64_t step = 0; step < STEPS; step += 10)
        put_rows(f->journal, step, 10, 1);
    check_all(f->journal);
    assert_in_range(ask(f->path, "SELECT count(*) FROM blocks WHERE count<256"), 0, FULL / 10 + 1);
    assert_in_range(ask(f->path, "SELECT count(*) FROM blocks"), 1, STEPS / FULL + FULL / 10 + 1);
    assert_in_range(ask(f->path, "SELECT max(count) FROM blocks"), FULL, 2 * FULL);
    assert_int_equal(ask(f->path, "SELECT sum(count) FROM blocks"), STEPS);
}

static void rows_that_come_again_take_the_places_of_those_before(void **state)
{
    struct journal_files *f = *state;
    put_run(f->journal);
    check_all(f->journal);
    assert_in_range(ask(f->path, "SELECT max(count) FROM blocks"), FULL, 2 * FULL + AT_ONE);
    assert_int_equal(ask(f->path,
                         "SELECT count(*) FROM blocks AS a JOIN blocks AS b ON a.job=b.job "
                         "AND a.first<b.first AND a.last>=b.first"),
                     0);
    assert_int_equal(ask(f->path, "SELECT sum(count)=(SELECT rows FROM metric_counts) FROM blocks"),
                     1);
    journal_reopen(f);
    check_all(f->journal);
}

/* Version 13 had them in a table without a rowid. */
static const char to_13[] =
    "DELETE FROM blocks WHERE job='j-2';"
    "CREATE TABLE metric_blocks(job TEXT, first INTEGER, last INTEGER, count INTEGER, evals "
    "INTEGER, rows BLOB, PRIMARY KEY(job, first)) WITHOUT ROWID;"
    "CREATE INDEX metric_evals ON metric_blocks(job, first) WHERE evals>0;"
    "INSERT INTO metric_blocks SELECT job,first,last,count,evals,rows FROM blocks;"
    "INSERT INTO metric_blocks WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n "
    "WHERE i<1200) SELECT 'j-2',i,i,1,0,x'00' FROM n;"
    "DROP TABLE blocks; " TO_14 "PRAGMA user_version=13";

static void check_moved(struct journal_files *f)
{
    check_all(f->journal);
    assert_int_equal(ask(f->path, "SELECT count(*) FROM sqlite_master WHERE name IN "
                                  "('metric_blocks', 'metric_evals')"),
                     0);
    assert_int_equal(ask(f->path, "SELECT count(*) FROM blocks WHERE job='j-2'"), 1200);
    assert_int_equal(ask(f->path, "PRAGMA user_version"), 15);
}

/* The second time as one that was cut off while it moved them left it. */
static void the_blocks_of_an_older_file_stay(void **state)
{
    struct journal_files *f = *state;
    static const char cut_off[] =
        "CREATE TABLE metric_blocks(job TEXT, first INTEGER, last INTEGER, count INTEGER, evals "
        "INTEGER, rows BLOB, PRIMARY KEY(job, first)) WITHOUT ROWID;"
        "INSERT INTO metric_blocks SELECT job,first,last,count,evals,rows FROM blocks WHERE "
        "first>99;"
        "DELETE FROM blocks WHERE first>99";
    put_run(f->journal);
    for (int i = 0; i < 2; i++) {
        journal_close(f->journal);
        journal_edit(f->path, i == 0 ? to_13 : cut_off);
        assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
        check_moved(f);
    }
    put_rows(f->journal, 17, 5, 77777); /* and can be written over */
    check_all(f->journal);
}

/* The disk is full after ever more writes: it isn't opened then, and nothing is lost. */
static void a_disk_that_is_full_while_they_move_loses_none(void **state)
{
    struct journal_files *f = *state;
    int refused = 0;
    put_run(f->journal);
    journal_vfs_watch(NULL, NULL);
    for (long writes = 0;; writes += 1 + writes / 3) {
        journal_close(f->journal);
        f->journal = NULL;
        journal_edit(f->path, to_13);
        journal_vfs_space(writes);
        const enum status st = journal_open(f->path, &f->journal);
        journal_vfs_space(-1);
        if (st == ST_OK)
            break;
        assert_int_equal(st, ST_FULL);
        refused++;
        assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
        check_moved(f);
    }
    check_moved(f);
    assert_in_range(refused, 8, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, journal_setup, journal_teardown)
        TEST(rows_that_come_a_few_at_a_time_end_up_in_large_blocks),
        TEST(rows_that_come_again_take_the_places_of_those_before),
        TEST(the_blocks_of_an_older_file_stay),
        TEST(a_disk_that_is_full_while_they_move_loses_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
