/* Folders and files in places where other accounts may put something. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/limits.h"
#include "common/own/private.h"
#include "tests/test.h"

#define NOBODY 65534

struct place {
    char dir[64];
    char path[LIMIT_PATH];
    struct reason why;
    struct private_found found;
    int fd;
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    (void)snprintf(p->dir, sizeof(p->dir), "/tmp/cairn-private-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    (void)snprintf(p->path, sizeof(p->path), "%s/it", p->dir);
    p->fd = -1;
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s", p->dir);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a name of our own */
    free(p);
    return 0;
}

static enum status folder(struct place *p, unsigned flags)
{
    p->why = (struct reason){ "" };
    enum status st = private_folder(AT_FDCWD, p->path, flags, &p->fd, &p->found, &p->why);
    if (st == ST_OK)
        assert_int_equal(close(p->fd), 0);
    return st;
}

static enum status file(struct place *p, unsigned flags)
{
    p->why = (struct reason){ "" };
    enum status st = private_file(AT_FDCWD, p->path, O_RDWR, flags, &p->fd, &p->found, &p->why);
    if (st == ST_OK)
        assert_int_equal(close(p->fd), 0);
    return st;
}

static mode_t mode_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_mode & 07777;
}

static void what_is_made_is_ours_alone_whatever_the_umask(void **state)
{
    struct place *p = *state;
    const mode_t was = umask(0);
    assert_int_equal(folder(p, 0), ST_NOT_FOUND);
    assert_int_equal(folder(p, PRIVATE_MAKE), ST_OK);
    assert_int_equal(folder(p, 0), ST_OK);
    assert_int_equal(mode_of(p->path), 0700);
    assert_int_equal(rmdir(p->path), 0);
    assert_int_equal(file(p, 0), ST_NOT_FOUND);
    assert_int_equal(file(p, PRIVATE_MAKE), ST_OK);
    assert_int_equal(mode_of(p->path), 0600);
    assert_int_equal(folder(p, 0), ST_REFUSED); /* a file */
    (void)umask(was);
}

static void what_others_may_read_is_refused_or_mended(void **state)
{
    struct place *p = *state;
    assert_int_equal(mkdir(p->path, 0700), 0);
    assert_int_equal(chmod(p->path, 0755), 0);
    assert_int_equal(folder(p, 0), ST_REFUSED);
    assert_non_null(strstr(p->why.text, "mode 0755"));
    assert_non_null(strstr(p->why.text, "chmod 700"));
    assert_int_equal(folder(p, PRIVATE_READABLE), ST_OK);
    assert_int_equal(mode_of(p->path), 0755);
    assert_int_equal(folder(p, PRIVATE_MEND), ST_OK);
    assert_true(p->found.mended);
    assert_int_equal(p->found.mode, 0755);
    assert_int_equal(mode_of(p->path), 0700);
    assert_int_equal(folder(p, PRIVATE_MEND), ST_OK);
    assert_false(p->found.mended);
}

static void what_others_may_write_is_refused(void **state)
{
    static const mode_t modes[] = { 0777, 0770, 0720, 01777, 0702 };
    struct place *p = *state;
    assert_int_equal(mkdir(p->path, 0700), 0);
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        assert_int_equal(chmod(p->path, modes[i]), 0);
        assert_int_equal(folder(p, PRIVATE_MEND | PRIVATE_MAKE), ST_REFUSED);
        assert_int_equal(folder(p, PRIVATE_READABLE), ST_REFUSED);
        assert_non_null(strstr(p->why.text, "may write to"));
        assert_int_equal(mode_of(p->path), modes[i]);
    }
}

static void a_link_is_followed_only_where_that_is_asked_for(void **state)
{
    struct place *p = *state;
    char target[LIMIT_PATH];
    (void)snprintf(target, sizeof(target), "%s/target", p->dir);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, p->path), 0);
    assert_int_equal(folder(p, PRIVATE_MAKE), ST_REFUSED);
    assert_non_null(strstr(p->why.text, "is a link"));
    assert_int_equal(folder(p, PRIVATE_LINKS), ST_OK);
    if (geteuid() == 0) {
        assert_int_equal(lchown(p->path, NOBODY, NOBODY), 0);
        assert_int_equal(folder(p, PRIVATE_LINKS), ST_REFUSED);
    }
    assert_int_equal(rmdir(target), 0);
    assert_int_equal(file(p, PRIVATE_MAKE), ST_REFUSED); /* would have made what it points to */
    assert_int_not_equal(access(target, F_OK), 0);
}

static void what_is_no_file_isnt_waited_for(void **state)
{
    struct place *p = *state;
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(mkfifo(p->path, 0600), 0);
    assert_int_equal(file(p, 0), ST_INVALID);
    assert_int_equal(private_read(p->path, 10, &text, &size, &p->why), ST_INVALID);
}

static void a_secret_is_read_from_a_file_that_nobody_else_can_read(void **state)
{
    struct place *p = *state;
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(private_read(p->path, 10, &text, &size, &p->why), ST_NOT_FOUND);
    const int fd = open(p->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, "0123456789", 10), 10);
    assert_int_equal(close(fd), 0);
    assert_int_equal(private_read(p->path, 10, &text, &size, &p->why), ST_OK);
    assert_int_equal(size, 10);
    assert_string_equal(text, "0123456789");
    free(text);
    assert_int_equal(private_read(p->path, 9, &text, &size, &p->why), ST_INVALID);
    assert_int_equal(chmod(p->path, 0640), 0);
    assert_int_equal(private_read(p->path, 10, &text, &size, &p->why), ST_REFUSED);
    assert_non_null(strstr(p->why.text, "chmod 600"));
}

static void what_is_somebody_elses_is_refused_by_name(void **state)
{
    struct place *p = *state;
    if (geteuid() != 0) {
        print_message("needs root: there is no other account to give it to\n");
        skip();
    }
    assert_int_equal(mkdir(p->path, 0700), 0);
    assert_int_equal(chown(p->path, NOBODY, NOBODY), 0);
    assert_int_equal(folder(p, PRIVATE_MEND | PRIVATE_ROOTS | PRIVATE_READABLE), ST_REFUSED);
    assert_non_null(strstr(p->why.text, "belongs to nobody (mode 0700), not to root"));
    assert_int_equal(chown(p->path, 0, 0), 0);
    assert_int_equal(chmod(p->dir, 0755), 0);
    assert_int_equal(seteuid(NOBODY), 0); /* root's is not ours, but does where that is said */
    assert_int_equal(chmod(p->path, 0755), -1);
    const enum status alone = folder(p, 0);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(alone, ST_REFUSED);
    assert_int_equal(chmod(p->path, 0755), 0);
    assert_int_equal(seteuid(NOBODY), 0);
    const enum status roots = folder(p, PRIVATE_ROOTS | PRIVATE_READABLE);
    const enum status mended = folder(p, PRIVATE_MEND | PRIVATE_READABLE);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(roots, ST_OK);
    assert_int_equal(mended, ST_REFUSED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_made_is_ours_alone_whatever_the_umask),
        TEST(what_others_may_read_is_refused_or_mended),
        TEST(what_others_may_write_is_refused),
        TEST(a_link_is_followed_only_where_that_is_asked_for),
        TEST(what_is_no_file_isnt_waited_for),
        TEST(a_secret_is_read_from_a_file_that_nobody_else_can_read),
        TEST(what_is_somebody_elses_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
