/*
 * The journalled part of a job's state machine as one JSON object, and back.
 *
 * Every scalar field is one line of a table, so that what is written is what is read. Unknown keys
 * are ignored and missing ones keep their value: old journals stay readable (design 10: additive).
 */
#pragma once

#include "common/buf.h"
#include "server/machine/machine.h"

MUST_CHECK enum status job_encode(const struct job_machine *m, struct buf *out);
/* m was made by jm_init with the job's config. Errors: ST_CORRUPT */
MUST_CHECK enum status job_decode(struct job_machine *m, const char *text);
