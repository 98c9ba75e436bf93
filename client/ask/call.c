#include "client/ask/call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ask/recorded.h"
#include "client/base/plain.h"
#include "client/home/home.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"
#include "common/own/private.h"
#include "identity/check.h"
#include "identity/make.h"

#define RESTART_MS 8000 /* for a coordinator that its supervisor restarts */
#define PROBE_MS   500  /* one wait for it; in between the supervisor is looked at */

/* --addr, CAIRN_ADDR, else the socket of this home. */
static enum status find_target(struct client *client)
{
    const char *addr = client->args.addr != NULL ? client->args.addr : getenv("CAIRN_ADDR");
    if (addr == NULL || addr[0] == '\0')
        return paths_socket(&client->paths, client->address, sizeof(client->address));
    int size = snprintf(client->address, sizeof(client->address), "%s%s",
                        addr[0] == '/' ? "unix:" : "", addr);
    return size < 0 || (size_t)size >= sizeof(client->address) ? ST_FULL : ST_OK;
}

/* Returns the path of the bearer token that TCP needs: each start of the coordinator makes another
 * token. NULL: the home's path is too long. */
static const char *token_file(const struct client *client, char path[LIMIT_PATH])
{
    const char *file = getenv("CAIRN_TOKEN_FILE");
    if (file != NULL)
        return file;
    return paths_join(&client->paths, path, LIMIT_PATH, "token") == ST_OK ? path : NULL;
}

/* True for an address as gRPC has them, with a scheme or without. */
static bool is_address(const char *text)
{
    static const char *const schemes[] = { "ipv4:", "ipv6:", "dns:" };
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        if (strncmp(text, schemes[i], strlen(schemes[i])) == 0)
            return true;
    }
    return rpc_address_is_dialled(text);
}

/* Checks certificate and key here, for a coordinator that refuses a certificate can't say why. */
static enum status check_credentials(struct client *client, struct reason *reason)
{
    struct identity_cert own;
    const bool loopback = rpc_address_is_loopback(client->address);
    if (identity_files_named(&client->args.tls)) {
        if (identity_key_exposed(client->args.tls.key, reason))
            client_error("%s", reason->text);
        reason->text[0] = '\0';
        return identity_check(&client->args.tls, IDENTITY_OPERATOR | IDENTITY_VIEWER,
                              clock_wall_ms(clock_system()) / 1000, &own, reason);
    }
    if (!loopback && !is_address(client->address)) {
        reason_set(reason, "'%s' is no address: HOST:PORT, or the path of a socket",
                   client->address);
        return ST_CONFIG;
    }
    if (!loopback) {
        reason_set(reason,
                   "%s: beyond this machine TLS is spoken: --tls-cert, --tls-key and "
                   "--tls-ca, as made by 'cairn cert operator NAME'",
                   client->address);
    }
    return loopback ? ST_OK : ST_CONFIG;
}

static enum status open_channel(struct client *client, struct reason *reason)
{
    if (client->channel != NULL || client->recorded != NULL)
        return ST_OK;
    char path[LIMIT_PATH];
    if (client->args.bundle != NULL)
        return recorded_open(client->args.bundle, &client->recorded, reason);
    enum status st = find_target(client);
    const bool local = st == ST_OK && strncmp(client->address, "unix:", 5) == 0;
    if (st == ST_OK && !local)
        st = check_credentials(client, reason);
    if (st != ST_OK)
        return st;
    client->tls = !local && client->args.tls.ca != NULL;
    rpc_init();
    struct rpc_channel_options options = { .target = client->address,
                                           .token_file = local || client->tls
                                                             ? NULL
                                                             : token_file(client, path),
                                           .tls = client->tls ? &client->args.tls : NULL,
                                           .tls_name = IDENTITY_SERVER };
    return rpc_channel_new(&options, &client->channel);
}

static enum status unary(const struct client *client, const char *method,
                         const ProtobufCMessage *request, const struct rpc_call_options *options,
                         ProtobufCMessage **out_reply, struct rpc_result *result)
{
    enum status st = client->recorded != NULL
                         ? recorded_reply(client->recorded, method, request, out_reply, result)
                         : rpc_unary(client->channel, &cairn__v1__control__descriptor, method,
                                     request, options, out_reply, result);
    if (st == ST_OK && client->plain)
        plain_message(*out_reply);
    return st;
}

/*
 * A connection makes progress only while some call waits on it (gRPC has no thread of its own for
 * that), so whoever waits for a coordinator to come must wait inside a call: wait_for_ready.
 */
static enum rpc_code try_call(struct client *client, const char *method,
                              const ProtobufCMessage *request,
                              const struct rpc_call_options *options, ProtobufCMessage **out_reply)
{
    struct rpc_result result = { .code = RPC_INTERNAL };
    struct reason reason = { "" };
    if (open_channel(client, &reason) != ST_OK)
        return RPC_INTERNAL;
    if (unary(client, method, request, options, out_reply, &result) == ST_OK)
        return RPC_OK;
    return result.code == RPC_OK ? RPC_INTERNAL : result.code;
}

enum rpc_code client_try(struct client *client, const char *method, const ProtobufCMessage *request,
                         int32_t timeout_ms, ProtobufCMessage **out_reply)
{
    struct rpc_call_options options = { .timeout_ms = timeout_ms };
    return try_call(client, method, request, &options, out_reply);
}

enum rpc_code client_probe(struct client *client, int32_t timeout_ms, uint32_t *out_agents)
{
    Cairn__V1__GetVersionRequest request = CAIRN__V1__GET_VERSION_REQUEST__INIT;
    struct rpc_call_options options = { .timeout_ms = timeout_ms, .wait_for_ready = true };
    ProtobufCMessage *reply = NULL;
    enum rpc_code code = try_call(client, "GetVersion", &request.base, &options, &reply);
    if (code != RPC_OK)
        return code;
    *out_agents = ((const Cairn__V1__GetVersionReply *)reply)->agents;
    protobuf_c_message_free_unpacked(reply, NULL);
    return RPC_OK;
}

/* Says why a coordinator that listens there doesn't answer us; false: nobody listens, or it may. */
static bool report_socket(const struct client *client)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct stat info = { 0 };
    char user[64];
    const char *path = client->address + strlen("unix:");
    if (strncmp(client->address, "unix:", 5) != 0 || strlen(path) >= sizeof(address.sun_path))
        return false;
    memcpy(address.sun_path, path, strlen(path) + 1);
    auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool listens = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
    bool closed = !listens && errno == EACCES;
    if (!listens && !closed)
        return false;
    if (stat(path, &info) != 0) {
        client_error("%s: permission denied; the home is another user's. Set CAIRN_HOME to a "
                     "folder of your own",
                     path);
        return true;
    }
    if (info.st_uid == geteuid())
        return false;
    client_error("the coordinator at %s is of user %s and answers nobody else; set CAIRN_HOME to a "
                 "folder of your own",
                 client->address, private_user(info.st_uid, user));
    return true;
}

enum exit_code client_report(const struct client *client, const struct rpc_result *result)
{
    if (result->code == RPC_UNAVAILABLE && report_socket(client))
        return EXIT_REFUSED;
    if (result->code == RPC_UNAVAILABLE) {
        bool own = client->args.addr == NULL && getenv("CAIRN_ADDR") == NULL;
        const char *hint = rpc_refusal_hint(result->detail, client->tls);
        const bool named = client->context[0] != '\0' && client->args.addr == NULL;
        char context[CLIENT_CONTEXT + 16] = "";
        if (named)
            (void)snprintf(context, sizeof(context), " (context '%s')", client->context);
        client_error("no coordinator answers at %s%s%s%s%s%s%s", client->address, context,
                     !own    ? "; 'cairn up' there starts one"
                     : named ? "\n  start one with: cairn up, with the same --context"
                             : "\n  start one with: cairn up",
                     client->tls ? ": " : "", client->tls ? result->detail : "",
                     hint[0] ? ": " : "", hint);
    } else if (result->code == RPC_DEADLINE_EXCEEDED) {
        client_error("the coordinator at %s did not answer in time; try again, or look into its "
                     "log/cairnd.log",
                     client->address);
        return client->args.timeout_ms >= 0 ? EXIT_TIMED_OUT : EXIT_UNREACHABLE;
    } else if (result->detail[0] != '\0') {
        client_error("%s", result->detail);
    } else {
        client_error("the coordinator answered %s", rpc_code_name(result->code));
    }
    return exit_of_code(result->code);
}

/* While a supervisor lives: waits until the coordinator answers again, or `most` (monotonic, ms).
 * false: no answer came. */
static bool wait_for_restart(struct client *client, int64_t most)
{
    int64_t until = clock_mono_ms(clock_system()) + RESTART_MS;
    until = until < most ? until : most;
    while (home_supervisor(&client->paths) != 0 && clock_mono_ms(clock_system()) < until) {
        uint32_t agents = 0;
        if (client_probe(client, PROBE_MS, &agents) == RPC_OK)
            return true;
    }
    return false;
}

enum exit_code client_call(struct client *client, const char *method,
                           const ProtobufCMessage *request, int32_t timeout_ms,
                           ProtobufCMessage **out_reply)
{
    struct rpc_call_options options = { .timeout_ms = timeout_ms };
    struct rpc_result result = { .code = RPC_INTERNAL };
    int64_t timeout = client->args.timeout_ms; /* the caller's --timeout is for all of it */
    int64_t until = timeout < 0 ? INT64_MAX : clock_mono_ms(clock_system()) + timeout;
    struct reason reason = { "" };
    enum status st = open_channel(client, &reason);
    if (st != ST_OK) {
        if (reason.text[0] != '\0') {
            client_error("%s", reason.text);
        } else {
            client_error("%s: %s", client->address, status_string(st));
        }
        return client->args.bundle != NULL ? exit_of_status(st) : EXIT_USAGE;
    }
    for (;;) {
        if (unary(client, method, request, &options, out_reply, &result) == ST_OK)
            return EXIT_DONE;
        if (result.code != RPC_UNAVAILABLE || !wait_for_restart(client, until))
            return client_report(client, &result);
    }
}

enum exit_code client_get_job(struct client *client, const char *name, Cairn__V1__Job **out)
{
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    request.job = (char *)name;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "GetJob", &request.base, 0, &reply);
    if (code == EXIT_DONE)
        *out = (Cairn__V1__Job *)reply;
    return code;
}

enum rpc_code client_stream(struct client *client, const char *method,
                            const ProtobufCMessage *request, int32_t wait_ms,
                            struct rpc_stream **out, struct rpc_result *result)
{
    *result = (struct rpc_result){ .code = RPC_INTERNAL };
    struct reason reason = { "" };
    if (open_channel(client, &reason) != ST_OK) {
        (void)snprintf(result->detail, sizeof(result->detail), "%s", reason.text);
        return RPC_INTERNAL;
    }
    struct rpc_stream_options options = { .open_timeout_ms = wait_ms,
                                          .wait_for_ready = wait_ms > 0 };
    if (rpc_stream_request(client->channel, &cairn__v1__control__descriptor, method, request,
                           &options, out, result) == ST_OK)
        return RPC_OK;
    if (result->code == RPC_OK)
        result->code = RPC_UNAVAILABLE;
    return result->code;
}

enum status client_recv(const struct client *client, struct rpc_stream *stream, int32_t timeout_ms,
                        ProtobufCMessage **out)
{
    enum status st = rpc_stream_recv(stream, timeout_ms, out);
    if (st == ST_OK && client->plain)
        plain_message(*out);
    return st;
}

void client_idempotency_key(char out[33])
{
    uint8_t bytes[16];
    CHECK(getrandom(bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}
