/*
 * Preview of a pipeline: where it is cut, how much each stage takes of a step, how long workers
 * wait; and, where that is long, what would make them wait less.
 */
#pragma once

#include <stdint.h>

#include "common/buf.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "trainer/tape/tape.h"

struct preview_pipeline {
    const struct jobspec *job;
    const struct tape *tape;
    const double *cost;  /* [nodes] of the tape, in any unit; NULL: not known without the device */
    uint32_t accumulate; /* micro-batches of a lane; 0: not known without the device */
};

/*
 * Appends a line, and a warning where workers wait too long; nothing for a job of one stage.
 * Errors: ST_CONFIG  the model can't be cut so, with the numbers that would do
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status preview_pipeline_print(const struct preview_pipeline *preview,
                                              struct buf *out, struct reason *reason);
