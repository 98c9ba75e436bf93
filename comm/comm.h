/*
 * Collectives and messages between ranks of one generation: a table with two implementations, gloo
 * and nccl.
 *
 * Members. A communicator is of all ranks of the generation, or of some: its members. In its calls
 * a rank is a member's place among them, from 0; blamed and why name ranks of the generation.
 *
 * Buffers are plain memory: the host's for gloo, the device's for nccl. A call of gloo is complete
 * when it returns. A call of nccl enqueues on the communicator's stream, in order with what else is
 * enqueued there. Its buffers belong to it until a later wait has returned.
 *
 * Posts are messages that are started by one call and waited for by another, in any order; several
 * may be under way:
 *
 *     post_begin(comm); post_recv(comm, …, &in); post_send(comm, …, &out); post_end(comm, ms);
 *     …
 *     wait_one(comm, &out, ms); wait_one(comm, &in, ms);
 *
 * What stands between post_begin and post_end is a bundle: begun together, in no order, so that
 * ranks that send to each other in one don't wait for each other. A post's buffer belongs to it
 * until its wait_one has returned, and is in no other post meanwhile. Messages to one peer in one
 * channel arrive there in the order in which they were begun, and it has to ask for them in that
 * order; send and recv are in channel 0. On gloo channels know nothing of each other. On nccl all
 * messages to a peer are in one order, whatever their channels.
 *
 * On gloo a post begins at once, and whether the peer has asked for it yet doesn't matter: so all
 * receptions of a step may be posted first. On nccl a bundle is one group, begun by post_end, and
 * bundles follow one another on the stream: one that the peer doesn't come to holds up the next. So
 * there all that a rank exchanges between two computations has to be one bundle.
 *
 * Every call carries a deadline; a call that fails, or whose generation was aborted, leaves the
 * communicator useless: close it, form anew. Then, too, no buffer is read or written any more, of
 * posts neither. After an abort that holds once the next call, or close, has returned.
 *
 * Buffers are best at stable addresses: gloo keeps a handle for each (address, size, peer) it has
 * seen.
 *
 * open is ended early by its rendezvous: where that is stale, open ends with ST_STALE.
 *
 * Process: open of gloo sets SIGPIPE to ignored where it has its default action. open of nccl puts
 *          its settings into the environment, before the first call of NCCL of the process only.
 * Thread: one thread communicates, each communicator's own; abort may be called from any thread, at
 *         any time, and frees the one that waits at once. With nccl, one that fails or is aborted
 *         ends all of the same backend, the same way: NCCL can't end one while another hangs.
 * Errors: ST_PEER       a peer closed, died, or the deadline passed (blamed: the peer's rank in the
 *                       generation, or -1)
 *         ST_STALE      aborted
 *         ST_TIMED_OUT  open only: a rank did not come
 *         ST_FULL       open: no port of the node's range is free (comm/sockets.h)
 *                       a post: COMM_POSTS_MAX are not waited for
 *         ST_INVALID    rank, size, counts, members, no secret, no such post, a peer that this rank
 *                       has no connection with
 *         ST_DEVICE     nccl: the device is lost
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/rendezvous.h"
#include "common/status.h"
#include "kernels/backend.h"

struct comm;
struct log;

/* Settings that only nccl needs. Borrowed for the communicator's life. */
struct comm_device {
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream; /* all calls are enqueued here */
    /* The stream on which the communicating thread writes and reads buffers of posts. Each bundle
     * comes after what was enqueued here before its post_end. What is enqueued here after wait_one
     * comes after the post. NULL: their order is that of `stream` alone. */
    struct stream *compute;
    const char *const *settings; /* "NCCL_SOCKET_IFNAME=eth0", … */
    size_t setting_count;
    int blocks_max;     /* of the device that a collective may keep busy; 0: NCCL's own choice */
    bool device_shared; /* other ranks may use this very device: tests */
};

struct comm_options {
    const struct rendezvous *rendezvous; /* borrowed until open returns */
    const char *round_name;              /* name of this communicator's round in its generation */
    int rank, size;                      /* in the generation: all its ranks come to the round */
    /* The communicator's ranks, ascending, this one among them. One round serves several groups:
     * every rank is in one, if only with itself. NULL: all. Borrowed until open returns, as is
     * `connected`. */
    const int *members;
    int member_count;
    /* [member_count] the members with which this rank exchanges messages, alike on both sides; with
     * the others there is no connection. NULL: all. nccl connects when a call needs it. */
    const bool *connected;
    const char *host;      /* address to bind, numeric, e.g. "127.0.0.1"; nccl finds its own */
    const char *secret;    /* the generation's: gloo lets in ranks that prove they know it */
    int64_t timeout_ms;    /* of open as a whole */
    const struct log *log; /* gloo: what it refuses, and why open failed; NULL: nobody is told */
    struct comm_device device;
};

/* Bytes of buffers that went to other ranks, and came from them. */
struct comm_traffic {
    uint64_t sent_bytes, received_bytes;
};

struct comm_segment {
    void *data;
    size_t size; /* bytes; 0: nothing to or from this rank */
};

/*
 * Posts of one communicator that are not waited for: GPipe with 1024 micro-batches, all of whose
 * values are sent before the first gradients come, and what else is under way then (trainer/stage).
 */
#define COMM_POSTS_MAX 1280

/* Channels to one peer: two for each border of a pipeline with two chunks in LIMIT_STAGES. */
#define COMM_CHANNELS_MAX 256

/* Names a post until it was waited for; of zeros: none. */
struct comm_post {
    uint32_t place, number;
};

struct comm_table {
    const char *name; /* "gloo", "nccl" */
    bool on_stream;   /* buffers are device memory and calls are only enqueued */
    enum status (*open)(const struct comm_options *options, struct comm **out);
    /* send[r] goes to rank r, recv[r] comes from it; own segments are not touched. */
    enum status (*all_to_all_v)(struct comm *comm, const struct comm_segment *send,
                                const struct comm_segment *recv, int64_t timeout_ms);
    /* Sends every rank r's segments[r] to segments[r] of all other ranks. */
    enum status (*all_gather_v)(struct comm *comm, const struct comm_segment *segments,
                                int64_t timeout_ms);
    enum status (*send)(struct comm *comm, int peer, const void *data, size_t size,
                        int64_t timeout_ms);
    enum status (*recv)(struct comm *comm, int peer, void *data, size_t size, int64_t timeout_ms);
    /* Posts, as above. size >= 1, channel < COMM_CHANNELS_MAX. */
    enum status (*post_begin)(struct comm *comm);
    enum status (*post_send)(struct comm *comm, int peer, uint32_t channel, const void *data,
                             size_t size, struct comm_post *out);
    enum status (*post_recv)(struct comm *comm, int peer, uint32_t channel, void *data, size_t size,
                             struct comm_post *out);
    /* nccl: returns when the bundle is enqueued, for which a first message to a peer waits for
     * that peer. */
    enum status (*post_end)(struct comm *comm, int64_t timeout_ms);
    /* Waits for a post of a bundle that was ended. gloo waits until its transfer is complete. nccl
     * doesn't wait for the device, but keeps the order that comm_device.compute asks for. There, a
     * dead peer may be noticed only by `wait`, or by a later call. */
    enum status (*wait_one)(struct comm *comm, const struct comm_post *post, int64_t timeout_ms);
    /* Fast sum, not exact over sizes: for `reduction: fast` and benches. */
    enum status (*all_reduce_f32)(struct comm *comm, float *data, size_t count, int64_t timeout_ms);
    /* Waits until everything enqueued on the stream before is done. gloo: nothing to wait for. */
    enum status (*wait)(struct comm *comm, int64_t timeout_ms);
    int (*blamed)(const struct comm *comm);      /* after ST_PEER: the generation's rank, or -1 */
    const char *(*why)(const struct comm *comm); /* after an error: one line, never NULL */
    /* Counts bytes since open, failed calls included. Any thread. NULL: they aren't counted. */
    void (*traffic)(const struct comm *comm, struct comm_traffic *out);
    void (*abort)(struct comm *comm);
    /* Closes the communicator; all members do so after the same calls. Waits 2 s at most for the
     * others, but aborts if an error came before or a post wasn't waited for. NULL is fine. */
    void (*close)(struct comm *comm);
};

const struct comm_table *comm_gloo(void);
