/*
 * The curves of a job as events: what is written for a row, and how far what was written goes.
 *
 * TensorBoard has two readers, and a point that counts no more (the job went back) leaves them in
 * two ways. The one in Python drops, of all tags, what is at a START's step and later. The one in
 * Rust, which `tensorboard` runs where it is installed, knows no START: a value drops, of its own
 * tag, what is at its step and later. So a row that goes back is preceded by a START, and where it
 * has no value for a tag (an evaluation was there, and now isn't) it has one without a number,
 * which the second reader drops others for and doesn't show, and which is nothing to the first.
 *
 * Missing numbers of a row, which are NaN (proto/cairn/v1/common.proto), make no value: a gap.
 * Infinite ones do: TensorBoard marks them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "cairn/v1/common.pb-c.h"
#include "common/buf.h"
#include "common/status.h"

/* Files hold numbers of these: new ones come last. */
enum tensorboard_tag {
    TENSORBOARD_LOSS,
    TENSORBOARD_VAL_LOSS,
    TENSORBOARD_VAL_ACCURACY,
    TENSORBOARD_LR,
    TENSORBOARD_GRAD_NORM,
    TENSORBOARD_SAMPLES,
    TENSORBOARD_STEP,
    TENSORBOARD_DATA,
    TENSORBOARD_FORWARD,
    TENSORBOARD_BACKWARD,
    TENSORBOARD_COMMUNICATION,
    TENSORBOARD_OPTIMIZER,
    TENSORBOARD_SNAPSHOT,
    TENSORBOARD_TAGS
};

struct tensorboard_curve {
    uint64_t step; /* up to which it goes; 0: there is nothing */
    uint32_t generation;
    bool begun; /* there was a START */
    /* No value is at a later step; 0: there is none. */
    uint64_t newest[TENSORBOARD_TAGS];
};

/* A file's first event. */
MUST_CHECK enum status tensorboard_put_version(const Cairn__V1__MetricRow *row, struct buf *out);

/*
 * A START at row's step, in its generation; the values of a row. Each appends a record to out and
 * to curve what it says. Errors: ST_NO_MEMORY, ST_FULL; out is then as it was.
 */
MUST_CHECK enum status tensorboard_put_start(struct tensorboard_curve *curve,
                                             const Cairn__V1__MetricRow *row, struct buf *out);
MUST_CHECK enum status tensorboard_put_row(struct tensorboard_curve *curve,
                                           const Cairn__V1__MetricRow *row, struct buf *out);

/* Adds to curve what a record's data say. Errors: ST_CORRUPT  they are no event; ST_NO_MEMORY */
MUST_CHECK enum status tensorboard_read_event(struct tensorboard_curve *curve, const void *data,
                                              size_t size);
