/*
 * A client's stream: the channel's queue thread moves messages between core and two bounded queues;
 * callers only touch the queues.
 *
 *     rpc_stream_send ──▶ outbox ──[pump_send]──▶ core ──[pump_recv]──▶ ring ──▶ rpc_stream_recv
 *
 * Invariants (all under the mutex)
 *  1. At most four batches are in flight, each with its own tag:
 *       on_status     from open to the end of the call
 *       on_open       metadata, both ways
 *       on_sent       one message at a time
 *       on_received   one message at a time
 *  2. Nothing is received while RECV_QUEUE_MAX messages wait: that is the flow control.
 *  3. ended: the status is there. The stream is over when it ended, no receive is in flight and the
 *     ring is empty; core hands out the status only after the last message was read.
 *  4. rpc_stream_close frees when no batch is in flight; cancelling makes all of them complete.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "rpc/client_internal.h"

#define RECV_QUEUE_MAX 16
#define FOR_EVER       INT64_MAX

struct rpc_stream {
    struct rpc_tag on_status;
    struct rpc_tag on_open;
    struct rpc_tag on_sent;
    struct rpc_tag on_received;
    grpc_call *call;
    const ProtobufCMethodDescriptor *method;
    void (*notify)(void *arg);
    void *notify_arg;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    grpc_metadata_array initial;
    grpc_metadata_array trailing;
    grpc_status_code code;
    grpc_slice detail;
    struct rpc_result
        mistake;   /* if not RPC_OK: our own finding, which replaces how the call ended */
    bool opened;   /* on_open completed */
    bool accepted; /* on_open completed, with success */
    bool ended;
    bool closing;
    /* sending */
    struct rpc_outbox outbox;
    uint32_t queue_max;
    bool send_busy;
    bool send_broken; /* a send failed: the status follows */
    bool half_close;  /* wanted */
    bool half_closed;
    /* receiving */
    grpc_byte_buffer *receiving; /* written by core */
    bool recv_busy;
    bool recv_end;
    grpc_byte_buffer *ring[RECV_QUEUE_MAX];
    unsigned ring_start;
    unsigned ring_count;
    bool interrupted;
};

static bool start_batch(struct rpc_stream *stream, const grpc_op *ops, size_t count,
                        struct rpc_tag *tag)
{
    rpc_tag_out(tag);
    return grpc_call_start_batch(stream->call, ops, count, tag, NULL) == GRPC_CALL_OK;
}

static void stream_wake(struct rpc_stream *stream)
{
    pthread_cond_broadcast(&stream->cond);
    if (stream->notify != NULL && !stream->closing)
        stream->notify(stream->notify_arg);
}

static void pump_send(struct rpc_stream *stream)
{
    if (stream->send_busy || stream->send_broken || stream->ended)
        return;
    grpc_op op;
    memset(&op, 0, sizeof(op));
    grpc_byte_buffer *bytes = rpc_outbox_take(&stream->outbox);
    if (bytes != NULL) {
        op.op = GRPC_OP_SEND_MESSAGE;
        op.data.send_message.send_message = bytes;
    } else if (stream->half_close && !stream->half_closed) {
        stream->half_closed = true;
        op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    } else {
        return;
    }
    stream->send_busy = start_batch(stream, &op, 1, &stream->on_sent);
    stream->send_broken = !stream->send_busy;
    if (bytes != NULL)
        grpc_byte_buffer_destroy(bytes);
}

static void pump_recv(struct rpc_stream *stream)
{
    if (stream->recv_busy || stream->recv_end || stream->closing ||
        stream->ring_count == RECV_QUEUE_MAX)
        return;
    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &stream->receiving;
    stream->recv_busy = start_batch(stream, &op, 1, &stream->on_received);
    stream->recv_end = !stream->recv_busy;
}

static void status_came(struct rpc_tag *tag, bool ok)
{
    (void)ok; /* always true */
    struct rpc_stream *stream = CONTAINER_OF(tag, struct rpc_stream, on_status);
    pthread_mutex_lock(&stream->mutex);
    stream->ended = true;
    stream_wake(stream);
    pthread_mutex_unlock(&stream->mutex);
}

static void stream_opened(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = CONTAINER_OF(tag, struct rpc_stream, on_open);
    pthread_mutex_lock(&stream->mutex);
    stream->opened = true;
    stream->accepted = ok;
    pthread_cond_broadcast(&stream->cond);
    pthread_mutex_unlock(&stream->mutex);
}

static void message_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = CONTAINER_OF(tag, struct rpc_stream, on_sent);
    pthread_mutex_lock(&stream->mutex);
    CHECK(stream->send_busy);
    stream->send_busy = false;
    if (!ok)
        stream->send_broken = true;
    pump_send(stream);
    pthread_cond_broadcast(&stream->cond);
    pthread_mutex_unlock(&stream->mutex);
}

static void message_received(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = CONTAINER_OF(tag, struct rpc_stream, on_received);
    pthread_mutex_lock(&stream->mutex);
    CHECK(stream->recv_busy);
    stream->recv_busy = false;
    grpc_byte_buffer *bytes = stream->receiving;
    stream->receiving = NULL;
    if (bytes != NULL && ok) {
        CHECK(stream->ring_count < RECV_QUEUE_MAX);
        unsigned at = (stream->ring_start + stream->ring_count) % RECV_QUEUE_MAX;
        stream->ring[at] = bytes;
        stream->ring_count++;
        bytes = NULL;
        pump_recv(stream);
    } else {
        stream->recv_end = true;
    }
    stream_wake(stream);
    pthread_mutex_unlock(&stream->mutex);
    if (bytes != NULL)
        grpc_byte_buffer_destroy(bytes);
}

/* Under the mutex. false: the time has come. */
static bool stream_wait(struct rpc_stream *stream, int64_t until_ns)
{
    if (until_ns == FOR_EVER)
        return pthread_cond_wait(&stream->cond, &stream->mutex) == 0;
    return clock_cond_wait(&stream->cond, &stream->mutex, until_ns);
}

static int64_t time_in(int32_t timeout_ms)
{
    return clock_mono_ns() + (int64_t)timeout_ms * 1000000;
}

static struct rpc_stream *new_stream(struct rpc_channel *channel,
                                     const ProtobufCServiceDescriptor *service, const char *method,
                                     const struct rpc_stream_options *options)
{
    struct rpc_stream *stream = rpc_alloc(sizeof(*stream));
    stream->on_status.fn = status_came;
    stream->on_open.fn = stream_opened;
    stream->on_sent.fn = message_sent;
    stream->on_received.fn = message_received;
    stream->method = rpc_find_method(service, method);
    CHECK(stream->method != NULL);
    stream->notify = options->notify;
    stream->notify_arg = options->notify_arg;
    stream->queue_max = options->send_queue_max != 0 ? options->send_queue_max : 64;
    stream->code = GRPC_STATUS_UNKNOWN;
    stream->detail = grpc_empty_slice();
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    pthread_mutex_init(&stream->mutex, NULL);
    clock_cond_init(&stream->cond);
    stream->call = rpc_channel_call(channel, rpc_channel_queue(channel), service, method,
                                    options->deadline_ms > 0 ? options->deadline_ms : -1);
    return stream;
}

static void start_call(struct rpc_stream *stream, const char *authorization, bool wait_for_ready)
{
    grpc_op ops[2];
    memset(ops, 0, sizeof(ops));
    /* The status first: from here on every failure ends up in it. */
    ops[0].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
    ops[0].data.recv_status_on_client.trailing_metadata = &stream->trailing;
    ops[0].data.recv_status_on_client.status = &stream->code;
    ops[0].data.recv_status_on_client.status_details = &stream->detail;
    CHECK(start_batch(stream, ops, 1, &stream->on_status));
    struct rpc_metadata metadata;
    memset(ops, 0, sizeof(ops));
    rpc_channel_metadata(&ops[0], &metadata, authorization, NULL, wait_for_ready);
    ops[1].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[1].data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
    CHECK(start_batch(stream, ops, 2, &stream->on_open));
    rpc_metadata_release(&metadata);
    pump_recv(stream);
}

static void queue_bytes(struct rpc_stream *stream, grpc_byte_buffer *bytes)
{
    rpc_outbox_put(&stream->outbox, bytes);
    pump_send(stream);
}

/* request: the only message, or NULL. */
static enum status open_stream(struct rpc_channel *channel,
                               const ProtobufCServiceDescriptor *service, const char *method,
                               const ProtobufCMessage *request,
                               const struct rpc_stream_options *options, struct rpc_stream **out,
                               struct rpc_result *result)
{
    static const struct rpc_stream_options defaults;
    if (options == NULL)
        options = &defaults;
    struct rpc_result ours;
    auto_free char *authorization = NULL;
    const int32_t timeout_ms =
        options->open_timeout_ms > 0 ? options->open_timeout_ms : DEFAULT_TIMEOUT_MS;
    const int64_t until_ns = time_in(timeout_ms);
    if (rpc_dial_admit(&channel->dial, options->wait_for_ready ? timeout_ms : 0, &authorization,
                       &ours) != RPC_OK) {
        if (result != NULL)
            *result = ours;
        return rpc_code_status(ours.code);
    }
    struct rpc_stream *stream = new_stream(channel, service, method, options);
    pthread_mutex_lock(&stream->mutex);
    start_call(stream, authorization, options->wait_for_ready);
    if (request != NULL) {
        queue_bytes(stream, rpc_pack(request));
        stream->half_close = true;
        pump_send(stream);
    }
    while (!stream->opened && stream_wait(stream, until_ns)) {
    }
    /* An open that failed has its status in a moment. */
    while (stream->opened && !stream->accepted && !stream->ended)
        (void)stream_wait(stream, FOR_EVER);
    bool accepted = stream->accepted &&
                    !(stream->ended && stream->code != GRPC_STATUS_OK && stream->ring_count == 0);
    bool timed_out = !stream->opened;
    pthread_mutex_unlock(&stream->mutex);
    if (accepted) {
        *out = stream;
        return ST_OK;
    }
    rpc_stream_close(stream, &ours);
    if (timed_out)
        rpc_result_text(&ours, RPC_UNAVAILABLE, "no server answered in time");
    if (result != NULL)
        *result = ours;
    enum status st = rpc_code_status(ours.code);
    return st != ST_OK ? st : ST_CLOSED;
}

enum status rpc_stream_open(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service,
                            const char *method, const struct rpc_stream_options *options,
                            struct rpc_stream **out, struct rpc_result *result)
{
    return open_stream(channel, service, method, NULL, options, out, result);
}

enum status rpc_stream_request(struct rpc_channel *channel,
                               const ProtobufCServiceDescriptor *service, const char *method,
                               const ProtobufCMessage *request,
                               const struct rpc_stream_options *options, struct rpc_stream **out,
                               struct rpc_result *result)
{
    return open_stream(channel, service, method, request, options, out, result);
}

enum status rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message)
{
    enum status st = ST_OK;
    pthread_mutex_lock(&stream->mutex);
    if (stream->ended || stream->send_broken || stream->half_close) {
        st = ST_CLOSED;
    } else if (stream->outbox.count >= stream->queue_max) {
        st = ST_FULL;
    } else {
        queue_bytes(stream, rpc_pack(message));
    }
    pthread_mutex_unlock(&stream->mutex);
    return st;
}

void rpc_stream_send_done(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    stream->half_close = true;
    pump_send(stream);
    pthread_mutex_unlock(&stream->mutex);
}

/* Under the mutex; ST_TIMED_OUT: nothing to tell. */
static enum status take_message(struct rpc_stream *stream, grpc_byte_buffer **out)
{
    if (stream->ring_count > 0) {
        *out = stream->ring[stream->ring_start];
        stream->ring_start = (stream->ring_start + 1) % RECV_QUEUE_MAX;
        stream->ring_count--;
        pump_recv(stream);
        return ST_OK;
    }
    if (stream->ended && stream->recv_end)
        return ST_CLOSED;
    if (stream->interrupted) {
        stream->interrupted = false;
        return ST_AGAIN;
    }
    return ST_TIMED_OUT;
}

enum status rpc_stream_recv(struct rpc_stream *stream, int32_t timeout_ms, ProtobufCMessage **out)
{
    grpc_byte_buffer *bytes = NULL;
    const int64_t until_ns = timeout_ms < 0 ? FOR_EVER : time_in(timeout_ms);
    pthread_mutex_lock(&stream->mutex);
    enum status st = take_message(stream, &bytes);
    while (st == ST_TIMED_OUT && timeout_ms != 0) {
        bool in_time = stream_wait(stream, until_ns);
        st = take_message(stream, &bytes);
        if (!in_time)
            break;
    }
    pthread_mutex_unlock(&stream->mutex);
    if (st != ST_OK)
        return st;
    ProtobufCMessage *message = rpc_unpack(stream->method->output, bytes, NULL);
    grpc_byte_buffer_destroy(bytes);
    if (message != NULL) {
        *out = message;
        return ST_OK;
    }
    pthread_mutex_lock(&stream->mutex);
    rpc_result_text(&stream->mistake, RPC_INTERNAL, "malformed message from the server");
    pthread_mutex_unlock(&stream->mutex);
    rpc_stream_cancel(stream);
    return ST_CLOSED;
}

void rpc_stream_finish(struct rpc_stream *stream, int32_t timeout_ms)
{
    const int64_t until_ns = time_in(timeout_ms);
    bool in_time = timeout_ms > 0;
    rpc_stream_send_done(stream);
    pthread_mutex_lock(&stream->mutex);
    while (in_time && !stream->ended) {
        grpc_byte_buffer *bytes = NULL;
        while (take_message(stream, &bytes) == ST_OK)
            grpc_byte_buffer_destroy(bytes);
        in_time = stream_wait(stream, until_ns);
    }
    pthread_mutex_unlock(&stream->mutex);
}

void rpc_stream_interrupt(struct rpc_stream *stream)
{
    pthread_mutex_lock(&stream->mutex);
    stream->interrupted = true;
    stream_wake(stream);
    pthread_mutex_unlock(&stream->mutex);
}

void rpc_stream_peer(struct rpc_stream *stream, char *out, size_t capacity)
{
    char *peer = grpc_call_get_peer(stream->call);
    (void)snprintf(out, capacity, "%s", peer != NULL ? peer : "");
    gpr_free(peer);
}

void rpc_stream_cancel(struct rpc_stream *stream)
{
    (void)grpc_call_cancel(stream->call, NULL);
}

static void drop_queues(struct rpc_stream *stream)
{
    rpc_outbox_clear(&stream->outbox);
    for (unsigned i = 0; i < stream->ring_count; i++)
        grpc_byte_buffer_destroy(stream->ring[(stream->ring_start + i) % RECV_QUEUE_MAX]);
}

void rpc_stream_close(struct rpc_stream *stream, struct rpc_result *result)
{
    if (stream == NULL)
        return;
    pthread_mutex_lock(&stream->mutex);
    stream->closing = true;
    /* Harmless when it ended already. Also frees messages that nobody will read, for which the
     * status would wait. */
    (void)grpc_call_cancel(stream->call, NULL);
    while (!stream->ended || !stream->opened || stream->send_busy || stream->recv_busy)
        (void)stream_wait(stream, FOR_EVER);
    pthread_mutex_unlock(&stream->mutex);
    if (result != NULL && stream->mistake.code != RPC_OK) {
        *result = stream->mistake;
    } else if (result != NULL) {
        rpc_result_set(result, stream->code, stream->detail);
    }
    drop_queues(stream);
    grpc_slice_unref(stream->detail);
    grpc_metadata_array_destroy(&stream->initial);
    grpc_metadata_array_destroy(&stream->trailing);
    grpc_call_unref(stream->call);
    pthread_cond_destroy(&stream->cond);
    pthread_mutex_destroy(&stream->mutex);
    free(stream);
}
