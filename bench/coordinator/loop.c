/*
 * Peers. A stream is opened by one of a few threads, as that waits; all else happens on one: what
 * came is read where gRPC's threads said that something did, and every 10 ms each peer has a tick.
 *
 *     OPENING -> UP       an opener has it open
 *     OPENING -> PAUSED   it could not be opened
 *     UP      -> PAUSED   the stream is over
 *     PAUSED  -> OPENING  after a while
 *     any     -> CLOSED   [peer_close]; freed once it is released and no thread has it
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/coordinator/fleet.h"
#include "common/check.h"
#include "common/io.h"

enum { TICK_NS = 10 * 1000000, AGAIN_NS = 500 * 1000000, OPEN_MS = 30000, SEND_QUEUE = 4096 };

/* ---- who waits for what ---- */

static void put_ready(struct peer *peer)
{
    struct fleet *fleet = peer->fleet;
    if (!peer->queued) {
        peer->queued = true;
        peer->next_ready = NULL;
        *fleet->ready_end = peer;
        fleet->ready_end = &peer->next_ready;
    }
    pthread_cond_signal(&fleet->changed);
}

/* Called on gRPC's threads. */
static void on_notify(void *arg)
{
    struct peer *peer = arg;
    pthread_mutex_lock(&peer->fleet->mutex);
    put_ready(peer);
    pthread_mutex_unlock(&peer->fleet->mutex);
}

static void ask_opener(struct peer *peer)
{
    struct fleet *fleet = peer->fleet;
    peer->state = PEER_OPENING;
    pthread_mutex_lock(&fleet->mutex);
    peer->opening = true;
    peer->next_open = NULL;
    *fleet->open_last = peer;
    fleet->open_last = &peer->next_open;
    pthread_cond_signal(&fleet->work);
    pthread_mutex_unlock(&fleet->mutex);
}

static void open_stream(struct peer *peer)
{
    const struct fleet_options *o = &peer->fleet->options;
    const struct rpc_channel_options channel = { .target = o->target,
                                                 .tls = peer->tls,
                                                 .tls_name = IDENTITY_SERVER,
                                                 .token = peer->token[0] ? peer->token : NULL };
    const struct rpc_stream_options stream = { .open_timeout_ms = OPEN_MS,
                                               .wait_for_ready = true,
                                               .send_queue_max = SEND_QUEUE,
                                               .notify = on_notify,
                                               .notify_arg = peer };
    if (peer->channel == NULL && rpc_channel_new(&channel, &peer->channel) != ST_OK)
        return;
    if (rpc_stream_open(peer->channel, peer->service, "Session", &stream, &peer->stream, NULL) !=
        ST_OK)
        peer->stream = NULL;
}

static void *opener_main(void *arg)
{
    struct fleet *fleet = arg;
    pthread_mutex_lock(&fleet->mutex);
    while (!fleet->stopping) {
        struct peer *peer = fleet->to_open;
        if (peer == NULL) {
            pthread_cond_wait(&fleet->work, &fleet->mutex);
            continue;
        }
        fleet->to_open = peer->next_open;
        if (fleet->to_open == NULL)
            fleet->open_last = &fleet->to_open;
        pthread_mutex_unlock(&fleet->mutex);
        open_stream(peer);
        pthread_mutex_lock(&fleet->mutex);
        peer->opening = false;
        put_ready(peer);
    }
    pthread_mutex_unlock(&fleet->mutex);
    return NULL;
}

/* ---- a peer ---- */

void peer_open(struct peer *peer, struct fleet *fleet, const struct peer_ops *ops,
               const ProtobufCServiceDescriptor *service, const struct identity_files *tls,
               const char *token)
{
    peer->tls = tls;
    peer->ops = ops;
    peer->fleet = fleet;
    peer->service = service;
    (void)snprintf(peer->token, sizeof(peer->token), "%s", token != NULL ? token : "");
    peer->next = fleet->peers;
    fleet->peers = peer;
    ask_opener(peer);
}

bool peer_send(struct peer *peer, const ProtobufCMessage *message)
{
    return peer->state == PEER_UP && rpc_stream_send(peer->stream, message) == ST_OK;
}

static enum rpc_code drop_stream(struct peer *peer)
{
    struct rpc_result result = { .code = RPC_OK };
    if (peer->stream != NULL)
        rpc_stream_close(peer->stream, &result);
    peer->stream = NULL;
    return result.code;
}

static bool is_opening(struct peer *peer)
{
    pthread_mutex_lock(&peer->fleet->mutex);
    const bool opening = peer->opening;
    pthread_mutex_unlock(&peer->fleet->mutex);
    return opening;
}

void peer_close(struct peer *peer)
{
    peer->state = PEER_CLOSED;
    if (is_opening(peer))
        return; /* what the opener made goes when it is freed */
    (void)drop_stream(peer);
    rpc_channel_free(peer->channel);
    peer->channel = NULL;
}

void peer_release(struct peer *peer)
{
    peer->released = true;
}

static void pause_peer(struct peer *peer)
{
    const enum rpc_code code = drop_stream(peer);
    peer->state = PEER_PAUSED;
    peer->again_ns = clock_mono_ns() + AGAIN_NS;
    peer->fleet->losses++;
    peer->ops->lost(peer, code);
}

static void hear(struct peer *peer)
{
    if (is_opening(peer))
        return; /* it comes again */
    if (peer->state == PEER_OPENING && peer->stream == NULL) {
        pause_peer(peer);
    } else if (peer->state == PEER_OPENING) {
        peer->state = PEER_UP;
        peer->ops->opened(peer);
    }
    while (peer->state == PEER_UP) {
        ProtobufCMessage *message = NULL;
        const enum status st = rpc_stream_recv(peer->stream, 0, &message);
        if (st == ST_OK) {
            peer->ops->heard(peer, message);
            protobuf_c_message_free_unpacked(message, NULL);
        } else if (st == ST_CLOSED) {
            pause_peer(peer);
        } else if (st == ST_TIMED_OUT) {
            break;
        }
    }
}

/* ---- the loop ---- */

static struct peer *take_ready(struct fleet *fleet, int64_t until_ns)
{
    pthread_mutex_lock(&fleet->mutex);
    while (fleet->ready == NULL && clock_cond_wait(&fleet->changed, &fleet->mutex, until_ns)) {
    }
    struct peer *first = fleet->ready;
    fleet->ready = NULL;
    fleet->ready_end = &fleet->ready;
    pthread_mutex_unlock(&fleet->mutex);
    return first;
}

static void hear_all(struct fleet *fleet, struct peer *peer)
{
    while (peer != NULL) {
        pthread_mutex_lock(&fleet->mutex);
        struct peer *next = peer->next_ready;
        peer->queued = false;
        pthread_mutex_unlock(&fleet->mutex);
        hear(peer);
        peer = next;
    }
}

static bool may_be_freed(struct peer *peer)
{
    pthread_mutex_lock(&peer->fleet->mutex);
    const bool held = peer->queued || peer->opening;
    pthread_mutex_unlock(&peer->fleet->mutex);
    return peer->state == PEER_CLOSED && peer->released && !held;
}

static void tick_all(struct fleet *fleet, int64_t now_ns)
{
    for (struct peer **at = &fleet->peers; *at != NULL;) {
        struct peer *peer = *at;
        if (peer->state == PEER_PAUSED && now_ns >= peer->again_ns)
            ask_opener(peer);
        if (peer->state == PEER_UP)
            peer->ops->tick(peer, now_ns);
        if (may_be_freed(peer)) {
            *at = peer->next;
            (void)drop_stream(peer);
            rpc_channel_free(peer->channel);
            peer->ops->release(peer);
            continue;
        }
        at = &peer->next;
    }
}

static bool asked_to_end(void)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    char byte;
    return poll(&in, 1, 0) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

static void read_authority(struct fleet *fleet)
{
    char key[LIMIT_PATH];
    size_t size = 0;
    const char *folder = fleet->options.tls;
    (void)snprintf(fleet->ca, sizeof(fleet->ca), "%s/ca.crt", folder);
    (void)snprintf(key, sizeof(key), "%s/ca.key", folder);
    CHECK(io_read_file(io_system(), fleet->ca, IDENTITY_FILE_BYTES, &fleet->authority.cert,
                       &size) == ST_OK);
    CHECK(io_read_file(io_system(), key, IDENTITY_FILE_BYTES, &fleet->authority.key, &size) ==
          ST_OK);
    fleet->strangers.ca = fleet->ca;
}

static void start(struct fleet *fleet, const struct fleet_options *options)
{
    fleet->options = *options;
    if (options->tls != NULL)
        read_authority(fleet);
    fleet->ready_end = &fleet->ready;
    fleet->open_last = &fleet->to_open;
    pthread_mutex_init(&fleet->mutex, NULL);
    clock_cond_init(&fleet->changed);
    pthread_cond_init(&fleet->work, NULL);
    (void)io_descriptors_raise();
    for (uint32_t i = 0; i < options->openers; i++)
        CHECK(pthread_create(&fleet->threads[i], NULL, opener_main, fleet) == 0);
    for (uint32_t i = 0; i < options->nodes; i++)
        agent_new(fleet, options->first + i);
}

int fleet_play(const struct fleet_options *options)
{
    struct fleet *fleet = calloc(1, sizeof(*fleet));
    CHECK(fleet != NULL);
    CHECK(options->openers <= sizeof(fleet->threads) / sizeof(fleet->threads[0]));
    start(fleet, options);
    int64_t next_ns = clock_mono_ns() + TICK_NS;
    for (int tick = 0; tick % 20 != 0 || !asked_to_end(); tick++) {
        for (int64_t now_ns = clock_mono_ns(); now_ns < next_ns; now_ns = clock_mono_ns())
            hear_all(fleet, take_ready(fleet, next_ns));
        tick_all(fleet, clock_mono_ns());
        next_ns = clock_mono_ns() + TICK_NS;
        (void)fflush(stdout);
    }
    (void)printf("{\"ev\":\"sum\",\"beats\":%llu,\"rows\":%llu,\"started\":%llu,\"losses\":%llu}\n",
                 (unsigned long long)fleet->beats, (unsigned long long)fleet->rows,
                 (unsigned long long)fleet->started, (unsigned long long)fleet->losses);
    (void)fflush(stdout);
    _exit(0); /* as processes that are killed do: no stream is ended with care */
}
