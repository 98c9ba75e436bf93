/* Where a client's calls go, and where they don't: other accounts' sockets and listeners. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chat_service.h"
#include "common/limits.h"
#include "rpc/client.h"
#include "tests/test.h"

/* c-ares 1.18 keeps the name for good where "localhost" is what it is asked for. */
const char *__lsan_default_suppressions(void); /* NOLINT(bugprone-reserved-identifier) */
const char *__lsan_default_suppressions(void)  /* NOLINT(bugprone-reserved-identifier) */
{
    return "leak:libcares";
}

#define NOBODY 65534

struct world {
    char dir[64];
    char socket[512];
    char target[LIMIT_PATH];
    char token_file[LIMIT_PATH];
    struct rpc_descdb *db;
    struct chat chat;
    struct rpc_server *server;
    struct rpc_channel *channel;
    _Atomic(const char *) wanted; /* token of each call; NULL: any; the server looks at it */
};

static const ProtobufCServiceDescriptor *const chat_service = &cairn__test__chat__descriptor;

static enum rpc_code authorize(void *ctx, struct rpc_call *call, const char **out_detail)
{
    const struct world *w = ctx;
    *out_detail = "another token";
    return w->wanted == NULL || rpc_call_has_token(call, w->wanted) ? RPC_OK : RPC_UNAUTHENTICATED;
}

static void make_server(struct world *w)
{
    struct rpc_server_options options = { .descdb = w->db,
                                          .authorize = authorize,
                                          .authorize_ctx = w };
    chat_init(&w->chat);
    w->server = rpc_server_new(&options);
    assert_int_equal(rpc_server_add_service(w->server, &w->chat.service.base, NULL), ST_OK);
}

static void serve(struct world *w)
{
    make_server(w);
    assert_int_equal(rpc_server_listen_unix(w->server, w->socket), ST_OK);
    rpc_server_start(w->server);
}

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    size_t size = 0;
    assert_non_null(w);
    (void)snprintf(w->dir, sizeof(w->dir), "/tmp/cairn-dial-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    (void)snprintf(w->socket, sizeof(w->socket), "%s/s", w->dir);
    (void)snprintf(w->target, sizeof(w->target), "unix:%s", w->socket);
    (void)snprintf(w->token_file, sizeof(w->token_file), "%s/token", w->dir);
    w->db = rpc_descdb_new();
    const uint8_t *data = chat_descriptors(&size);
    assert_int_equal(rpc_descdb_add(w->db, data, size), ST_OK);
    *state = w;
    return 0;
}

static void stop(struct world *w)
{
    rpc_channel_free(w->channel);
    w->channel = NULL;
    if (w->server != NULL) {
        rpc_server_stop_begin(w->server, 200);
        rpc_server_free(w->server);
    }
    w->server = NULL;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    char command[128];
    stop(w);
    rpc_descdb_free(w->db);
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", w->dir);
    assert_int_equal(system(command), 0);
    free(w);
    return 0;
}

static void dial(struct world *w, bool with_token_file)
{
    struct rpc_channel_options options = { .target = w->target,
                                           .token_file = with_token_file ? w->token_file : NULL };
    rpc_channel_free(w->channel);
    assert_int_equal(rpc_channel_new(&options, &w->channel), ST_OK);
}

static enum rpc_code call(struct world *w, struct rpc_result *result)
{
    Cairn__Test__EchoRequest request = CAIRN__TEST__ECHO_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    *result = (struct rpc_result){ .code = RPC_OK };
    if (rpc_unary(w->channel, chat_service, "Echo", &request.base, NULL, &reply, result) == ST_OK)
        protobuf_c_message_free_unpacked(reply, NULL);
    return result->code;
}

/* Opens a stream instead, and returns its code. */
static enum rpc_code open_stream(struct world *w, struct rpc_result *result)
{
    struct rpc_stream *stream = NULL;
    *result = (struct rpc_result){ .code = RPC_OK };
    if (rpc_stream_open(w->channel, chat_service, "Talk", NULL, &stream, result) == ST_OK)
        rpc_stream_close(stream, NULL);
    return result->code;
}

static void write_token(const struct world *w, const char *token)
{
    const int fd = open(w->token_file, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, token, strlen(token)), (ssize_t)strlen(token));
    assert_int_equal(close(fd), 0);
}

static void a_socket_in_any_folder_is_served_and_found(void **state)
{
    static const char *const names[] = { "run #1", "a,b", "50%41?x=y", "r\xc3\xa4ume" };
    struct world *w = *state;
    struct rpc_result result;
    char long_name[251];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    for (size_t i = 0; i < 5; i++) {
        char folder[400], lock[600];
        (void)snprintf(folder, sizeof(folder), "%s/%s", w->dir, i < 4 ? names[i] : long_name);
        assert_int_equal(mkdir(folder, 0700), 0);
        (void)snprintf(w->socket, sizeof(w->socket), "%s/s", folder);
        (void)snprintf(w->target, sizeof(w->target), "unix:%s", w->socket);
        (void)snprintf(lock, sizeof(lock), "%s.lock", w->socket);
        serve(w);
        dial(w, false);
        assert_int_equal(call(w, &result), RPC_OK);
        assert_int_equal(access(w->socket, F_OK), 0);
        assert_int_equal(access(lock, F_OK), 0);
        stop(w);
        assert_int_not_equal(access(w->socket, F_OK), 0);
        assert_int_not_equal(access(lock, F_OK), 0); /* that goes, too */
    }
}

static void where_others_may_put_a_socket_none_is_served_or_dialled(void **state)
{
    struct world *w = *state;
    struct rpc_result result;
    serve(w);
    dial(w, false);
    assert_int_equal(call(w, &result), RPC_OK);
    assert_int_equal(chmod(w->dir, 0777), 0);
    assert_int_equal(call(w, &result), RPC_PERMISSION_DENIED);
    assert_non_null(strstr(result.detail, "may write to"));
    assert_int_equal(open_stream(w, &result), RPC_PERMISSION_DENIED);
    stop(w);
    make_server(w);
    assert_int_equal(rpc_server_listen_unix(w->server, w->socket), ST_REFUSED);
    assert_int_equal(chmod(w->dir, 01777), 0); /* as /tmp is */
    assert_int_equal(rpc_server_listen_unix(w->server, w->socket), ST_REFUSED);
    rpc_server_free(w->server);
    w->server = NULL;
}

/* A process of another account that takes connections and says nothing; in_fd: a byte for each. */
static pid_t be_nobody(int listener, int *in_fd)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
            _exit(1);
        for (;;) {
            const int fd = accept(listener, NULL, NULL);
            if (fd >= 0 && write(ends[1], "c", 1) != 1)
                _exit(1);
        }
    }
    (void)close(ends[1]);
    *in_fd = ends[0];
    return pid;
}

static void end_nobody(pid_t pid, int in_fd, bool expect_connection)
{
    struct pollfd wait = { .fd = in_fd, .events = POLLIN };
    assert_int_equal(poll(&wait, 1, 0), expect_connection ? 1 : 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)close(in_fd);
}

static bool lacks_root(void)
{
    if (geteuid() != 0)
        print_message("needs root: there is no other account to be\n");
    return geteuid() != 0;
}

static void another_accounts_socket_isnt_dialled(void **state)
{
    struct world *w = *state;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct rpc_result result;
    int in_fd = -1;
    if (lacks_root())
        skip();
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", w->dir);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 5), 0);
    assert_int_equal(chown(w->socket, NOBODY, NOBODY), 0);
    const pid_t pid = be_nobody(fd, &in_fd);
    const mode_t modes[] = { 0700, 01777 };
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(chmod(w->dir, modes[i]), 0);
        dial(w, false);
        assert_int_equal(call(w, &result), RPC_PERMISSION_DENIED);
        assert_non_null(strstr(result.detail, "belongs to nobody"));
        assert_int_equal(open_stream(w, &result), RPC_PERMISSION_DENIED);
    }
    end_nobody(pid, in_fd, false);
    assert_int_equal(unlink(w->socket), 0);
    dial(w, false);
    assert_int_equal(call(w, &result), RPC_UNAVAILABLE); /* anybody could be there in a moment */
    assert_non_null(strstr(result.detail, "isn't there"));
    (void)close(fd);
}

/* On a free port of 127.0.0.1. */
static int listen_tcp(struct world *w)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001) };
    socklen_t size = sizeof(address);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(w->target, sizeof(w->target), "127.0.0.1:%u", ntohs(address.sin_port));
    return fd;
}

/* The socket decides whose a listener is: a socket made as root would be root's. */
static int listen_as_nobody(struct world *w)
{
    assert_int_equal(seteuid(NOBODY), 0);
    const int fd = listen_tcp(w);
    const int listens = listen(fd, 5);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(listens, 0);
    return fd;
}

static void a_token_goes_to_nobody_elses_listener(void **state)
{
    struct world *w = *state;
    struct rpc_result result;
    int in_fd = -1;
    if (lacks_root())
        skip();
    write_token(w, "t0ken");
    const int fd = listen_as_nobody(w);
    const pid_t pid = be_nobody(fd, &in_fd);
    dial(w, true);
    assert_int_equal(call(w, &result), RPC_PERMISSION_DENIED);
    assert_non_null(strstr(result.detail, "nobody listens at 127.0.0.1:"));
    assert_int_equal(open_stream(w, &result), RPC_PERMISSION_DENIED);
    end_nobody(pid, in_fd, false);
    (void)close(fd);
    assert_int_equal(call(w, &result), RPC_UNAVAILABLE); /* nor to whoever may come */
}

static void a_token_is_that_of_now(void **state)
{
    struct world *w = *state;
    struct rpc_result result;
    int port = 0;
    make_server(w);
    assert_int_equal(rpc_server_listen(w->server, "127.0.0.1:0", NULL, &port), ST_OK);
    rpc_server_start(w->server);
    (void)snprintf(w->target, sizeof(w->target), "localhost:%d", port);
    w->wanted = "first";
    write_token(w, "first\n");
    dial(w, true);
    assert_int_equal(call(w, &result), RPC_OK);
    w->wanted = "second";
    assert_int_equal(call(w, &result), RPC_UNAUTHENTICATED);
    write_token(w, "second\n");
    assert_int_equal(call(w, &result), RPC_OK);
    assert_int_equal(chmod(w->token_file, 0644), 0);
    assert_int_equal(call(w, &result), RPC_UNAUTHENTICATED);
    assert_non_null(strstr(result.detail, "chmod 600"));
    assert_int_equal(unlink(w->token_file), 0);
    assert_int_equal(call(w, &result), RPC_UNAUTHENTICATED);
    assert_string_equal(result.detail, "another token");
    w->wanted = NULL;
    assert_int_equal(call(w, &result), RPC_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_socket_in_any_folder_is_served_and_found),
        TEST(where_others_may_put_a_socket_none_is_served_or_dialled),
        TEST(another_accounts_socket_isnt_dialled),
        TEST(a_token_goes_to_nobody_elses_listener),
        TEST(a_token_is_that_of_now),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    rpc_init();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rpc_shutdown();
    return failed;
}
