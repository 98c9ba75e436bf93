/* Our client against our server, in one process and against one that is killed. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chat_service.h"
#include "common/clock.h"
#include "rpc/client.h"
#include "rpc/services.h"
#include "tests/test.h"

extern char **environ;

enum { DEADLINE_MS = 20000 };

struct fixture {
    char dir[64];
    char socket[80];
    char target[96];
    struct rpc_descdb *db;
    struct chat chat;
    struct rpc_server *server;
    struct rpc_channel *channel;
};

static const ProtobufCServiceDescriptor *const chat_service = &cairn__test__chat__descriptor;

static void start_server(struct fixture *f, uint32_t message_size_max)
{
    struct rpc_server_options options = { .descdb = f->db, .message_size_max = message_size_max };
    chat_init(&f->chat);
    f->server = rpc_server_new(&options);
    assert_int_equal(rpc_server_add_service(f->server, &f->chat.service.base, NULL), ST_OK);
    assert_int_equal(rpc_server_listen_unix(f->server, f->socket), ST_OK);
    rpc_server_start(f->server);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/cairn-rpc-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->socket, sizeof(f->socket), "%s/s", f->dir);
    (void)snprintf(f->target, sizeof(f->target), "unix:%s", f->socket);
    f->db = rpc_descdb_new();
    size_t size = 0;
    const uint8_t *data = chat_descriptors(&size);
    assert_int_equal(rpc_descdb_add(f->db, data, size), ST_OK);
    struct rpc_channel_options options = { .target = f->target, .token = "t0ken" };
    assert_int_equal(rpc_channel_new(&options, &f->channel), ST_OK);
    *state = f;
    return 0;
}

static void stop_server(struct fixture *f)
{
    if (f->server == NULL)
        return;
    rpc_server_stop_begin(f->server, 200);
    rpc_server_free(f->server);
    f->server = NULL;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    rpc_channel_free(f->channel);
    stop_server(f);
    rpc_descdb_free(f->db);
    char lock[96];
    (void)snprintf(lock, sizeof(lock), "%s.lock", f->socket);
    (void)unlink(lock);
    (void)unlink(f->socket);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

static enum status echo(struct fixture *f, Cairn__Test__EchoRequest *request,
                        const struct rpc_call_options *options, struct rpc_result *result)
{
    ProtobufCMessage *reply = NULL;
    enum status st =
        rpc_unary(f->channel, chat_service, "Echo", &request->base, options, &reply, result);
    if (st == ST_OK)
        protobuf_c_message_free_unpacked(reply, NULL);
    return st;
}

static bool eventually(const _Atomic uint32_t *counter, uint32_t value)
{
    int64_t until = clock_mono_ms(clock_system()) + DEADLINE_MS;
    while (atomic_load(counter) != value) {
        if (clock_mono_ms(clock_system()) > until)
            return false;
        (void)poll(NULL, 0, 2);
    }
    return true;
}

static struct rpc_stream *talk(struct fixture *f, const struct rpc_stream_options *options)
{
    struct rpc_stream *stream = NULL;
    assert_int_equal(rpc_stream_open(f->channel, chat_service, "Talk", options, &stream, NULL),
                     ST_OK);
    return stream;
}

static enum status say(struct rpc_stream *stream, const char *text, size_t padding)
{
    Cairn__Test__TalkMessage message = CAIRN__TEST__TALK_MESSAGE__INIT;
    uint8_t *zeros = calloc(1, padding + 1);
    assert_non_null(zeros);
    message.text = (char *)text;
    message.padding = (ProtobufCBinaryData){ .len = padding, .data = zeros };
    enum status st = rpc_stream_send(stream, &message.base);
    free(zeros);
    return st;
}

static void hear(struct rpc_stream *stream, const char *text)
{
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_OK);
    assert_string_equal(((Cairn__Test__TalkMessage *)message)->text, text);
    protobuf_c_message_free_unpacked(message, NULL);
}

static void unary_call_brings_the_reply_or_the_status(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
    request.payload = (ProtobufCBinaryData){ .len = 3, .data = (uint8_t *)"abc" };
    ProtobufCMessage *reply = NULL;
    struct rpc_result result;
    assert_int_equal(
        rpc_unary(f->channel, chat_service, "Echo", &request.base, NULL, &reply, &result), ST_OK);
    Cairn__Test__EchoReply *echoed = (Cairn__Test__EchoReply *)reply;
    assert_int_equal(result.code, RPC_OK);
    assert_memory_equal(echoed->payload.data, "abc", 3);
    assert_int_equal(echoed->peer_pid, getpid());
    protobuf_c_message_free_unpacked(reply, NULL);

    request.fail_code = RPC_NOT_FOUND;
    assert_int_equal(echo(f, &request, NULL, &result), ST_NOT_FOUND);
    assert_int_equal(result.code, RPC_NOT_FOUND);
    assert_string_equal(result.detail, "asked to fail");
}

/* The text of each word has as many bytes as a text that is bounded by its own bytes. */
static void a_text_in_any_script_leaves_the_code_as_it_is(void **state)
{
    static const char *const words[] = { "a",  "\xe5\xad\xa6\xe4\xb9\xa0", "\xc3\xa9", "%",
                                         "\n", "\xf0\x9f\x92\xa5" };
    struct fixture *f = *state;
    start_server(f, 0);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char text[6000] = "";
        const size_t size = strlen(words[i]);
        for (size_t at = 0; at + size < sizeof(text); at += size)
            memcpy(text + at, words[i], size + 1);
        struct rpc_result result;
        Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
        request.fail_code = RPC_INVALID_ARGUMENT;
        request.hold = true;
        request.payload = (ProtobufCBinaryData){ .data = (uint8_t *)text, .len = strlen(text) };
        assert_int_equal(echo(f, &request, NULL, &result), ST_INVALID);
        assert_int_equal(result.code, RPC_INVALID_ARGUMENT);
        const size_t told = strlen(result.detail);
        assert_true(told > sizeof(result.detail) - 8); /* all that has room, no half character */
        assert_int_equal(told % size, 0);
        assert_memory_equal(result.detail, text, told);
    }
}

static void unary_call_ends_at_its_timeout(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
    request.hold = 1;
    const struct rpc_call_options options = { .timeout_ms = 100 };
    struct rpc_result result;
    assert_int_equal(echo(f, &request, &options, &result), ST_TIMED_OUT);
    assert_int_equal(result.code, RPC_DEADLINE_EXCEEDED);
    assert_true(eventually(&f->chat.cancelled, 1));
}

static void calls_without_a_server_fail_as_unreachable(void **state)
{
    struct fixture *f = *state;
    Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
    struct rpc_result result;
    assert_int_equal(echo(f, &request, NULL, &result), ST_UNREACHABLE);
    struct rpc_stream *stream = NULL;
    assert_int_equal(rpc_stream_open(f->channel, chat_service, "Talk", NULL, &stream, &result),
                     ST_UNREACHABLE);
    const struct rpc_stream_options waiting = { .open_timeout_ms = 300, .wait_for_ready = true };
    assert_int_equal(rpc_stream_open(f->channel, chat_service, "Talk", &waiting, &stream, &result),
                     ST_UNREACHABLE);
    assert_null(stream);
}

static void too_large_a_message_ends_its_call_only(void **state)
{
    struct fixture *f = *state;
    start_server(f, 1024);
    Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
    uint8_t payload[2048] = { 0 };
    request.payload = (ProtobufCBinaryData){ .len = sizeof(payload), .data = payload };
    assert_int_equal(echo(f, &request, NULL, NULL), ST_FULL);
    request.payload.len = 512;
    assert_int_equal(echo(f, &request, NULL, NULL), ST_OK);
}

static void stream_carries_messages_both_ways_in_order(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    struct rpc_stream *stream = talk(f, NULL);
    for (int i = 0; i < 500; i++) {
        char text[16];
        (void)snprintf(text, sizeof(text), "%d", i);
        assert_int_equal(say(stream, text, 0), ST_OK);
        hear(stream, text);
    }
    rpc_stream_send_done(stream);
    assert_int_equal(say(stream, "too late", 0), ST_CLOSED);
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_CLOSED);
    struct rpc_result result;
    rpc_stream_close(stream, &result);
    assert_int_equal(result.code, RPC_OK);
}

static void stream_tells_the_status_that_the_server_ended_it_with(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    struct rpc_stream *stream = talk(f, NULL);
    assert_int_equal(say(stream, "one", 0), ST_OK);
    assert_int_equal(say(stream, "quit", 0), ST_OK);
    hear(stream, "one");
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_recv(stream, -1, &message), ST_CLOSED);
    assert_int_equal(say(stream, "more", 0), ST_CLOSED);
    struct rpc_result result;
    rpc_stream_close(stream, &result);
    assert_int_equal(result.code, RPC_ABORTED);
    assert_string_equal(result.detail, "as you wish");
}

static void server_stream_ends_after_its_last_message(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    Cairn__Test__CountRequest request = CAIRN__TEST__COUNT_REQUEST__INIT;
    request.count = 50;
    struct rpc_stream *stream = NULL;
    assert_int_equal(
        rpc_stream_request(f->channel, chat_service, "Count", &request.base, NULL, &stream, NULL),
        ST_OK);
    ProtobufCMessage *message = NULL;
    for (uint64_t i = 0; i < 50; i++) {
        assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_OK);
        assert_int_equal(((Cairn__Test__Number *)message)->value, i);
        protobuf_c_message_free_unpacked(message, NULL);
    }
    assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_CLOSED);
    rpc_stream_close(stream, NULL);
}

static void closing_a_stream_with_unread_messages_leaks_nothing(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    Cairn__Test__CountRequest request = CAIRN__TEST__COUNT_REQUEST__INIT;
    request.count = 60;
    request.hold = 1;
    struct rpc_stream *stream = NULL;
    assert_int_equal(
        rpc_stream_request(f->channel, chat_service, "Count", &request.base, NULL, &stream, NULL),
        ST_OK);
    rpc_stream_close(stream, NULL);
    assert_true(eventually(&f->chat.open, 0));
}

static void *interrupt_later(void *stream)
{
    (void)poll(NULL, 0, 20);
    rpc_stream_interrupt(stream);
    return NULL;
}

static void *cancel_later(void *stream)
{
    (void)poll(NULL, 0, 20);
    rpc_stream_cancel(stream);
    return NULL;
}

static void receiving_can_time_out_be_interrupted_and_be_cancelled(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    struct rpc_stream *stream = talk(f, NULL);
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_recv(stream, 0, &message), ST_TIMED_OUT);
    assert_int_equal(rpc_stream_recv(stream, 20, &message), ST_TIMED_OUT);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, interrupt_later, stream), 0);
    assert_int_equal(rpc_stream_recv(stream, -1, &message), ST_AGAIN);
    assert_int_equal(pthread_join(thread, NULL), 0);
    rpc_stream_interrupt(stream); /* nobody waits: the next one gets it */
    assert_int_equal(rpc_stream_recv(stream, -1, &message), ST_AGAIN);
    assert_int_equal(say(stream, "alive", 0), ST_OK);
    hear(stream, "alive");
    assert_int_equal(pthread_create(&thread, NULL, cancel_later, stream), 0);
    assert_int_equal(rpc_stream_recv(stream, -1, &message), ST_CLOSED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    struct rpc_result result;
    rpc_stream_close(stream, &result);
    assert_int_equal(result.code, RPC_CANCELLED);
    assert_true(eventually(&f->chat.cancelled, 1));
}

static void ring_bell(void *arg)
{
    _Atomic uint32_t *bell = arg;
    atomic_store(bell, 1);
}

static void notify_tells_of_messages_and_of_the_end(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    _Atomic uint32_t bell = 0;
    const struct rpc_stream_options options = { .notify = ring_bell, .notify_arg = &bell };
    struct rpc_stream *stream = talk(f, &options);
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_recv(stream, 0, &message), ST_TIMED_OUT);
    assert_int_equal(atomic_load(&bell), 0);
    assert_int_equal(say(stream, "x", 0), ST_OK);
    assert_true(eventually(&bell, 1));
    assert_int_equal(rpc_stream_recv(stream, 0, &message), ST_OK);
    protobuf_c_message_free_unpacked(message, NULL);
    atomic_store(&bell, 0);
    stop_server(f);
    assert_true(eventually(&bell, 1));
    assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_CLOSED);
    rpc_stream_close(stream, NULL);
}

static void send_queue_is_bounded_and_the_stream_survives_it(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    const struct rpc_stream_options options = { .send_queue_max = 4 };
    struct rpc_stream *stream = talk(f, &options);
    /* Nobody reads what comes back, so flow control stops the server, then us. */
    enum status st = ST_OK;
    unsigned taken = 0;
    while (taken < 10000 && (st = say(stream, "padded", 256 * 1024)) != ST_FULL) {
        assert_int_equal(st, ST_OK);
        taken++;
    }
    assert_int_equal(st, ST_FULL);
    for (unsigned i = 0; i < taken; i++)
        hear(stream, "padded");
    assert_int_equal(say(stream, "again", 0), ST_OK);
    hear(stream, "again");
    rpc_stream_close(stream, NULL);
}

static pid_t spawn_server(const struct fixture *f)
{
    int out[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    char *argv[] = { (char *)CHAT_SERVER, (char *)"--unix", (char *)f->socket, NULL };
    pid_t pid = 0;
    assert_int_equal(posix_spawn(&pid, CHAT_SERVER, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    (void)close(out[1]);
    char line[64] = "";
    assert_true(read(out[0], line, sizeof(line) - 1) > 0);
    assert_int_equal(strncmp(line, "ready", 5), 0);
    (void)close(out[0]);
    return pid;
}

static void killed_server_is_noticed_and_its_successor_found(void **state)
{
    struct fixture *f = *state;
    for (int round = 0; round < 3; round++) {
        pid_t pid = spawn_server(f);
        const struct rpc_stream_options options = { .open_timeout_ms = DEADLINE_MS,
                                                    .wait_for_ready = true };
        struct rpc_stream *stream = talk(f, &options);
        assert_int_equal(say(stream, "hello", 0), ST_OK);
        hear(stream, "hello");
        assert_int_equal(kill(pid, SIGKILL), 0);
        ProtobufCMessage *message = NULL;
        assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_CLOSED);
        struct rpc_result result;
        rpc_stream_close(stream, &result);
        assert_int_equal(result.code, RPC_UNAVAILABLE);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
    }
}

static void stopped_server_is_found_dead_by_keepalive(void **state)
{
    struct fixture *f = *state;
    pid_t pid = spawn_server(f);
    struct rpc_channel_options options = { .target = f->target,
                                           .keepalive_ms = 1000,
                                           .keepalive_timeout_ms = 500 };
    struct rpc_channel *channel = NULL;
    assert_int_equal(rpc_channel_new(&options, &channel), ST_OK);
    struct rpc_stream *stream = NULL;
    assert_int_equal(rpc_stream_open(channel, chat_service, "Talk", NULL, &stream, NULL), ST_OK);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_CLOSED);
    rpc_stream_close(stream, NULL);
    rpc_channel_free(channel);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void path_too_long_for_a_socket_is_refused(void **state)
{
    struct fixture *f = *state;
    struct rpc_server_options options = { .descdb = f->db };
    struct rpc_server *server = rpc_server_new(&options);
    char path[200];
    memset(path, 'x', sizeof(path) - 1);
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(rpc_server_listen_unix(server, path), ST_INVALID);
    rpc_server_free(server);
}

static void server_refuses_a_service_that_its_descriptors_lack(void **state)
{
    struct fixture *f = *state;
    struct rpc_descdb *empty = rpc_descdb_new();
    struct rpc_server_options options = { .descdb = empty };
    struct rpc_server *server = rpc_server_new(&options);
    chat_init(&f->chat);
    assert_int_equal(rpc_server_add_service(server, &f->chat.service.base, NULL), ST_NOT_FOUND);
    struct rpc_health *health = NULL;
    assert_int_equal(rpc_health_new(server, &health), ST_NOT_FOUND);
    rpc_server_free(server);
    rpc_descdb_free(empty);
}

enum { TALKERS = 6, WORDS = 100 };

/* cmocka's asserts belong to the main thread: a talker counts what was wrong. */
struct talker {
    struct fixture *fixture;
    int number;
    unsigned wrong;
};

static void *talk_much(void *arg)
{
    struct talker *talker = arg;
    struct rpc_stream *stream = NULL;
    if (rpc_stream_open(talker->fixture->channel, chat_service, "Talk", NULL, &stream, NULL) !=
        ST_OK) {
        talker->wrong = WORDS;
        return NULL;
    }
    for (int i = 0; i < WORDS; i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "%d of %d", i, talker->number);
        Cairn__Test__TalkMessage word = CAIRN__TEST__TALK_MESSAGE__INIT;
        word.text = text;
        ProtobufCMessage *answer = NULL;
        if (rpc_stream_send(stream, &word.base) != ST_OK ||
            rpc_stream_recv(stream, DEADLINE_MS, &answer) != ST_OK) {
            talker->wrong++;
            continue;
        }
        talker->wrong += strcmp(((Cairn__Test__TalkMessage *)answer)->text, text) != 0;
        protobuf_c_message_free_unpacked(answer, NULL);
        Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
        talker->wrong += echo(talker->fixture, &request, NULL, NULL) != ST_OK;
    }
    rpc_stream_close(stream, NULL);
    return NULL;
}

static void streams_and_calls_of_many_threads_do_not_mix(void **state)
{
    struct fixture *f = *state;
    start_server(f, 0);
    struct talker talkers[TALKERS];
    pthread_t threads[TALKERS];
    for (int i = 0; i < TALKERS; i++) {
        talkers[i] = (struct talker){ .fixture = f, .number = i };
        assert_int_equal(pthread_create(&threads[i], NULL, talk_much, &talkers[i]), 0);
    }
    for (int i = 0; i < TALKERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(talkers[i].wrong, 0);
    }
    assert_int_equal(atomic_load(&f->chat.talked), TALKERS * WORDS);
}

#define RPC_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_TEST(unary_call_brings_the_reply_or_the_status),
        RPC_TEST(a_text_in_any_script_leaves_the_code_as_it_is),
        RPC_TEST(unary_call_ends_at_its_timeout),
        RPC_TEST(calls_without_a_server_fail_as_unreachable),
        RPC_TEST(too_large_a_message_ends_its_call_only),
        RPC_TEST(stream_carries_messages_both_ways_in_order),
        RPC_TEST(stream_tells_the_status_that_the_server_ended_it_with),
        RPC_TEST(server_stream_ends_after_its_last_message),
        RPC_TEST(closing_a_stream_with_unread_messages_leaks_nothing),
        RPC_TEST(receiving_can_time_out_be_interrupted_and_be_cancelled),
        RPC_TEST(notify_tells_of_messages_and_of_the_end),
        RPC_TEST(send_queue_is_bounded_and_the_stream_survives_it),
        RPC_TEST(killed_server_is_noticed_and_its_successor_found),
        RPC_TEST(stopped_server_is_found_dead_by_keepalive),
        RPC_TEST(path_too_long_for_a_socket_is_refused),
        RPC_TEST(server_refuses_a_service_that_its_descriptors_lack),
        RPC_TEST(streams_and_calls_of_many_threads_do_not_mix),
    };
    rpc_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_shutdown();
    return failed;
}
