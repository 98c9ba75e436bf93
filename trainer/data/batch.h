/*
 * Which samples a batch holds, and its contents: pure functions of (seed, step, lane, micro-batch),
 * so that whoever computes a lane, whenever, gets the same bytes (design 5).
 *
 * Training: step s (from 0) of E = floor(samples / global_batch) per epoch lies in epoch s / E;
 * lane v, micro-batch m, row j of it is position (s mod E)·global_batch + v·lane_size +
 *           m·micro_batch + j of perm(seed, epoch). The tail of an epoch's permutation is dropped.
 * Evaluation: samples in file order, batch i is [i·lane_size, …), cut into the same micro-batches;
 * rows past the end are zero with label -1, which the loss ignores. Augmentation (training only): a
 * crop out of the image with a zero border of PyTorch's padding 4, a horizontal flip; drawn by
 * counter (0, 0, sample, step).
 *
 * Shapes: x [micro_batch, C, H, W] float32, labels [micro_batch]
 * Thread: any; room is the caller's scratch of one image.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "trainer/data/dataset.h"

#define BATCH_CROP_PAD 4

struct batch_source {
    const struct dataset *dataset; /* borrowed */
    uint64_t seed;
    uint32_t lanes, micro_batch, accumulate; /* lane size = micro_batch · accumulate */
    bool crop, flip;
};

/* 0: the set is smaller than a global batch. */
uint64_t batch_steps_per_epoch(const struct batch_source *source);
void batch_fill(const struct batch_source *source, uint64_t step, uint32_t lane, uint32_t micro,
                uint8_t *room, float *x, int32_t *labels);

/* Batches that the whole set is evaluated in. */
uint64_t batch_eval_count(const struct batch_source *source);
void batch_fill_eval(const struct batch_source *source, uint64_t batch, uint32_t micro,
                     uint8_t *room, float *x, int32_t *labels);
