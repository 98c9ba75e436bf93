#include "tests/unit/server/journal/journal_fixture.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/test.h"

int journal_setup(void **state)
{
    struct journal_files *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/cairn-journal-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof(f->path), "%s/cairnd.db", f->dir);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    *state = f;
    return 0;
}

int journal_teardown(void **state)
{
    struct journal_files *f = *state;
    journal_close(f->journal);
    static const char *const ends[] = { "", "-wal", "-shm", ".lock" };
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char name[160];
        (void)snprintf(name, sizeof(name), "%s%s", f->path, ends[i]);
        (void)unlink(name);
    }
    (void)rmdir(f->dir);
    free(f);
    return 0;
}

void journal_reopen(struct journal_files *f)
{
    journal_close(f->journal);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
}

void journal_edit(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}
