/* The audit log: whole lines whatever is in them, bounded files, and a disk that doesn't work. */
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/limits.h"
#include "server/auditlog/auditlog.h"
#include "tests/test.h"

#define WAIT_MS 10000

struct bench {
    char dir[64], path[96], refused[96];
    struct log log;
    struct auditlog *auditlog;
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/cairn-audit-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    (void)snprintf(b->path, sizeof(b->path), "%s/audit.log", b->dir);
    (void)snprintf(b->refused, sizeof(b->refused), "%s/refused.log", b->dir);
    b->log = (struct log){ .fd = -1 };
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    char command[96];
    (void)snprintf(command, sizeof(command), "rm -rf %s", b->dir);
    assert_int_equal(system(command), 0);
    free(b);
    return 0;
}

static void begin(struct bench *b, int64_t file_bytes)
{
    const struct auditlog_options options = { b->path, b->refused, &b->log, file_bytes };
    assert_int_equal(auditlog_open(&options, &b->auditlog), ST_OK);
}

static struct auditlog_call call_about(const char *about)
{
    return (struct auditlog_call){ .actor = "operator/alice",
                                   .peer = "ipv4:10.0.0.7:40312",
                                   .method = "Control/PauseJob",
                                   .about = about,
                                   .code = "OK" };
}

static void note(struct bench *b, const char *about)
{
    const struct auditlog_call call = call_about(about);
    auditlog_note(b->auditlog, &call);
}

/* An array with each line's object; a line that is none fails. NULL: there is no such file. */
static json_t *read_lines(const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NULL;
    json_t *list = json_array();
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t size; (size = getline(&line, &capacity, file)) > 0;) {
        assert_int_equal(line[size - 1], '\n');
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        assert_int_equal(json_array_append_new(list, object), 0);
    }
    free(line);
    (void)fclose(file);
    return list;
}

static const char *text_at(const json_t *list, size_t i, const char *key)
{
    return json_string_value(json_object_get(json_array_get(list, i), key));
}

/* Until the file's last line is about that. */
static void wait_for(struct bench *b, const char *about)
{
    const int64_t end = clock_mono_ms(clock_system()) + WAIT_MS;
    for (bool there = false; !there;) {
        json_t *list = read_lines(b->path);
        const size_t count = json_array_size(list);
        const char *last = count > 0 ? text_at(list, count - 1, "about") : NULL;
        there = last != NULL && strcmp(last, about) == 0;
        json_decref(list);
        assert_true(there || clock_mono_ms(clock_system()) < end);
        if (!there)
            (void)usleep(1000);
    }
}

static void a_call_is_a_line_whatever_its_texts_are(void **state)
{
    struct bench *b = *state;
    static const char *const names[] = { "j-1",      "a\"b\n{\"actor\":\"x\"}\n",
                                         "\xff\xfe", "\x1b[31m",
                                         "\xc3\xa4", "" };
    char text[5000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    begin(b, 0);
    for (size_t i = 0; i < 6; i++)
        note(b, names[i]);
    note(b, text);
    auditlog_close(b->auditlog);
    json_t *list = read_lines(b->path);
    assert_int_equal(json_array_size(list), 7);
    assert_string_equal(text_at(list, 0, "actor"), "operator/alice");
    assert_string_equal(text_at(list, 0, "peer"), "ipv4:10.0.0.7:40312");
    assert_string_equal(text_at(list, 0, "method"), "Control/PauseJob");
    assert_string_equal(text_at(list, 0, "code"), "OK");
    assert_int_equal(strlen(text_at(list, 0, "time")), strlen("2026-01-02T03:04:05.678Z"));
    assert_string_equal(text_at(list, 1, "about"), names[1]);
    assert_string_equal(text_at(list, 2, "about"), "??");
    assert_true(strlen(text_at(list, 6, "about")) < 400);
    json_decref(list);
    struct stat stat_of;
    assert_int_equal(stat(b->path, &stat_of), 0);
    assert_int_equal(stat_of.st_mode & 0777, 0600);
}

static void files_are_bounded_and_the_newest_lines_stay(void **state)
{
    struct bench *b = *state;
    enum { LINES = 200, BYTES = 2000 };
    char name[128];
    begin(b, BYTES);
    for (int i = 0; i < LINES; i++) {
        (void)snprintf(name, sizeof(name), "job %d", i);
        note(b, name);
        wait_for(b, name);
    }
    auditlog_close(b->auditlog);
    int next = LINES;
    for (int k = 0; k < AUDITLOG_FILES; k++) {
        struct stat stat_of;
        (void)snprintf(name, sizeof(name), k == 0 ? "%s" : "%s.%d", b->path, k);
        assert_int_equal(stat(name, &stat_of), 0);
        assert_true(stat_of.st_size <= BYTES);
        json_t *list = read_lines(name);
        for (size_t i = json_array_size(list); i > 0; i--) {
            (void)snprintf(name, sizeof(name), "job %d", --next);
            assert_string_equal(text_at(list, i - 1, "about"), name);
        }
        json_decref(list);
    }
    assert_in_range(next, 1, LINES - 50);
    (void)snprintf(name, sizeof(name), "%s.%d", b->path, AUDITLOG_FILES);
    assert_int_equal(access(name, F_OK), -1);
}

static void what_is_there_stays_and_half_a_line_is_ended(void **state)
{
    struct bench *b = *state;
    begin(b, 0);
    note(b, "before");
    auditlog_close(b->auditlog);
    begin(b, 0);
    note(b, "after");
    auditlog_close(b->auditlog);
    json_t *list = read_lines(b->path);
    assert_int_equal(json_array_size(list), 2);
    json_decref(list);
    FILE *file = fopen(b->path, "ae");
    assert_non_null(file);
    assert_true(fputs("\"half", file) >= 0);
    assert_int_equal(fclose(file), 0);
    begin(b, 0);
    note(b, "later");
    auditlog_close(b->auditlog);
    char text[2000] = "";
    file = fopen(b->path, "re");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
    (void)fclose(file);
    assert_non_null(strstr(text, "\"half\n{"));
}

static void a_file_that_people_took_away_is_begun_anew(void **state)
{
    struct bench *b = *state;
    char away[300];
    (void)snprintf(away, sizeof(away), "%s.away", b->path);
    begin(b, 0);
    note(b, "first");
    wait_for(b, "first");
    assert_int_equal(rename(b->path, away), 0);
    note(b, "second");
    wait_for(b, "second");
    assert_int_equal(unlink(away), 0);
    auditlog_close(b->auditlog);
    b->auditlog = NULL;
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* RLIMIT_FSIZE fails in the midst of a line, as a full disk does. */
static void a_full_disk_costs_lines_which_are_counted(void **state)
{
    struct bench *b = *state;
    int ends[2];
    char told[LIMIT_LOG_LINE] = "";
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    b->log = (struct log){ .fd = ends[1], .program = "test", .rank = -1, .generation = -1 };
    begin(b, 0);
    note(b, "first");
    wait_for(b, "first");
    limit_files(200);
    note(b, "nowhere");
    assert_true(read(ends[0], told, sizeof(told) - 1) > 0); /* until it was tried */
    limit_files(RLIM_INFINITY);
    assert_non_null(strstr(told, "lines of the audit log are lost"));
    note(b, "again");
    auditlog_close(b->auditlog);
    json_t *list = read_lines(b->path);
    assert_int_equal(json_array_size(list), 3);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 1), "lost")), 1);
    assert_string_equal(text_at(list, 2, "about"), "again");
    json_decref(list);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void refuse(struct bench *b, const char *peer, const char *actor)
{
    struct auditlog_call call = call_about("");
    call.actor = actor;
    call.peer = peer;
    call.code = "UNAUTHENTICATED";
    call.why = "this coordinator wants a certificate";
    auditlog_refusal(b->auditlog, &call);
}

struct told {
    json_int_t lines, lost, more; /* with "why" or "about"; as they are counted */
    char of[64];                  /* the newest "more" is of */
};

static struct told told_in(const char *path)
{
    struct told told = { 0 };
    json_t *list = read_lines(path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *of = text_at(list, i, "of");
        told.lines += json_object_get(one, "about") != NULL;
        told.lost += json_integer_value(json_object_get(one, "lost"));
        told.more += json_integer_value(json_object_get(one, "more"));
        if (of != NULL)
            (void)snprintf(told.of, sizeof(told.of), "%s", of);
    }
    json_decref(list);
    return told;
}

/* From one connection after another, as somebody asks who has no certificate. */
static void a_stranger_who_asks_on_and_on_pushes_nothing_out(void **state)
{
    struct bench *b = *state;
    begin(b, 0);
    note(b, "what was done");
    for (int i = 0; i < 5000; i++) {
        char peer[64];
        (void)snprintf(peer, sizeof(peer), "ipv4:10.0.0.7:%d", 10000 + i);
        refuse(b, peer, "nobody");
    }
    auditlog_close(b->auditlog);
    struct told told = told_in(b->path);
    assert_int_equal(told.lines, 1); /* of the calls nothing but the call */
    assert_int_equal(told.lost + told.more, 0);
    told = told_in(b->refused);
    assert_int_equal(told.lines, AUDITLOG_EACH);
    assert_int_equal(told.more, 5000 - AUDITLOG_EACH);
    assert_string_equal(told.of, "ipv4:10.0.0.7 nobody");
    struct stat stat_of;
    assert_int_equal(stat(b->refused, &stat_of), 0);
    assert_int_equal(stat_of.st_mode & 0777, 0600);
    assert_true(stat_of.st_size < 5000);
}

static void people_are_told_apart_from_strangers_of_their_address(void **state)
{
    struct bench *b = *state;
    begin(b, 0);
    for (int i = 0; i < 100; i++)
        refuse(b, "ipv6:[fd00::1]:4000", "nobody");
    refuse(b, "ipv6:[fd00::1]:4001", "viewer/bob");
    for (int i = 0; i < 20; i++)
        refuse(b, i % 2 ? "unix:uid=1000,pid=5" : "unix:uid=1000,pid=6", "viewer/eve@page");
    auditlog_close(b->auditlog);
    const struct told told = told_in(b->refused);
    assert_int_equal(told.lines, AUDITLOG_EACH + 1 + AUDITLOG_EACH);
    assert_int_equal(told.more, 90 + 10);
}

static void of_many_addresses_refusals_come_at_a_bounded_rate(void **state)
{
    struct bench *b = *state;
    enum { MANY = 2 * AUDITLOG_SOURCES };
    begin(b, 0);
    for (int i = 0; i < MANY; i++) {
        char peer[64];
        (void)snprintf(peer, sizeof(peer), "ipv4:10.0.%d.%d:1", i / 256, i % 256);
        refuse(b, peer, "nobody");
    }
    note(b, "what is allowed is always told");
    auditlog_close(b->auditlog);
    const struct told told = told_in(b->refused);
    assert_int_equal(told.lines, AUDITLOG_REFUSALS);
    assert_in_range(told.lost, 0, MANY - AUDITLOG_REFUSALS); /* what waits at the end isn't told */
    assert_int_equal(told_in(b->path).lines, 1);
}

static void the_process_is_told_a_few_refusals_a_minute(void **state)
{
    struct bench *b = *state;
    int ends[2];
    static char text[65536];
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    b->log = (struct log){ .fd = ends[1], .program = "test", .rank = -1, .generation = -1 };
    begin(b, 0);
    for (int i = 0; i < 500; i++)
        refuse(b, "ipv4:10.0.0.7:1", "nobody");
    auditlog_close(b->auditlog);
    const ssize_t size = read(ends[0], text, sizeof(text) - 1);
    assert_true(size > 0);
    size_t lines = 0;
    for (ssize_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    assert_int_equal(lines, AUDITLOG_LOGGED);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* A node that renews its certificate in a loop, an operator who pauses a job that isn't there. */
static void calls_that_change_nothing_are_bounded_of_each_actor(void **state)
{
    struct bench *b = *state;
    struct auditlog_call renewal = call_about(""), wrong = call_about("j-none");
    renewal.actor = "node/gpu-1";
    renewal.method = "Fleet/Renew";
    wrong.code = "NOT_FOUND";
    renewal.often = wrong.often = true;
    begin(b, 0);
    for (int i = 0; i < 1000; i++) {
        auditlog_note(b->auditlog, &renewal);
        auditlog_note(b->auditlog, &wrong);
    }
    for (int i = 0; i < 150; i++) /* what changes something is told each time */
        note(b, "j-1");
    auditlog_close(b->auditlog);
    const struct told told = told_in(b->path);
    assert_int_equal(told.lines, 2 * AUDITLOG_EACH_CALLS + 150);
    assert_int_equal(told.more, 2 * (1000 - AUDITLOG_EACH_CALLS));
}

static void where_nothing_can_be_written_nothing_else_happens(void **state)
{
    struct bench *b = *state;
    const struct auditlog_call call = call_about("j-1");
    assert_int_equal(mkdir(b->path, 0700), 0);
    begin(b, 0);
    for (int i = 0; i < 20000; i++) /* more than the queue takes */
        auditlog_note(b->auditlog, &call);
    assert_int_equal(rmdir(b->path), 0);
    note(b, "last");
    auditlog_close(b->auditlog);
    auditlog_note(NULL, &call);
    auditlog_refusal(NULL, &call);
    auditlog_close(NULL);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_call_is_a_line_whatever_its_texts_are),
        CASE(files_are_bounded_and_the_newest_lines_stay),
        CASE(what_is_there_stays_and_half_a_line_is_ended),
        CASE(a_file_that_people_took_away_is_begun_anew),
        CASE(a_full_disk_costs_lines_which_are_counted),
        CASE(a_stranger_who_asks_on_and_on_pushes_nothing_out),
        CASE(people_are_told_apart_from_strangers_of_their_address),
        CASE(of_many_addresses_refusals_come_at_a_bounded_rate),
        CASE(the_process_is_told_a_few_refusals_a_minute),
        CASE(calls_that_change_nothing_are_bounded_of_each_actor),
        CASE(where_nothing_can_be_written_nothing_else_happens),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
