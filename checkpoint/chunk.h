/*
 * A chunk as it lies in a shard file: header, gap, planes.
 *
 * Thread: as the codec.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/codec.h"
#include "checkpoint/disk.h"
#include "common/status.h"

/* Room that a chunk needs at most. */
#define CKPT_CHUNK_MAX (sizeof(struct disk_chunk) + DISK_GAP_MAX + DISK_STORED_MAX)

/* Which chunk it is, and what it must hold. */
struct ckpt_chunk_place {
    uint32_t buffer; /* or DISK_BLOB | number */
    uint64_t index;
    enum ckpt_dtype dtype;
    uint32_t raw_size;
};

/* Writes the chunk that will lie at offset into out (CKPT_CHUNK_MAX). */
MUST_CHECK enum status ckpt_chunk_make(struct ckpt_codec *codec,
                                       const struct ckpt_chunk_place *place, const void *raw,
                                       uint64_t offset, uint8_t *out, uint32_t *out_size);

/*
 * Checks every byte of a chunk and decodes it into raw (place->raw_size bytes).
 * Errors: ST_CORRUPT, ST_VERSION; *what is then static text that says what is wrong.
 */
MUST_CHECK enum status ckpt_chunk_read(struct ckpt_codec *codec,
                                       const struct ckpt_chunk_place *place, const uint8_t *bytes,
                                       uint32_t size, void *raw, const char **what);
