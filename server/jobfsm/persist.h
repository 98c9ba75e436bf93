/*
 * The journalled part of a job's state machine, and back: one JSON object, and a row for each rank.
 *
 * Every scalar field is one line of a table, so that what is written is what is read. Old journals
 * stay readable: a key that isn't known is ignored, a field whose key is missing keeps its value.
 * Up to version 7 of the journal the ranks were in the object.
 */
#pragma once

#include <jansson.h>

#include "common/buf.h"
#include "server/jobfsm/jobfsm.h"

/* Appends the JSON object of m to out. */
MUST_CHECK enum status fsm_encode(const struct fsm *m, struct buf *out);
/* Returns how many ranks a text of an older journal describes; 0: none. */
size_t fsm_encoded_ranks(const char *text);
/* Reads the object into m, which fsm_init made with the job's config. Errors: ST_CORRUPT; then
 * m is half read */
MUST_CHECK enum status fsm_decode(struct fsm *m, const char *text);

/* Returns a fault as the journal has it, owned by the caller; NULL: no memory. */
json_t *fsm_encode_fault(const struct fsm_fault *fault);
/* Encode and decode one recovery, which is in its generation's row, too. Errors: ST_NO_MEMORY,
 * ST_FULL; ST_CORRUPT */
MUST_CHECK enum status fsm_encode_recovery(const struct recovery *r, struct buf *out);
MUST_CHECK enum status fsm_decode_recovery(struct recovery *r, const char *text);

/* Returns the row of a rank. A rank that never had a place needs none: fsm_init makes the
 * same. */
struct fsm_rank_row fsm_rank_row(const struct fsm *m, uint32_t rank);
bool fsm_rank_row_same(const struct fsm_rank_row *a, const struct fsm_rank_row *b);
/* Fills rank `rank` of m from its row. */
void fsm_load_rank(struct fsm *m, uint32_t rank, const struct fsm_rank_row *row);
