/*
 * A server of chat.proto, health and reflection, for clients in other languages.
 *
 *   chat_server [--unix PATH] [--tcp ADDRESS] [--token TOKEN] [--mailbox] [--memory MIB]
 *               [--cert FILE --key FILE --ca FILE]
 *
 * Prints "ready PORT" (0 without --tcp); ends on SIGTERM, "stopped" is then its last line.
 * --cert, --key, --ca: TLS on the TCP address.
 * --memory: what peers may make it hold.
 * --token: asked for on every call but health's, except from peers on the Unix socket.
 */
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "chat_service.h"
#include "proto/descriptors.h"
#include "rpc/services.h"

#define GRACE_MS 500

struct settings {
    const char *unix_path;
    const char *tcp;
    const char *token;
    bool mailbox;
    uint64_t memory_mib;
    struct identity_files tls;
};

static enum rpc_code authorize(void *ctx, struct rpc_call *call, const char **out_detail)
{
    struct ucred cred;
    if (strncmp(rpc_call_path(call), "/grpc.health.v1.", 16) == 0 ||
        rpc_call_peer_cred(call, &cred) || rpc_call_has_token(call, ctx))
        return RPC_OK;
    *out_detail = "no valid token";
    return RPC_UNAUTHENTICATED;
}

static void must(enum status st, const char *what)
{
    if (st == ST_OK)
        return;
    (void)fprintf(stderr, "chat_server: %s: %s\n", what, status_string(st));
    exit(1);
}

static struct settings parse(int argc, char **argv)
{
    static const struct option names[] = {
        { "unix", required_argument, NULL, 'u' },
        { "tcp", required_argument, NULL, 't' },
        { "token", required_argument, NULL, 'k' },
        { "mailbox", no_argument, NULL, 'm' },
        { "cert", required_argument, NULL, 'c' },
        { "key", required_argument, NULL, 'y' },
        { "ca", required_argument, NULL, 'a' },
        { "memory", required_argument, NULL, 'b' },
        { NULL, 0, NULL, 0 },
    };
    struct settings settings = { 0 };
    int option = 0;
    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (option == 'u')
            settings.unix_path = optarg;
        else if (option == 't')
            settings.tcp = optarg;
        else if (option == 'k')
            settings.token = optarg;
        else if (option == 'm')
            settings.mailbox = true;
        else if (option == 'b')
            settings.memory_mib = strtoul(optarg, NULL, 10);
        else if (option == 'c')
            settings.tls.cert = optarg;
        else if (option == 'y')
            settings.tls.key = optarg;
        else if (option == 'a')
            settings.tls.ca = optarg;
        else
            exit(2);
    }
    return settings;
}

/* Until SIGTERM, then until the server stopped. */
static void run(struct rpc_server *server, struct rpc_health *health, struct rpc_mailbox *mailbox,
                int signal_fd)
{
    struct pollfd polls[2] = { { .fd = signal_fd, .events = POLLIN },
                               { .fd = mailbox != NULL ? rpc_mailbox_fd(mailbox) : -1,
                                 .events = POLLIN } };
    bool ending = false;
    while (!ending || !rpc_server_stopped(server)) {
        (void)poll(polls, 2, ending ? 10 : -1);
        if ((polls[0].revents & POLLIN) != 0 && !ending) {
            ending = true;
            rpc_health_drain(health);
            rpc_server_stop_begin(server, GRACE_MS);
        }
        if (mailbox != NULL)
            (void)rpc_mailbox_drain(mailbox, 256);
    }
    if (mailbox != NULL) {
        while (rpc_mailbox_drain(mailbox, 256) > 0) {
        }
    }
}

int main(int argc, char **argv)
{
    struct settings settings = parse(argc, argv);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    rpc_init();

    struct chat chat;
    chat_init(&chat);
    struct rpc_descdb *db = rpc_descdb_new();
    size_t size = 0;
    const uint8_t *data = proto_descriptors(&size);
    must(rpc_descdb_add(db, data, size), "descriptors");
    data = chat_descriptors(&size);
    must(rpc_descdb_add(db, data, size), "descriptors of chat");

    struct rpc_mailbox *mailbox = NULL;
    struct rpc_server_options options = { .descdb = db, .memory_max = settings.memory_mib << 20 };
    if (settings.mailbox) {
        must(rpc_mailbox_new(&mailbox), "mailbox");
        options.executor = rpc_mailbox_executor(mailbox);
    }
    if (settings.token != NULL) {
        options.authorize = authorize;
        options.authorize_ctx = (void *)settings.token;
    }
    struct rpc_server *server = rpc_server_new(&options);
    struct rpc_health *health = NULL;
    struct rpc_reflection *reflection = NULL;
    must(rpc_server_add_service(server, &chat.service.base, NULL), "chat");
    must(rpc_health_new(server, &health), "health");
    must(rpc_reflection_new(server, &reflection), "reflection");
    int port = 0;
    if (settings.unix_path != NULL)
        must(rpc_server_listen_unix(server, settings.unix_path), settings.unix_path);
    const struct identity_files *tls = settings.tls.cert != NULL ? &settings.tls : NULL;
    if (settings.tcp != NULL)
        must(rpc_server_listen(server, settings.tcp, tls, &port), settings.tcp);
    rpc_server_start(server);
    must(rpc_health_set(health, "", true), "health");
    must(rpc_health_set(health, "cairn.test.Chat", true), "health");
    (void)printf("ready %d\n", port);
    (void)fflush(stdout);

    run(server, health, mailbox, signal_fd);
    rpc_server_free(server);
    rpc_health_free(health);
    rpc_reflection_free(reflection);
    rpc_descdb_free(db);
    rpc_mailbox_free(mailbox);
    rpc_shutdown();
    (void)close(signal_fd);
    (void)printf("stopped\n");
    return 0;
}
