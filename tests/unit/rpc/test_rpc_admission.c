/* What who says nothing, or too much, gets of a server, and what he costs it. */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chat_service.h"
#include "common/clock.h"
#include "common/limits.h"
#include "rpc/client.h"
#include "tests/test.h"

extern char **environ;

enum {
    DEADLINE_MS = 20000,
    GUEST_MS = 3000,
    CLOSE_MS = 400,
    PULSE_MS = 5000,
    GUESTS = 6,
    FIRST = 1000,
    ADDRESS = 4
};

struct fixture {
    char dir[64], socket[80], unix_target[96], target[64];
    int port;
    struct rpc_descdb *db;
    struct chat chat;
    struct rpc_server *server;
    struct rpc_channel *channel, *local;
};

static const ProtobufCServiceDescriptor *const chat_service = &cairn__test__chat__descriptor;

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/cairn-door-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->socket, sizeof(f->socket), "%s/s", f->dir);
    (void)snprintf(f->unix_target, sizeof(f->unix_target), "unix:%s", f->socket);
    f->db = rpc_descdb_new();
    size_t size = 0;
    const uint8_t *data = chat_descriptors(&size);
    assert_int_equal(rpc_descdb_add(f->db, data, size), ST_OK);
    chat_init(&f->chat);
    const struct rpc_server_options options = { .descdb = f->db,
                                                .first_size_max = FIRST,
                                                .pending_max = GUESTS,
                                                .pending_address_max = ADDRESS,
                                                .pending_ms = GUEST_MS,
                                                .handshake_ms = CLOSE_MS,
                                                .idle_ms = CLOSE_MS };
    f->server = rpc_server_new(&options);
    assert_int_equal(rpc_server_add_service(f->server, &f->chat.service.base, NULL), ST_OK);
    assert_int_equal(rpc_server_listen_unix(f->server, f->socket), ST_OK);
    assert_int_equal(rpc_server_listen(f->server, "127.0.0.1:0", NULL, &f->port), ST_OK);
    rpc_server_start(f->server);
    (void)snprintf(f->target, sizeof(f->target), "ipv4:127.0.0.1:%d", f->port);
    const struct rpc_channel_options remote = { .target = f->target };
    const struct rpc_channel_options local = { .target = f->unix_target };
    assert_int_equal(rpc_channel_new(&remote, &f->channel), ST_OK);
    assert_int_equal(rpc_channel_new(&local, &f->local), ST_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    char lock[96];
    rpc_channel_free(f->channel);
    rpc_channel_free(f->local);
    rpc_server_stop_begin(f->server, 200);
    rpc_server_free(f->server);
    rpc_descdb_free(f->db);
    (void)snprintf(lock, sizeof(lock), "%s.lock", f->socket);
    (void)unlink(lock);
    (void)unlink(f->socket);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

/* A stream that was accepted, or NULL: how it was refused. */
static struct rpc_stream *knock(struct rpc_channel *channel, struct rpc_result *result)
{
    struct rpc_stream *stream = NULL;
    const struct rpc_stream_options options = { .open_timeout_ms = DEADLINE_MS,
                                                .wait_for_ready = true };
    if (rpc_stream_open(channel, chat_service, "Talk", &options, &stream, result) != ST_OK)
        return NULL;
    return stream;
}

static void say(struct rpc_stream *stream, size_t padding)
{
    Cairn__Test__TalkMessage message = CAIRN__TEST__TALK_MESSAGE__INIT;
    uint8_t *zeros = calloc(1, padding + 1);
    assert_non_null(zeros);
    message.text = (char *)"a";
    message.padding = (ProtobufCBinaryData){ .len = padding, .data = zeros };
    assert_int_equal(rpc_stream_send(stream, &message.base), ST_OK);
    free(zeros);
}

static void hear(struct rpc_stream *stream)
{
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_OK);
    protobuf_c_message_free_unpacked(message, NULL);
}

/* The server ended it. */
static struct rpc_result end_of(struct rpc_stream *stream)
{
    struct rpc_result result;
    ProtobufCMessage *message = NULL;
    assert_int_equal(rpc_stream_recv(stream, DEADLINE_MS, &message), ST_CLOSED);
    rpc_stream_close(stream, &result);
    return result;
}

static void who_says_nothing_is_shown_out(void **state)
{
    struct fixture *f = *state;
    struct rpc_stream *silent = knock(f->channel, NULL), *greeted = knock(f->channel, NULL);
    struct rpc_stream *local = knock(f->local, NULL);
    assert_non_null(silent);
    assert_non_null(greeted);
    assert_non_null(local);
    say(greeted, 0);
    hear(greeted);
    struct rpc_result result = end_of(silent);
    assert_int_equal(result.code, RPC_DEADLINE_EXCEEDED);
    assert_string_equal(result.detail, "the first message of this call did not come in time");
    assert_int_equal(end_of(local).code, RPC_DEADLINE_EXCEEDED);
    (void)poll(NULL, 0, GUEST_MS); /* who has said something may be silent */
    say(greeted, 0);
    hear(greeted);
    rpc_stream_close(greeted, NULL);
}

static void an_address_has_so_many_silent_calls(void **state)
{
    struct fixture *f = *state;
    struct rpc_stream *silent[ADDRESS];
    struct rpc_result result = { .code = RPC_OK };
    for (size_t i = 0; i < ADDRESS; i++) {
        silent[i] = knock(f->channel, NULL);
        assert_non_null(silent[i]);
    }
    assert_null(knock(f->channel, &result));
    assert_int_equal(result.code, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(result.detail, "too many calls wait for their first message: try again");
    struct rpc_stream *local = knock(f->local, NULL); /* the machine's owner isn't counted */
    assert_non_null(local);
    say(local, 0);
    hear(local);
    rpc_stream_close(local, NULL);
    say(silent[0], 0); /* who speaks makes room */
    hear(silent[0]);
    struct rpc_stream *next = knock(f->channel, NULL);
    assert_non_null(next);
    rpc_stream_close(next, NULL); /* and who goes */
    for (size_t i = 1; i < ADDRESS; i++)
        assert_int_equal(end_of(silent[i]).code, RPC_DEADLINE_EXCEEDED);
    for (size_t i = 0; i < 3 * GUESTS; i++) { /* nothing is left of them */
        struct rpc_stream *stream = knock(f->channel, NULL);
        assert_non_null(stream);
        say(stream, 0);
        hear(stream);
        rpc_stream_close(stream, NULL);
    }
    rpc_stream_close(silent[0], NULL);
}

static void a_first_message_is_small(void **state)
{
    struct fixture *f = *state;
    const size_t around = 6; /* "a" and the padding, with their tags and sizes */
    struct rpc_stream *stream = knock(f->channel, NULL);
    assert_non_null(stream);
    say(stream, FIRST - around);
    hear(stream);
    say(stream, LIMIT_MESSAGE_BYTES / 2); /* later ones may be larger */
    hear(stream);
    rpc_stream_close(stream, NULL);
    stream = knock(f->channel, NULL);
    assert_non_null(stream);
    say(stream, FIRST - around + 1);
    const struct rpc_result result = end_of(stream);
    assert_int_equal(result.code, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(result.detail, "the first message of this stream is too large");
}

static int dial(const struct fixture *f)
{
    const struct sockaddr_in to = { .sin_family = AF_INET,
                                    .sin_port = htons((uint16_t)f->port),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Reads until the server closes it: before a peer without a pulse would be given up. */
static void assert_closed(int fd)
{
    const int64_t until = clock_mono_ms(clock_system()) + PULSE_MS;
    char bytes[512];
    struct pollfd in = { .fd = fd, .events = POLLIN };
    ssize_t got = 1;
    while (got > 0) {
        assert_true(clock_mono_ms(clock_system()) < until);
        assert_int_equal(poll(&in, 1, PULSE_MS), 1);
        got = read(fd, bytes, sizeof(bytes));
    }
    (void)close(fd);
}

static void a_connection_without_use_is_closed(void **state)
{
    struct fixture *f = *state;
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    const int mute = dial(f), half = dial(f), idle = dial(f);
    assert_int_equal(write(half, preface, 10), 10);
    assert_int_equal(write(idle, preface, sizeof(preface)), sizeof(preface));
    assert_closed(mute);
    assert_closed(half);
    assert_closed(idle);
}

/* The largest that it was, MiB. */
static long peak_mib(pid_t pid)
{
    char path[64], line[256];
    long kib = 0;
    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtol(line + 6, NULL, 10);
    }
    (void)fclose(file);
    assert_true(kib > 0);
    return kib / 1024;
}

static pid_t spawn_server(const char *path)
{
    int out[2];
    assert_int_equal(pipe(out), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    char *argv[] = { (char *)CHAT_SERVER, (char *)"--unix", (char *)path,
                     (char *)"--memory",  (char *)"64",     NULL };
    pid_t pid = 0;
    assert_int_equal(posix_spawn(&pid, CHAT_SERVER, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    (void)close(out[1]);
    char line[64] = "";
    assert_true(read(out[0], line, sizeof(line) - 1) > 0);
    (void)close(out[0]);
    return pid;
}

/* gRPC's core looks at a message's size when it has all of it. */
static void a_message_of_any_size_costs_a_bounded_memory(void **state)
{
    const size_t size = (size_t)256 << 20;
    struct fixture *f = *state;
    char path[96], target[112];
    (void)snprintf(path, sizeof(path), "%s/m", f->dir);
    (void)snprintf(target, sizeof(target), "unix:%s", path);
    const pid_t pid = spawn_server(path);
    const struct rpc_channel_options options = { .target = target };
    struct rpc_channel *channel = NULL;
    struct rpc_result result;
    assert_int_equal(rpc_channel_new(&options, &channel), ST_OK);
    Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
    request.payload = (ProtobufCBinaryData){ .len = size, .data = calloc(1, size) };
    assert_non_null(request.payload.data);
    const struct rpc_call_options call = { .timeout_ms = DEADLINE_MS, .wait_for_ready = true };
    ProtobufCMessage *reply = NULL;
    assert_int_equal(
        rpc_unary(channel, chat_service, "Echo", &request.base, &call, &reply, &result), ST_FULL);
    free(request.payload.data);
    const long peak = peak_mib(pid);
    request.payload = (ProtobufCBinaryData){ .len = 0 };
    assert_int_equal(
        rpc_unary(channel, chat_service, "Echo", &request.base, &call, &reply, &result), ST_OK);
    protobuf_c_message_free_unpacked(reply, NULL);
    rpc_channel_free(channel);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)snprintf(target, sizeof(target), "%s.lock", path);
    (void)unlink(target);
    (void)unlink(path);
    if (peak > 230)
        fail_msg("it held %ld MiB", peak);
}

#define DOOR_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        DOOR_TEST(who_says_nothing_is_shown_out),
        DOOR_TEST(an_address_has_so_many_silent_calls),
        DOOR_TEST(a_first_message_is_small),
        DOOR_TEST(a_connection_without_use_is_closed),
        DOOR_TEST(a_message_of_any_size_costs_a_bounded_memory),
    };
    rpc_init();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_shutdown();
    return failed;
}
