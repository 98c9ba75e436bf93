#include "trainer/program/link.h"

#include <pthread.h>
#include <stdlib.h>

#include "identity/make.h"
#include "rpc/client.h"

#define SEND_QUEUE 1024 /* rows of metrics while the coordinator is slow */

struct trainer_link {
    struct session_link table;
    struct trainer_link_options how;
    struct rpc_channel *channel;
    pthread_mutex_t mutex; /* guards the two below: interrupt comes from any thread */
    struct rpc_stream *stream;
    bool interrupted; /* when there was no stream */
};

/* st, unless the stream was refused for good. */
static enum status status_of_end(enum status st, const struct rpc_result *result)
{
    if (result->code == RPC_FAILED_PRECONDITION || result->code == RPC_UNAUTHENTICATED ||
        result->code == RPC_PERMISSION_DENIED)
        return ST_STALE;
    return st;
}

/* Ends the stream if there is one; returns how it ended. */
static enum status end_stream(struct trainer_link *link)
{
    pthread_mutex_lock(&link->mutex);
    struct rpc_stream *stream = link->stream;
    link->stream = NULL;
    pthread_mutex_unlock(&link->mutex);
    if (stream == NULL)
        return ST_CLOSED;
    struct rpc_result result = { .code = RPC_UNKNOWN };
    rpc_stream_close(stream, &result);
    return status_of_end(ST_CLOSED, &result);
}

static enum status make_channel(const struct trainer_link_options *how, struct rpc_channel **out)
{
    const struct identity_files tls = { .ca = how->tls_ca };
    struct rpc_channel_options options = { .target = how->target,
                                           .token = how->token,
                                           .tls = how->tls_ca != NULL ? &tls : NULL,
                                           .tls_name = IDENTITY_SERVER };
    return rpc_channel_new(&options, out);
}

/* Makes a channel with the current authorities: there may be a new one. */
static void renew_channel(struct trainer_link *link)
{
    struct rpc_channel *channel = NULL;
    if (!rpc_channel_stale(link->channel) || make_channel(&link->how, &channel) != ST_OK)
        return;
    rpc_channel_free(link->channel);
    link->channel = channel;
}

static enum status link_open(void *self, int64_t timeout_ms)
{
    struct trainer_link *link = self;
    (void)end_stream(link);
    renew_channel(link);
    struct rpc_stream_options options = { .open_timeout_ms = (int32_t)timeout_ms,
                                          .wait_for_ready = true,
                                          .send_queue_max = SEND_QUEUE };
    struct rpc_stream *stream = NULL;
    struct rpc_result result = { .code = RPC_UNKNOWN };
    enum status st = rpc_stream_open(link->channel, &cairn__v1__training__descriptor, "Session",
                                     &options, &stream, &result);
    if (st != ST_OK)
        return status_of_end(st, &result);
    pthread_mutex_lock(&link->mutex);
    link->stream = stream;
    pthread_mutex_unlock(&link->mutex);
    return ST_OK;
}

static enum status link_send(void *self, const Cairn__V1__TrainerMessage *message)
{
    struct trainer_link *link = self;
    if (link->stream == NULL)
        return ST_CLOSED;
    return rpc_stream_send(link->stream, &message->base);
}

static enum status link_recv(void *self, int64_t timeout_ms, Cairn__V1__TrainerOrder **out)
{
    struct trainer_link *link = self;
    pthread_mutex_lock(&link->mutex);
    struct rpc_stream *stream = link->stream;
    bool interrupted = link->interrupted;
    link->interrupted = false;
    pthread_mutex_unlock(&link->mutex);
    if (interrupted)
        return ST_TIMED_OUT;
    if (stream == NULL)
        return ST_CLOSED;
    ProtobufCMessage *message = NULL;
    enum status st = rpc_stream_recv(stream, (int32_t)timeout_ms, &message);
    if (st == ST_AGAIN)
        return ST_TIMED_OUT;
    if (st == ST_OK) {
        *out = (Cairn__V1__TrainerOrder *)message;
    } else if (st != ST_TIMED_OUT) {
        st = end_stream(link);
    }
    return st;
}

static void link_interrupt(void *self)
{
    struct trainer_link *link = self;
    pthread_mutex_lock(&link->mutex);
    if (link->stream != NULL) {
        rpc_stream_interrupt(link->stream);
    } else {
        link->interrupted = true;
    }
    pthread_mutex_unlock(&link->mutex);
}

static void link_close(void *self, int64_t patience_ms)
{
    struct trainer_link *link = self;
    if (link->stream != NULL)
        rpc_stream_finish(link->stream, (int32_t)patience_ms);
    (void)end_stream(link);
}

enum status trainer_link_new(const struct trainer_link_options *how, struct trainer_link **out)
{
    struct trainer_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return ST_NO_MEMORY;
    link->how = *how;
    enum status st = make_channel(how, &link->channel);
    if (st != ST_OK) {
        free(link);
        return st;
    }
    pthread_mutex_init(&link->mutex, NULL);
    link->table = (struct session_link){ .self = link,
                                         .open = link_open,
                                         .send = link_send,
                                         .recv = link_recv,
                                         .interrupt = link_interrupt,
                                         .close = link_close };
    *out = link;
    return ST_OK;
}

void trainer_link_free(struct trainer_link *link)
{
    if (link == NULL)
        return;
    (void)end_stream(link);
    rpc_channel_free(link->channel);
    pthread_mutex_destroy(&link->mutex);
    free(link);
}

const struct session_link *trainer_link_table(const struct trainer_link *link)
{
    return &link->table;
}
