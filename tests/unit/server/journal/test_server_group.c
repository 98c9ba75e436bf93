/* A group of writes under SIGKILL, at each write of SQLite to its files: afterwards the journal has
 * the whole group, or nothing of it; and the whole, where the commit came back. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"
#include "tests/unit/server/journal/journal_vfs.h"

#define JOBS 8

static void die_at_zero(void *arg, enum journal_call call)
{
    long *left = arg;
    (void)call;
    if ((*left)-- == 0)
        (void)kill(getpid(), SIGKILL);
}

static enum status put_base(struct journal *journal)
{
    struct journal_job job = {
        .id = "base", .name = "n", .job_file = "a: 1\n", .pins = "", .state = "before"
    };
    enum status st = journal_begin(journal);
    if (st == ST_OK)
        st = journal_put_job(journal, &job);
    return st == ST_OK ? journal_commit(journal) : st;
}

/* New jobs, an old one's state, and reports of that many bytes. */
static enum status put_group(struct journal *journal, size_t bytes)
{
    char *report = calloc(1, bytes);
    enum status st = report != NULL ? journal_begin(journal) : ST_NO_MEMORY;
    for (int i = 0; st == ST_OK && i < JOBS; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "j-%d", i);
        struct journal_job job = {
            .id = id, .name = "n", .seq = i + 1, .job_file = "a: 1\n", .pins = "", .state = "after"
        };
        struct journal_event event = { .step = 1, .kind = "k", .message = "m" };
        st = journal_put_job(journal, &job);
        if (st == ST_OK)
            st = journal_put_event(journal, id, &event);
        if (st == ST_OK)
            st = journal_put_report(journal, "base", 5, 1, (uint32_t)i, report, bytes);
    }
    free(report);
    if (st == ST_OK)
        st = journal_put_state(journal, "base", "after");
    return st == ST_OK ? journal_commit(journal) : st;
}

struct found {
    int jobs, after, events, reports;
};

static bool count_event(void *arg, const struct journal_event *event)
{
    (void)event;
    ((struct found *)arg)->events++;
    return true;
}

static bool count_report(void *arg, uint32_t rank, const void *report, size_t size)
{
    (void)rank;
    (void)report;
    (void)size;
    ((struct found *)arg)->reports++;
    return true;
}

static bool count_job(void *arg, const struct journal_job *job)
{
    struct found *found = arg;
    found->jobs++;
    found->after += strcmp(job->state, "after") == 0;
    return true;
}

/* true: the whole group is there; else nothing of it is. */
static bool is_there(struct journal *journal)
{
    struct found found = { 0 };
    assert_int_equal(journal_each_job(journal, count_job, &found), ST_OK);
    for (int i = 0; i < JOBS; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "j-%d", i);
        assert_int_equal(journal_each_event(journal, id, 10, count_event, &found), ST_OK);
    }
    assert_int_equal(journal_each_report(journal, "base", 5, 1, count_report, &found), ST_OK);
    const bool whole = found.after == JOBS + 1;
    assert_int_equal(found.jobs, whole ? JOBS + 1 : 1);
    assert_int_equal(found.after, whole ? JOBS + 1 : 0);
    assert_int_equal(found.events, whole ? JOBS : 0);
    assert_int_equal(found.reports, whole ? JOBS : 0);
    return whole;
}

static void run_child(const char *path, long kill_at, size_t bytes, int out)
{
    long left = kill_at;
    struct journal *journal;
    journal_vfs_watch(NULL, NULL);
    bool done = journal_open(path, &journal) == ST_OK && put_base(journal) == ST_OK;
    journal_vfs_watch(die_at_zero, &left);
    done = done && put_group(journal, bytes) == ST_OK && write(out, "c", 1) == 1;
    _exit(done ? 0 : 1);
}

/* One process that is killed before its write number kill_at; true: it came to its end. */
static bool run_once(const char *dir, long kill_at, size_t bytes)
{
    char path[128], committed = 0;
    int ends[2], status;
    struct journal *journal;
    (void)snprintf(path, sizeof(path), "%s/killed.db", dir);
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        run_child(path, kill_at, bytes, ends[1]);
    (void)close(ends[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    const bool told = read(ends[0], &committed, 1) == 1;
    (void)close(ends[0]);
    const bool ended = WIFEXITED(status);
    assert_true(ended ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
    journal_vfs_watch(NULL, NULL);
    assert_int_equal(journal_open(path, &journal), ST_OK);
    assert_true(is_there(journal) || !told);
    journal_close(journal);
    static const char *const files[] = { "", "-wal", "-shm", ".lock" };
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char name[160];
        (void)snprintf(name, sizeof(name), "%s%s", path, files[i]);
        (void)unlink(name);
    }
    return ended;
}

static void a_group_is_there_whole_or_not_at_all(void **state)
{
    struct journal_files *f = *state;
    long at = 0;
    while (!run_once(f->dir, at, 512))
        at++;
    assert_true(at > 10); /* there were so many writes */
}

/* More than SQLite keeps in memory: pages go to the file before the commit. */
static void a_group_that_spills_is_there_whole_or_not_at_all(void **state)
{
    struct journal_files *f = *state;
    long at = 0;
    while (!run_once(f->dir, at, (size_t)512 * 1024))
        at += 211;
    assert_true(at > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_group_is_there_whole_or_not_at_all, journal_setup,
                                        journal_teardown),
        cmocka_unit_test_setup_teardown(a_group_that_spills_is_there_whole_or_not_at_all,
                                        journal_setup, journal_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
