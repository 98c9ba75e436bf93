/*
 * The exact reduction: the sum over lanes in the order of the binary tree over the next power of
 * two
 * >= V, the same bits for every number of workers and every spread of lanes (design 5).
 *
 * A worker holds lanes [first, first + count). It pre-sums complete subtrees only (a binary counter
 * of partial sums), sends each chunk's partials to the chunk's owner, who adds them up the tree;
 * then the finished chunks are gathered. Absent leaves are skipped, a node with one child is that
 * child.
 *
 * The vector of a lane is cut into buckets (borders at multiples of PIECE_ELEMENTS from its start);
 * a bucket can be reduced while later ones (lower addresses) are still being computed: for the last
 * lane, exact_ready(bucket) hands it to the communication thread.
 *
 * Use, per step:  exact_begin → for each own lane but the last: fill exact_lane(),
 * exact_lane_done() → last lane: fill exact_lane(), exact_ready(b) as each bucket is complete, in
 * one fixed order on all ranks → exact_wait → read exact_sum().
 *
 * On a device "fill" means: enqueue on the compute stream. Additions and communication of the last
 * lane run beside it, on the communicator's stream; exact_wait returns when they are through, with
 * one rank at once: the result is then the compute stream's like any other.
 *
 * Memory: all allocated at open: exact_gradient_buffers() copies of the vector, in one of which the
 *         result comes to lie, and with size > 1 a chunk of the largest bucket for each partial sum
 *         of the other ranks.
 * Thread: the step thread calls; one communication thread is owned by this object (size > 1).
 *         Between exact_wait and the next exact_ready the communicator is free for the step
 *         thread's own use.
 * Errors: those of comm.h and of the backend. After one, exact_close is all that is left; the
 *         communicator has let go of the buffers by then.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/status.h"
#include "kernels/backend.h"

struct exact;

struct exact_options {
    const struct comm_table *table; /* borrowed for life, as is comm; NULL with size 1 */
    struct comm *comm;
    int rank, size;
    const uint32_t *shares;     /* lanes per rank; copied */
    size_t count;               /* float32 elements of the vector */
    const size_t *bucket_begin; /* ascending, first 0; copied */
    size_t bucket_count;
    int64_t timeout_ms; /* per exchange, a few of which a bucket needs */
    /* Each rank's lanes are summed, then all-reduced: the bits differ with the spread of lanes. */
    bool fast;
    /* Where the vectors lie; NULL or host memory: on the host. Borrowed for life. */
    const struct backend_table *device;
    struct backend *backend;
    struct stream *compute;
    struct stream *communication; /* the communicator's; not with size 1 */
};

/* ST_INVALID: shares, buckets. */
MUST_CHECK enum status exact_open(const struct exact_options *options, struct exact **out);
/* Aborts the communicator if a step is under way. */
void exact_close(struct exact *exact);

/* Copies of the vector that a share of lanes [first, first + n) needs: 2·floor(log2 n) + 1 at most.
 */
int exact_gradient_buffers(uint32_t first, uint32_t n, uint32_t lanes);

void exact_begin(struct exact *exact);
/* The buffer that the lane to compute next is to be written into; changes with every lane. It holds
 * what an earlier lane or step left there. */
float *exact_lane(struct exact *exact);
/* The lane's buffer is complete (not for the last own lane, which is handed over by bucket). */
MUST_CHECK enum status exact_lane_done(struct exact *exact);
/* Bucket of the last own lane is complete: each once per step. */
void exact_ready(struct exact *exact, size_t bucket);
/* Waits for all buckets; exposed_ns is the time that this call waited. */
MUST_CHECK enum status exact_wait(struct exact *exact, int64_t *exposed_ns);
/* The result, valid until the next exact_begin; after a successful exact_wait. */
const float *exact_sum(const struct exact *exact);
