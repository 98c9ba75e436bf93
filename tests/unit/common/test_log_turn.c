/* Logs are bounded, whoever writes to them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "tests/test.h"

#define MAX 1000

struct room {
    char dir[64], path[80], kept[96];
    int fd; /* as who writes has it */
};

static int set_up(void **state)
{
    struct room *room = calloc(1, sizeof(*room));
    assert_non_null(room);
    (void)snprintf(room->dir, sizeof(room->dir), "/tmp/cairn-turn-XXXXXX");
    assert_non_null(mkdtemp(room->dir));
    (void)snprintf(room->path, sizeof(room->path), "%s/a.log", room->dir);
    (void)snprintf(room->kept, sizeof(room->kept), "%s.1", room->path);
    room->fd = open(room->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(room->fd >= 0);
    *state = room;
    return 0;
}

static int tear_down(void **state)
{
    struct room *room = *state;
    char command[96];
    (void)close(room->fd);
    (void)snprintf(command, sizeof(command), "rm -r '%s'", room->dir);
    assert_int_equal(system(command), 0);
    free(room);
    return 0;
}

/* Lines of ten bytes. */
static void put_lines(const struct room *room, int from, int count)
{
    for (int i = from; i < from + count; i++) {
        char line[16];
        (void)snprintf(line, sizeof(line), "line %04d\n", i);
        assert_int_equal(write(room->fd, line, 10), 10);
    }
}

static size_t read_all(const char *path, char out[8192])
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(out, 1, 8191, file);
    out[size] = '\0';
    assert_int_equal(fclose(file), 0);
    return size;
}

static void a_file_within_its_bound_is_left_alone(void **state)
{
    struct room *room = *state;
    char text[8192];
    bool turned = true;
    put_lines(room, 0, MAX / 10);
    assert_int_equal(log_turn(room->path, MAX, "cut\n", &turned), ST_OK);
    assert_false(turned);
    assert_int_equal(read_all(room->path, text), MAX);
    assert_int_not_equal(access(room->kept, F_OK), 0);
}

static void what_it_had_is_kept_once_and_who_writes_goes_on(void **state)
{
    struct room *room = *state;
    char text[8192];
    bool turned = false;
    struct stat about;
    put_lines(room, 0, 120);
    assert_int_equal(log_turn(room->path, MAX, "cut\n", &turned), ST_OK);
    assert_true(turned);
    put_lines(room, 120, 110);
    assert_int_equal(read_all(room->kept, text), 1200);
    assert_memory_equal(text, "line 0000\n", 10);
    assert_int_equal(read_all(room->path, text), 1104);
    assert_memory_equal(text, "cut\nline 0120\n", 14);
    assert_int_equal(log_turn(room->path, MAX, NULL, &turned), ST_OK);
    assert_true(turned);
    assert_int_equal(read_all(room->kept, text), 1104);
    assert_int_equal(read_all(room->path, text), 0);
    assert_int_equal(stat(room->kept, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
}

/* A log of this size is left by an older version. */
static void of_a_huge_one_the_newest_is_kept(void **state)
{
    struct room *room = *state;
    char text[8192];
    bool turned = false;
    put_lines(room, 0, 700);
    assert_int_equal(log_turn(room->path, MAX, NULL, &turned), ST_OK);
    assert_int_equal(read_all(room->kept, text), 2 * MAX);
    assert_memory_equal(text, "line 0500\n", 10);
    assert_int_equal(read_all(room->path, text), 0);
}

/* What nobody may take for a log: a link, a folder, a pipe; what isn't there. */
static void only_regular_files_are_cut(void **state)
{
    struct room *room = *state;
    char path[96], text[8192];
    bool turned = false;
    put_lines(room, 0, 200);
    (void)snprintf(path, sizeof(path), "%s/link", room->dir);
    assert_int_equal(symlink(room->path, path), 0);
    assert_int_not_equal(log_turn(path, MAX, NULL, &turned), ST_OK);
    assert_false(turned);
    (void)snprintf(path, sizeof(path), "%s/pipe", room->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(log_turn(path, MAX, NULL, &turned), ST_OK);
    assert_false(turned);
    (void)snprintf(path, sizeof(path), "%s/none", room->dir);
    assert_int_equal(log_turn(path, MAX, NULL, &turned), ST_OK);
    assert_false(turned);
    assert_int_equal(read_all(room->path, text), 2000);
}

/* The copy fails, as on a full disk: a folder takes its place. */
static void without_room_for_the_copy_it_is_cut_all_the_same(void **state)
{
    struct room *room = *state;
    char part[128], text[8192];
    bool turned = false;
    (void)snprintf(part, sizeof(part), "%s.part", room->kept);
    assert_int_equal(mkdir(part, 0700), 0);
    put_lines(room, 0, 200);
    assert_int_not_equal(log_turn(room->path, MAX, "cut\n", &turned), ST_OK);
    assert_true(turned);
    assert_int_equal(read_all(room->path, text), 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_within_its_bound_is_left_alone),
        TEST(what_it_had_is_kept_once_and_who_writes_goes_on),
        TEST(of_a_huge_one_the_newest_is_kept),
        TEST(only_regular_files_are_cut),
        TEST(without_room_for_the_copy_it_is_cut_all_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
