/*
 * Which samples a batch holds, and its contents: pure functions of (seed, step, lane, micro-batch),
 * so that whoever computes a lane, whenever, gets the same bytes (docs/invariants.md, "The exact
 * step").
 *
 * Training     step s (from 0) of E = floor(samples / global_batch) per epoch is in epoch s / E;
 *              row j of micro-batch m of lane v is the sample at position
 *                (s mod E)·global_batch + v·lane_size + m·micro_batch + j
 *              of perm(seed, epoch). The tail of an epoch's permutation is dropped.
 * Evaluation   samples in file order: batch i is [i·lane_size, (i + 1)·lane_size), cut into micro-
 *              batches as in training; rows past the end are zero with labels of -1, which the loss
 *              ignores.
 * Masking      a model of masked tokens reads each token above the mask's as it is, but for a share
 *              that it has to guess: of these 80 % are masked, 10 % another token above the mask's,
 *              10 % as they are (Devlin et al., "BERT", NAACL 2019, section 3.1). Drawn by counter
 *              (t, 1, sample, step) under the augmentation's key; in evaluation step is
 *              BATCH_EVAL_STEP. Labels of all others are -1. The token before the mask's separates
 *              sentences: what follows one is of kind 1, else 0, as padding (0) is.
 * Augmentation (training only) a crop out of the image with a zero border of 4 (PyTorch's padding),
 *              a horizontal flip; drawn by counter (0, 0, sample, step).
 *
 * Shapes
 *   images  x [micro_batch, C, H, W] float32, labels i32 [micro_batch]
 *   text    x [micro_batch, T] i32, labels i32 [micro_batch, T]; labels[t]: the token after x[t]
 *   masked  x [2, micro_batch, T] i32: tokens, then their kinds; labels i32 [micro_batch, T]
 *
 * Thread: any; room is the caller's scratch.
 * Errors: ST_CONFIG   the data are wrong (a token out of range): reason names file and place
 *         ST_CHANGED  a file is not what it was at the start: reason names it
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trainer/data/dataset.h"

#define BATCH_CROP_PAD  4
#define BATCH_EVAL_STEP UINT32_MAX

struct batch_source {
    const struct dataset *dataset; /* borrowed */
    uint64_t seed;
    uint32_t lanes, micro_batch, accumulate; /* lane size = micro_batch · accumulate */
    bool crop, flip;                         /* images */
    float mask_share; /* masked tokens: to guess, of those above the mask's */
};

/* A micro-batch. */
struct batch {
    void *x;
    int32_t *labels;
    uint32_t *draw; /* what dropout depends on: the words of enum op_draw (kernels/backend.h) with
                       the key of RNG_DROPOUT; written in training only */
};

/* Bytes of a micro-batch's parts, and of the scratch that filling one takes. */
struct batch_sizes {
    size_t x, labels, draw, room;
    size_t kinds; /* where they begin in x; 0: there are none */
};
struct batch_sizes batch_sizes(const struct batch_source *source);

/* Whole global batches in the set; 0: it is smaller than one. */
uint64_t batch_steps_per_epoch(const struct batch_source *source);

/* Which micro-batch. */
struct batch_place {
    uint64_t step; /* evaluation: the batch */
    uint32_t lane; /* training */
    uint32_t micro;
};
MUST_CHECK enum status batch_fill(const struct batch_source *source,
                                  const struct batch_place *place, void *room,
                                  const struct batch *out, struct reason *reason);

/* Batches that the whole set is evaluated in. */
uint64_t batch_eval_count(const struct batch_source *source);
MUST_CHECK enum status batch_fill_eval(const struct batch_source *source,
                                       const struct batch_place *place, void *room,
                                       const struct batch *out, struct reason *reason);
