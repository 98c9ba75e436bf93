/*
 * A chunk as it lies in a shard file: header, gap, planes.
 *
 * Thread: as the codec.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/codec/codec.h"
#include "checkpoint/format/disk.h"
#include "common/status.h"

/* Name and contents of a chunk: which one it is, and what it must hold. */
struct ckpt_chunk_place {
    uint32_t buffer; /* or DISK_BLOB | number */
    uint64_t index;
    enum ckpt_dtype dtype;
    uint32_t raw_size;
};

/* Writes the chunk that will lie at offset into out (DISK_CHUNK_MAX). base: as ckpt_encode. */
MUST_CHECK enum status ckpt_chunk_make(struct ckpt_codec *codec,
                                       const struct ckpt_chunk_place *place, const void *raw,
                                       const void *base, uint64_t offset, uint8_t *out,
                                       uint32_t *out_size);

/* Makes the header of a chunk fit another offset: the gap behind it, and what depends on it. */
void ckpt_chunk_settle(struct disk_chunk *head, uint64_t offset);

/*
 * Checks every byte of a chunk and decodes it into raw (place->raw_size bytes).
 * base: the same elements of the parent checkpoint, or NULL; may be raw itself.
 * Errors: ST_CORRUPT, ST_VERSION, ST_INVALID (a whole chunk that lacks its base); *what is then
 * static text that says what is wrong.
 */
MUST_CHECK enum status ckpt_chunk_read(struct ckpt_codec *codec,
                                       const struct ckpt_chunk_place *place, const uint8_t *bytes,
                                       uint32_t size, const void *base, void *raw,
                                       const char **what);

/* Whether the bytes, not checked yet, say that the chunk is a difference to a base. */
bool ckpt_chunk_needs_base(const uint8_t *bytes, uint32_t size);
