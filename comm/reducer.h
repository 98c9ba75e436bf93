/*
 * The reducer: the deterministic sum over lanes, with the same bits for every number of workers and
 * every spread of lanes over them (docs/invariants.md, "The exact step").
 *
 * What is summed are the lane vectors, element by element, in the order of a binary tree over the
 * lanes (common/tree_sum.h). Whoever adds, it is always these pairs that are added:
 *
 *     lane       0   1   2   3   4   5   6
 *                 \ /     \ /     \ /    |          V = 7: an absent leaf is skipped,
 *                  +       +       +     |          a node with one child is that child
 *                   \     /         \   /
 *                    - + -           - + -
 *                       \             /
 *                        ----- + -----
 *
 * Three workers A, B, C with 3, 2 and 2 lanes. A share is made of complete subtrees, one for each
 * power of two in its number of lanes; larger ones lie further left (reducer_order.h). A can add
 * 0 + 1. Lane 6 must wait for 4 + 5, which C has. What a worker can't add any further are its
 * *partial sums*, no more than there are powers of two:
 *
 *                A               B               C
 *     lanes      0 1 6           2 3             4 5
 *     partials   (0+1)  6        (2+3)           (4+5)
 *
 * A worker adds as a binary counter counts: lane after lane, and two neighbours that are siblings
 * become their parent at once. So a share of n lanes needs floor(log2 n) + 1 buffers.
 *
 * A lane vector is cut into *buckets*, a bucket into one *chunk* per worker, its *owner*. Phases of
 * a bucket:
 *
 *     1. local      each worker adds what it can of its own lanes: 0+1, 2+3, 4+5
 *     2. exchange   of every partial sum, chunk a goes to A, b to B, c to C
 *     3. tree       an owner adds its chunk of all partial sums: ((0+1)+(2+3))+((4+5)+6)
 *     4. gather     every worker gets every finished chunk
 *
 *          A                    B                    C
 *     (0+1) [a|b|c]        (2+3) [a|b|c]        (4+5) [a|b|c]
 *        6  [a|b|c]
 *            |                    |                    |         exchange
 *      four parts a         four parts b         four parts c
 *            |                    |                    |         tree
 *           [a]                  [b]                  [c]
 *            |                    |                    |         gather
 *        [a|b|c]              [a|b|c]              [a|b|c]
 *
 * Buckets may be *kept*: phase 4 is left out, and their sums stay with the owners. A worker that
 * updates only those parameters that it owns needs no more; reducer_gather then does phase 4 with
 * the parameters instead. Who owns what is the caller's to say.
 *
 * Of its last lane a worker hands over bucket by bucket: a bucket is reduced while the others are
 * still being computed. A step is
 *
 *     reducer_begin
 *     for each own lane:
 *         fill reducer_lane(s), of each section s
 *         not the last one:   reducer_lane_done(s)
 *         the last one:       reducer_bucket_done(b) as each bucket is complete, on all ranks in
 *                             the same order
 *     reducer_wait
 *     read reducer_sum(), of kept buckets reducer_own_chunk()
 *     for kept buckets: write the own chunks of what the sums are for, then reducer_gather
 *
 * On a device "fill" means: enqueue on the compute stream. Additions and communication of the last
 * lane run beside it, on the communicator's stream; reducer_wait returns when they are through.
 * With one rank it returns at once: the result is then the compute stream's like any other.
 *
 * Ranks may have but a part of the vector, its *extents*: those of one stage of a pipeline. Buffers
 * then have the addresses of all of it, so that an element is found where it always is, and memory
 * for the extents. Extents may be of several *sections*, which come to their lanes each for itself:
 * those of a stage that has several stretches of the model. Every section that there is goes
 * through all own lanes; buckets are handed over when all have come to the last one.
 *
 * Memory: all allocated at open: reducer_gradient_buffers() copies of the vector's extents, in one
 *         of which the result comes to lie, and with size > 1 a chunk of the largest bucket for
 *         each partial sum of the other ranks.
 * Thread: the step thread calls; one communication thread is owned by this object (size > 1).
 *         Between reducer_wait and the next reducer_bucket_done the communicator is free for the
 *         step thread's own use.
 * Errors: those of comm.h and of the backend. After one, reducer_disconnect or reducer_close is all
 *         that is left; the communicator has let go of the buffers by then.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "comm/reducer_watch.h"
#include "common/status.h"
#include "kernels/backend.h"

struct reducer;

/* Elements [first, first + count) of the vector. */
struct reducer_extent {
    size_t first, count;
    size_t section; /* below REDUCER_SECTIONS_MAX */
};
#define REDUCER_SECTIONS_MAX 2

struct reducer_options {
    const struct comm_table *table; /* borrowed for life, as is comm; NULL with size 1 */
    /* NULL with size > 1: memory and own lanes only; reducer_disconnect is what follows. */
    struct comm *comm;
    int rank, size;
    const uint32_t *shares; /* lanes per rank; copied */
    size_t count;           /* float32 elements of the vector */
    /* The extents of the vector that the communicator's ranks have, all the same: ascending, none
     * empty. Elsewhere the buffers have addresses and no memory. Copied. NULL: all of it. */
    const struct reducer_extent *extents;
    size_t extent_count;
    /* Begins of the buckets, ascending; copied. Buckets cover the extents: one ends where the next
     * begins, or with its extent. */
    const size_t *bucket_begin;
    size_t bucket_count;
    /* Owners of the elements: [bucket_count][size + 1] ascending borders of chunks, from each
     * bucket's begin to its end; a chunk may be empty. Copied. NULL: evenly, see reducer_chunk
     * (reducer_order.h). */
    const size_t *borders;
    /* Buckets [0, kept) stay with their owners: after reducer_wait each rank has the sum in its own
     * chunks only; elsewhere their contents are undefined. The other buckets are gathered. `fast`
     * ignores it. */
    size_t kept;
    int64_t timeout_ms; /* of one exchange; a bucket needs a few */
    struct reducer_watch watch;
    /* Sums each rank's lanes, then all-reduces, instead of the exact tree: the bits depend on how
     * lanes are spread over ranks. */
    bool fast;
    /* The device of the vectors; NULL or host memory: they are on the host. Borrowed for life. */
    const struct backend_table *device;
    struct backend *backend;
    struct stream *compute;
    struct stream *communication; /* the communicator's; not with size 1 */
};

/* ST_INVALID: shares, extents, buckets, borders. */
MUST_CHECK enum status reducer_open(const struct reducer_options *options, struct reducer **out);
/* Aborts the communicator if a step is under way. */
void reducer_close(struct reducer *reducer);

/*
 * Take the object from one generation to the next. disconnect ends the communication thread,
 * wherever it is, and lets go of the communicator, which was aborted already, or is if a step is
 * under way. Then only reconnect or close is left. reconnect is for another communicator with its
 * stream, rank, size, shares, extents, buckets, borders and kept; all else is as at reducer_open.
 *
 * Buffers of the vector stay where they are, so that what a device recorded with their addresses
 * can be played again. A share that needs more of them gets more, and one that needs fewer leaves
 * them allocated. The chunks of others may move. With other extents all is freed and allocated
 * anew: what was recorded, and what reducer_lane and reducer_sum had returned, is void.
 * Errors: ST_INVALID  what reducer_open refuses, another count, other lanes
 *         ST_DEVICE   the device had not let go of the buffers when it was disconnected
 *         ST_NO_MEMORY
 */
void reducer_disconnect(struct reducer *reducer);
MUST_CHECK enum status reducer_reconnect(struct reducer *reducer,
                                         const struct reducer_options *options);

void reducer_begin(struct reducer *reducer);
/* The buffer that the section's lane to compute next is to be written into; changes with every
 * lane. It holds what an earlier lane or step left there. Without sections: 0. */
float *reducer_lane(struct reducer *reducer, size_t section);
/* The section of the lane's buffer is complete (not for the last own lane, which is handed over by
 * bucket). */
MUST_CHECK enum status reducer_lane_done(struct reducer *reducer, size_t section);
/* Hands over a bucket of the last own lane, which is complete: each once per step. */
void reducer_bucket_done(struct reducer *reducer, size_t bucket);
/* Waits for all buckets; exposed_ns is the time that this call waited. */
MUST_CHECK enum status reducer_wait(struct reducer *reducer, int64_t *exposed_ns);
/* Returns the result, which the caller may change, until the next reducer_begin; after a successful
 * reducer_wait. Of kept buckets only the elements of reducer_own_chunk hold it. */
float *reducer_sum(const struct reducer *reducer);

/* Returns elements [*begin, *end) of the vector, this rank's chunk of the bucket. */
void reducer_own_chunk(const struct reducer *reducer, size_t bucket, size_t *begin, size_t *end);
/*
 * Buckets [0, buckets) of data, which lie in it as in the vector: every rank's chunks go to all.
 * All ranks call it alike, after reducer_wait and before the next reducer_bucket_done. data may end
 * with the last of these buckets, and is in the device's memory where the vector is.
 *
 * On the host data are complete on return. On a device it returns when all is enqueued: what the
 * compute stream has to do before is seen, and what it is given afterwards finds data complete,
 * unless a peer dies meanwhile. Whether none did is known when the communicator's wait or the next
 * reducer_wait has returned ST_OK; until then data are nothing to rely on. Gathering that a peer's
 * death holds up ends with the communicator's abort, which comes before reducer_disconnect then.
 */
MUST_CHECK enum status reducer_gather(struct reducer *reducer, float *data, size_t buckets);
