/* What lies in the journal's place: what may be opened, what is refused, and what is put there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"

static const struct journal_watch nobody = { NULL, NULL };

static enum status look(const struct journal_files *f, bool lived, struct reason *reason)
{
    *reason = (struct reason){ "" };
    return journal_look(f->path, lived, &nobody, reason);
}

static void close_it(struct journal_files *f)
{
    journal_close(f->journal);
    f->journal = NULL;
}

static void put_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void put_job(struct journal *journal)
{
    const struct journal_job job = {
        .id = "j-0123456789", .name = "a", .seq = 1, .job_file = "", .pins = "", .state = "{}"
    };
    assert_int_equal(journal_begin(journal), ST_OK);
    assert_int_equal(journal_put_job(journal, &job), ST_OK);
    assert_int_equal(journal_commit(journal), ST_OK);
}

static off_t size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? info.st_size : -1;
}

static void count_beat(void *arg)
{
    ++*(int *)arg;
}

static void a_journal_is_good_closed_open_and_cut_off(void **state)
{
    struct journal_files *f = *state;
    struct reason reason;
    char wal[160];
    int beats = 0;
    (void)snprintf(wal, sizeof(wal), "%s-wal", f->path);
    assert_int_equal(look(f, true, &reason), ST_OK); /* a coordinator has it */
    for (int i = 0; i < 20; i++)
        put_job(f->journal);
    const off_t pending = size_of(wal);
    assert_true(pending > 0);
    assert_int_equal(look(f, true, &reason), ST_OK);
    assert_int_equal(size_of(wal), pending);
    close_it(f);
    assert_int_equal(look(f, true, &reason), ST_OK);
    assert_int_equal(access(wal, F_OK), -1); /* nothing was made */
    assert_int_equal(
        journal_look(f->path, true, &(struct journal_watch){ count_beat, &beats }, &reason), ST_OK);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
}

static void nothing_is_a_new_home_unless_one_lived_there(void **state)
{
    struct journal_files *f = *state;
    struct reason reason;
    close_it(f);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(look(f, false, &reason), ST_OK);
    assert_int_equal(look(f, true, &reason), ST_NOT_FOUND);
    assert_string_equal(reason.text, "it is missing");
    assert_int_equal(access(f->path, F_OK), -1);
    put_text(f->path, "");
    assert_int_equal(look(f, false, &reason), ST_OK);
    assert_int_equal(look(f, true, &reason), ST_NOT_FOUND);
    assert_string_equal(reason.text, "it is empty");
    journal_edit(f->path, "PRAGMA journal_mode=WAL; CREATE TABLE a(b); DROP TABLE a");
    assert_int_equal(look(f, false, &reason), ST_OK);
    assert_int_equal(look(f, true, &reason), ST_NOT_FOUND);
    assert_string_equal(reason.text, "it holds nothing");
}

static void a_link_that_leads_nowhere_is_refused_in_any_home(void **state)
{
    struct journal_files *f = *state;
    struct reason reason;
    close_it(f);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(symlink("/nowhere/cairnd.db", f->path), 0);
    assert_int_equal(look(f, false, &reason), ST_NOT_FOUND);
    assert_non_null(strstr(reason.text, "a link"));
}

static void what_is_no_journal_is_refused_in_any_home(void **state)
{
    struct journal_files *f = *state;
    struct reason reason;
    close_it(f);
    put_text(f->path, "short");
    assert_int_equal(look(f, false, &reason), ST_CORRUPT);
    assert_non_null(strstr(reason.text, "no SQLite database"));
    assert_int_equal(unlink(f->path), 0);
    journal_edit(f->path, "CREATE TABLE songs(name TEXT)");
    assert_int_equal(look(f, false, &reason), ST_CORRUPT);
    assert_non_null(strstr(reason.text, "another program's"));
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(mkdir(f->path, 0700), 0);
    assert_int_equal(look(f, false, &reason), ST_CORRUPT);
    assert_int_equal(rmdir(f->path), 0);
}

/* At every length that isn't complete, and with a page of every kind overwritten. */
static void what_is_cut_short_or_overwritten_is_damaged(void **state)
{
    struct journal_files *f = *state;
    struct reason reason;
    put_job(f->journal);
    close_it(f);
    journal_edit(f->path, "VACUUM"); /* no page is free then */
    const off_t size = size_of(f->path);
    char *whole = NULL;
    size_t bytes = 0;
    assert_int_equal(io_read_file(io_system(), f->path, 1 << 20, &whole, &bytes), ST_OK);
    assert_true(size > 4 * 4096);
    for (off_t at = 1; at < size; at += 1000) {
        assert_int_equal(truncate(f->path, at), 0);
        assert_int_equal(look(f, true, &reason), ST_CORRUPT);
        int fd = open(f->path, O_WRONLY | O_CLOEXEC);
        assert_int_equal(pwrite(fd, whole, bytes, 0), (ssize_t)bytes);
        assert_int_equal(close(fd), 0);
    }
    assert_int_equal(look(f, true, &reason), ST_OK);
    for (off_t page = 0; page < size; page += 4096) {
        int fd = open(f->path, O_WRONLY | O_CLOEXEC);
        static const char noise[8] = { '\xff', '\xff', '\xff', '\xff',
                                       '\xff', '\xff', '\xff', '\xff' };
        assert_int_equal(pwrite(fd, noise, sizeof(noise), page), (ssize_t)sizeof(noise));
        assert_int_equal(look(f, true, &reason), ST_CORRUPT);
        assert_int_equal(pwrite(fd, whole + page, sizeof(noise), page), (ssize_t)sizeof(noise));
        assert_int_equal(close(fd), 0);
    }
    free(whole);
}

static void a_newer_one_is_left_alone(void **state)
{
    struct journal_files *f = *state;
    struct reason reason;
    close_it(f);
    journal_edit(f->path, "PRAGMA user_version=9999");
    assert_int_equal(look(f, true, &reason), ST_VERSION);
    assert_non_null(strstr(reason.text, "9999"));
    assert_int_equal(journal_open(f->path, &f->journal), ST_VERSION);
    f->journal = NULL;
}

static void a_copy_in_its_place_is_looked_at_without_the_wal_of_another(void **state)
{
    struct journal_files *f = *state;
    struct reason reason = { "" };
    char copy[160], wal[160];
    (void)snprintf(copy, sizeof(copy), "%s/copy", f->dir);
    (void)snprintf(wal, sizeof(wal), "%s-wal", f->path);
    put_job(f->journal);
    assert_int_equal(journal_backup(f->path, copy, &reason), ST_OK);
    close_it(f);
    assert_int_equal(rename(copy, f->path), 0);
    put_text(wal, "what is left of another file");
    assert_int_equal(look(f, true, &reason), ST_OK);
    assert_true(size_of(wal) > 0);
    assert_int_equal(truncate(f->path, 8192), 0);
    assert_int_equal(look(f, true, &reason), ST_CORRUPT);
    assert_true(size_of(wal) > 0);
}

static void what_is_set_aside_keeps_its_wal_and_takes_no_name(void **state)
{
    struct journal_files *f = *state;
    char aside[160], wal[192], part[160];
    (void)snprintf(aside, sizeof(aside), "%s.lost", f->path);
    (void)snprintf(part, sizeof(part), "%s.new", f->path);
    (void)snprintf(wal, sizeof(wal), "%s-wal", f->path);
    close_it(f);
    put_text(wal, "a WAL");
    put_text(aside, "in the way");
    assert_int_equal(journal_set_aside(f->path, aside), ST_EXISTS);
    assert_int_equal(size_of(wal), 5); /* where it was */
    assert_int_equal(unlink(aside), 0);
    assert_int_equal(journal_set_aside(f->path, aside), ST_OK);
    assert_int_equal(access(f->path, F_OK), -1);
    assert_int_equal(access(aside, F_OK), 0);
    (void)snprintf(wal, sizeof(wal), "%s-wal", aside);
    assert_int_equal(size_of(wal), 5);
    assert_int_equal(journal_set_aside(f->path, "/tmp/none-such-name"), ST_OK); /* nothing there */
    put_text(part, "new");
    assert_int_equal(journal_place(part, f->path), ST_OK);
    assert_int_equal(size_of(f->path), 3);
    assert_int_equal(unlink(aside), 0);
    assert_int_equal(unlink(wal), 0);
}

static void one_at_a_time_holds_the_place(void **state)
{
    struct journal_files *f = *state;
    int fd = -1;
    assert_int_equal(journal_lock(f->path, &fd), ST_EXISTS);
    close_it(f);
    assert_int_equal(journal_lock(f->path, &fd), ST_OK);
    assert_int_equal(journal_open(f->path, &f->journal), ST_EXISTS);
    f->journal = NULL;
    assert_int_equal(close(fd), 0);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
}

#define T(name) cmocka_unit_test_setup_teardown(name, journal_setup, journal_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_journal_is_good_closed_open_and_cut_off),
        T(nothing_is_a_new_home_unless_one_lived_there),
        T(a_link_that_leads_nowhere_is_refused_in_any_home),
        T(what_is_no_journal_is_refused_in_any_home),
        T(what_is_cut_short_or_overwritten_is_damaged),
        T(a_newer_one_is_left_alone),
        T(a_copy_in_its_place_is_looked_at_without_the_wal_of_another),
        T(what_is_set_aside_keeps_its_wal_and_takes_no_name),
        T(one_at_a_time_holds_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
