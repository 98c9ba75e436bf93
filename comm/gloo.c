/*
 * The table of comm.h over Gloo: rendezvous, tags (Gloo calls them slots), and all calls as
 * transfers that are posted, and waited for at once or by wait_one.
 *
 * Rendezvous. A rank listens at one port and brings its address to the round. It makes and proves
 * a connection with each rank that it is to be connected with (peers.h, in the generation's
 * numbers). Gloo gets the connections when all are there, in the members' numbers. A rank without
 * any, because it is alone in its group, has no mesh, and comes to the round for the others' sake
 * only. All addresses come before the first connection, so a rank that never comes is noticed while
 * waiting in the rendezvous, which can be ended early; connections then take milliseconds.
 *
 * Tags. Each collective has one, counted up on all ranks alike; messages between two ranks, sent or
 * posted, have tags of their own, counted per pair, direction and channel.
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
#include "comm/group.h"
#include "comm/peers.h"
#include "comm/posts.h"
#include "comm/sockets.h"
#include "comm/sum.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/unconst.h"

#define POINT_TO_POINT    (UINT64_C(1) << 62)
#define CHANNEL_SHIFT     48
#define FAREWELL          (UINT64_C(1) << 61)  /* tag: of no collective */
#define ALL_REDUCE_FLOATS ((size_t)256 * 1024) /* of one rank in one round */
#define FAREWELL_MS       2000
#define CONNECT_SHARE     4 /* of the time to open: for the connections, when all have met */

_Static_assert(PEERS_ADDRESS_MAX <= RENDEZVOUS_COMMON_MAX, "an address is for all");

/* Messages to a peer, and from it, so far. */
struct channels {
    uint64_t sent[COMM_CHANNELS_MAX], received[COMM_CHANNELS_MAX];
};

struct comm {
    struct gloo_mesh *mesh;    /* NULL without connections */
    int rank, size;            /* among the members */
    bool *connected;           /* [size] */
    uint64_t tag;              /* of the next collective */
    struct channels *channels; /* [size] */
    _Atomic uint64_t sent_bytes, received_bytes;
    struct gloo_transfer *transfers; /* [2 · size] of one collective */
    struct gloo_flight **flights;    /* [2 · size] the same, under way */
    struct comm_segment *segments;   /* [2 · size] of all_reduce and close */
    float *staging;                  /* [size - 1, ALL_REDUCE_FLOATS], made when first needed */
    struct posts posts;              /* of: its struct gloo_flight */
};

/* ---- rendezvous ---- */

/* peers: NULL: this rank is connected with nobody. */
static enum status join(const struct comm_options *options, struct peers *peers,
                        int64_t deadline_ms, struct rendezvous_got *got)
{
    const struct rendezvous *rendezvous = options->rendezvous;
    uint8_t address[PEERS_ADDRESS_MAX];
    struct rendezvous_part mine = { 0 };
    if (peers != NULL) {
        mine.common = address;
        mine.common_size = peers_address(peers, address);
    }
    const int64_t left_ms = deadline_ms - clock_mono_ms(clock_system());
    if (left_ms <= 0)
        return ST_TIMED_OUT;
    return rendezvous->join(rendezvous->self, options->round_name, &mine, options->size, left_ms,
                            got);
}

/* out: [options->size], as peers_connect gives them; untouched where nobody is wanted. */
static enum status connect_peers(const struct comm_options *options, const struct comm_group *group,
                                 int64_t begin_ms, int *out)
{
    bool wanted[LIMIT_RANKS] = { false };
    for (int m = 0; m < group->size; m++)
        wanted[group->members[m]] = group->connected[m];
    const struct peers_options how = { .rendezvous = options->rendezvous,
                                       .secret = options->secret,
                                       .purpose = options->round_name,
                                       .host = options->host,
                                       .rank = options->rank,
                                       .size = options->size,
                                       .wanted = wanted,
                                       .log = options->log };
    const int64_t connect_ms = options->timeout_ms / CONNECT_SHARE;
    auto_free struct rendezvous_got *got = calloc((size_t)options->size, sizeof(*got));
    struct peers *peers = NULL;
    enum status st = got == NULL ? ST_NO_MEMORY : ST_OK;
    if (st == ST_OK && group->connections > 0)
        st = peers_new(&how, &peers);
    if (st == ST_IO && sockets_were_taken())
        st = ST_FULL;
    if (st == ST_OK)
        st = join(options, peers, begin_ms + options->timeout_ms - connect_ms, got);
    if (st == ST_OK && peers != NULL)
        st = peers_connect(peers, got, clock_mono_ms(clock_system()) + connect_ms, out);
    peers_free(peers);
    return st;
}

static enum status form(struct comm *comm, const struct comm_options *options,
                        const struct comm_group *group)
{
    const int64_t begin_ms = clock_mono_ms(clock_system());
    const int64_t pair_ms = options->timeout_ms / CONNECT_SHARE;
    int connections[LIMIT_RANKS];
    for (int r = 0; r < options->size; r++)
        connections[r] = -1;
    enum status st = connect_peers(options, group, begin_ms, connections);
    if (st != ST_OK || group->connections == 0)
        return st;
    st = gloo_mesh_new(group->rank, group->size, group->members, options->host,
                       pair_ms < 1 ? 1 : pair_ms, &comm->mesh);
    for (int peer = 0; peer < group->size; peer++) {
        if (!group->connected[peer])
            continue;
        const int connection = connections[group->members[peer]];
        if (st == ST_OK)
            st = gloo_mesh_connect(comm->mesh, peer, connection);
        (void)close(connection);
    }
    return st == ST_OK ? gloo_mesh_start(comm->mesh) : st;
}

/* ---- open and close ---- */

static void gloo_release(struct comm *comm)
{
    gloo_mesh_close(comm->mesh);
    free(comm->connected);
    free(comm->channels);
    free(comm->transfers);
    free(comm->flights);
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

static struct comm *gloo_allocate(const struct comm_group *group)
{
    struct comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return NULL;
    const size_t size = (size_t)group->size;
    comm->rank = group->rank;
    comm->size = group->size;
    comm->connected = calloc(size, sizeof(*comm->connected));
    comm->channels = calloc(size, sizeof(*comm->channels));
    comm->transfers = calloc(2 * size, sizeof(*comm->transfers));
    comm->flights = calloc(2 * size, sizeof(struct gloo_flight *));
    comm->segments = calloc(2 * size, sizeof(*comm->segments));
    if (comm->connected == NULL || comm->channels == NULL || comm->transfers == NULL ||
        comm->flights == NULL || comm->segments == NULL) {
        gloo_release(comm);
        return NULL;
    }
    memcpy(comm->connected, group->connected, size * sizeof(*comm->connected));
    return comm;
}

static enum status gloo_open(const struct comm_options *options, struct comm **out)
{
    struct comm_group group;
    if (!comm_group_of(options, &group) || options->timeout_ms < 1 ||
        (options->size > 1 && (!is_numeric_host(options->host) || options->secret == NULL)))
        return ST_INVALID;
    struct comm *comm = gloo_allocate(&group);
    if (comm == NULL)
        return ST_NO_MEMORY;
    if (options->size > 1) {
        ignore_sigpipe();
        const enum status st = form(comm, options, &group);
        if (st != ST_OK) {
            gloo_release(comm);
            return st;
        }
    }
    *out = comm;
    return ST_OK;
}

/* ---- collectives ---- */

static bool is_connected(const struct comm *comm, int peer)
{
    return peer >= 0 && peer < comm->size && comm->connected[peer];
}

/* The one way in which bytes leave and come. */
static enum status begin(struct comm *comm, const struct gloo_transfer *transfer, uint64_t tag,
                         struct gloo_flight **out)
{
    _Atomic uint64_t *bytes = transfer->is_send ? &comm->sent_bytes : &comm->received_bytes;
    atomic_fetch_add_explicit(bytes, transfer->size, memory_order_relaxed);
    return gloo_mesh_post(comm->mesh, transfer, tag, out);
}

/* Looks for an error, so that a rank that has nothing to send notices an abort, too. */
static enum status look(struct comm *comm)
{
    return comm->mesh == NULL ? ST_OK : gloo_mesh_look(comm->mesh);
}

static enum status exchange(struct comm *comm, size_t count, uint64_t tag, int64_t timeout_ms)
{
    const int64_t deadline_ms = clock_mono_ms(clock_system()) + timeout_ms;
    enum status st = look(comm);
    for (size_t i = 0; i < count && st == ST_OK; i++)
        st = begin(comm, &comm->transfers[i], tag, &comm->flights[i]);
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        st = gloo_mesh_wait(comm->mesh, comm->flights[i],
                            deadline_ms - clock_mono_ms(clock_system()));
    }
    return st;
}

/* Receptions first: a message moves only when its reception is posted. */
static enum status all_to_all_v(struct comm *comm, const struct comm_segment *send,
                                const struct comm_segment *recv, uint64_t tag, int64_t timeout_ms)
{
    if (timeout_ms < 1)
        return ST_INVALID;
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
    for (size_t i = 0; i < count; i++) {
        if (!is_connected(comm, comm->transfers[i].peer))
            return ST_INVALID;
    }
    return exchange(comm, count, tag, timeout_ms);
}

static enum status gloo_all_to_all_v(struct comm *comm, const struct comm_segment *send,
                                     const struct comm_segment *recv, int64_t timeout_ms)
{
    return all_to_all_v(comm, send, recv, comm->tag++, timeout_ms);
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

static uint64_t next_message_tag(struct comm *comm, const struct gloo_transfer *transfer,
                                 uint32_t channel)
{
    struct channels *peer = &comm->channels[transfer->peer];
    uint64_t *counter = transfer->is_send ? peer->sent : peer->received;
    return POINT_TO_POINT | (uint64_t)channel << CHANNEL_SHIFT | counter[channel]++;
}

static enum status gloo_message(struct comm *comm, const struct gloo_transfer *transfer,
                                int64_t timeout_ms)
{
    if (!is_connected(comm, transfer->peer) || timeout_ms < 1)
        return ST_INVALID;
    if (transfer->size == 0)
        return ST_OK;
    comm->transfers[0] = *transfer;
    return exchange(comm, 1, next_message_tag(comm, transfer, 0), timeout_ms);
}

static enum status gloo_send_to(struct comm *comm, int peer, const void *data, size_t size,
                                int64_t timeout_ms)
{
    const struct gloo_transfer transfer = { unconst(data), size, peer, true }; /* only read */
    return gloo_message(comm, &transfer, timeout_ms);
}

static enum status gloo_recv_from(struct comm *comm, int peer, void *data, size_t size,
                                  int64_t timeout_ms)
{
    const struct gloo_transfer transfer = { data, size, peer, false };
    return gloo_message(comm, &transfer, timeout_ms);
}

/* ---- posts ---- */

static enum status gloo_post_begin(struct comm *comm)
{
    return posts_begin(&comm->posts);
}

static enum status gloo_post_end(struct comm *comm, int64_t timeout_ms)
{
    const enum status st = timeout_ms < 1 ? ST_INVALID : posts_end(&comm->posts);
    return st == ST_OK ? look(comm) : st;
}

static enum status gloo_post(struct comm *comm, const struct gloo_transfer *transfer,
                             uint32_t channel, struct comm_post *out)
{
    struct posts_place *place = NULL;
    struct comm_post name;
    struct gloo_flight *flight = NULL;
    if (!is_connected(comm, transfer->peer) || transfer->size == 0 || channel >= COMM_CHANNELS_MAX)
        return ST_INVALID;
    enum status st = posts_take(&comm->posts, &place, &name);
    if (st != ST_OK)
        return st;
    st = begin(comm, transfer, next_message_tag(comm, transfer, channel), &flight);
    if (st != ST_OK) {
        posts_drop(&comm->posts, place);
        return st;
    }
    place->of = flight;
    *out = name;
    return ST_OK;
}

static enum status gloo_post_send(struct comm *comm, int peer, uint32_t channel, const void *data,
                                  size_t size, struct comm_post *out)
{
    const struct gloo_transfer transfer = { unconst(data), size, peer, true }; /* only read */
    return gloo_post(comm, &transfer, channel, out);
}

static enum status gloo_post_recv(struct comm *comm, int peer, uint32_t channel, void *data,
                                  size_t size, struct comm_post *out)
{
    const struct gloo_transfer transfer = { data, size, peer, false };
    return gloo_post(comm, &transfer, channel, out);
}

/* Waits for a post. After an error the post stays, so that the same error is returned again. */
static enum status gloo_wait_one(struct comm *comm, const struct comm_post *post,
                                 int64_t timeout_ms)
{
    struct posts_place *place = posts_find(&comm->posts, post);
    if (place == NULL || timeout_ms < 1)
        return ST_INVALID;
    const enum status st = gloo_mesh_wait(comm->mesh, place->of, timeout_ms);
    if (st == ST_OK)
        posts_drop(&comm->posts, place);
    return st;
}

/* Does one round: the block has at most size · ALL_REDUCE_FLOATS elements. */
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
 * collective: so all say farewell first. A rank that has heard all of them goes, which may cut off
 * the farewells of others, but no more than that. It is no part of a collective that this rank
 * doesn't come to: ranks that wait there see a death. After an error this returns at once.
 */
static void say_farewell(struct comm *comm)
{
    uint8_t bytes[LIMIT_RANKS] = { 0 }, own = 1;
    struct comm_segment *send = comm->segments, *recv = comm->segments + comm->size;
    for (int r = 0; r < comm->size; r++) {
        send[r] = (struct comm_segment){ &own, comm->connected[r] };
        recv[r] = (struct comm_segment){ bytes + r, comm->connected[r] };
    }
    (void)all_to_all_v(comm, send, recv, FAREWELL, FAREWELL_MS);
}

static void gloo_close(struct comm *comm)
{
    if (comm == NULL)
        return;
    if (comm->mesh != NULL && comm->posts.count > 0)
        gloo_mesh_abort(comm->mesh); /* nobody knows whether the others come to those */
    if (comm->mesh != NULL)
        say_farewell(comm);
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
        .post_begin = gloo_post_begin,
        .post_send = gloo_post_send,
        .post_recv = gloo_post_recv,
        .post_end = gloo_post_end,
        .wait_one = gloo_wait_one,
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
