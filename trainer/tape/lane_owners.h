/*
 * The lane vector's buckets and their owners, where each rank keeps a share of the optimizer's
 * state: it updates the parameters that it owns, and needs their gradients alone.
 *
 * Owners have whole units, counted from the first parameter: the chunks of a checkpoint, so that a
 * rank can write what it owns. A tied parameter's owner must have what each reader gives
 * (lane_add_ties), so a tie is cut, and owned, as its parameter is:
 *
 *     parameters          |unit|unit|unit|unit|unit|rest|      buckets at multiples of a unit
 *     owner                 0    1    2    0    1    2
 *     a tied parameter        [-----------]
 *                              |    |
 *     its tie                 [-----------]                    the same cuts: an image
 *     owner                    0 1    2  0
 *     statistics, scalars                  [----]              one bucket, for all
 *
 * Parameters and ties lie in buckets [0, kept), and comm/reducer.h leaves these with their owners;
 * the last bucket is gathered. As in lane.h the parameters' first bucket is one unit and each is
 * twice as large as the one before.
 *
 * The report of a save has a hash for each whole branch of a checkpoint's tree, and one for each
 * piece outside of them. So where a rank has about a branch of a bucket or more, whole branches are
 * dealt out; else large models' reports would fit no message.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/tape/tape.h"

struct lane_owned {
    size_t count;  /* of all buckets */
    size_t params; /* [0, params) cover the parameters and nothing else */
    size_t kept;   /* [params, kept) the ties; then there is one more */
};

/* Buckets of parameters that have owners, at most: a rank has an extent of each moment in each of
 * them, and a share of the state has room for CKPT_EXTENTS_MAX extents
 * (checkpoint/checkpoint.h). */
#define LANE_OWNED_BUCKETS_MAX 312

/* Elements of a branch: CKPT_BRANCH_PIECES pieces. */
#define LANE_OWNED_BRANCH ((size_t)256 * PIECE_ELEMENTS)
/* Most pieces of an extent that doesn't consist of whole branches, with its last unit. */
#define LANE_OWNED_LOOSE_PIECES 200
/* Returns the unit at whose multiples buckets of `wanted` elements are cut: unit, or a branch. */
size_t lane_owned_cut(size_t unit, size_t wanted);
/* Returns the unit in which a bucket of so many elements is dealt out to `size` ranks: unit, or a
 * branch. */
size_t lane_owned_unit(size_t unit, size_t count, size_t size);
/*
 * Deals units of elements [begin, end), counted from element 0, to the ranks in order, evenly.
 * borders: [size + 1]. *turn: the rank that is next to get one more, so that all have as many over
 * several calls.
 */
void lane_deal(size_t begin, size_t end, size_t unit, size_t size, size_t *turn, size_t *borders);

/*
 * Ascending starts of buckets of about `wanted` elements, as lane_cut's. out_begin[0] = 0.
 * Errors: ST_FULL  more than `capacity` buckets
 */
MUST_CHECK enum status lane_owned_buckets(const struct tape *tape, size_t unit, size_t wanted,
                                          size_t *out_begin, size_t capacity,
                                          struct lane_owned *out);

/*
 * borders: [buckets->count][size + 1] of each bucket its chunks, by rank: reducer_options of
 * comm/reducer.h. The shares of two ranks in the parameters differ by a unit at most; where
 * branches are dealt out, by a branch more.
 *
 * begin, buckets: of lane_owned_buckets with this tape and unit.
 */
void lane_owners(const struct tape *tape, size_t unit, const size_t *begin,
                 const struct lane_owned *buckets, uint32_t size, size_t *borders);
