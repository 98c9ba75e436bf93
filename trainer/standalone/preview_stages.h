/*
 * Preview of the memory of a pipeline's workers, stage by stage.
 */
#pragma once

#include <stdbool.h>

#include "common/buf.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "trainer/device/device.h"
#include "trainer/tape/tape.h"
#include "trainer/worker/settings.h"

struct preview_stages {
    const struct jobspec *job;
    const struct tape *tape;
    const struct settings *settings; /* with a micro-batch */
    const struct device *device;
    const double *cost; /* [nodes] of the tape, by the device: where stages are cut */
    bool evaluates;     /* there is data.eval */
};

/*
 * Appends a line for the worker that needs most, with any number of workers that the job may train
 * with, and one for each stage of workers.count: of its worker with the most lanes.
 * Errors: ST_CONFIG  the model can't be cut so
 *         those of memory_need_measure; all with the reason
 */
MUST_CHECK enum status preview_stages_print(const struct preview_stages *preview, struct buf *out,
                                            struct reason *reason);
