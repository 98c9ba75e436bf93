/* The file of contexts, and which of them counts in a call. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/base/client.h"
#include "client/commands.h"
#include "client/context/choose.h"
#include "client/context/contexts.h"
#include "common/cleanup.h"
#include "tests/test.h"

static const char *const variables[] = { "CAIRN_CONTEXT",   "CAIRN_ADDR",    "CAIRN_HOME",
                                         "CAIRN_TLS_CERT",  "CAIRN_TLS_KEY", "CAIRN_TLS_CA",
                                         "CAIRN_TOKEN_FILE" };

static char folder[64], path[LIMIT_PATH];

/* A configuration folder of its own, and no variable of the environment that counts. */
static int set_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        (void)unsetenv(variables[i]);
    (void)snprintf(folder, sizeof(folder), "/tmp/cairn-context-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("XDG_CONFIG_HOME", folder, 1), 0);
    assert_int_equal(contexts_path(path), ST_OK);
    return 0;
}

static int tear_down(void **state)
{
    char name[128];
    (void)state;
    (void)unlink(path);
    (void)snprintf(name, sizeof(name), "%s/cairn/contexts.lock", folder);
    (void)unlink(name);
    (void)snprintf(name, sizeof(name), "%s/cairn", folder);
    (void)rmdir(name);
    return rmdir(folder);
}

static void write_file(const char *text)
{
    char name[128];
    (void)snprintf(name, sizeof(name), "%s/cairn", folder);
    (void)mkdir(name, 0700);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

/* ---- the file ---- */

static enum status put(struct contexts *contexts, const void *arg, struct reason *reason)
{
    (void)reason;
    return contexts_put(contexts, arg);
}

static enum status use(struct contexts *contexts, const void *arg, struct reason *reason)
{
    (void)reason;
    return contexts_use(contexts, arg);
}

static enum status take_away(struct contexts *contexts, const void *arg, struct reason *reason)
{
    (void)reason;
    return contexts_remove(contexts, arg);
}

static void add(const char *name, enum context_key key, const char *value)
{
    struct reason reason = { "" };
    struct context context = { .name = name };
    context.values[key] = value;
    assert_int_equal(contexts_change(path, put, &context, &reason), ST_OK);
}

static void what_is_written_is_read_and_private(void **state)
{
    (void)state;
    struct contexts *contexts = NULL;
    struct context found;
    struct reason reason = { "" };
    struct stat info;
    add("lab", CONTEXT_ADDR, "ada:7000");
    add("scratch", CONTEXT_HOME, "/scratch/\"ü\"");
    assert_int_equal(contexts_change(path, use, "scratch", &reason), ST_OK);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(contexts_read(path, &contexts, &reason), ST_OK);
    assert_int_equal(contexts_count(contexts), 2);
    assert_string_equal(contexts_current(contexts), "scratch");
    assert_true(contexts_find(contexts, "scratch", &found));
    assert_string_equal(found.values[CONTEXT_HOME], "/scratch/\"ü\"");
    assert_null(found.values[CONTEXT_ADDR]);
    assert_string_equal(contexts_like(contexts, "lap"), "lab");
    contexts_free(contexts);
    assert_int_equal(contexts_change(path, take_away, "scratch", &reason), ST_OK);
    assert_int_equal(contexts_change(path, take_away, "scratch", &reason), ST_NOT_FOUND);
    assert_int_equal(contexts_read(path, &contexts, &reason), ST_OK);
    assert_null(contexts_current(contexts));
    contexts_free(contexts);
}

static void a_mistake_is_refused_with_its_place_and_stays(void **state)
{
    (void)state;
    static const struct {
        const char *text, *place;
    } cases[] = {
        { "{\"cairn_contexts\": 1,\n \"contexts\": {]}", "line 2" },
        { "[]", "no JSON object" },
        { "{\"contexts\": {}}", "cairn_contexts" },
        { "{\"cairn_contexts\": 2, \"contexts\": {}}", "cairn_contexts" },
        { "{\"cairn_contexts\": 1, \"contexts\": {}, \"colour\": 1}", "colour" },
        { "{\"cairn_contexts\": 1, \"contexts\": {\"a\": {\"adr\": \"x:1\"}}}", "contexts.a.adr" },
        { "{\"cairn_contexts\": 1, \"contexts\": {\"a\": {\"addr\": 1}}}", "contexts.a.addr" },
        { "{\"cairn_contexts\": 1, \"contexts\": {\"a\": {\"addr\": \"\"}}}", "contexts.a.addr" },
        { "{\"cairn_contexts\": 1, \"contexts\": {\"a\": {\"tls_ca\": \"x\"}}}", "contexts.a" },
        { "{\"cairn_contexts\": 1, \"contexts\": {\"-\": {\"addr\": \"x:1\"}}}", "'-'" },
        { "{\"cairn_contexts\": 1, \"current\": 7, \"contexts\": {}}", "current" },
        { "{\"cairn_contexts\": 1, \"contexts\": {}, \"contexts\": {}}", "contexts" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct contexts *contexts = NULL;
        struct reason reason = { "" };
        write_file(cases[i].text);
        assert_int_equal(contexts_read(path, &contexts, &reason), ST_CONFIG);
        assert_non_null(strstr(reason.text, path));
        assert_non_null(strstr(reason.text, cases[i].place));
        assert_int_equal(contexts_change(path, use, NULL, &reason), ST_CONFIG);
        char text[256] = "";
        auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_int_equal(read(fd, text, sizeof(text) - 1), (ssize_t)strlen(cases[i].text));
        assert_string_equal(text, cases[i].text);
    }
}

static void a_file_that_others_may_write_to_is_refused(void **state)
{
    (void)state;
    struct contexts *contexts = NULL;
    struct reason reason = { "" };
    add("lab", CONTEXT_ADDR, "ada:7000");
    assert_int_equal(chmod(path, 0644), 0); /* who reads it learns no secret */
    assert_int_equal(contexts_read(path, &contexts, &reason), ST_OK);
    contexts_free(contexts);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(contexts_read(path, &contexts, &reason), ST_REFUSED);
    assert_non_null(strstr(reason.text, "chmod"));
}

static void who_writes_at_the_same_time_loses_nothing(void **state)
{
    (void)state;
    enum { WRITERS = 4, EACH = 12 };
    struct contexts *contexts = NULL;
    struct reason reason = { "" };
    for (int w = 0; w < WRITERS; w++) {
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid > 0)
            continue;
        int failed = 0;
        for (int i = 0; i < EACH; i++) {
            char name[32];
            (void)snprintf(name, sizeof(name), "w%d-%d", w, i);
            const struct context context = { .name = name,
                                             .values = { [CONTEXT_ADDR] = "ada:7000" } };
            failed += contexts_change(path, put, &context, &reason) != ST_OK;
        }
        _exit(failed);
    }
    for (int w = 0; w < WRITERS; w++) {
        int result = -1;
        assert_true(wait(&result) > 0);
        assert_int_equal(result, 0);
    }
    assert_int_equal(contexts_read(path, &contexts, &reason), ST_OK);
    assert_int_equal(contexts_count(contexts), WRITERS * EACH);
    contexts_free(contexts);
}

static void a_lock_that_is_never_given_back_is_said(void **state)
{
    (void)state;
    char lock[128];
    struct reason reason = { "" };
    add("lab", CONTEXT_ADDR, "ada:7000");
    (void)snprintf(lock, sizeof(lock), "%s/cairn/contexts.lock", folder);
    auto_close int fd = open(lock, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(contexts_change(path, use, "lab", &reason), ST_TIMED_OUT);
    assert_non_null(strstr(reason.text, "contexts.lock"));
}

static void a_full_file_takes_no_more(void **state)
{
    (void)state;
    struct contexts *contexts = NULL;
    struct reason reason = { "" };
    assert_int_equal(contexts_read(path, &contexts, &reason), ST_OK);
    for (size_t i = 0; i <= CONTEXTS_MAX; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "c%zu", i);
        const struct context context = { .name = name, .values = { [CONTEXT_ADDR] = "ada:7000" } };
        assert_int_equal(contexts_put(contexts, &context), i < CONTEXTS_MAX ? ST_OK : ST_FULL);
    }
    contexts_free(contexts);
}

static void names_are_words(void **state)
{
    (void)state;
    assert_true(context_name_is_good("lab-2.eu_west"));
    assert_false(context_name_is_good(""));
    assert_false(context_name_is_good("-"));
    assert_false(context_name_is_good("-lab"));
    assert_false(context_name_is_good("a b"));
    assert_false(context_name_is_good("../lab"));
    assert_false(
        context_name_is_good("0123456789012345678901234567890123456789012345678901234567890123"));
}

/* ---- which counts ---- */

static void the_first_that_says_where_to_decides(void **state)
{
    (void)state;
    struct contexts *contexts = NULL;
    struct reason reason = { "" };
    struct arguments args = { .context = NULL };
    const char *name = "?";
    add("lab", CONTEXT_ADDR, "ada:7000");
    assert_int_equal(contexts_change(path, use, "lab", &reason), ST_OK);
    assert_int_equal(contexts_read(path, &contexts, &reason), ST_OK);
    assert_int_equal(context_choose(&args, contexts, &name), CONTEXT_BY_CURRENT);
    assert_string_equal(name, "lab");
    assert_int_equal(setenv("CAIRN_HOME", "", 1), 0); /* set to nothing says nothing */
    assert_int_equal(context_choose(&args, contexts, &name), CONTEXT_BY_CURRENT);
    assert_int_equal(setenv("CAIRN_HOME", "/h", 1), 0);
    assert_int_equal(context_choose(&args, contexts, &name), CONTEXT_BY_HOME);
    assert_null(name);
    assert_int_equal(setenv("CAIRN_ADDR", "x:1", 1), 0);
    assert_int_equal(context_choose(&args, contexts, &name), CONTEXT_BY_ADDR_VARIABLE);
    args.addr = "y:1";
    assert_int_equal(context_choose(&args, contexts, &name), CONTEXT_BY_ADDR_OPTION);
    assert_int_equal(setenv("CAIRN_CONTEXT", "lab", 1), 0);
    assert_int_equal(context_choose(&args, contexts, &name), CONTEXT_BY_VARIABLE);
    assert_string_equal(name, "lab");
    args.context = "-";
    assert_int_equal(context_choose(&args, contexts, &name), CONTEXT_BY_OPTION);
    assert_null(name);
    contexts_free(contexts);
}

static struct client client_of(const char *context)
{
    struct client client = { .table = &commands, .args = { .context = context } };
    for (size_t i = 0; i < commands.count; i++) {
        if (commands.commands[i].noun == NULL && strcmp(commands.commands[i].verb, "ps") == 0)
            client.command = &commands.commands[i];
    }
    return client;
}

static void a_context_with_an_address_is_whole(void **state)
{
    (void)state;
    struct client client = client_of("lab");
    add("lab", CONTEXT_ADDR, "ada:7000");
    assert_int_equal(setenv("CAIRN_ADDR", "other:1", 1), 0);
    assert_int_equal(setenv("CAIRN_TLS_KEY", "/other.key", 1), 0);
    assert_int_equal(setenv("CAIRN_HOME", "/h", 1), 0);
    assert_int_equal(context_apply(&client), EXIT_DONE);
    assert_string_equal(getenv("CAIRN_ADDR"), "ada:7000");
    assert_null(getenv("CAIRN_TLS_KEY")); /* of another coordinator */
    assert_string_equal(getenv("CAIRN_HOME"), "/h");
    assert_true(client.elsewhere);
    assert_string_equal(client.context, "lab");
}

static void a_context_with_a_home_leaves_no_address(void **state)
{
    (void)state;
    struct client client = client_of(NULL);
    add("scratch", CONTEXT_HOME, "/scratch");
    assert_int_equal(setenv("CAIRN_CONTEXT", "scratch", 1), 0);
    assert_int_equal(setenv("CAIRN_ADDR", "other:1", 1), 0);
    assert_int_equal(setenv("CAIRN_HOME", "/h", 1), 0);
    assert_int_equal(context_apply(&client), EXIT_DONE);
    assert_null(getenv("CAIRN_ADDR"));
    assert_string_equal(getenv("CAIRN_HOME"), "/scratch");
    assert_null(getenv("CAIRN_CONTEXT")); /* what is started from here gets the same by its home */
    assert_false(client.elsewhere);
}

static void who_has_none_notices_nothing(void **state)
{
    (void)state;
    struct client client = client_of(NULL);
    assert_int_equal(context_apply(&client), EXIT_DONE);
    assert_string_equal(client.context, "");
    assert_int_equal(setenv("CAIRN_HOME", "/h", 1), 0);
    assert_int_equal(setenv("CAIRN_TLS_CA", "/ca", 1), 0);
    write_file("not even JSON"); /* isn't read where the environment says where to */
    assert_int_equal(context_apply(&client), EXIT_DONE);
    assert_string_equal(getenv("CAIRN_HOME"), "/h");
    assert_string_equal(getenv("CAIRN_TLS_CA"), "/ca");
    assert_int_equal(unsetenv("CAIRN_HOME"), 0);
    assert_int_equal(context_apply(&client), EXIT_USAGE);
    client.args.context = "-";
    assert_int_equal(context_apply(&client), EXIT_DONE);
}

static void a_context_that_is_missing_is_no_other_one(void **state)
{
    (void)state;
    struct client client = client_of("lap");
    struct reason reason = { "" };
    add("lab", CONTEXT_ADDR, "ada:7000");
    assert_int_equal(context_apply(&client), EXIT_NOT_FOUND);
    assert_null(getenv("CAIRN_ADDR"));
    assert_int_equal(contexts_change(path, use, "lap", &reason), ST_NOT_FOUND);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_is_written_is_read_and_private),
        CASE(a_mistake_is_refused_with_its_place_and_stays),
        CASE(a_file_that_others_may_write_to_is_refused),
        CASE(who_writes_at_the_same_time_loses_nothing),
        CASE(a_lock_that_is_never_given_back_is_said),
        CASE(a_full_file_takes_no_more),
        CASE(names_are_words),
        CASE(the_first_that_says_where_to_decides),
        CASE(a_context_with_an_address_is_whole),
        CASE(a_context_with_a_home_leaves_no_address),
        CASE(who_has_none_notices_nothing),
        CASE(a_context_that_is_missing_is_no_other_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
