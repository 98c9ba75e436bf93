/*
 * One call on the server's side.
 *
 *     asked for -> accepted   [take_call]     core has a call; [arm_request] asks for the next
 *     asked for -> refused    [rpc_refuse]   there is no such method
 *     accepted  -> handled    [run_message]   the handler runs, once per message
 *     accepted  -> over       [expire_call]  no message came in time
 *     handled   -> over       [finish_call]   a status is queued: the handler's, or of a mistake;
 *                                             from accepted, where no handler may run
 *     any       -> closed     [close_call]    core is through with it, or the peer is gone
 *     closed    -> freed      [run_done]      on_done ran; then the last [rpc_call_unref]
 *
 * Invariants
 *  1. At most three batches are in flight, each with its own tag:
 *       on_close   RECV_CLOSE_ON_SERVER             started at accept, completes exactly once
 *       on_recv    RECV_MESSAGE                     one at a time; the next one after the handler
 *                                                   came back
 *       on_sent    any of SEND_INITIAL_METADATA,    one at a time
 *                  SEND_MESSAGE, SEND_STATUS
 *  2. Batches of a call are started under its mutex. Completions only go into the queue, never back
 *     into us, so that this can't deadlock.
 *  3. on_done is posted once: when on_close completed and neither recv nor send is busy (recv is
 *     busy also while a handler runs). After it nothing but references touch the call.
 *  4. over: a status is queued or the call is dead; nothing more may be queued.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "rpc/server/internal.h"

struct rpc_call {
    struct rpc_tag on_close;
    struct rpc_tag on_recv;
    struct rpc_tag on_sent;
    atomic_int references;
    struct rpc_server *server;
    struct rpc_method *method;
    grpc_call *core;
    grpc_metadata_array metadata;
    struct ucred cred;
    bool has_cred;
    struct rpc_pending pending; /* until its first message */
    pthread_mutex_t mutex;
    /* receiving */
    grpc_byte_buffer *received;
    ProtobufCMessage *message; /* on its way to the handler */
    bool recv_busy;
    bool late; /* shown out at the door; the queue's thread alone */
    /* sending */
    bool send_busy;
    bool accepted; /* a stream's initial metadata may go ahead of its first message */
    bool metadata_sent;
    bool corked; /* what is queued waits */
    bool over;
    bool status_waits;
    bool status_sent;
    struct rpc_outbox outbox;
    enum rpc_code code;
    char *detail;
    /* the end */
    int cancelled; /* written by core */
    bool closed;
    bool done_posted;
    atomic_bool dead;
    struct rpc_task message_task;
    struct rpc_task done_task;
    void *data;
    void (*on_done)(struct rpc_call *call, void *data, bool cancelled);
};

/* What core fills in when the next call comes. */
struct call_request {
    struct rpc_tag tag;
    struct rpc_server *server;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

void rpc_call_ref(struct rpc_call *call)
{
    atomic_fetch_add(&call->references, 1);
}

void rpc_call_unref(struct rpc_call *call)
{
    if (atomic_fetch_sub(&call->references, 1) != 1)
        return;
    rpc_outbox_clear(&call->outbox);
    if (call->received != NULL)
        grpc_byte_buffer_destroy(call->received);
    grpc_metadata_array_destroy(&call->metadata); /* its elements are the core call's */
    grpc_call_unref(call->core);
    pthread_mutex_destroy(&call->mutex);
    free(call->detail);
    free(call);
}

static void run_task(struct rpc_call *call, struct rpc_task *task)
{
    const struct rpc_executor *executor = &call->server->options.executor;
    if (executor->post != NULL) {
        executor->post(executor->self, task);
    } else {
        task->run(task);
    }
}

static void run_done(struct rpc_task *task)
{
    struct rpc_call *call = CONTAINER_OF(task, struct rpc_call, done_task);
    CHECK(call->closed);
    if (call->on_done != NULL)
        call->on_done(call, call->data, call->cancelled != 0);
    rpc_call_unref(call); /* this layer's own reference */
}

/* Releases the mutex; posts on_done when this was the last that kept the call busy. */
static void unlock_call(struct rpc_call *call)
{
    bool done = call->closed && !call->recv_busy && !call->send_busy && !call->done_posted;
    if (done)
        call->done_posted = true;
    pthread_mutex_unlock(&call->mutex);
    if (done)
        run_task(call, &call->done_task);
}

/* Under the mutex: one batch of what waits. */
static void pump_call(struct rpc_call *call)
{
    bool metadata = call->accepted && !call->metadata_sent;
    if (call->send_busy || call->status_sent || call->corked)
        return;
    if (call->outbox.count == 0 && !call->status_waits && !metadata)
        return;
    grpc_op ops[3];
    memset(ops, 0, sizeof(ops));
    size_t count = 0;
    if (!call->metadata_sent)
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    call->metadata_sent = true;
    grpc_byte_buffer *bytes = rpc_outbox_take(&call->outbox);
    if (bytes != NULL) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count].flags = call->outbox.count > 0 ? GRPC_WRITE_BUFFER_HINT : 0;
        ops[count++].data.send_message.send_message = bytes;
    }
    grpc_slice detail = grpc_empty_slice();
    if (call->status_waits && call->outbox.count == 0) {
        call->status_sent = true;
        const char *text = call->detail != NULL ? call->detail : "";
        detail = grpc_slice_from_copied_buffer(text, rpc_detail_size(text));
        ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[count].data.send_status_from_server.status = (grpc_status_code)call->code;
        ops[count++].data.send_status_from_server.status_details = &detail;
    }
    CHECK(count > 0);
    call->send_busy = true;
    rpc_tag_out(&call->on_sent);
    if (grpc_call_start_batch(call->core, ops, count, &call->on_sent, NULL) != GRPC_CALL_OK) {
        call->send_busy = false; /* the call is broken: let on_close report it */
        call->over = true;
        (void)grpc_call_cancel(call->core, NULL);
    }
    grpc_slice_unref(detail);
    if (bytes != NULL)
        grpc_byte_buffer_destroy(bytes); /* core holds the slices, not their shell */
}

static void message_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CONTAINER_OF(tag, struct rpc_call, on_sent);
    pthread_mutex_lock(&call->mutex);
    CHECK(call->send_busy);
    call->send_busy = false;
    if (!ok) {
        call->over = true; /* the peer is gone; on_close follows */
    } else {
        pump_call(call);
    }
    unlock_call(call);
}

/* Under the mutex. The first end counts. */
static void finish_call(struct rpc_call *call, enum rpc_code code, const char *detail)
{
    if (call->over)
        return;
    call->over = true;
    call->code = code;
    call->detail = detail != NULL ? rpc_copy_text(detail) : NULL;
    call->status_waits = true;
    pump_call(call);
}

void rpc_call_finish(struct rpc_call *call, enum rpc_code code, const char *detail)
{
    pthread_mutex_lock(&call->mutex);
    finish_call(call, code, detail);
    pthread_mutex_unlock(&call->mutex);
}

void rpc_call_cork(struct rpc_call *call)
{
    pthread_mutex_lock(&call->mutex);
    call->corked = true;
    pthread_mutex_unlock(&call->mutex);
}

void rpc_call_uncork(struct rpc_call *call)
{
    pthread_mutex_lock(&call->mutex);
    call->corked = false;
    if (!call->closed)
        pump_call(call);
    unlock_call(call);
}

/* Sends bytes, which are taken over. */
static enum status send_bytes(struct rpc_call *call, grpc_byte_buffer *bytes)
{
    enum status st = ST_OK;
    pthread_mutex_lock(&call->mutex);
    if (call->over || call->closed) {
        st = ST_CLOSED;
    } else if (call->outbox.count >= call->server->options.send_queue_max) {
        /* Never drop a message in silence: the stream ends, the peer can start anew. */
        finish_call(call, RPC_RESOURCE_EXHAUSTED, "the caller reads too slowly");
        st = ST_FULL;
    } else {
        rpc_outbox_put(&call->outbox, bytes);
        bytes = NULL;
        if ((call->method->flags & RPC_SERVER_STREAMING) == 0) {
            finish_call(call, RPC_OK, NULL); /* one batch for metadata, reply and status */
        } else {
            pump_call(call);
        }
    }
    pthread_mutex_unlock(&call->mutex);
    if (bytes != NULL)
        grpc_byte_buffer_destroy(bytes);
    return st;
}

enum status rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (atomic_load_explicit(&call->dead, memory_order_relaxed))
        return ST_CLOSED;
    return send_bytes(call, rpc_pack(message));
}

enum status rpc_call_send_packed(struct rpc_call *call, const void *data, size_t size)
{
    if (atomic_load_explicit(&call->dead, memory_order_relaxed))
        return ST_CLOSED;
    grpc_slice slice = grpc_slice_from_copied_buffer(data, size);
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return send_bytes(call, bytes);
}

uint32_t rpc_call_queued(struct rpc_call *call)
{
    pthread_mutex_lock(&call->mutex);
    uint32_t queued = call->outbox.count;
    pthread_mutex_unlock(&call->mutex);
    return queued;
}

/* The closure that every handler is given. */
static void call_reply(const ProtobufCMessage *message, void *call)
{
    if (message != NULL) {
        (void)rpc_call_send(call, message);
    } else {
        rpc_call_finish(call, RPC_INTERNAL, "the handler gave no reply");
    }
}

static void start_recv(struct rpc_call *call) /* under the mutex */
{
    CHECK(!call->recv_busy);
    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &call->received;
    rpc_tag_out(&call->on_recv);
    call->recv_busy =
        grpc_call_start_batch(call->core, &op, 1, &call->on_recv, NULL) == GRPC_CALL_OK;
}

static void run_message(struct rpc_task *task)
{
    struct rpc_call *call = CONTAINER_OF(task, struct rpc_call, message_task);
    struct rpc_method *method = call->method;
    ProtobufCMessage *message = call->message;
    call->message = NULL;
    if (!atomic_load_explicit(&call->dead, memory_order_acquire))
        method->service->invoke(method->service, method->index, message, call_reply, call);
    bool half_closed = message == NULL;
    if (message != NULL)
        protobuf_c_message_free_unpacked(message, NULL);
    pthread_mutex_lock(&call->mutex);
    call->recv_busy = false;
    if ((method->flags & RPC_CLIENT_STREAMING) != 0 && !half_closed && !call->over && !call->closed)
        start_recv(call);
    unlock_call(call);
}

static bool is_too_large(const struct rpc_call *first_of, grpc_byte_buffer *bytes)
{
    return (first_of->method->flags & RPC_CLIENT_STREAMING) != 0 &&
           grpc_byte_buffer_length(bytes) > first_of->server->options.first_size_max;
}

static void message_received(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = CONTAINER_OF(tag, struct rpc_call, on_recv);
    grpc_byte_buffer *bytes = call->received;
    call->received = NULL;
    const char *mistake = NULL;
    enum rpc_code code = RPC_INVALID_ARGUMENT;
    const bool first = call->pending.inside;
    rpc_admission_leave(call->server, &call->pending);
    if (call->late) {
        mistake = ""; /* it is answered */
    } else if (bytes != NULL && ok && first && is_too_large(call, bytes)) {
        mistake = "the first message of this stream is too large";
        code = RPC_RESOURCE_EXHAUSTED; /* as core says of others */
    } else if (bytes != NULL && ok) {
        call->message = rpc_unpack(call->method->input, bytes, NULL);
        if (call->message == NULL)
            mistake = "malformed request message";
    } else if ((call->method->flags & RPC_CLIENT_STREAMING) == 0) {
        mistake = "no request message";
    }
    if (bytes != NULL)
        grpc_byte_buffer_destroy(bytes);
    if (mistake == NULL) {
        run_task(call, &call->message_task); /* no message: half-close */
        return;
    }
    pthread_mutex_lock(&call->mutex);
    finish_call(call, code, mistake);
    call->recv_busy = false;
    unlock_call(call);
}

static void expire_call(struct rpc_pending *pending)
{
    struct rpc_call *call = CONTAINER_OF(pending, struct rpc_call, pending);
    call->late = true;
    rpc_call_finish(call, RPC_DEADLINE_EXCEEDED,
                    "the first message of this call did not come in time");
}

static void close_call(struct rpc_tag *tag, bool ok)
{
    (void)ok; /* always true */
    struct rpc_call *call = CONTAINER_OF(tag, struct rpc_call, on_close);
    rpc_admission_leave(call->server, &call->pending);
    if (call->cancelled != 0)
        atomic_store_explicit(&call->dead, true, memory_order_release);
    pthread_mutex_lock(&call->mutex);
    CHECK(!call->closed);
    call->closed = true;
    call->over = true;
    unlock_call(call);
}

static struct rpc_call *new_call(struct rpc_server *server, struct rpc_method *method,
                                 grpc_call *core, grpc_metadata_array metadata)
{
    struct rpc_call *call = rpc_alloc(sizeof(*call));
    call->pending.expire = expire_call;
    call->on_close.fn = close_call;
    call->on_recv.fn = message_received;
    call->on_sent.fn = message_sent;
    call->on_recv.of_stream = (method->flags & RPC_CLIENT_STREAMING) != 0;
    call->on_sent.of_stream = call->on_recv.of_stream;
    call->message_task.run = run_message;
    call->done_task.run = run_done;
    atomic_init(&call->references, 1);
    atomic_init(&call->dead, false);
    call->server = server;
    call->method = method;
    call->core = core;
    call->metadata = metadata;
    pthread_mutex_init(&call->mutex, NULL);
    return call;
}

/* Judges a call: who makes it, whether that peer may, and whether there is room. */
static enum rpc_code judge_call(struct rpc_call *call, const char **out_detail)
{
    const struct rpc_server_options *options = &call->server->options;
    enum rpc_code code = RPC_OK;
    char *peer = grpc_call_get_peer(call->core);
    call->has_cred = peer != NULL && rpc_server_cred(call->server, peer, &call->cred);
    if (options->authorize != NULL)
        code = options->authorize(options->authorize_ctx, call, out_detail);
    if (code == RPC_OK &&
        !rpc_admission_enter(call->server, &call->pending, call->has_cred ? NULL : peer)) {
        code = RPC_RESOURCE_EXHAUSTED;
        *out_detail = "too many calls wait for their first message: try again";
    }
    gpr_free(peer);
    return code;
}

static void accept_call(struct rpc_call *call)
{
    const char *detail = "";
    const enum rpc_code code = judge_call(call, &detail);
    grpc_op op;
    memset(&op, 0, sizeof(op));
    op.op = GRPC_OP_RECV_CLOSE_ON_SERVER;
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    pthread_mutex_lock(&call->mutex);
    rpc_tag_out(&call->on_close);
    if (grpc_call_start_batch(call->core, &op, 1, &call->on_close, NULL) != GRPC_CALL_OK) {
        pthread_mutex_unlock(&call->mutex);
        rpc_admission_leave(call->server, &call->pending);
        (void)grpc_call_cancel(call->core, NULL);
        rpc_call_unref(call);
        return;
    }
    if (code != RPC_OK) {
        finish_call(call, code, detail);
    } else {
        call->accepted = (call->method->flags & (RPC_CLIENT_STREAMING | RPC_SERVER_STREAMING)) != 0;
        pump_call(call); /* a stream's peer learns at once that it was accepted */
        start_recv(call);
    }
    unlock_call(call);
}

static bool arm_request(struct call_request *request)
{
    request->call = NULL;
    grpc_metadata_array_init(&request->metadata);
    grpc_call_details_init(&request->details);
    rpc_tag_out(&request->tag);
    struct rpc_server *server = request->server;
    return grpc_server_request_call(server->core, &request->call, &request->details,
                                    &request->metadata, server->queue, server->queue,
                                    &request->tag) == GRPC_CALL_OK;
}

static void drop_request(struct call_request *request)
{
    grpc_metadata_array_destroy(&request->metadata);
    grpc_call_details_destroy(&request->details);
    free(request);
}

static void take_call(struct rpc_tag *tag, bool ok)
{
    struct call_request *request = CONTAINER_OF(tag, struct call_request, tag);
    struct rpc_server *server = request->server;
    if (!ok || request->call == NULL) { /* the server is going down */
        drop_request(request);
        return;
    }
    /* Everything out, the request armed again at once, then work on the call. */
    grpc_call *core = request->call;
    grpc_metadata_array metadata = request->metadata;
    struct rpc_method *method = rpc_server_method(server, request->details.method);
    grpc_call_details_destroy(&request->details);
    if (!arm_request(request))
        drop_request(request);
    if (method == NULL) {
        grpc_metadata_array_destroy(&metadata);
        rpc_refuse(core, RPC_UNIMPLEMENTED, "unknown method");
        return;
    }
    accept_call(new_call(server, method, core, metadata));
}

bool rpc_call_request(struct rpc_server *server)
{
    struct call_request *request = rpc_alloc(sizeof(*request));
    request->tag.fn = take_call;
    request->server = server;
    if (arm_request(request))
        return true;
    drop_request(request);
    return false;
}

void rpc_call_set_data(struct rpc_call *call, void *data,
                       void (*on_done)(struct rpc_call *call, void *data, bool cancelled))
{
    call->data = data;
    call->on_done = on_done;
}

void *rpc_call_data(struct rpc_call *call)
{
    return call->data;
}

const char *rpc_call_path(const struct rpc_call *call)
{
    return call->method->path;
}

bool rpc_call_metadata(const struct rpc_call *call, const char *key, struct rpc_bytes *out)
{
    for (size_t i = 0; i < call->metadata.count; i++) {
        const grpc_metadata *row = &call->metadata.metadata[i];
        if (grpc_slice_str_cmp(row->key, key) == 0) {
            out->data = GRPC_SLICE_START_PTR(row->value);
            out->size = GRPC_SLICE_LENGTH(row->value);
            return true;
        }
    }
    return false;
}

static bool bearer(const struct rpc_call *call, struct rpc_bytes *out)
{
    static const char scheme[] = "Bearer ";
    size_t size = sizeof(scheme) - 1;
    struct rpc_bytes value;
    if (!rpc_call_metadata(call, "authorization", &value) || value.size < size ||
        memcmp(value.data, scheme, size) != 0)
        return false;
    *out = (struct rpc_bytes){ value.data + size, value.size - size };
    return true;
}

bool rpc_call_token(const struct rpc_call *call, char *out, size_t capacity)
{
    struct rpc_bytes token;
    if (!bearer(call, &token) || token.size >= capacity ||
        memchr(token.data, '\0', token.size) != NULL)
        return false;
    memcpy(out, token.data, token.size);
    out[token.size] = '\0';
    return true;
}

bool rpc_call_has_token(const struct rpc_call *call, const char *token)
{
    struct rpc_bytes given;
    size_t size = strlen(token);
    if (size == 0 || !bearer(call, &given) || given.size != size)
        return false;
    unsigned difference = 0;
    for (size_t i = 0; i < size; i++) /* no early end: takes the same time for each wrong token */
        difference |= (unsigned)(given.data[i] ^ (uint8_t)token[i]);
    return difference == 0;
}

void rpc_call_peer(const struct rpc_call *call, char *out, size_t capacity)
{
    rpc_server_peer(call->core, call->has_cred ? &call->cred : NULL, out, capacity);
}

bool rpc_call_answered(struct rpc_call *call, enum rpc_code *out)
{
    pthread_mutex_lock(&call->mutex);
    const bool answered = call->status_waits;
    *out = call->code;
    pthread_mutex_unlock(&call->mutex);
    return answered;
}

bool rpc_call_peer_cred(const struct rpc_call *call, struct ucred *out)
{
    if (call->has_cred)
        *out = call->cred;
    return call->has_cred;
}

enum status rpc_call_peer_identity(const struct rpc_call *call, struct identity_cert *out)
{
    return rpc_tls_identity(call->core, out);
}
