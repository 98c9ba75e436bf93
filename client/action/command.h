/*
 * `cairn plan` of a job with a command: what would be started, where, and what it is told.
 */
#pragma once

#include "common/buf.h"
#include "jobspec/jobspec.h"

/* Errors: ST_FULL, ST_NO_MEMORY */
MUST_CHECK enum status command_plan(const struct jobspec *job, struct buf *out);
