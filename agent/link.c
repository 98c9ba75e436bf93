#include "agent/link.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "agent/join/renew.h"
#include "common/backoff.h"
#include "common/clock.h"
#include "identity/make.h"
#include "rpc/client.h"

enum {
    EVENTS_MAX = 256, /* the link waits when the loop is so far behind */
    SEND_QUEUE_MAX = 1024,
    OPEN_MS = 500,
    OPEN_TLS_MS = 5000, /* it takes several ways to another machine and back */
    KEEPALIVE_MS = 2000,
    KEEPALIVE_TIMEOUT_MS = 3000,
};

struct link {
    struct link_options options;
    struct rpc_channel *channel;
    struct renewal renewal; /* the thread's */
    bool renewed;           /* likewise: channel has the certificate of before */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond; /* room in the queue, or stopping */
    /* all under the mutex */
    bool stopping;
    struct rpc_stream *stream; /* NULL: none is open */
    uint64_t epoch;
    uint32_t spread_ms;
    struct link_event events[EVENTS_MAX];
    size_t first;
    size_t count;
};

void link_set_spread(struct link *link, uint32_t ms)
{
    pthread_mutex_lock(&link->mutex);
    if (ms > 0)
        link->spread_ms = ms;
    pthread_mutex_unlock(&link->mutex);
}

static int64_t spread(struct link *link)
{
    pthread_mutex_lock(&link->mutex);
    const uint32_t ms = link->spread_ms;
    pthread_mutex_unlock(&link->mutex);
    return backoff_connect_ms(ms);
}

/* Waits for room; false: stopping. */
static bool put_event(struct link *link, enum link_event_kind kind, Cairn__V1__AgentOrder *order)
{
    pthread_mutex_lock(&link->mutex);
    while (link->count == EVENTS_MAX && !link->stopping)
        pthread_cond_wait(&link->cond, &link->mutex);
    bool going = !link->stopping;
    if (going) {
        link->events[(link->first + link->count) % EVENTS_MAX] =
            (struct link_event){ .kind = kind, .epoch = link->epoch, .order = order };
        link->count++;
    }
    pthread_mutex_unlock(&link->mutex);
    if (going)
        link->options.wake(link->options.wake_arg);
    return going;
}

struct link_event link_next(struct link *link)
{
    struct link_event event = { .kind = LINK_NOTHING };
    pthread_mutex_lock(&link->mutex);
    if (link->count > 0) {
        event = link->events[link->first];
        link->first = (link->first + 1) % EVENTS_MAX;
        link->count--;
        pthread_cond_signal(&link->cond);
    }
    pthread_mutex_unlock(&link->mutex);
    return event;
}

enum status link_send(struct link *link, uint64_t epoch, const Cairn__V1__AgentMessage *message)
{
    enum status st = ST_CLOSED;
    pthread_mutex_lock(&link->mutex);
    if (link->stream != NULL && link->epoch == epoch) {
        st = rpc_stream_send(link->stream, &message->base);
        if (st == ST_FULL)
            rpc_stream_cancel(link->stream);
    }
    pthread_mutex_unlock(&link->mutex);
    return st;
}

enum status link_peer(struct link *link, uint64_t epoch, char out[LINK_PEER])
{
    enum status st = ST_CLOSED;
    pthread_mutex_lock(&link->mutex);
    if (link->stream != NULL && link->epoch == epoch) {
        rpc_stream_peer(link->stream, out, LINK_PEER);
        st = ST_OK;
    }
    pthread_mutex_unlock(&link->mutex);
    return st;
}

/* Sets the open stream (NULL: none); false: stopping. */
static bool set_stream(struct link *link, struct rpc_stream *stream)
{
    pthread_mutex_lock(&link->mutex);
    link->stream = stream;
    if (stream != NULL)
        link->epoch++;
    bool going = !link->stopping;
    pthread_mutex_unlock(&link->mutex);
    return going;
}

/* The coordinator doesn't want this agent, or not yet. */
static bool is_refusal(enum rpc_code code)
{
    return code == RPC_ALREADY_EXISTS || code == RPC_FAILED_PRECONDITION ||
           code == RPC_INVALID_ARGUMENT || code == RPC_PERMISSION_DENIED ||
           code == RPC_UNAUTHENTICATED;
}

/* The next message; meanwhile the certificate is renewed, and then the stream ends, for the next
 * one to show it. */
static enum status receive(struct link *link, struct rpc_stream *stream, ProtobufCMessage **out)
{
    for (;;) {
        enum status st = rpc_stream_recv(stream, renew_wait_ms(&link->renewal), out);
        if (st != ST_TIMED_OUT)
            return st;
        if (renew_if_due(&link->renewal, link->channel)) {
            link->renewed = true;
            rpc_stream_cancel(stream);
        }
    }
}

/* Receives until the stream is over; returns how it ended. said: a refusal that is in the log. */
static enum rpc_code run_stream(struct link *link, struct rpc_stream *stream, enum rpc_code said)
{
    const struct log *log = link->options.log;
    bool going = set_stream(link, stream) && put_event(link, LINK_UP, NULL);
    if (said == RPC_OK)
        LOG_INFO(log, "connected to the coordinator at %s", link->options.target);
    ProtobufCMessage *message = NULL;
    while (going && receive(link, stream, &message) == ST_OK) {
        going = put_event(link, LINK_ORDER, (Cairn__V1__AgentOrder *)(void *)message);
        if (!going)
            protobuf_c_message_free_unpacked(message, NULL);
    }
    (void)set_stream(link, NULL);
    struct rpc_result result;
    rpc_stream_close(stream, &result);
    if (link->renewed) {
        LOG_INFO(log, "connecting with the new certificate");
    } else if (result.code != said || !is_refusal(said)) {
        LOG_WARN(log, "lost the coordinator, connecting again: %s: %s", rpc_code_name(result.code),
                 result.detail);
    }
    if (going)
        (void)put_event(link, LINK_DOWN, NULL);
    return result.code;
}

/* False: stopping. */
static bool pause_ms(struct link *link, int64_t pause)
{
    const int64_t until_ns = clock_mono_ns() + pause * 1000000;
    pthread_mutex_lock(&link->mutex);
    while (!link->stopping && clock_cond_wait(&link->cond, &link->mutex, until_ns)) {
    }
    bool going = !link->stopping;
    pthread_mutex_unlock(&link->mutex);
    return going;
}

static enum status make_channel(const struct link_options *options, struct rpc_channel **out)
{
    const struct rpc_channel_options channel = {
        .target = options->target,
        .token_file = options->token_file,
        .tls = options->tls.ca != NULL ? &options->tls : NULL,
        .tls_name = IDENTITY_SERVER,
        .keepalive_ms = KEEPALIVE_MS,
        .keepalive_timeout_ms = KEEPALIVE_TIMEOUT_MS,
        .backoff_min_ms = BACKOFF_CONNECT_MIN_MS,
        .backoff_max_ms = BACKOFF_CONNECT_MS,
    };
    return rpc_channel_new(&channel, out);
}

/* Makes a new channel if its certificate was renewed, or the files of TLS have changed. */
static void renew_channel(struct link *link)
{
    struct rpc_channel *channel = NULL;
    if ((!link->renewed && !rpc_channel_stale(link->channel)) ||
        make_channel(&link->options, &channel) != ST_OK)
        return;
    if (!link->renewed)
        LOG_INFO(link->options.log, "the files of TLS have changed: connecting with the new ones");
    link->renewed = false;
    renew_look(&link->renewal);
    rpc_channel_free(link->channel);
    link->channel = channel;
}

/* Tries to connect without waiting for the next try: such a call is told why connecting fails. */
static enum status ask_why(struct link *link, const struct rpc_stream_options *options,
                           struct rpc_stream **out, struct rpc_result *result)
{
    struct rpc_stream_options at_once = *options;
    at_once.wait_for_ready = false;
    return rpc_stream_open(link->channel, &cairn__v1__fleet__descriptor, "Session", &at_once, out,
                           result);
}

static void warn(const struct link *link, const struct rpc_result *result)
{
    const char *hint = rpc_refusal_hint(result->detail, link->options.tls.ca != NULL);
    LOG_WARN(link->options.log, "no coordinator at %s, trying on: %s: %s%s%s", link->options.target,
             rpc_code_name(result->code), result->detail, hint[0] ? ": " : "", hint);
}

static void *link_main(void *arg)
{
    struct link *link = arg;
    const struct rpc_stream_options options = { .open_timeout_ms = link->options.tls.ca != NULL
                                                                       ? OPEN_TLS_MS
                                                                       : OPEN_MS,
                                                .wait_for_ready = true,
                                                .send_queue_max = SEND_QUEUE_MAX };
    int64_t backoff = 0;
    enum rpc_code said = RPC_OK; /* each cause is logged once */
    do {
        struct rpc_stream *stream = NULL;
        struct rpc_result result;
        renew_channel(link);
        enum status st = rpc_stream_open(link->channel, &cairn__v1__fleet__descriptor, "Session",
                                         &options, &stream, &result);
        if (st != ST_OK && result.code != said && result.code != RPC_RESOURCE_EXHAUSTED)
            st = ask_why(link, &options, &stream, &result);
        if (st == ST_OK) {
            enum rpc_code end = run_stream(link, stream, said);
            said = is_refusal(end) ? end : RPC_OK;
            backoff = said != RPC_OK  ? BACKOFF_CONNECT_MS
                      : link->renewed ? BACKOFF_CONNECT_MIN_MS
                                      : spread(link);
            continue;
        }
        if (result.code != said)
            warn(link, &result);
        said = result.code;
        backoff = spread(link);
    } while (pause_ms(link, backoff));
    return NULL;
}

enum status link_start(const struct link_options *options, struct link **out)
{
    struct link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return ST_NO_MEMORY;
    link->options = *options;
    link->renewal = (struct renewal){ .files = &link->options.tls, .log = options->log };
    renew_look(&link->renewal);
    enum status st = make_channel(options, &link->channel);
    if (st != ST_OK) {
        free(link);
        return st;
    }
    pthread_mutex_init(&link->mutex, NULL);
    clock_cond_init(&link->cond);
    if (pthread_create(&link->thread, NULL, link_main, link) != 0)
        abort();
    *out = link;
    return ST_OK;
}

void link_stop(struct link *link)
{
    if (link == NULL)
        return;
    pthread_mutex_lock(&link->mutex);
    link->stopping = true;
    if (link->stream != NULL)
        rpc_stream_cancel(link->stream);
    pthread_cond_broadcast(&link->cond);
    pthread_mutex_unlock(&link->mutex);
    pthread_join(link->thread, NULL);
    rpc_channel_free(link->channel);
    for (; link->count > 0; link->count--) {
        Cairn__V1__AgentOrder *order = link->events[link->first].order;
        if (order != NULL)
            protobuf_c_message_free_unpacked(&order->base, NULL);
        link->first = (link->first + 1) % EVENTS_MAX;
    }
    pthread_cond_destroy(&link->cond);
    pthread_mutex_destroy(&link->mutex);
    free(link);
}
