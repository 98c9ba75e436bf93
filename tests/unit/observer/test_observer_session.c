/* Access to the page: tokens, their ends, links that work once. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "observer/http/session.h"
#include "tests/test.h"

static char home[] = "/tmp/cairn-session-XXXXXX";
static struct sessions sessions;

static int open_all(void **state)
{
    struct paths paths;
    (void)state;
    assert_non_null(mkdtemp(home));
    assert_int_equal(setenv("CAIRN_HOME", home, 1), 0);
    assert_int_equal(paths_open(&paths), ST_OK);
    assert_int_equal(sessions_open(&sessions, &paths), ST_OK);
    return 0;
}

static void a_token_has_a_role_and_an_end(void **state)
{
    char token[IDENTITY_TOKEN];
    (void)state;
    session_make(&sessions, IDENTITY_VIEWER, 1000, token);
    assert_int_equal(session_role(&sessions, token, 999), IDENTITY_VIEWER);
    assert_int_equal(session_role(&sessions, token, 1000), IDENTITY_NOBODY);
    session_make(&sessions, IDENTITY_OPERATOR, 1000, token);
    assert_int_equal(session_role(&sessions, token, 999), IDENTITY_OPERATOR);
}

static void tokens_are_told_apart_without_being_told(void **state)
{
    char one[IDENTITY_TOKEN], other[IDENTITY_TOKEN], who[SESSION_WHO], again[SESSION_WHO];
    (void)state;
    session_make(&sessions, IDENTITY_OPERATOR, 1000, one);
    session_make(&sessions, IDENTITY_OPERATOR, 1000, other);
    session_who(one, who);
    session_who(one, again);
    assert_string_equal(who, again);
    assert_memory_equal(who, "session:", 8);
    assert_int_equal(strlen(who), 14);
    session_who(other, again);
    assert_string_not_equal(who, again); /* 24 bits: once in 16 million runs they are equal */
    assert_int_equal(session_until_s(one), 1000);
    session_make(&sessions, IDENTITY_OPERATOR, 0xffffffff, one);
    session_who(one, who);
    assert_memory_equal(who, "token:", 6);
}

static void a_token_that_was_changed_is_nobodys(void **state)
{
    char token[IDENTITY_TOKEN];
    (void)state;
    session_make(&sessions, IDENTITY_VIEWER, 1000, token);
    for (size_t i = 0; i < IDENTITY_TOKEN - 1; i++) {
        const char kept = token[i];
        token[i] = kept == 'a' ? 'c' : 'a';
        assert_int_equal(session_role(&sessions, token, 10), IDENTITY_NOBODY);
        token[i] = kept;
    }
    assert_int_equal(session_role(&sessions, token, 10), IDENTITY_VIEWER);
    token[IDENTITY_TOKEN - 2] = '\0';
    assert_int_equal(session_role(&sessions, token, 10), IDENTITY_NOBODY);
    assert_int_equal(session_role(&sessions, "", 10), IDENTITY_NOBODY);
    assert_int_equal(session_role(&sessions, NULL, 10), IDENTITY_NOBODY);
}

static void another_home_has_another_key(void **state)
{
    char token[IDENTITY_TOKEN];
    struct sessions other = sessions;
    (void)state;
    other.key[0] = (char)(other.key[0] == '0' ? '1' : '0');
    session_make(&other, IDENTITY_OPERATOR, 1000, token);
    assert_int_equal(session_role(&sessions, token, 10), IDENTITY_NOBODY);
}

static void put_link(const char *code, const char *role)
{
    char path[LIMIT_PATH + 64];
    (void)snprintf(path, sizeof(path), "%s/%s", sessions.links, code);
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, role, strlen(role)), (ssize_t)strlen(role));
    assert_int_equal(close(fd), 0);
}

static void a_link_works_once(void **state)
{
    static const char code[] = "0123456789abcdef0123456789abcdef";
    const int64_t now = time(NULL);
    (void)state;
    assert_int_equal(session_link(&sessions, code, now), IDENTITY_NOBODY);
    put_link(code, "operator");
    assert_int_equal(session_link(&sessions, code, now), IDENTITY_OPERATOR);
    assert_int_equal(session_link(&sessions, code, now), IDENTITY_NOBODY);
    put_link(code, "viewer");
    assert_int_equal(session_link(&sessions, code, now), IDENTITY_VIEWER);
    put_link(code, "root");
    assert_int_equal(session_link(&sessions, code, now), IDENTITY_NOBODY);
}

static void an_old_link_is_none(void **state)
{
    static const char code[] = "0123456789abcdef0123456789abcde0";
    (void)state;
    put_link(code, "operator");
    assert_int_equal(session_link(&sessions, code, time(NULL) + SESSION_LINK_S + 2),
                     IDENTITY_NOBODY);
}

/* Else one made before the clock was set back would be good until it has caught up. */
static void a_link_of_the_future_is_none(void **state)
{
    static const char code[] = "0123456789abcdef0123456789abcde1";
    (void)state;
    put_link(code, "operator");
    assert_int_equal(session_link(&sessions, code, time(NULL) - SESSION_LINK_S - 2),
                     IDENTITY_NOBODY);
}

static void read_token(const char *name, char out[IDENTITY_TOKEN + 1])
{
    char path[LIMIT_PATH];
    (void)snprintf(path, sizeof(path), "%s/observer/%s", home, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, out, IDENTITY_TOKEN + 1), IDENTITY_TOKEN);
    assert_int_equal(close(fd), 0);
    assert_int_equal(out[IDENTITY_TOKEN - 1], '\n');
    out[IDENTITY_TOKEN - 1] = '\0';
}

static void tokens_outlive_a_restart(void **state)
{
    char before[IDENTITY_TOKEN + 1], after[IDENTITY_TOKEN + 1], path[LIMIT_PATH];
    struct paths paths;
    (void)state;
    assert_int_equal(paths_open(&paths), ST_OK);
    read_token("token", before);
    assert_int_equal(session_role(&sessions, before, time(NULL)), IDENTITY_OPERATOR);
    assert_int_equal(sessions_open(&sessions, &paths), ST_OK);
    read_token("token", after);
    assert_string_equal(before, after);

    (void)snprintf(path, sizeof(path), "%s/observer/key", home);
    assert_int_equal(unlink(path), 0); /* all are worthless now */
    assert_int_equal(sessions_open(&sessions, &paths), ST_OK);
    read_token("token", after);
    assert_string_not_equal(before, after);
    assert_int_equal(session_role(&sessions, after, time(NULL)), IDENTITY_OPERATOR);
    read_token("viewer-token", after);
    assert_int_equal(session_role(&sessions, after, time(NULL)), IDENTITY_VIEWER);
}

/* A file with a viewer's token, or with longer junk, is replaced by an operator's. */
static void a_token_file_of_another_kind_is_written_anew(void **state)
{
    char path[LIMIT_PATH], token[IDENTITY_TOKEN + 1], junk[200];
    struct paths paths;
    (void)state;
    assert_int_equal(paths_open(&paths), ST_OK);
    (void)snprintf(path, sizeof(path), "%s/observer/token", home);
    memset(junk, 'a', sizeof(junk));
    session_make(&sessions, IDENTITY_VIEWER, 0xffffffff, junk);
    junk[IDENTITY_TOKEN - 1] = '\n';
    for (size_t size = 0; size <= sizeof(junk); size += 50) {
        const int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
        assert_int_equal(write(fd, junk, size), (ssize_t)size);
        assert_int_equal(close(fd), 0);
        assert_int_equal(sessions_open(&sessions, &paths), ST_OK);
        read_token("token", token);
        assert_int_equal(session_role(&sessions, token, time(NULL)), IDENTITY_OPERATOR);
    }
}

static void a_link_is_no_path(void **state)
{
    (void)state;
    put_link("../key2", "operator");
    assert_int_equal(session_link(&sessions, "../key2", time(NULL)), IDENTITY_NOBODY);
    assert_int_equal(session_link(&sessions, "../../../../../../../../etc/passw", time(NULL)),
                     IDENTITY_NOBODY);
    assert_int_equal(session_link(&sessions, "", time(NULL)), IDENTITY_NOBODY);
    assert_int_equal(session_link(&sessions, NULL, time(NULL)), IDENTITY_NOBODY);
}

static void what_is_kept_is_its_owners(void **state)
{
    static const char *const names[] = { "observer",
                                         "observer/links",
                                         "observer/key",
                                         "observer/token",
                                         "observer/viewer-token",
                                         "observer/header",
                                         "observer/viewer-header" };
    char path[LIMIT_PATH];
    struct stat info;
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", home, names[i]);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 077, 0);
    }
}

/* Nobody is let in by what another key sealed, from the next look on. */
static void the_key_taken_away_ends_all(void **state)
{
    char session[IDENTITY_TOKEN], before[IDENTITY_TOKEN + 1], after[IDENTITY_TOKEN + 1];
    char path[LIMIT_PATH];
    struct paths paths;
    bool changed = true;
    (void)state;
    assert_int_equal(paths_open(&paths), ST_OK);
    session_make(&sessions, IDENTITY_OPERATOR, 0xfffffff0, session);
    read_token("token", before);
    assert_int_equal(sessions_look(&sessions, &paths, &changed), ST_OK);
    assert_false(changed);
    const uint32_t keys = sessions_keys(&sessions);
    (void)snprintf(path, sizeof(path), "%s/observer/key", home);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sessions_look(&sessions, &paths, &changed), ST_OK);
    assert_true(changed);
    assert_int_equal(sessions_keys(&sessions), keys + 1);
    assert_int_equal(session_role(&sessions, session, 1000), IDENTITY_NOBODY);
    assert_int_equal(session_role(&sessions, before, 1000), IDENTITY_NOBODY);
    read_token("token", after);
    assert_int_equal(session_role(&sessions, after, 1000), IDENTITY_OPERATOR);
    assert_int_equal(sessions_look(&sessions, &paths, &changed), ST_OK);
    assert_false(changed);
}

/* Where no key can be kept the old one is worthless all the same; the next look tries again. */
static void a_key_that_cannot_be_made_lets_nobody_in(void **state)
{
    char before[IDENTITY_TOKEN + 1], after[IDENTITY_TOKEN + 1], path[LIMIT_PATH];
    struct paths paths;
    bool changed = false;
    (void)state;
    assert_int_equal(paths_open(&paths), ST_OK);
    read_token("token", before);
    (void)snprintf(path, sizeof(path), "%s/observer/key", home);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_not_equal(sessions_look(&sessions, &paths, &changed), ST_OK);
    assert_true(changed);
    assert_int_equal(session_role(&sessions, before, 1000), IDENTITY_NOBODY);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(sessions_look(&sessions, &paths, &changed), ST_OK);
    read_token("token", after);
    assert_int_equal(session_role(&sessions, after, 1000), IDENTITY_OPERATOR);
}

static void a_header_is_the_token_as_a_line_of_http(void **state)
{
    char token[IDENTITY_TOKEN + 1], path[LIMIT_PATH], expected[200], line[200] = "";
    (void)state;
    read_token("viewer-token", token);
    (void)snprintf(path, sizeof(path), "%s/observer/viewer-header", home);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    assert_int_equal(fgetc(file), EOF);
    assert_int_equal(fclose(file), 0);
    (void)snprintf(expected, sizeof(expected), "Authorization: Bearer %s\n", token);
    assert_string_equal(line, expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_has_a_role_and_an_end),
        cmocka_unit_test(tokens_are_told_apart_without_being_told),
        cmocka_unit_test(a_token_that_was_changed_is_nobodys),
        cmocka_unit_test(another_home_has_another_key),
        cmocka_unit_test(a_link_works_once),
        cmocka_unit_test(an_old_link_is_none),
        cmocka_unit_test(a_link_of_the_future_is_none),
        cmocka_unit_test(a_link_is_no_path),
        cmocka_unit_test(tokens_outlive_a_restart),
        cmocka_unit_test(a_token_file_of_another_kind_is_written_anew),
        cmocka_unit_test(the_key_taken_away_ends_all),
        cmocka_unit_test(a_key_that_cannot_be_made_lets_nobody_in),
        cmocka_unit_test(a_header_is_the_token_as_a_line_of_http),
        cmocka_unit_test(what_is_kept_is_its_owners),
    };
    return cmocka_run_group_tests(tests, open_all, NULL);
}
