/* Checkpoints on their way into the journal and back. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/journal.h"
#include "tests/test.h"

/* ---- journal ---- */

struct files {
    char dir[64], path[128];
    struct journal *journal;
};

static int open_files(void **state)
{
    struct files *f = calloc(1, sizeof *f);
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/cairn-catalog-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof f->path, "%s/cairnd.db", f->dir);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    *state = f;
    return 0;
}

static int close_files(void **state)
{
    struct files *f = *state;
    journal_close(f->journal);
    static const char *const ends[] = { "", "-wal", "-shm", ".lock" };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        char name[160];
        (void)snprintf(name, sizeof name, "%s%s", f->path, ends[i]);
        (void)unlink(name);
    }
    (void)rmdir(f->dir);
    free(f);
    return 0;
}

static bool take_ckpt(void *arg, const struct jm_ckpt *ckpt)
{
    *(struct jm_ckpt *)arg = *ckpt;
    return true;
}

static struct jm_ckpt read_back(const struct files *f)
{
    struct jm_ckpt back = { 0 };
    assert_int_equal(journal_each_ckpt(f->journal, "j-1", take_ckpt, &back), ST_OK);
    return back;
}

static void what_a_checkpoint_took_comes_back(void **state)
{
    struct files *f = *state;
    struct jm_ckpt row = { .step = 50,
                           .generation = 3,
                           .state = CKPT_GOOD,
                           .eval_accuracy = 0.5,
                           .times = { 1, 2, 3, 4, 5, 6 } };
    assert_int_equal(journal_put_ckpt(f->journal, "j-1", &row), ST_OK);
    journal_close(f->journal);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    struct jm_ckpt back = read_back(f);
    assert_int_equal(back.step, 50);
    assert_true(back.eval_accuracy == 0.5);
    assert_memory_equal(&back.times, &row.times, sizeof row.times);
}

/* As version 2 left it. */
static void make_old(const char *path)
{
    static const char *const columns[] = { "stall_us", "encode_us", "write_us",
                                           "sync_us",  "save_us",   "commit_us" };
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        char sql[96];
        (void)snprintf(sql, sizeof sql, "ALTER TABLE checkpoints DROP COLUMN %s", columns[i]);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    }
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=2", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void an_older_journal_gets_what_it_lacks(void **state)
{
    struct files *f = *state;
    struct jm_ckpt row = { .step = 50, .generation = 3, .loss = 0.25, .times = { .stall_us = 1 } };
    assert_int_equal(journal_put_ckpt(f->journal, "j-1", &row), ST_OK);
    journal_close(f->journal);
    make_old(f->path);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    assert_true(read_back(f).loss == 0.25);
    assert_int_equal(read_back(f).times.stall_us, 0);
    assert_int_equal(journal_put_ckpt(f->journal, "j-1", &row), ST_OK);
    assert_int_equal(read_back(f).times.stall_us, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_a_checkpoint_took_comes_back, open_files, close_files),
        cmocka_unit_test_setup_teardown(an_older_journal_gets_what_it_lacks, open_files,
                                        close_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
