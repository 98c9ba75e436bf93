/* The parts of rpc/ that need no connection: mailbox, descriptor index, codes. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat_service.h"
#include "proto/descriptors.h"
#include "rpc/descdb.h"
#include "rpc/executor.h"
#include "tests/test.h"

enum { PRODUCERS = 4, TASKS_EACH = 20000 };

struct numbered {
    struct rpc_task task;
    unsigned producer;
    unsigned number;
    struct tally *tally;
};

struct tally {
    struct rpc_mailbox *mailbox;
    unsigned next[PRODUCERS];
    unsigned out_of_order;
};

struct producer {
    struct rpc_mailbox *mailbox;
    struct numbered *tasks;
};

static void run_numbered(struct rpc_task *task)
{
    struct numbered *numbered = (struct numbered *)(void *)task;
    struct tally *tally = numbered->tally;
    if (tally->next[numbered->producer] != numbered->number)
        tally->out_of_order++;
    tally->next[numbered->producer]++;
}

static void *produce(void *arg)
{
    struct producer *producer = arg;
    for (unsigned i = 0; i < TASKS_EACH; i++)
        rpc_mailbox_post(producer->mailbox, &producer->tasks[i].task);
    return NULL;
}

static void mailbox_runs_every_task_of_every_producer_in_its_order(void **state)
{
    (void)state;
    struct tally tally = { .mailbox = NULL };
    struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    assert_int_equal(rpc_mailbox_new(&tally.mailbox), ST_OK);
    for (unsigned p = 0; p < PRODUCERS; p++) {
        producers[p].mailbox = tally.mailbox;
        producers[p].tasks = calloc(TASKS_EACH, sizeof(struct numbered));
        assert_non_null(producers[p].tasks);
        for (unsigned i = 0; i < TASKS_EACH; i++)
            producers[p].tasks[i] = (struct numbered){
                .task = { .run = run_numbered }, .producer = p, .number = i, .tally = &tally
            };
    }
    for (unsigned p = 0; p < PRODUCERS; p++)
        assert_int_equal(pthread_create(&threads[p], NULL, produce, &producers[p]), 0);
    unsigned done = 0;
    while (done < PRODUCERS * TASKS_EACH) {
        /* The descriptor alone tells when to look: a lost wake-up would end this at the timeout. */
        struct pollfd ready = { .fd = rpc_mailbox_fd(tally.mailbox), .events = POLLIN };
        assert_int_equal(poll(&ready, 1, 30000), 1);
        done += rpc_mailbox_drain(tally.mailbox, 100);
    }
    for (unsigned p = 0; p < PRODUCERS; p++) {
        assert_int_equal(pthread_join(threads[p], NULL), 0);
        assert_int_equal(tally.next[p], TASKS_EACH);
        free(producers[p].tasks);
    }
    assert_int_equal(tally.out_of_order, 0);
    assert_int_equal(rpc_mailbox_drain(tally.mailbox, 100), 0);
    rpc_mailbox_free(tally.mailbox);
}

static void mailbox_with_work_left_stays_readable(void **state)
{
    (void)state;
    struct tally tally = { .mailbox = NULL };
    struct numbered tasks[3];
    assert_int_equal(rpc_mailbox_new(&tally.mailbox), ST_OK);
    struct pollfd ready = { .fd = rpc_mailbox_fd(tally.mailbox), .events = POLLIN };
    assert_int_equal(poll(&ready, 1, 0), 0);
    for (unsigned i = 0; i < 3; i++) {
        tasks[i] =
            (struct numbered){ .task = { .run = run_numbered }, .number = i, .tally = &tally };
        rpc_mailbox_post(tally.mailbox, &tasks[i].task);
    }
    assert_int_equal(rpc_mailbox_drain(tally.mailbox, 2), 2);
    assert_int_equal(poll(&ready, 1, 0), 1);
    assert_int_equal(rpc_mailbox_drain(tally.mailbox, 2), 1);
    assert_int_equal(poll(&ready, 1, 0), 0);
    rpc_mailbox_free(tally.mailbox);
}

static void descriptors_know_which_methods_stream(void **state)
{
    (void)state;
    struct rpc_descdb *db = rpc_descdb_new();
    size_t size = 0;
    const uint8_t *data = proto_descriptors(&size);
    assert_int_equal(rpc_descdb_add(db, data, size), ST_OK);
    data = chat_descriptors(&size);
    assert_int_equal(rpc_descdb_add(db, data, size), ST_OK);
    const int both = RPC_CLIENT_STREAMING | RPC_SERVER_STREAMING;
    assert_int_equal(rpc_descdb_method_flags(db, "cairn.test.Chat", "Echo"), 0);
    assert_int_equal(rpc_descdb_method_flags(db, "cairn.test.Chat", "Count"), RPC_SERVER_STREAMING);
    assert_int_equal(rpc_descdb_method_flags(db, "cairn.test.Chat", "Sum"), RPC_CLIENT_STREAMING);
    assert_int_equal(rpc_descdb_method_flags(db, "cairn.test.Chat", "Talk"), both);
    assert_int_equal(rpc_descdb_method_flags(db, "cairn.v1.Fleet", "Session"), both);
    assert_int_equal(rpc_descdb_method_flags(db, "cairn.v1.Fleet", "Nope"), -1);
    assert_int_equal(rpc_descdb_method_flags(db, "Nope", "Session"), -1);
    assert_string_equal(rpc_descdb_symbol(db, "cairn.v1.AgentHello.node"), "cairn/v1/fleet.proto");
    assert_string_equal(rpc_descdb_symbol(db, "cairn.v1.TrainerExited.Cause"),
                        "cairn/v1/fleet.proto");
    assert_null(rpc_descdb_symbol(db, "cairn.v1"));
    rpc_descdb_free(db);
}

static void count_file(void *arg, struct rpc_bytes file)
{
    assert_true(file.size > 0);
    (*(unsigned *)arg)++;
}

static void closure_has_a_file_and_its_imports_once(void **state)
{
    (void)state;
    struct rpc_descdb *db = rpc_descdb_new();
    size_t size = 0;
    const uint8_t *data = proto_descriptors(&size);
    assert_int_equal(rpc_descdb_add(db, data, size), ST_OK);
    assert_int_equal(rpc_descdb_add(db, data, size), ST_OK); /* the same files again: no change */
    unsigned files = 0;
    rpc_descdb_closure(db, "cairn/v1/fleet.proto", count_file, &files);
    assert_int_equal(files, 2); /* itself and common.proto */
    files = 0;
    rpc_descdb_closure(db, "no/such.proto", count_file, &files);
    assert_int_equal(files, 0);
    rpc_descdb_free(db);
}

static void damaged_descriptors_are_refused_or_read_within_their_bounds(void **state)
{
    (void)state;
    size_t size = 0;
    const uint8_t *data = chat_descriptors(&size);
    for (size_t cut = 1; cut < size; cut++) { /* a set of one file: no prefix is whole */
        uint8_t *copy = malloc(cut);          /* exactly, so that a sanitizer sees an over-read */
        assert_non_null(copy);
        memcpy(copy, data, cut);
        struct rpc_descdb *db = rpc_descdb_new();
        assert_int_equal(rpc_descdb_add(db, copy, cut), ST_INVALID);
        rpc_descdb_free(db);
        free(copy);
    }
    for (size_t at = 0; at < size; at++) {
        uint8_t *copy = malloc(size);
        assert_non_null(copy);
        memcpy(copy, data, size);
        copy[at] ^= 0xff;
        struct rpc_descdb *db = rpc_descdb_new();
        enum status st = rpc_descdb_add(db, copy, size);
        assert_true(st == ST_OK || st == ST_INVALID);
        rpc_descdb_free(db);
        free(copy);
    }
}

static void codes_and_statuses_translate_into_each_other(void **state)
{
    (void)state;
    static const enum status own[] = { ST_OK,         ST_AGAIN,  ST_TIMED_OUT, ST_INVALID,
                                       ST_IO,         ST_FULL,   ST_NOT_FOUND, ST_EXISTS,
                                       ST_REFUSED,    ST_CLOSED, ST_CORRUPT,   ST_VERSION,
                                       ST_UNREACHABLE };
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        assert_int_equal(rpc_code_status(rpc_code_from_status(own[i])), own[i]);
    assert_int_equal(rpc_code_from_status(ST_STALE), RPC_FAILED_PRECONDITION);
    assert_int_equal(rpc_code_from_status(ST_NUMERIC), RPC_INTERNAL);
    assert_string_equal(rpc_code_name(RPC_OK), "OK");
    assert_string_equal(rpc_code_name(RPC_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_string_equal(rpc_code_name((enum rpc_code)99), "(no such code)");
}

static void a_token_goes_to_this_machine_only(void **state)
{
    static const char *const here[] = { "127.0.0.1:7000", "ipv4:127.0.0.1:7000",
                                        "127.1.2.3:0",    "localhost:7000",
                                        "[::1]:7000",     "dns:///localhost:1" };
    static const char *const elsewhere[] = { "10.0.0.5:7000",
                                             "127.evil.example:7000",
                                             "0.0.0.0:1",
                                             "ipv4:127.0.0.1:1,10.0.0.5:7000",
                                             "localhost.org:1",
                                             "[fd00::1]:7000",
                                             "127.0.0.1.example:7000",
                                             "" };
    (void)state;
    for (size_t i = 0; i < sizeof(here) / sizeof(here[0]); i++)
        assert_true(rpc_address_is_loopback(here[i]));
    for (size_t i = 0; i < sizeof(elsewhere) / sizeof(elsewhere[0]); i++)
        assert_false(rpc_address_is_loopback(elsewhere[i]));
}

static void an_address_can_be_dialled(void **state)
{
    static const char *const good[] = { "gpu-01.example.org:7000", "10.0.0.5:1", "[fd00::1]:65535",
                                        "localhost:7000" };
    static const char *const bad[] = { "10.0.0.5",
                                       "10.0.0.5:",
                                       ":7000",
                                       "10.0.0.5:0",
                                       "a:65536",
                                       "a:70x",
                                       "a: 7",
                                       "a:-1",
                                       "fd00::1:7000",
                                       "[fd00::1:7000",
                                       "[]:7000",
                                       "[fd00::zz]:7000",
                                       "ipv4:10.0.0.5:1",
                                       "a,b:7000",
                                       "a b:7000",
                                       "a:1\naddress evil:2",
                                       "" };
    char longest[300];
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(rpc_address_is_dialled(good[i]));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(rpc_address_is_dialled(bad[i]));
    assert_true(rpc_address_is_served("127.0.0.1:0") && rpc_address_is_served("[::]:65535"));
    assert_false(rpc_address_is_served("bogus") || rpc_address_is_served("127.0.0.1:99999") ||
                 rpc_address_is_served("127.0.0.1:-1") || rpc_address_is_served(":7000"));
    (void)snprintf(longest, sizeof(longest), "%0254d:7000", 0);
    assert_false(rpc_address_is_dialled(longest));
    assert_true(rpc_address_is_dialled(longest + 1));
}

static void a_long_text_is_cut_behind_a_line_or_a_character(void **state)
{
    (void)state;
    static char text[3 * RPC_DETAIL_MAX];
    assert_int_equal(rpc_detail_size(""), 0);
    memset(text, 'a', RPC_DETAIL_MAX);
    assert_int_equal(rpc_detail_size(text), RPC_DETAIL_MAX);
    text[RPC_DETAIL_MAX] = 'a';
    assert_int_equal(rpc_detail_size(text), RPC_DETAIL_MAX);
    text[99] = '\n'; /* written as three */
    assert_int_equal(rpc_detail_size(text), 100);
    memset(text, 0, sizeof(text));
    for (size_t i = 0; i < 1000; i++)
        memcpy(text + 3 * i, "\xe5\xad\xa6", 3);
    assert_int_equal(rpc_detail_size(text), RPC_DETAIL_MAX / 9 * 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_goes_to_this_machine_only),
        cmocka_unit_test(an_address_can_be_dialled),
        cmocka_unit_test(a_long_text_is_cut_behind_a_line_or_a_character),
        cmocka_unit_test(mailbox_runs_every_task_of_every_producer_in_its_order),
        cmocka_unit_test(mailbox_with_work_left_stays_readable),
        cmocka_unit_test(descriptors_know_which_methods_stream),
        cmocka_unit_test(closure_has_a_file_and_its_imports_once),
        cmocka_unit_test(damaged_descriptors_are_refused_or_read_within_their_bounds),
        cmocka_unit_test(codes_and_statuses_translate_into_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
