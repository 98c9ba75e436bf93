/*
 * Collectives between the ranks of one generation: a table with two implementations, gloo and nccl.
 *
 * Buffers are plain memory (host for gloo). Every call carries a deadline; a call that fails, or
 * whose generation was aborted, leaves the communicator useless: close it, form anew. When a call
 * has returned, its buffers are no longer read or written, whatever it returned.
 *
 * Buffers are best at stable addresses: gloo keeps a handle for each (address, size, peer) it has
 * seen.
 *
 * open is ended early by its kv: a map that answers ST_STALE ends it with ST_STALE.
 *
 * Process: open of gloo sets SIGPIPE to ignored where it has its default action.
 * Thread: one thread communicates; abort may be called from any thread, at any time, and frees the
 * one that waits at once. Errors: ST_PEER       a peer closed, died, or the deadline passed
 * (blamed: the peer's rank or -1) ST_STALE      aborted ST_TIMED_OUT  open only: a rank did not
 * come ST_INVALID    rank, size, counts
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/kv.h"
#include "common/status.h"

struct comm;

struct comm_options {
    const struct kv *kv; /* borrowed until open returns */
    uint64_t generation;
    int rank, size;
    const char *host;   /* address to bind, numeric, e.g. "127.0.0.1" */
    int64_t timeout_ms; /* of open as a whole */
};

struct comm_segment {
    void *data;
    size_t size; /* bytes; 0: nothing to or from this rank */
};

struct comm_table {
    const char *name;
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
    int (*blamed)(const struct comm *comm);      /* after ST_PEER: a rank, or -1 */
    const char *(*why)(const struct comm *comm); /* after an error: one line, never NULL */
    void (*abort)(struct comm *comm);
    /* All ranks close after the same calls; waits 2 s at most for the others to do so, unless an
     * error came before. NULL is fine. */
    void (*close)(struct comm *comm);
};

const struct comm_table *comm_gloo(void);
