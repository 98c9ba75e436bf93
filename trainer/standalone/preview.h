/*
 * Preview of a job, without running it: model, steps, memory, node by node; `cairn plan` shows it.
 * It opens the data to see their shape, allocates no model, and needs no device: where the job's
 * device isn't here, it says what can't be known without one.
 */
#pragma once

#include <stddef.h>

#include "common/buf.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"

/* Whether the data and the weights fit the job: what preview_print looks at before the device.
 * Errors: as that */
MUST_CHECK enum status preview_check(const struct jobspec *job, struct reason *reason);

/* Appends lines for people. Errors: ST_CONFIG  reason is one line "place: cause; way out" */
MUST_CHECK enum status preview_print(const struct jobspec *job, struct buf *out,
                                     struct reason *reason);
