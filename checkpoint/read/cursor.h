/*
 * Reading chunks of an open checkpoint, each checked before its bytes are handed out.
 *
 * A chunk that is a difference needs the same chunk of the parent, which may be a difference, too.
 * So a cursor goes down the chain of parents to the first that stands for itself, and decodes from
 * there back up.
 *
 * Thread: a cursor belongs to one thread at a time; many may read one reader.
 * Memory: a codec, and for the checkpoint and each parent one chunk as stored.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/read/reader.h"

struct ckpt_cursor;

MUST_CHECK enum status ckpt_cursor_new(const struct ckpt_reader *reader, struct ckpt_cursor **out);
void ckpt_cursor_free(struct ckpt_cursor *cursor);

/* The chunk that is read next, and those after it up to end, by number. */
struct ckpt_upcoming {
    const struct ckpt_place *(*at)(const void *arg, size_t number); /* NULL: no chunk */
    const void *arg;                                                /* borrowed */
    size_t next, end;
};
/* Says before a chunk is read what comes: from an object store it is fetched ahead, each byte once.
 * NULL: nothing is known any more. */
void ckpt_cursor_expect(struct ckpt_cursor *cursor, const struct ckpt_upcoming *upcoming);

/* Reads a chunk into raw, which has room for its bytes, DISK_CHUNK_BYTES at most.
 * Errors: damage, which ckpt_cursor_damage describes then; others: the call failed */
MUST_CHECK enum status ckpt_cursor_read(struct ckpt_cursor *cursor, const struct ckpt_place *place,
                                        void *raw);

/* The two halves of ckpt_cursor_read. What fetch has read stays until the next fetch; decode is of
 * the place that was fetched last. ST_INVALID: it is a difference, and the parent isn't open. */
MUST_CHECK enum status ckpt_cursor_fetch(struct ckpt_cursor *cursor, const struct ckpt_place *place,
                                         const uint8_t **out);
MUST_CHECK enum status ckpt_cursor_decode(struct ckpt_cursor *cursor,
                                          const struct ckpt_place *place, void *raw);

/* Returns the file of the last damage, and what it is: two texts, valid until the next call. */
void ckpt_cursor_damage(const struct ckpt_cursor *cursor, const char **file, const char **what);
