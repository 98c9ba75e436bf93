/*
 * The journalled part of a job's state machine, and back: one JSON object, and a row for each rank.
 *
 * Every scalar field is one line of a table, so that what is written is what is read. Old journals
 * stay readable: a key that isn't known is ignored, a field whose key is missing keeps its value.
 * Up to version 7 of the journal the ranks were in the object.
 */
#pragma once

#include "common/buf.h"
#include "server/machine/machine.h"

/* Appends the JSON object of m to out. */
MUST_CHECK enum status machine_encode(const struct machine *m, struct buf *out);
/* Returns how many ranks a text of an older journal describes; 0: none. */
size_t machine_encoded_ranks(const char *text);
/* Reads the object into m, which machine_init made with the job's config. Errors: ST_CORRUPT; then
 * m is half read */
MUST_CHECK enum status machine_decode(struct machine *m, const char *text);

/* Encode and decode one recovery, which is in its generation's row, too. Errors: ST_NO_MEMORY,
 * ST_FULL; ST_CORRUPT */
MUST_CHECK enum status machine_encode_recovery(const struct recovery *r, struct buf *out);
MUST_CHECK enum status machine_decode_recovery(struct recovery *r, const char *text);

/* Returns the row of a rank. A rank that never had a place needs none: machine_init makes the
 * same. */
struct machine_rank_row machine_rank_row(const struct machine *m, uint32_t rank);
bool machine_rank_row_same(const struct machine_rank_row *a, const struct machine_rank_row *b);
/* Fills rank `rank` of m from its row. */
void machine_load_rank(struct machine *m, uint32_t rank, const struct machine_rank_row *row);
