/* A server from rpc_server_new to rpc_server_free. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"
#include "rpc/server/internal.h"

enum {
    REQUESTS = 32, /* calls asked for at a time; each is asked for again at once, so few suffice */
    METADATA_MAX = 16 * 1024,
    CLIENT_PING_MIN_MS = 500,
};

static void apply_defaults(struct rpc_server_options *options)
{
    if (options->message_size_max == 0)
        options->message_size_max = LIMIT_MESSAGE_BYTES;
    if (options->first_size_max == 0)
        options->first_size_max = options->message_size_max;
    if (options->pending_max == 0)
        options->pending_max = 4096;
    if (options->pending_address_max == 0)
        options->pending_address_max = 1024;
    if (options->pending_ms == 0)
        options->pending_ms = 10000;
    if (options->memory_max == 0)
        options->memory_max = rpc_memory_usual();
    if (options->send_queue_max == 0)
        options->send_queue_max = 64;
    if (options->streams_max == 0)
        options->streams_max = 1024;
    if (options->keepalive_ms == 0)
        options->keepalive_ms = 10000;
    if (options->keepalive_timeout_ms == 0)
        options->keepalive_timeout_ms = 5000;
    if (options->handshake_ms == 0)
        options->handshake_ms = 10000;
    if (options->idle_ms == 0)
        options->idle_ms = 60000;
}

/* Bounds the memory that connections hold, which core counts. Beyond the bound core ends calls of
 * any peer. Those come back, which this process, once out of memory, would not. 9,000 connections
 * of a fleet with 1,000 nodes hold 1 GiB. */
static grpc_resource_quota *bound_memory(struct rpc_args *args, uint64_t memory_max)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("server");
    grpc_resource_quota_resize(quota, memory_max);
    rpc_args_pointer(args, GRPC_ARG_RESOURCE_QUOTA, quota, grpc_resource_quota_arg_vtable());
    return quota;
}

static grpc_server *create_core(const struct rpc_server_options *options)
{
    struct rpc_args args = { .count = 0 };
    /* A second server on the same port must fail, not share it. */
    rpc_args_int(&args, GRPC_ARG_ALLOW_REUSEPORT, 0);
    rpc_args_int(&args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)options->message_size_max);
    rpc_args_int(&args, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1);
    rpc_args_int(&args, GRPC_ARG_MAX_METADATA_SIZE, METADATA_MAX);
    rpc_args_int(&args, GRPC_ARG_MAX_CONCURRENT_STREAMS, (int)options->streams_max);
    rpc_args_int(&args, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options->handshake_ms);
    rpc_args_int(&args, GRPC_ARG_MAX_CONNECTION_IDLE_MS, options->idle_ms);
    rpc_args_int(&args, GRPC_ARG_KEEPALIVE_TIME_MS, options->keepalive_ms);
    rpc_args_int(&args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options->keepalive_timeout_ms);
    rpc_args_int(&args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    rpc_args_int(&args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    rpc_args_int(&args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, CLIENT_PING_MIN_MS);
    /* No ping with what is received, to learn how much a path holds: of thousands of streams with a
     * small message now and then that is a third of the work. Larger messages get their window. */
    rpc_args_int(&args, GRPC_ARG_HTTP2_BDP_PROBE, 0);
    grpc_resource_quota *quota = bound_memory(&args, options->memory_max);
    grpc_channel_args core_args = { args.count, args.list };
    grpc_server *core = grpc_server_create(&core_args, NULL);
    grpc_resource_quota_unref(quota); /* the server has its own */
    return core;
}

struct rpc_server *rpc_server_new(const struct rpc_server_options *options)
{
    CHECK(options->descdb != NULL);
    struct rpc_server *server = rpc_alloc(sizeof(*server));
    server->options = *options;
    apply_defaults(&server->options);
    server->core = create_core(&server->options);
    server->queue = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(server->core, server->queue, NULL);
    rpc_admission_open(&server->admission);
    pthread_mutex_init(&server->creds.mutex, NULL);
    pthread_mutex_init(&server->mutex, NULL);
    clock_cond_init(&server->cond);
    return server;
}

/* Why an address can't be listened at: gRPC doesn't say. */
static enum status bind_alone(const char *address)
{
    char host[LIMIT_PATH];
    const char *colon = strrchr(address, ':');
    const bool six = address[0] == '[';
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    struct addrinfo *list = NULL;
    if (colon == NULL || (size_t)(colon - address) >= sizeof(host))
        return ST_NOT_FOUND;
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - address) - 2 * six, address + six);
    if (getaddrinfo(host, colon + 1, &hints, &list) != 0 || list == NULL)
        return ST_NOT_FOUND;
    auto_close int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    int error = fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
                        bind(fd, list->ai_addr, list->ai_addrlen) != 0 || listen(fd, 1) != 0
                    ? errno
                    : 0;
    freeaddrinfo(list);
    if (error == EADDRINUSE)
        return ST_EXISTS;
    if (error == EADDRNOTAVAIL)
        return ST_NOT_FOUND;
    return error == EACCES ? ST_REFUSED : ST_IO;
}

enum status rpc_server_listen(struct rpc_server *server, const char *address,
                              const struct identity_files *tls, int *out_port)
{
    CHECK(!server->started);
    grpc_server_credentials *credentials =
        tls != NULL ? rpc_tls_listen(server, tls) : grpc_insecure_server_credentials_create();
    if (credentials == NULL)
        return ST_CONFIG;
    int port = grpc_server_add_http2_port(server->core, address, credentials);
    grpc_server_credentials_release(credentials);
    if (port == 0)
        return bind_alone(address);
    *out_port = port;
    return ST_OK;
}

static void *queue_main(void *arg)
{
    struct rpc_server *server = arg;
    rpc_queue_watch(server->queue, rpc_admission_look, server);
    return NULL;
}

void rpc_server_start(struct rpc_server *server)
{
    CHECK(!server->started);
    grpc_server_start(server->core);
    server->started = true;
    for (int i = 0; i < REQUESTS; i++)
        CHECK(rpc_call_request(server));
    if (pthread_create(&server->queue_thread, NULL, queue_main, server) != 0)
        abort();
    rpc_unix_listeners_start(server);
}

static void on_core_down(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_server *server = CONTAINER_OF(tag, struct rpc_server, on_down);
    pthread_mutex_lock(&server->mutex);
    server->down = true;
    pthread_cond_broadcast(&server->cond);
    pthread_mutex_unlock(&server->mutex);
}

static void *stop_main(void *arg)
{
    struct rpc_server *server = arg;
    rpc_unix_listeners_stop(server);
    server->on_down.fn = on_core_down;
    rpc_tag_out(&server->on_down);
    grpc_server_shutdown_and_notify(server->core, server->queue, &server->on_down);
    const int64_t until_ns = clock_mono_ns() + (int64_t)server->grace_ms * 1000000;
    pthread_mutex_lock(&server->mutex);
    bool in_time = true;
    while (!server->down && in_time)
        in_time = clock_cond_wait(&server->cond, &server->mutex, until_ns);
    bool down = server->down;
    pthread_mutex_unlock(&server->mutex);
    if (!down)
        grpc_server_cancel_all_calls(server->core);
    pthread_mutex_lock(&server->mutex);
    while (!server->down)
        pthread_cond_wait(&server->cond, &server->mutex);
    pthread_mutex_unlock(&server->mutex);
    grpc_server_destroy(server->core); /* only after the tag came back */
    grpc_completion_queue_shutdown(server->queue);
    pthread_join(server->queue_thread, NULL);
    grpc_completion_queue_destroy(server->queue);
    atomic_store(&server->stopped, true);
    return NULL;
}

void rpc_server_stop_begin(struct rpc_server *server, int32_t grace_ms)
{
    CHECK(server->started);
    if (atomic_exchange(&server->stopping, true))
        return;
    server->grace_ms = grace_ms;
    if (pthread_create(&server->stop_thread, NULL, stop_main, server) != 0)
        abort();
    server->stop_joinable = true;
}

bool rpc_server_stopped(const struct rpc_server *server)
{
    return atomic_load(&server->stopped);
}

/* A server that never started has core objects, but no threads. */
static void drop_unstarted(struct rpc_server *server)
{
    rpc_unix_listeners_stop(server);
    server->on_down.fn = on_core_down;
    grpc_server_shutdown_and_notify(server->core, server->queue, &server->on_down);
    grpc_completion_queue_shutdown(server->queue);
    (void)rpc_queue_run(server->queue);
    grpc_server_destroy(server->core);
    grpc_completion_queue_destroy(server->queue);
}

void rpc_server_free(struct rpc_server *server)
{
    if (server == NULL)
        return;
    if (server->stop_joinable)
        pthread_join(server->stop_thread, NULL);
    if (!server->started) {
        drop_unstarted(server);
    } else {
        CHECK(rpc_server_stopped(server));
    }
    rpc_unix_listeners_free(server);
    rpc_tls_listeners_free(server);
    rpc_methods_free(&server->methods);
    free(server->creds.list);
    pthread_mutex_destroy(&server->creds.mutex);
    pthread_mutex_destroy(&server->mutex);
    pthread_cond_destroy(&server->cond);
    free(server);
}
