#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/reason.h"
#include "identity/behalf.h"
#include "identity/check.h"
#include "rpc/client_internal.h"

static int or_default(int32_t value, int otherwise)
{
    return value != 0 ? value : otherwise;
}

/* NULL: the files don't do. */
static grpc_channel_credentials *credentials_of(const struct identity_files *files)
{
    struct identity_texts texts;
    struct reason reason;
    grpc_channel_credentials *credentials = NULL;
    if (files == NULL)
        return grpc_insecure_credentials_create();
    if (identity_texts_read(files, &texts, &reason) != ST_OK)
        return NULL;
    if (identity_usable(&texts)) {
        grpc_ssl_pem_key_cert_pair pair = { texts.key, texts.cert };
        credentials =
            grpc_ssl_credentials_create_ex(texts.ca, texts.key != NULL ? &pair : NULL, NULL, NULL);
    }
    identity_texts_release(&texts);
    return credentials;
}

static grpc_channel *create_core(const struct rpc_channel_options *options, const char *target)
{
    grpc_channel_credentials *credentials = credentials_of(options->tls);
    if (credentials == NULL)
        return NULL;
    struct rpc_args args = { .count = 0 };
    rpc_args_int(&args, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    rpc_args_int(&args, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    if (options->tls != NULL && options->tls_name != NULL)
        rpc_args_text(&args, GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, options->tls_name);
    rpc_args_int(&args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                 or_default((int32_t)options->message_size_max, LIMIT_MESSAGE_BYTES));
    rpc_args_int(&args, GRPC_ARG_KEEPALIVE_TIME_MS, or_default(options->keepalive_ms, 10000));
    rpc_args_int(&args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                 or_default(options->keepalive_timeout_ms, 5000));
    rpc_args_int(&args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    /* Not GRPC_ARG_MIN_RECONNECT_BACKOFF_MS: despite its name that limits one attempt to connect,
     * its handshake included. */
    rpc_args_int(&args, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                 or_default(options->backoff_min_ms, 100));
    rpc_args_int(&args, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                 or_default(options->backoff_max_ms, 1000));
    /* Channels of one process to the same server don't share a connection. */
    rpc_args_int(&args, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    grpc_channel_args core_args = { args.count, args.list };
    grpc_channel *core = grpc_channel_create(target, credentials, &core_args);
    grpc_channel_credentials_release(credentials);
    return core;
}

enum status rpc_channel_new(const struct rpc_channel_options *options, struct rpc_channel **out)
{
    struct identity_watch *watch = NULL;
    /* Before they are read, so that no change goes unseen. */
    if (options->tls != NULL && identity_watch_new(options->tls, &watch) != ST_OK)
        abort();
    struct rpc_channel *channel = rpc_alloc(sizeof(*channel));
    rpc_dial_open(&channel->dial, options);
    channel->core = create_core(options, channel->dial.target);
    if (channel->core == NULL) {
        rpc_dial_close(&channel->dial);
        free(channel);
        identity_watch_free(watch);
        return ST_CONFIG;
    }
    channel->watch = watch;
    pthread_mutex_init(&channel->mutex, NULL);
    *out = channel;
    return ST_OK;
}

void rpc_channel_free(struct rpc_channel *channel)
{
    if (channel == NULL)
        return;
    grpc_channel_destroy(channel->core);
    if (channel->queue != NULL) {
        grpc_completion_queue_shutdown(channel->queue);
        pthread_join(channel->queue_thread, NULL);
        grpc_completion_queue_destroy(channel->queue);
    }
    pthread_mutex_destroy(&channel->mutex);
    identity_watch_free(channel->watch);
    rpc_dial_close(&channel->dial);
    free(channel);
}

bool rpc_channel_stale(struct rpc_channel *channel)
{
    pthread_mutex_lock(&channel->mutex);
    bool stale = channel->watch != NULL &&
                 identity_watch_changed(channel->watch, clock_mono_ms(clock_system()));
    pthread_mutex_unlock(&channel->mutex);
    return stale;
}

grpc_completion_queue *rpc_channel_queue(struct rpc_channel *channel)
{
    pthread_mutex_lock(&channel->mutex);
    if (channel->queue == NULL) {
        channel->queue = grpc_completion_queue_create_for_next(NULL);
        if (pthread_create(&channel->queue_thread, NULL, rpc_queue_run, channel->queue) != 0)
            abort();
    }
    grpc_completion_queue *queue = channel->queue;
    pthread_mutex_unlock(&channel->mutex);
    return queue;
}

const ProtobufCMethodDescriptor *rpc_find_method(const ProtobufCServiceDescriptor *service,
                                                 const char *method)
{
    return protobuf_c_service_descriptor_get_method_by_name(service, method);
}

grpc_call *rpc_channel_call(struct rpc_channel *channel, grpc_completion_queue *queue,
                            const ProtobufCServiceDescriptor *service, const char *method,
                            int64_t deadline_ms)
{
    char path[512];
    int size = snprintf(path, sizeof(path), "/%s/%s", service->name, method);
    CHECK(size > 0);
    CHECK((size_t)size < sizeof(path));
    grpc_slice slice = grpc_slice_from_copied_string(path);
    grpc_call *call = grpc_channel_create_call(channel->core, NULL, GRPC_PROPAGATE_DEFAULTS, queue,
                                               slice, NULL, rpc_deadline(deadline_ms), NULL);
    grpc_slice_unref(slice);
    return call;
}

/* key: static. */
static void add_metadata(struct rpc_metadata *metadata, const char *key, const char *value)
{
    grpc_metadata *row = &metadata->rows[metadata->count++];
    row->key = grpc_slice_from_static_string(key);
    row->value = grpc_slice_from_copied_string(value);
}

void rpc_channel_metadata(grpc_op *op, struct rpc_metadata *metadata, const char *authorization,
                          const char *behalf, bool wait_for_ready)
{
    memset(metadata, 0, sizeof(*metadata));
    op->op = GRPC_OP_SEND_INITIAL_METADATA;
    if (wait_for_ready) {
        op->flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                    GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET;
    }
    if (authorization != NULL)
        add_metadata(metadata, "authorization", authorization);
    if (behalf != NULL)
        add_metadata(metadata, IDENTITY_BEHALF_KEY, behalf);
    op->data.send_initial_metadata.count = metadata->count;
    op->data.send_initial_metadata.metadata = metadata->rows;
}

void rpc_metadata_release(struct rpc_metadata *metadata)
{
    for (size_t i = 0; i < metadata->count; i++)
        grpc_slice_unref(metadata->rows[i].value);
}

void rpc_result_text(struct rpc_result *result, enum rpc_code code, const char *detail)
{
    result->code = code;
    (void)snprintf(result->detail, sizeof(result->detail), "%s", detail);
}

void rpc_result_set(struct rpc_result *result, grpc_status_code code, grpc_slice detail)
{
    struct reason text; /* it is cut at a character */
    reason_set(&text, "%.*s", (int)GRPC_SLICE_LENGTH(detail),
               (const char *)GRPC_SLICE_START_PTR(detail));
    rpc_result_text(result, (enum rpc_code)code, text.text);
}

/* Where core puts the results of one unary call. */
struct unary {
    grpc_byte_buffer *reply;
    grpc_metadata_array initial;
    grpc_metadata_array trailing;
    grpc_status_code code;
    grpc_slice detail;
};

/* All six operations in one batch; the call's own deadline ends it, so the queue needs none. */
static void run_unary(grpc_call *call, grpc_completion_queue *queue, grpc_byte_buffer *request,
                      const char *authorization, const struct rpc_call_options *options,
                      struct unary *unary)
{
    struct rpc_metadata metadata;
    grpc_op ops[6];
    memset(ops, 0, sizeof(ops));
    rpc_channel_metadata(&ops[0], &metadata, authorization,
                         options != NULL ? options->behalf : NULL,
                         options != NULL && options->wait_for_ready);
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &unary->initial;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = &unary->reply;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[5].data.recv_status_on_client.trailing_metadata = &unary->trailing;
    ops[5].data.recv_status_on_client.status = &unary->code;
    ops[5].data.recv_status_on_client.status_details = &unary->detail;
    rpc_tag_out(unary);
    grpc_call_error error = grpc_call_start_batch(call, ops, 6, unary, NULL);
    CHECK(error == GRPC_CALL_OK); /* only a malformed batch is refused */
    rpc_metadata_release(&metadata);
    (void)grpc_completion_queue_pluck(queue, unary, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    rpc_tag_back(unary);
}

static int64_t timeout_of(const struct rpc_call_options *options)
{
    return options != NULL && options->timeout_ms > 0 ? options->timeout_ms : DEFAULT_TIMEOUT_MS;
}

enum status rpc_unary(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service,
                      const char *method, const ProtobufCMessage *request,
                      const struct rpc_call_options *options, ProtobufCMessage **out_reply,
                      struct rpc_result *result)
{
    const ProtobufCMethodDescriptor *descriptor = rpc_find_method(service, method);
    struct rpc_result ours;
    auto_free char *authorization = NULL;
    CHECK(descriptor != NULL);
    const int64_t begun = clock_mono_ms(clock_system());
    const bool waits = options != NULL && options->wait_for_ready;
    if (rpc_dial_admit(&channel->dial, waits ? timeout_of(options) : 0, &authorization, &ours) !=
        RPC_OK) {
        if (result != NULL)
            *result = ours;
        return rpc_code_status(ours.code);
    }
    const int64_t waited = clock_mono_ms(clock_system()) - begun;
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_call *call =
        rpc_channel_call(channel, queue, service, method, timeout_of(options) - waited);
    struct unary unary = { .code = GRPC_STATUS_UNKNOWN, .detail = grpc_empty_slice() };
    grpc_metadata_array_init(&unary.initial);
    grpc_metadata_array_init(&unary.trailing);
    grpc_byte_buffer *bytes = rpc_pack(request);
    run_unary(call, queue, bytes, authorization, options, &unary);
    grpc_byte_buffer_destroy(bytes);

    rpc_result_set(&ours, unary.code, unary.detail);
    ProtobufCMessage *reply = NULL;
    if (unary.code == GRPC_STATUS_OK && unary.reply != NULL) {
        reply = rpc_unpack(descriptor->output, unary.reply,
                           options != NULL ? options->allocator : NULL);
    }
    if (unary.code == GRPC_STATUS_OK && reply == NULL)
        rpc_result_text(&ours, RPC_INTERNAL, "malformed reply message");

    grpc_slice_unref(unary.detail);
    if (unary.reply != NULL)
        grpc_byte_buffer_destroy(unary.reply);
    grpc_metadata_array_destroy(&unary.initial);
    grpc_metadata_array_destroy(&unary.trailing);
    grpc_call_unref(call);
    grpc_completion_queue_shutdown(queue);
    grpc_completion_queue_destroy(queue); /* a pluck queue needs no draining */
    if (result != NULL)
        *result = ours;
    if (reply == NULL)
        return rpc_code_status(ours.code);
    *out_reply = reply;
    return ST_OK;
}
