/*
 * Collectives between the ranks of one generation: a table with two implementations, gloo and nccl.
 *
 * Buffers are plain memory: the host's for gloo, the device's for nccl. A call of gloo is complete
 * when it returns. One of nccl enqueues on the communicator's stream, in order with what else is
 * enqueued there, and its buffers belong to it until a wait that comes after it has returned.
 *
 * Every call carries a deadline; a call that fails, or whose generation was aborted, leaves the
 * communicator useless: close it, form anew. Then, too, no buffer is read or written any more.
 *
 * Buffers are best at stable addresses: gloo keeps a handle for each (address, size, peer) it has
 * seen.
 *
 * open is ended early by its rendezvous: where that is stale, open ends with ST_STALE.
 *
 * Process: open of gloo sets SIGPIPE to ignored where it has its default action. open of nccl puts
 *          its settings into the environment, before the first call of NCCL of the process only.
 * Thread: one thread communicates; abort may be called from any thread, at any time, and frees the
 *         one that waits at once.
 * Errors: ST_PEER       a peer closed, died, or the deadline passed (blamed: the peer's rank or -1)
 *         ST_STALE      aborted
 *         ST_TIMED_OUT  open only: a rank did not come
 *         ST_FULL       open only: no port of the node's range is free (comm/sockets.h)
 *         ST_INVALID    rank, size, counts, no secret
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

/* What only nccl needs. Borrowed for the communicator's life. */
struct comm_device {
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;       /* all calls are enqueued here */
    const char *const *settings; /* "NCCL_SOCKET_IFNAME=eth0", … */
    size_t setting_count;
    int blocks_max;     /* of the device that a collective may keep busy; 0: NCCL's own choice */
    bool device_shared; /* other ranks may use this very device: tests */
};

struct comm_options {
    const struct rendezvous *rendezvous; /* borrowed until open returns */
    const char *meeting;                 /* its name: of this communicator in its generation */
    int rank, size;
    const char *host;      /* address to bind, numeric, e.g. "127.0.0.1"; nccl finds its own */
    const char *secret;    /* the generation's: gloo lets in who proves that he knows it */
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

struct comm_table {
    const char *name; /* "gloo", "nccl" */
    bool on_stream;   /* buffers are device memory and calls are only enqueued */
    enum status (*open)(const struct comm_options *options, struct comm **out);
    /* send[r] goes to rank r, recv[r] comes from it; own segments are not touched. */
    enum status (*all_to_all_v)(struct comm *comm, const struct comm_segment *send,
                                const struct comm_segment *recv, int64_t timeout_ms);
    /* Every rank's segments[rank] ends up in segments[r] of all. */
    enum status (*all_gather_v)(struct comm *comm, const struct comm_segment *segments,
                                int64_t timeout_ms);
    enum status (*send)(struct comm *comm, int peer, const void *data, size_t size,
                        int64_t timeout_ms);
    enum status (*recv)(struct comm *comm, int peer, void *data, size_t size, int64_t timeout_ms);
    /* Fast sum, not exact over sizes: for `reduction: fast` and benches. */
    enum status (*all_reduce_f32)(struct comm *comm, float *data, size_t count, int64_t timeout_ms);
    /* Everything that was enqueued on the stream before is done. gloo: nothing to wait for. */
    enum status (*wait)(struct comm *comm, int64_t timeout_ms);
    int (*blamed)(const struct comm *comm);      /* after ST_PEER: a rank, or -1 */
    const char *(*why)(const struct comm *comm); /* after an error: one line, never NULL */
    /* Since open; what failed counts as well. Any thread. NULL: it isn't counted. */
    void (*traffic)(const struct comm *comm, struct comm_traffic *out);
    void (*abort)(struct comm *comm);
    /* All ranks close after the same calls; waits 2 s at most for the others to do so, unless an
     * error came before. NULL is fine. */
    void (*close)(struct comm *comm);
};

const struct comm_table *comm_gloo(void);
