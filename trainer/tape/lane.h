/*
 * The lane vector: all of a lane that crosses lanes, as one array of float32.
 *
 *   [0, param_count)                 gradients of the lane's summed loss, tape order
 *   [tie_at, tie_at + tie_count)     likewise what each further reader of a tied parameter gives
 *   [stat_at, stat_at + stat_count)  sums over micro-batches of means and unbiased variances
 *   [loss_at]                        sum of losses
 *   [targets_at]                     number of targets (labels that are not ignored)
 *   [micro_at]                       number of micro-batches
 *
 * The tree sum over lanes (comm/reducer.h) of these vectors is what optimizer_update reads. A tied
 * parameter's gradient is then still in parts, each summed over micro-batches and lanes for itself;
 * lane_add_ties adds them, the last reader's first. So it doesn't matter how far one reader's
 * micro-batches are when the other's begin, nor whether both run on one rank.
 *
 * For the reduction the vector is cut into buckets at multiples of PIECE_ELEMENTS; what comes after
 * the gradients belongs to the last bucket. The backward pass completes the buckets from the last
 * to the first. The first is one piece and each is twice as large as the one before: what is
 * complete last has nothing left to hide behind. Where each rank has a share of the state alone,
 * the vector is cut otherwise: lane_owners.h.
 */
#pragma once

#include <stddef.h>

#include "common/status.h"
#include "kernels/backend.h"
#include "trainer/tape/tape.h"

#define LANE_BUCKETS_MAX 4096
/* A bucket is large enough that its latency hides, small enough that several overlap the backward
 * pass of a model of some million parameters. */
#define LANE_BUCKET_ELEMENTS ((size_t)4 * 1024 * 1024)
/* Number of smaller buckets that lead up to those of full size, each half of the next one. */
#define LANE_LEADING 20
/* Returns the size of buckets of a vector of `count` elements such that there are at most `buckets`
 * with the leading ones: LANE_BUCKET_ELEMENTS, or that times a power of two. */
size_t lane_wanted(size_t count, size_t buckets);

struct lane_layout {
    size_t param_count;
    size_t tie_at, tie_count;
    size_t stat_at, stat_count;
    size_t loss_at, targets_at, micro_at;
    size_t count;
};

struct lane_layout lane_layout(const struct tape *tape);

/* Parts of a lane vector that belong to nodes [begin, end) of the tape: parameters that one of them
 * reads first, the places of further readers, statistics. One extent each, maybe empty, since all
 * lie in tape order. Scalars belong to all nodes. */
enum lane_part { LANE_PARAMS, LANE_TIES, LANE_STATS, LANE_SCALARS, LANE_PARTS };
struct lane_extent {
    size_t first, end; /* elements */
};
struct lane_slice {
    struct lane_extent part[LANE_PARTS];
};
struct lane_slice lane_slice(const struct tape *tape, int begin, int end);

/* Returns where the gradient of the node's i-th parameter begins. */
size_t lane_gradient_at(const struct tape *tape, int node, int i);

/* Completes the gradients of tied parameters in a sum of lane vectors, in the backend's memory, as
 * far as they are of elements [first, first + count) of the parameters; to be done once for each
 * element of a sum. ties: [tie_count] where each tie's sum lies, which is changed too; NULL: in
 * their places in the vector. Errors: the backend's */
MUST_CHECK enum status lane_add_ties(const struct tape *tape, const struct backend_table *table,
                                     struct backend *backend, float *sum, float *const *ties,
                                     size_t first, size_t count, struct stream *stream);

/*
 * Ascending starts of buckets of [0, end), of at most `wanted` elements rounded up to units; the
 * last one may be up to a unit longer. out_begin[0] = 0, and each is a multiple of unit.
 * Errors: ST_FULL  more than `capacity` buckets
 */
MUST_CHECK enum status lane_cut(size_t end, size_t unit, size_t wanted, size_t *out_begin,
                                size_t capacity, size_t *out_count);
/* Cuts the vector's buckets where every rank has the whole state: lane_cut in pieces. */
MUST_CHECK enum status lane_buckets(const struct lane_layout *layout, size_t wanted,
                                    size_t *out_begin, size_t capacity, size_t *out_count);
