/* What workers wrote: the oldest goes, and only what may go. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/logs/old.h"
#include "tests/test.h"

#define NOW        1800000000
#define DAY        INT64_C(86400)
#define FILE_BYTES 65536

struct room {
    char dir[64];
};

static int set_up(void **state)
{
    struct room *room = calloc(1, sizeof(*room));
    assert_non_null(room);
    (void)snprintf(room->dir, sizeof(room->dir), "/tmp/cairn-logs-XXXXXX");
    assert_non_null(mkdtemp(room->dir));
    *state = room;
    return 0;
}

static int tear_down(void **state)
{
    struct room *room = *state;
    char command[96];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", room->dir);
    assert_int_equal(system(command), 0);
    free(room);
    return 0;
}

static void path_of(const struct room *room, const char *name, char out[256])
{
    const int size = snprintf(out, 256, "%s/%s", room->dir, name);
    assert_in_range(size, 1, 255);
}

static bool exists(const struct room *room, const char *name)
{
    char path[256];
    path_of(room, name, path);
    return access(path, F_OK) == 0;
}

static void set_age(const char *path, int64_t age_s)
{
    const struct timespec times[2] = { { .tv_sec = NOW - age_s }, { .tv_sec = NOW - age_s } };
    assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

/* A log of rank 0 of a generation of a job; folders as old as it is. */
static void put_log(const struct room *room, const char *job, int generation, int64_t age_s)
{
    static const char bytes[FILE_BYTES] = "text";
    char folder[128], inner[160], file[192], path[256];
    (void)snprintf(folder, sizeof(folder), "%s", job);
    (void)snprintf(inner, sizeof(inner), "%s/g%d", folder, generation);
    (void)snprintf(file, sizeof(file), "%s/r0.log", inner);
    path_of(room, folder, path);
    (void)mkdir(path, 0755);
    path_of(room, inner, path);
    assert_int_equal(mkdir(path, 0755), 0);
    path_of(room, file, path);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, sizeof(bytes), out), sizeof(bytes));
    assert_int_equal(fclose(out), 0);
    set_age(path, age_s);
    path_of(room, inner, path);
    set_age(path, age_s);
    path_of(room, folder, path);
    set_age(path, age_s);
}

static struct old_logs trim(const struct room *room, uint64_t bytes_max)
{
    struct old_logs logs = { .bytes_max = bytes_max, .quiet_s = DAY, .now_s = NOW };
    (void)snprintf(logs.folder, sizeof(logs.folder), "%s", room->dir);
    old_logs_trim(&logs);
    return logs;
}

static void the_oldest_goes_until_the_rest_has_room(void **state)
{
    struct room *room = *state;
    put_log(room, "j-b", 1, 20 * DAY);
    put_log(room, "j-a", 1, 30 * DAY);
    put_log(room, "j-a", 2, 10 * DAY);
    put_log(room, "j-c", 1, 5 * DAY);
    struct old_logs logs = trim(room, UINT64_C(1) << 30);
    assert_int_equal(logs.generations, 4);
    assert_int_equal(logs.removed, 0);
    assert_true(logs.bytes >= (uint64_t)4 * FILE_BYTES);
    logs = trim(room, logs.bytes - 1);
    assert_int_equal(logs.removed, 1);
    assert_false(exists(room, "j-a/g1"));
    assert_true(exists(room, "j-a/g2/r0.log"));
    logs = trim(room, 0);
    assert_int_equal(logs.removed, 3);
    assert_false(exists(room, "j-a"));
    assert_false(exists(room, "j-b"));
    assert_false(exists(room, "j-c"));
    logs = trim(room, 0);
    assert_int_equal(logs.generations, 0);
}

/* All generations go, also those of a job that goes on, but not the one in which a running worker
 * was born. */
static void a_worker_that_runs_keeps_its_log(void **state)
{
    struct room *room = *state;
    char path[256];
    put_log(room, "j-runs", 1, 30 * DAY);
    put_log(room, "j-runs", 2, 30 * DAY);
    put_log(room, "j-runs", 3, 25 * DAY);
    put_log(room, "j-over", 1, 20 * DAY);
    path_of(room, "j-runs/g2/r0.log", path);
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    struct old_logs logs = trim(room, 0);
    assert_int_equal(logs.removed, 3);
    assert_false(exists(room, "j-runs/g1"));
    assert_true(exists(room, "j-runs/g2/r0.log"));
    assert_false(exists(room, "j-runs/g3"));
    assert_false(exists(room, "j-over"));
    (void)close(fd);
    assert_int_equal(trim(room, 0).removed, 1);
    assert_false(exists(room, "j-runs"));
}

static void what_was_written_lately_stays(void **state)
{
    struct room *room = *state;
    char path[256];
    put_log(room, "j-a", 1, DAY / 2);
    put_log(room, "j-b", 1, 2 * DAY);
    path_of(room, "j-b/g2", path); /* its next generation is formed: no file yet */
    assert_int_equal(mkdir(path, 0755), 0);
    set_age(path, 0);
    assert_int_equal(trim(room, 0).removed, 1);
    assert_true(exists(room, "j-a/g1/r0.log"));
    assert_false(exists(room, "j-b/g1"));
    assert_true(exists(room, "j-b/g2"));
}

static void put_file(const struct room *room, const char *name)
{
    char path[256];
    path_of(room, name, path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    set_age(path, 9 * DAY);
}

static void link_to(const struct room *room, const char *target, const char *name)
{
    char path[256], to[256];
    path_of(room, target, to);
    path_of(room, name, path);
    assert_int_equal(symlink(to, path), 0);
    set_age(path, 9 * DAY);
}

static void age_folder(const struct room *room, const char *name)
{
    char path[256];
    path_of(room, name, path);
    set_age(path, 9 * DAY);
}

/* A link to a folder, wherever it stands, and files that no agent makes. */
static void other_things_are_left_alone(void **state)
{
    struct room *room = *state;
    struct old_logs logs = { .bytes_max = 0, .quiet_s = DAY, .now_s = NOW };
    put_log(room, "jobs", 1, 9 * DAY); /* jobs/g1: as if it were a job without an attempt */
    put_log(room, "theirs", 1, 9 * DAY);
    put_file(room, "theirs/r1.log");
    put_log(room, "jobs/j-a", 1, 9 * DAY);
    put_log(room, "jobs/j-a", 2, 9 * DAY);
    put_file(room, "jobs/j-a/g1/r0.log.1"); /* where a log was turned over */
    put_file(room, "jobs/j-a/g2/notes.txt");
    link_to(room, "theirs", "jobs/j-a/g3");
    link_to(room, "theirs", "jobs/j-b");
    put_file(room, "jobs/file");
    age_folder(room, "jobs/j-a/g1");
    age_folder(room, "jobs/j-a/g2");
    age_folder(room, "jobs/j-a");
    path_of(room, "jobs", logs.folder);
    old_logs_trim(&logs);
    assert_int_equal(logs.removed, 1); /* g2 isn't empty */
    assert_false(exists(room, "jobs/j-a/g1"));
    assert_true(exists(room, "jobs/j-a/g2/notes.txt"));
    assert_false(exists(room, "jobs/j-a/g2/r0.log"));
    assert_true(exists(room, "jobs/j-a/g3"));
    assert_true(exists(room, "jobs/j-b"));
    assert_true(exists(room, "jobs/file"));
    assert_true(exists(room, "jobs/g1/r0.log"));
    assert_true(exists(room, "theirs/g1/r0.log"));
    assert_true(exists(room, "theirs/r1.log"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_oldest_goes_until_the_rest_has_room),
        TEST(a_worker_that_runs_keeps_its_log),
        TEST(what_was_written_lately_stays),
        TEST(other_things_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
