/*
 * Inside of the optimizer, shared by
 *
 *   optimizer_open.c      the state, what of it this rank owns
 *   optimizer_describe.c  its description
 *   optimizer_memory.c    the memory that it takes
 *   optimizer_norms.c     norms over parts
 *   optimizer_update.c    updates
 *   optimizer_rules.c     ... element by element
 *   optimizer_lamb.c      ... of LAMB
 *   optimizer_muon.c      ... of Muon
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
    size_t first, count;              /* elements */
    size_t block_begin, block_end;    /* norm blocks */
    struct decay_map decay;           /* its borders count from `first` */
    const struct tape_tensor *matrix; /* muon: the part is this tensor; else NULL */
};

struct muon; /* optimizer_muon.c */

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
    double *tensor_norms; /* [2][param_count] lamb: of weights, of directions; muon: one */
    struct muon *muon;    /* NULL: another kind */

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

/* What an update works on. */
struct optimizer_call {
    const struct optimizer_step *step;
    float *sum;  /* of the whole step; may be overwritten where this rank owns it */
    float scale; /* of the gradient */
};

/* Returns where the part's elements of a moment are; NULL: the optimizer has no such moment. */
static inline float *optimizer_moment(const struct optimizer *optimizer, int moment,
                                      const struct optimizer_part *part)
{
    return moment < optimizer->moment_count ? optimizer->moments[moment] + part->first : NULL;
}

/* Returns the part's decay map; NULL: all decay. */
static inline const struct decay_map *optimizer_decay(const struct optimizer *optimizer,
                                                      const struct optimizer_part *part)
{
    return optimizer->decay_borders != NULL ? &part->decay : NULL;
}

/* Returns the norm blocks of a parameter. */
static inline size_t optimizer_blocks(const struct tape_tensor *param)
{
    const size_t last = param->offset + param->count - 1;
    return param->count > 0 ? last / PIECE_ELEMENTS - param->offset / PIECE_ELEMENTS + 1 : 0;
}

/* Fetches the sums of squares of this rank's blocks of x: squares_read. Waits for the device. */
MUST_CHECK enum status optimizer_fetch_squares(struct optimizer *optimizer, const float *x,
                                               struct stream *stream);
/* Puts all ranks' sums of squares in the order of the blocks: in_order. */
void optimizer_order_squares(const struct optimizer *optimizer);
/*
 * Computes the norm of each parameter's elements of x, which is like the parameters: of its blocks'
 * sums of squares by the tree, so that it doesn't depend on who owns them. Waits for the device and
 * the peers, which all call it. out: [param_count] Errors: the backend's, the peers'
 */
MUST_CHECK enum status optimizer_tensor_norms(struct optimizer *optimizer, const float *x,
                                              const struct optimizer_peers *peers,
                                              struct stream *stream, double *out);
/* Makes the description, but for its data. */
MUST_CHECK enum status optimizer_describe_open(struct optimizer *optimizer);
/* Returns the kernels' copies that an update writes. With shared moments it writes none, as it has
 * only some of the elements; LAMB and Muon update tensor by tensor. */
const struct copy_map *optimizer_copies(const struct optimizer *optimizer);
/* Update a part. */
MUST_CHECK enum status optimizer_sgd(struct optimizer *optimizer, const struct optimizer_part *part,
                                     const struct optimizer_call *call, struct stream *stream);
MUST_CHECK enum status optimizer_adamw(struct optimizer *optimizer,
                                       const struct optimizer_part *part,
                                       const struct optimizer_call *call, struct stream *stream);
MUST_CHECK enum status optimizer_lion(struct optimizer *optimizer,
                                      const struct optimizer_part *part,
                                      const struct optimizer_call *call, struct stream *stream);
/* Update all parts by LAMB, by Muon. */
MUST_CHECK enum status optimizer_lamb(struct optimizer *optimizer,
                                      const struct optimizer_call *call, struct stream *stream);
MUST_CHECK enum status optimizer_muon(struct optimizer *optimizer,
                                      const struct optimizer_call *call, struct stream *stream);
/* Prepares Muon for the tape's matrices; nothing for other kinds. Errors: the backend's */
MUST_CHECK enum status optimizer_muon_open(struct optimizer *optimizer);
void optimizer_muon_close(struct optimizer *optimizer);
/* Cuts the parts so that each matrix is a part. ST_INVALID: a matrix isn't in one part */
MUST_CHECK enum status optimizer_muon_cut(struct optimizer *optimizer);
/* Returns the bytes that Muon works in, without what products need. */
size_t optimizer_muon_bytes(const struct tape *tape);

/* Lists the parts of a buffer of `count` elements, in bytes, that have memory where this rank has
 * only ascending extents of it. out: [extent_count] Returns their number. */
size_t optimizer_parts(const struct lane_extent *extents, size_t extent_count, size_t count,
                       struct memory_part *out);
