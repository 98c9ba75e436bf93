/*
 * The loss scale: a factor of the loss's gradient that keeps small gradients of fp16 from
 * vanishing; the update divides by it.
 *
 *   static   a number
 *   dynamic  as torch.amp.GradScaler: halved at each step whose gradient overflowed (that step is
 *            not trained on) and doubled after `interval` good steps in a row, but never below
 *            `floor` nor above `most`
 *
 * It is a factor of the *sum* of the samples' losses. So the gradient of the logits, the first that
 * is computed, goes up to the scale itself: fp16, which ends at 65504, holds none above 32768.
 *
 * Powers of two throughout, so that scaling and unscaling are exact, unless the job gives another
 * number.
 *
 * The state is a function of the options and of which steps overflowed; it is part of a
 * checkpoint's scalars. Thread: any; all functions are pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

/* A gradient that never overflows doesn't drive the scale to infinity. */
#define SCALER_MOST      0x1p40
#define SCALER_MOST_FP16 0x1p15

struct scaler_options {
    bool dynamic;
    double scale; /* static: always; dynamic: at first. 1 without scaling */
    double growth, backoff, floor, most;
    uint64_t interval;
};

struct scaler {
    double scale;
    uint64_t good_steps; /* in a row since the last change */
};

/* 65536, or `most` if that is less; ·2 every 2000 good steps, ·½ at an overflow; at least 1. */
struct scaler_options scaler_dynamic(double most);
struct scaler_options scaler_static(double scale);

/* Returns the scaler before the first step. */
struct scaler scaler_start(const struct scaler_options *options);

/*
 * Returns the scaler after a step that was updated, or whose gradient overflowed.
 * ST_NUMERIC: it overflowed, and the scale can't be lowered: it is static, or at its floor.
 */
MUST_CHECK enum status scaler_next(const struct scaler_options *options, struct scaler before,
                                   bool overflow, struct scaler *out);
