/*
 * The table of comm.h over Gloo: rendezvous, tags (Gloo calls them slots), and the collectives as
 * lists of transfers.
 *
 * Rendezvous. A rank listens at one port, brings its address to the meeting, and makes and proves a
 * connection with each of the others (peers.h); Gloo gets them when all are there. All addresses
 * come before the first connection, so a rank that never comes is noticed while waiting in the
 * rendezvous, which can be ended early; connections then take milliseconds.
 *
 * Tags. Each collective has one, counted up on all ranks alike; point-to-point messages have tags
 * of their own, counted per pair and direction.
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/gloo_shim.h"
#include "comm/peers.h"
#include "comm/sockets.h"
#include "comm/sum.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/unconst.h"

#define POINT_TO_POINT    (UINT64_C(1) << 62)
#define ALL_REDUCE_FLOATS ((size_t)256 * 1024) /* of one rank in one round */
#define FAREWELL_MS       2000
#define CONNECT_SHARE     4 /* of the time to open: for the connections, when all have met */

_Static_assert(PEERS_ADDRESS_MAX <= RENDEZVOUS_COMMON_MAX, "an address is for all");

struct comm {
    struct gloo_mesh *mesh; /* NULL with size 1 */
    int rank, size;
    uint64_t tag;              /* of the next collective */
    uint64_t *sent, *received; /* [size] point-to-point messages so far */
    _Atomic uint64_t sent_bytes, received_bytes;
    struct gloo_transfer *transfers; /* [2 · size] */
    struct comm_segment *segments;   /* [2 · size] of all_reduce */
    float *staging;                  /* [size - 1, ALL_REDUCE_FLOATS], made when first needed */
};

/* ---- rendezvous ---- */

/* ports: one for each rank, on the whole. */
static enum status meet(const struct comm_options *options, struct peers *peers,
                        int64_t deadline_ms, struct rendezvous_got *got)
{
    const struct rendezvous *rendezvous = options->rendezvous;
    uint8_t address[PEERS_ADDRESS_MAX];
    const struct rendezvous_part mine = { .common = address,
                                          .common_size = peers_address(peers, address) };
    const int64_t left_ms = deadline_ms - clock_mono_ms(clock_system());
    if (left_ms <= 0)
        return ST_TIMED_OUT;
    return rendezvous->meet(rendezvous->self, options->meeting, &mine, options->size, left_ms, got);
}

/* out: [size] */
static enum status connect_peers(const struct comm_options *options, int64_t begin_ms, int *out)
{
    const struct peers_options how = { .rendezvous = options->rendezvous,
                                       .secret = options->secret,
                                       .purpose = options->meeting,
                                       .host = options->host,
                                       .rank = options->rank,
                                       .size = options->size,
                                       .log = options->log };
    const int64_t connect_ms = options->timeout_ms / CONNECT_SHARE;
    auto_free struct rendezvous_got *got = calloc((size_t)options->size, sizeof(*got));
    struct peers *peers = NULL;
    enum status st = got == NULL ? ST_NO_MEMORY : peers_new(&how, &peers);
    if (st == ST_IO && sockets_were_taken())
        st = ST_FULL;
    if (st == ST_OK)
        st = meet(options, peers, begin_ms + options->timeout_ms - connect_ms, got);
    if (st == ST_OK)
        st = peers_connect(peers, got, clock_mono_ms(clock_system()) + connect_ms, out);
    peers_free(peers);
    return st;
}

static enum status form(struct comm *comm, const struct comm_options *options)
{
    const int64_t begin_ms = clock_mono_ms(clock_system());
    const int64_t pair_ms = options->timeout_ms / CONNECT_SHARE;
    int connections[LIMIT_RANKS];
    enum status st = connect_peers(options, begin_ms, connections);
    if (st != ST_OK)
        return st;
    st = gloo_mesh_new(comm->rank, comm->size, options->host, pair_ms < 1 ? 1 : pair_ms,
                       &comm->mesh);
    for (int peer = 0; peer < comm->size; peer++) {
        if (st == ST_OK && peer != comm->rank)
            st = gloo_mesh_connect(comm->mesh, peer, connections[peer]);
        if (peer != comm->rank)
            (void)close(connections[peer]);
    }
    return st == ST_OK ? gloo_mesh_start(comm->mesh) : st;
}

/* ---- open and close ---- */

static void gloo_release(struct comm *comm)
{
    gloo_mesh_close(comm->mesh);
    free(comm->sent);
    free(comm->received);
    free(comm->transfers);
    free(comm->segments);
    free(comm->staging);
    free(comm);
}

static bool is_numeric_host(const char *host)
{
    uint8_t address[16];
    return host != NULL &&
           (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1);
}

/* Gloo writes to sockets whose peer may be gone; the default action would end the process. */
static void ignore_sigpipe(void)
{
    struct sigaction old;
    if (sigaction(SIGPIPE, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
        (void)signal(SIGPIPE, SIG_IGN);
}

static struct comm *gloo_allocate(int rank, int size)
{
    struct comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return NULL;
    comm->rank = rank;
    comm->size = size;
    comm->sent = calloc((size_t)size, sizeof(*comm->sent));
    comm->received = calloc((size_t)size, sizeof(*comm->received));
    comm->transfers = calloc(2 * (size_t)size, sizeof(*comm->transfers));
    comm->segments = calloc(2 * (size_t)size, sizeof(*comm->segments));
    if (comm->sent == NULL || comm->received == NULL || comm->transfers == NULL ||
        comm->segments == NULL) {
        gloo_release(comm);
        return NULL;
    }
    return comm;
}

static enum status gloo_open(const struct comm_options *options, struct comm **out)
{
    const int rank = options->rank, size = options->size;
    if (size < 1 || size > LIMIT_RANKS || rank < 0 || rank >= size || options->timeout_ms < 1 ||
        (size > 1 && (!is_numeric_host(options->host) || options->secret == NULL)))
        return ST_INVALID;
    struct comm *comm = gloo_allocate(rank, size);
    if (comm == NULL)
        return ST_NO_MEMORY;
    if (size > 1) {
        ignore_sigpipe();
        const enum status st = form(comm, options);
        if (st != ST_OK) {
            gloo_release(comm);
            return st;
        }
    }
    *out = comm;
    return ST_OK;
}

/* ---- collectives ---- */

static enum status exchange(struct comm *comm, const struct gloo_transfer *transfers, size_t count,
                            uint64_t tag, int64_t timeout_ms)
{
    uint64_t bytes[2] = { 0, 0 };
    for (size_t i = 0; i < count; i++)
        bytes[transfers[i].is_send] += transfers[i].size;
    atomic_fetch_add_explicit(&comm->received_bytes, bytes[false], memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->sent_bytes, bytes[true], memory_order_relaxed);
    return gloo_mesh_exchange(comm->mesh, transfers, count, tag, timeout_ms);
}

/* Receptions first: a message moves only when its reception is posted. */
static enum status gloo_all_to_all_v(struct comm *comm, const struct comm_segment *send,
                                     const struct comm_segment *recv, int64_t timeout_ms)
{
    if (timeout_ms < 1)
        return ST_INVALID;
    const uint64_t tag = comm->tag++;
    size_t count = 0;
    for (int k = 1; k < comm->size; k++) {
        const int peer = (comm->rank - k + comm->size) % comm->size;
        if (recv[peer].size > 0) {
            comm->transfers[count++] =
                (struct gloo_transfer){ recv[peer].data, recv[peer].size, peer, false };
        }
    }
    for (int k = 1; k < comm->size; k++) {
        const int peer = (comm->rank + k) % comm->size;
        if (send[peer].size > 0) {
            comm->transfers[count++] =
                (struct gloo_transfer){ send[peer].data, send[peer].size, peer, true };
        }
    }
    if (comm->size == 1)
        return ST_OK;
    return exchange(comm, comm->transfers, count, tag, timeout_ms);
}

/* Everybody sends its own segment to everybody. */
static enum status gloo_all_gather_v(struct comm *comm, const struct comm_segment *segments,
                                     int64_t timeout_ms)
{
    struct comm_segment send[LIMIT_RANKS];
    for (int r = 0; r < comm->size; r++)
        send[r] = segments[comm->rank];
    return gloo_all_to_all_v(comm, send, segments, timeout_ms);
}

static enum status point_to_point(struct comm *comm, struct gloo_transfer transfer,
                                  uint64_t *counter, int64_t timeout_ms)
{
    if (timeout_ms < 1)
        return ST_INVALID;
    if (transfer.size == 0)
        return ST_OK;
    const uint64_t tag = POINT_TO_POINT | (*counter)++;
    return exchange(comm, &transfer, 1, tag, timeout_ms);
}

static bool gloo_is_peer(const struct comm *comm, int peer)
{
    return peer >= 0 && peer < comm->size && peer != comm->rank;
}

static enum status gloo_send_to(struct comm *comm, int peer, const void *data, size_t size,
                                int64_t timeout_ms)
{
    if (!gloo_is_peer(comm, peer))
        return ST_INVALID;
    const struct gloo_transfer transfer = { unconst(data), size, peer, true }; /* only read */
    return point_to_point(comm, transfer, &comm->sent[peer], timeout_ms);
}

static enum status gloo_recv_from(struct comm *comm, int peer, void *data, size_t size,
                                  int64_t timeout_ms)
{
    if (!gloo_is_peer(comm, peer))
        return ST_INVALID;
    const struct gloo_transfer transfer = { data, size, peer, false };
    return point_to_point(comm, transfer, &comm->received[peer], timeout_ms);
}

/* One round: block has at most size · ALL_REDUCE_FLOATS elements. */
static enum status all_reduce_block(struct comm *comm, float *data, size_t count,
                                    int64_t timeout_ms)
{
    struct comm_segment *send = comm->segments, *recv = comm->segments + comm->size;
    const size_t size = (size_t)comm->size, rank = (size_t)comm->rank;
    const size_t own_begin = count * rank / size, own = count * (rank + 1) / size - own_begin;
    for (size_t r = 0; r < size; r++) {
        const size_t begin = count * r / size, end = count * (r + 1) / size;
        send[r] = (struct comm_segment){ data + begin, (end - begin) * sizeof(float) };
        if (r != rank) {
            recv[r] =
                (struct comm_segment){ comm->staging + (r < rank ? r : r - 1) * ALL_REDUCE_FLOATS,
                                       own * sizeof(float) };
        }
    }
    enum status st = gloo_all_to_all_v(comm, send, recv, timeout_ms);
    if (st != ST_OK)
        return st;
    for (size_t r = 0; r < size; r++) {
        if (r != rank)
            sum_f32(data + own_begin, data + own_begin, recv[r].data, own);
    }
    return gloo_all_gather_v(comm, send, timeout_ms);
}

static enum status gloo_all_reduce_f32(struct comm *comm, float *data, size_t count,
                                       int64_t timeout_ms)
{
    const size_t size = (size_t)comm->size;
    if (size == 1)
        return ST_OK;
    if (comm->staging == NULL)
        comm->staging = malloc((size - 1) * ALL_REDUCE_FLOATS * sizeof(float));
    if (comm->staging == NULL)
        return ST_NO_MEMORY;
    const size_t round = size * ALL_REDUCE_FLOATS;
    for (size_t at = 0; at < count; at += round) {
        const size_t left = count - at;
        enum status st = all_reduce_block(comm, data + at, left < round ? left : round, timeout_ms);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/*
 * A connection that ends looks to the others like a death, and they may still be in the last
 * collective: so all say farewell first. Whoever has heard all of them goes, which may cut off the
 * farewells of others, but no more than that. After an error this returns at once.
 */
static void gloo_close(struct comm *comm)
{
    if (comm == NULL)
        return;
    uint8_t bytes[LIMIT_RANKS];
    for (int r = 0; comm->mesh != NULL && r < comm->size; r++)
        comm->segments[r] = (struct comm_segment){ bytes + r, 1 };
    bytes[comm->rank] = 1;
    if (comm->mesh != NULL)
        (void)gloo_all_gather_v(comm, comm->segments, FAREWELL_MS);
    gloo_release(comm);
}

/* Every call has returned with its work done. */
static enum status gloo_wait(struct comm *comm, int64_t timeout_ms)
{
    (void)comm;
    (void)timeout_ms;
    return ST_OK;
}

static int gloo_blamed(const struct comm *comm)
{
    return comm->mesh == NULL ? -1 : gloo_mesh_blamed(comm->mesh);
}

static const char *gloo_why(const struct comm *comm)
{
    return comm->mesh == NULL ? "" : gloo_mesh_why(comm->mesh);
}

static void gloo_traffic(const struct comm *comm, struct comm_traffic *out)
{
    out->sent_bytes = atomic_load_explicit(&comm->sent_bytes, memory_order_relaxed);
    out->received_bytes = atomic_load_explicit(&comm->received_bytes, memory_order_relaxed);
}

static void gloo_abort(struct comm *comm)
{
    if (comm->mesh != NULL)
        gloo_mesh_abort(comm->mesh);
}

const struct comm_table *comm_gloo(void)
{
    static const struct comm_table table = {
        .name = "gloo",
        .open = gloo_open,
        .all_to_all_v = gloo_all_to_all_v,
        .all_gather_v = gloo_all_gather_v,
        .send = gloo_send_to,
        .recv = gloo_recv_from,
        .all_reduce_f32 = gloo_all_reduce_f32,
        .wait = gloo_wait,
        .blamed = gloo_blamed,
        .why = gloo_why,
        .traffic = gloo_traffic,
        .abort = gloo_abort,
        .close = gloo_close,
    };
    return &table;
}
