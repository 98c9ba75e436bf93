/*
 * The exact reduction: the sum over lanes in the order of the binary tree over the next power of two
 * >= V, the same bits for every number of workers and every spread of lanes (design 5).
 *
 * A worker holds lanes [first, first + count). It pre-sums complete subtrees only (a binary counter of
 * partial sums), sends each chunk's partials to the chunk's owner, who adds them up the tree; then the
 * finished chunks are gathered. Absent leaves are skipped, a node with one child is that child.
 *
 * The vector of a lane is cut into buckets (borders at multiples of PIECE_ELEMENTS from its start); a
 * bucket can be reduced while later ones (lower addresses) are still being computed: for the last lane,
 * exact_ready(bucket) hands it to the communication thread.
 *
 * Use, per step:  exact_begin → for each own lane but the last: fill exact_lane(), exact_lane_done()
 *                 → last lane: fill exact_lane(), exact_ready(b) as each bucket is complete,
 *                 in one fixed order on all ranks → exact_wait → read exact_sum().
 * Memory: all allocated at open; exact_gradient_buffers() of the vector's size, and the result.
 * Thread: the step thread calls; one communication thread is owned by this object.
 * Errors: those of comm.h
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/status.h"

struct exact;

struct exact_options {
    const struct comm_table *table; /* borrowed for life, as is comm; NULL with size 1 */
    struct comm *comm;
    int rank, size;
    const uint32_t *shares;      /* lanes per rank; copied */
    size_t count;                /* float32 elements of the vector */
    const size_t *bucket_begin;  /* ascending, first 0; copied */
    size_t bucket_count;
    int64_t timeout_ms;          /* per bucket */
};

MUST_CHECK enum status exact_open(const struct exact_options *options, struct exact **out);
void exact_close(struct exact *exact);

/* Copies of the vector that a share of lanes [first, first + n) needs: 2·floor(log2 n) + 1 at most. */
int exact_gradient_buffers(uint32_t first, uint32_t n, uint32_t lanes);

void exact_begin(struct exact *exact);
/* The buffer that the lane to compute next is to be written into; changes with every lane. */
float *exact_lane(struct exact *exact);
MUST_CHECK enum status exact_lane_done(struct exact *exact);
void exact_ready(struct exact *exact, size_t bucket);
/* Waits for all buckets; exposed_ns is the time that this call waited. */
MUST_CHECK enum status exact_wait(struct exact *exact, int64_t *exposed_ns);
/* The result, valid until the next exact_begin. */
const float *exact_sum(const struct exact *exact);

/* Tree sum of a few doubles per lane, for values that cross lanes outside the vector: values holds
 * `width` doubles for each lane of the job in lane order; out gets the sums. Pure. */
void exact_tree_sum(const double *values, uint32_t lanes, size_t width, double *out);
