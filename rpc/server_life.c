#include <errno.h>
#include <grpc/grpc_posix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/limits.h"
#include "rpc/server.h"
#include "rpc/server_internal.h"

enum {
    REQUEST_SLOTS = 32, /* calls asked for at a time; re-armed at once, so few suffice */
    METADATA_MAX = 16 * 1024,
    HANDSHAKE_MS = 10000,
    FD_MAX = 1 << 20, /* of the table of credentials */
    CLIENT_PING_MIN_MS = 500,
};

static void apply_defaults(struct rpc_server_options *options)
{
    if (options->message_size_max == 0)
        options->message_size_max = LIMIT_MESSAGE_BYTES;
    if (options->send_queue_max == 0)
        options->send_queue_max = 64;
    if (options->streams_max == 0)
        options->streams_max = 1024;
    if (options->keepalive_ms == 0)
        options->keepalive_ms = 10000;
    if (options->keepalive_timeout_ms == 0)
        options->keepalive_timeout_ms = 5000;
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
    rpc_args_int(&args, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_MS);
    rpc_args_int(&args, GRPC_ARG_KEEPALIVE_TIME_MS, options->keepalive_ms);
    rpc_args_int(&args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, options->keepalive_timeout_ms);
    rpc_args_int(&args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    rpc_args_int(&args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    rpc_args_int(&args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, CLIENT_PING_MIN_MS);
    grpc_channel_args core_args = { args.count, args.list };
    return grpc_server_create(&core_args, NULL);
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
    pthread_mutex_init(&server->creds.mutex, NULL);
    pthread_mutex_init(&server->mutex, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&server->cond, &attr);
    pthread_condattr_destroy(&attr);
    return server;
}

static uint32_t hash_bytes(const uint8_t *data, size_t size) /* FNV-1a */
{
    uint32_t hash = 2166136261U;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 16777619U;
    return hash;
}

struct rpc_method *rpc_server_method(struct rpc_server *server, grpc_slice path)
{
    const uint8_t *data = GRPC_SLICE_START_PTR(path);
    size_t size = GRPC_SLICE_LENGTH(path);
    uint32_t hash = hash_bytes(data, size);
    struct rpc_method *method = server->buckets[hash % METHOD_BUCKETS];
    while (method != NULL && (method->hash != hash || method->path_size != size ||
                              memcmp(method->path, data, size) != 0))
        method = method->chain;
    return method;
}

static void add_method(struct rpc_server *server, ProtobufCService *service, unsigned index,
                       const char *service_name)
{
    const ProtobufCMethodDescriptor *descriptor = &service->descriptor->methods[index];
    struct rpc_method *method = rpc_alloc(sizeof(*method));
    size_t capacity = strlen(service_name) + strlen(descriptor->name) + 3;
    method->path = rpc_alloc(capacity);
    (void)snprintf(method->path, capacity, "/%s/%s", service_name, descriptor->name);
    method->path_size = capacity - 1;
    method->hash = hash_bytes((const uint8_t *)method->path, method->path_size);
    method->service = service;
    method->index = index;
    method->flags = rpc_descdb_method_flags(server->options.descdb, service_name, descriptor->name);
    method->input = descriptor->input;
    struct rpc_method **bucket = &server->buckets[method->hash % METHOD_BUCKETS];
    method->chain = *bucket;
    *bucket = method;
}

enum status rpc_server_add_service(struct rpc_server *server, ProtobufCService *service,
                                   const char *name)
{
    CHECK(!server->started);
    const ProtobufCServiceDescriptor *descriptor = service->descriptor;
    const char *service_name = name != NULL ? name : descriptor->name;
    for (unsigned i = 0; i < descriptor->n_methods; i++) {
        if (rpc_descdb_method_flags(server->options.descdb, service_name,
                                    descriptor->methods[i].name) < 0)
            return ST_NOT_FOUND;
    }
    server->services =
        realloc(server->services, (server->service_count + 1) * sizeof(*server->services));
    if (server->services == NULL)
        abort();
    server->services[server->service_count++] = rpc_copy_text(service_name);
    for (unsigned i = 0; i < descriptor->n_methods; i++)
        add_method(server, service, i, service_name);
    return ST_OK;
}

size_t rpc_server_services(const struct rpc_server *server, const char **out, size_t capacity)
{
    for (size_t i = 0; i < server->service_count && i < capacity; i++)
        out[i] = server->services[i];
    return server->service_count;
}

const struct rpc_descdb *rpc_server_descdb(const struct rpc_server *server)
{
    return server->options.descdb;
}

enum status rpc_server_listen(struct rpc_server *server, const char *address,
                              const struct rpc_tls *tls, int *out_port)
{
    CHECK(!server->started);
    grpc_server_credentials *credentials = NULL;
    if (tls != NULL) {
        grpc_ssl_pem_key_cert_pair pair = { tls->key, tls->cert };
        credentials = grpc_ssl_server_credentials_create_ex(
            tls->ca, &pair, 1,
            tls->require_client_cert ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                     : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            NULL);
    } else {
        credentials = grpc_insecure_server_credentials_create();
    }
    if (credentials == NULL)
        return ST_CONFIG;
    int port = grpc_server_add_http2_port(server->core, address, credentials);
    grpc_server_credentials_release(credentials);
    if (port == 0)
        return tls != NULL ? ST_CONFIG : ST_EXISTS;
    *out_port = port;
    return ST_OK;
}

static void set_cred(struct rpc_creds *creds, int fd, const struct ucred *cred)
{
    size_t index = (size_t)fd;
    pthread_mutex_lock(&creds->mutex);
    if (index >= creds->count) {
        size_t count = index * 2 + 64;
        creds->list = realloc(creds->list, count * sizeof(*creds->list));
        if (creds->list == NULL)
            abort();
        memset(creds->list + creds->count, 0, (count - creds->count) * sizeof(*creds->list));
        creds->count = count;
    }
    creds->list[index] = cred != NULL ? *cred : (struct ucred){ 0 };
    pthread_mutex_unlock(&creds->mutex);
}

bool rpc_server_cred(struct rpc_server *server, const char *peer, struct ucred *out)
{
    if (strncmp(peer, "fd:", 3) != 0)
        return false;
    char *end = NULL;
    errno = 0;
    unsigned long fd = strtoul(peer + 3, &end, 10);
    if (errno != 0 || end == peer + 3 || *end != '\0')
        return false;
    struct rpc_creds *creds = &server->creds;
    bool known = false;
    pthread_mutex_lock(&creds->mutex);
    if (fd < creds->count && creds->list[fd].pid != 0) {
        *out = creds->list[fd];
        known = true;
    }
    pthread_mutex_unlock(&creds->mutex);
    return known;
}

void rpc_server_adopt_peer(struct rpc_server *server, int fd, const struct ucred *cred)
{
    CHECK(fd >= 0 && fd < FD_MAX);
    /* Before core sees it: a number that was another connection's says nothing any more. */
    set_cred(&server->creds, fd, cred);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(server->core, fd, credentials);
    grpc_server_credentials_release(credentials);
}

void rpc_server_adopt(struct rpc_server *server, int fd)
{
    rpc_server_adopt_peer(server, fd, NULL);
}

void rpc_server_start(struct rpc_server *server)
{
    CHECK(!server->started);
    grpc_server_start(server->core);
    server->started = true;
    for (int i = 0; i < REQUEST_SLOTS; i++)
        CHECK(rpc_call_request(server));
    if (pthread_create(&server->queue_thread, NULL, rpc_queue_run, server->queue) != 0)
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

static struct timespec monotonic_in(int32_t timeout_ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += timeout_ms / 1000;
    at.tv_nsec += (timeout_ms % 1000) * 1000000L;
    if (at.tv_nsec >= 1000000000L) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000L;
    }
    return at;
}

static void *stop_main(void *arg)
{
    struct rpc_server *server = arg;
    rpc_unix_listeners_stop(server);
    server->on_down.fn = on_core_down;
    rpc_tag_out(&server->on_down);
    grpc_server_shutdown_and_notify(server->core, server->queue, &server->on_down);
    struct timespec until = monotonic_in(server->grace_ms);
    pthread_mutex_lock(&server->mutex);
    int waited = 0;
    while (!server->down && waited == 0)
        waited = pthread_cond_timedwait(&server->cond, &server->mutex, &until);
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

static void join_stop(struct rpc_server *server)
{
    if (server->stop_joinable)
        pthread_join(server->stop_thread, NULL);
    server->stop_joinable = false;
}

void rpc_server_stop(struct rpc_server *server, int32_t grace_ms)
{
    rpc_server_stop_begin(server, grace_ms);
    join_stop(server);
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
    join_stop(server);
    if (!server->started) {
        drop_unstarted(server);
    } else {
        CHECK(rpc_server_stopped(server));
    }
    rpc_unix_listeners_free(server);
    for (size_t i = 0; i < METHOD_BUCKETS; i++) {
        while (server->buckets[i] != NULL) {
            struct rpc_method *method = server->buckets[i];
            server->buckets[i] = method->chain;
            free(method->path);
            free(method);
        }
    }
    for (size_t i = 0; i < server->service_count; i++)
        free(server->services[i]);
    free(server->services);
    free(server->creds.list);
    pthread_mutex_destroy(&server->creds.mutex);
    pthread_mutex_destroy(&server->mutex);
    pthread_cond_destroy(&server->cond);
    free(server);
}
