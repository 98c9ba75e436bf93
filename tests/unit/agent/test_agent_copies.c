/* The folders of copies in memory, where other accounts may have put something. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/copies.h"
#include "tests/test.h"

struct folder {
    struct paths paths;
};

static int set_up(void **state)
{
    struct folder *f = calloc(1, sizeof(*f));
    char path[LIMIT_PATH];
    assert_non_null(f);
    (void)snprintf(f->paths.home, sizeof(f->paths.home), "/tmp/cairn-copies-XXXXXX");
    assert_non_null(mkdtemp(f->paths.home));
    assert_int_equal(paths_join(&f->paths, path, sizeof(path), "agent"), ST_OK);
    assert_int_equal(mkdir(path, 0755), 0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct folder *f = *state;
    char command[LIMIT_PATH];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", f->paths.home);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

#define COPIES_JOB "j-0123456789"

/* The base is HOME/copies. */
static void open_copies(const struct folder *f, struct copies *copies, char base[LIMIT_PATH],
                        const struct log *log)
{
    assert_int_equal(paths_join(&f->paths, base, LIMIT_PATH, "copies"), ST_OK);
    assert_int_equal(setenv("CAIRN_COPIES", base, 1), 0);
    copies_open(copies, &f->paths, "here", log);
    assert_int_equal(unsetenv("CAIRN_COPIES"), 0);
}

static size_t count_copies(const struct copies *copies)
{
    char **jobs = NULL;
    const size_t count = copies_jobs(copies, &jobs);
    free(jobs);
    return count;
}

static void copies_of_a_job_go(void **state)
{
    const struct folder *f = *state;
    struct copies copies;
    const struct log log = log_open("test");
    char job[LIMIT_PATH], path[LIMIT_PATH], base[LIMIT_PATH];
    open_copies(f, &copies, base, &log);
    assert_int_equal(copies_folder(&copies, COPIES_JOB, job), ST_OK);
    assert_int_equal(count_copies(&copies), 1);
    (void)snprintf(path, sizeof(path), "%.900s/g1-r0-0.copy", job);
    assert_int_equal(mknod(path, S_IFREG | 0600, 0), 0);
    (void)snprintf(path, sizeof(path), "%.900s/g1-r12-2.copy", job);
    assert_int_equal(mkfifo(path, 0600), 0);
    copies_forget(&copies, COPIES_JOB);
    assert_int_not_equal(access(base, F_OK), 0);
}

static size_t line_count(const char *path)
{
    FILE *file = fopen(path, "re");
    size_t lines = 0;
    assert_non_null(file);
    for (int c = fgetc(file); c != EOF; c = fgetc(file))
        lines += c == '\n';
    assert_int_equal(fclose(file), 0);
    return lines;
}

static void what_isnt_ours_stays_is_told_and_keeps_no_copy(void **state)
{
    const struct folder *f = *state;
    struct copies copies;
    struct log log = log_open("test");
    char job[LIMIT_PATH], base[LIMIT_PATH], log_path[LIMIT_PATH];
    assert_int_equal(paths_join(&f->paths, log_path, sizeof(log_path), "log"), ST_OK);
    log.fd = open(log_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(log.fd >= 0);
    open_copies(f, &copies, base, &log);
    assert_int_equal(copies_folder(&copies, COPIES_JOB, job), ST_OK);
    const char *const names[] = { "g1-r0-0.copy", "g1-r0-0.copy~", "g1-r0.copy", "thesis.tex",
                                  "empty" };
    char paths[5][LIMIT_PATH];
    for (int i = 0; i < 5; i++) {
        (void)snprintf(paths[i], LIMIT_PATH, "%.900s/%s", job, names[i]);
        assert_int_equal(i == 4 ? mkdir(paths[i], 0700) : mknod(paths[i], S_IFREG | 0600, 0), 0);
    }
    copies_forget(&copies, COPIES_JOB);
    for (int i = 0; i < 5; i++)
        assert_int_equal(access(paths[i], F_OK) == 0, i >= 1);
    assert_int_equal(line_count(log_path), 1); /* the job's folder */
    assert_int_equal(count_copies(&copies), 1);
    for (int i = 1; i < 5; i++)
        assert_int_equal(remove(paths[i]), 0);
    copies_forget(&copies, COPIES_JOB); /* asked again */
    assert_int_not_equal(access(base, F_OK), 0);
    assert_int_equal(line_count(log_path), 1);
    (void)close(log.fd);
}

/* A folder of our own with a file, as other programs have them. */
static void make_foreign(const struct folder *f, char folder[LIMIT_PATH], char file[LIMIT_PATH])
{
    assert_int_equal(paths_join(&f->paths, folder, LIMIT_PATH, "foreign"), ST_OK);
    assert_int_equal(mkdir(folder, 0700), 0);
    (void)snprintf(file, LIMIT_PATH, "%.900s/g1-r0-0.copy", folder);
    assert_int_equal(mknod(file, S_IFREG | 0600, 0), 0);
}

static void nothing_goes_behind_a_link(void **state)
{
    const struct folder *f = *state;
    struct copies copies;
    const struct log log = log_open("test");
    char base[LIMIT_PATH], job[LIMIT_PATH], foreign[LIMIT_PATH], file[LIMIT_PATH];
    make_foreign(f, foreign, file);
    open_copies(f, &copies, base, &log);
    assert_int_equal(copies_folder(&copies, COPIES_JOB, job), ST_OK);
    assert_int_equal(rmdir(job), 0);
    assert_int_equal(symlink(foreign, job), 0); /* the job's */
    copies_forget(&copies, COPIES_JOB);
    assert_int_equal(access(file, F_OK), 0);
    char path[LIMIT_PATH];
    assert_int_equal(copies_folder(&copies, COPIES_JOB, path), ST_REFUSED);
    assert_int_equal(unlink(job), 0);
    *strrchr(job, '/') = '\0';
    assert_int_equal(rmdir(job), 0);
    assert_int_equal(symlink(foreign, job), 0); /* the node's */
    (void)snprintf(path, sizeof(path), "%.900s/" COPIES_JOB, foreign);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(count_copies(&copies), 0);
    copies_forget(&copies, COPIES_JOB);
    assert_int_equal(access(path, F_OK), 0);
}

static void names_that_are_no_ids_arent_listed(void **state)
{
    static const char *const names[] = { "j-012345678", "j-01234567890", "j-012345678i",
                                         "x-0123456789", "j-0123456789" };
    const struct folder *f = *state;
    struct copies copies;
    const struct log log = log_open("test");
    char base[LIMIT_PATH], job[LIMIT_PATH];
    open_copies(f, &copies, base, &log);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(copies_folder(&copies, names[i], job), ST_OK);
    assert_int_equal(count_copies(&copies), 1);
}

/* Where the base is not ours alone, nothing in it is listed or removed, and that is told. */
static void expect_untouched(const struct folder *f, const char *base, const char *file)
{
    struct copies copies;
    const struct log log = log_open("test");
    char job[LIMIT_PATH], again[LIMIT_PATH];
    open_copies(f, &copies, again, &log);
    assert_string_equal(again, base);
    assert_string_not_equal(copies.trouble.text, "");
    assert_int_equal(count_copies(&copies), 0);
    copies_forget(&copies, COPIES_JOB);
    assert_int_equal(access(file, F_OK), 0);
    assert_int_equal(copies_folder(&copies, COPIES_JOB, job), ST_REFUSED);
}

static void a_base_that_isnt_ours_alone_is_left_as_it_is(void **state)
{
    const struct folder *f = *state;
    struct copies copies;
    const struct log log = log_open("test");
    char base[LIMIT_PATH], job[LIMIT_PATH], file[LIMIT_PATH];
    open_copies(f, &copies, base, &log);
    assert_string_equal(copies.trouble.text, "");
    assert_int_equal(copies_folder(&copies, COPIES_JOB, job), ST_OK);
    (void)snprintf(file, sizeof(file), "%.900s/g1-r0-0.copy", job);
    assert_int_equal(mknod(file, S_IFREG | 0600, 0), 0);
    assert_int_equal(chmod(base, 0777), 0);
    expect_untouched(f, base, file);
    assert_int_equal(chmod(base, 0700), 0);
    if (geteuid() != 0)
        return; /* nobody else's can be made */
    assert_int_equal(chown(base, 65534, 65534), 0);
    expect_untouched(f, base, file);
}

static void another_base_is_kept_where_the_usual_one_is_taken(void **state)
{
    const struct folder *f = *state;
    struct copies copies, after;
    const struct log log = log_open("test");
    char base[LIMIT_PATH], job[LIMIT_PATH];
    assert_int_equal(unsetenv("CAIRN_COPIES"), 0);
    assert_int_equal(paths_copies(&f->paths, base, sizeof(base)), ST_OK);
    assert_int_equal(mkdir(base, 0700), 0);
    assert_int_equal(chmod(base, 0777), 0);
    copies_open(&copies, &f->paths, "here", &log);
    assert_string_not_equal(copies.base, base);
    assert_non_null(strstr(copies.trouble.text, base));
    assert_int_equal(copies_folder(&copies, COPIES_JOB, job), ST_OK);
    copies_open(&after, &f->paths, "here", &log); /* the next agent */
    assert_string_equal(after.base, copies.base);
    assert_int_equal(count_copies(&after), 1);
    copies_forget(&after, COPIES_JOB);
    assert_int_not_equal(access(after.base, F_OK), 0);
    assert_int_equal(rmdir(base), 0);
}

#define FOLDER_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(copies_of_a_job_go),
        FOLDER_TEST(what_isnt_ours_stays_is_told_and_keeps_no_copy),
        FOLDER_TEST(nothing_goes_behind_a_link),
        FOLDER_TEST(names_that_are_no_ids_arent_listed),
        FOLDER_TEST(a_base_that_isnt_ours_alone_is_left_as_it_is),
        FOLDER_TEST(another_base_is_kept_where_the_usual_one_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
