/*
 * The journalled part of a job's state machine as one JSON object, and back.
 *
 * Every scalar field is one line of a table, so that what is written is what is read. Old journals
 * stay readable: a key that isn't known is ignored, a field whose key is missing keeps its value.
 */
#pragma once

#include "common/buf.h"
#include "server/machine/machine.h"

/* Appends it to out. */
MUST_CHECK enum status machine_encode(const struct machine *m, struct buf *out);
/* Of how many ranks the text speaks; 0: it isn't what machine_encode makes. */
size_t machine_encoded_ranks(const char *text);
/* m was made by machine_init with the job's config. Errors: ST_CORRUPT; then m is half read */
MUST_CHECK enum status machine_decode(struct machine *m, const char *text);
