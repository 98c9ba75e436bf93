/*
 * Inside of the optimizer, shared by
 *
 *   optimizer_open.c    the state, what of it this rank owns, its description
 *   optimizer_memory.c  the memory that it takes
 *   optimizer_update.c  updates
 *
 * A *part* is an extent of elements of the parameters that this rank updates (owners.h); without
 * owners there is one, of all. Norm blocks never cross the border of a part.
 *
 * Sums of squares are packed: those of the blocks that rank 0 owns, then rank 1's, of each rank in
 * the order of the blocks.
 */
#pragma once

#include "trainer/update/optimizer.h"

/* The scalars at the end of a lane vector, in the order of struct lane_layout. */
enum sum_scalar { SUM_LOSS, SUM_TARGETS, SUM_MICRO, SUM_SCALARS };
_Static_assert(SUM_SCALARS == OPTIMIZER_SCALARS, "one order");

#define OPTIMIZER_EXTENTS_MAX (OPTIMIZER_STRETCHES_MAX + TAPE_TIES_MAX)

struct optimizer_part {
    size_t first, count;           /* elements */
    size_t block_begin, block_end; /* norm blocks */
    struct decay_map decay;        /* its borders count from `first` */
};

struct optimizer {
    struct optimizer_options options;
    const struct backend_table *table;
    struct backend *backend;
    const struct tape *tape;
    struct lane_layout layout;
    float *params, *stats, *moments[OPTIMIZER_MOMENTS_MAX];
    int moment_count;
    bool has_peers;                       /* other ranks own parts of the moments ... */
    bool replicas;                        /* ... and some of them this one's */
    bool params_in_parts, stats_in_parts; /* there is memory for the extents only */
    struct lane_extent param_extent[OPTIMIZER_EXTENTS_MAX], stat_extent[OPTIMIZER_STRETCHES_MAX];
    size_t param_extents, stat_extents;
    struct optimizer_part *parts;
    uint32_t part_count;

    size_t norm_count;
    uint64_t *norm_begin; /* [norm_count + 1] where blocks begin; device memory */
    size_t *norm_packed;  /* [norm_count] the block of each packed sum */
    size_t *norm_of;      /* [ranks + 1] where each rank's packed sums begin */
    size_t own_packed;    /* ... this rank's */
    double *squares;      /* [norm_count] packed, this rank's; device memory */
    double *squares_read; /* [norm_count] packed; host memory */
    double *in_order;     /* [norm_count] by block */
    float *scalars;       /* [SUM_SCALARS] host memory */

    uint64_t *sums;          /* one per piece of a buffer; device memory */
    uint64_t *sums_read;     /* ... of all buffers; host memory */
    size_t sums_max;         /* of them there is room for */
    uint64_t *decay_borders; /* of all parts; device memory; NULL: all decay */
    struct copy_map copies;  /* that kernels keep; elements of the state; device memory */
    struct ckpt_buffer buffers[OPTIMIZER_BUFFERS_MAX];
    struct ckpt_tensor *tensors;
    uint32_t buffer_count, tensor_count;
};

static inline size_t optimizer_pieces(size_t count)
{
    return (count + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
}

/* Lists the parts of a buffer of `count` elements, in bytes, that have memory where this rank has
 * only ascending extents of it. out: [extent_count] Returns their number. */
size_t optimizer_parts(const struct lane_extent *extents, size_t extent_count, size_t count,
                       struct memory_part *out);
