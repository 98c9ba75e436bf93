/*
 * The parts of a rank's shard file, in the order of the file: the chunks of its share, extent by
 * extent, then, on rank 0, those of the blobs.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/codec/chunk.h"

#define CKPT_PARTS_MAX (CKPT_EXTENTS_MAX + DISK_BLOBS_MAX)

/* An extent of the share, or a blob: consecutive chunks. */
struct ckpt_part {
    uint32_t buffer; /* or DISK_BLOB | number of a blob */
    enum ckpt_dtype dtype;
    uint64_t number;     /* of its first chunk in the file */
    uint64_t index;      /* of its first chunk in the buffer */
    const uint8_t *data; /* borrowed */
    uint64_t bytes;
    const struct ckpt_hash *expected; /* of its pieces; NULL: not known */
    struct ckpt_hash *hashes;         /* of an extent: where its pieces' hashes go */
};

struct ckpt_parts {
    struct ckpt_share share; /* part i is of its extent i; those of blobs follow */
    struct ckpt_part part[CKPT_PARTS_MAX];
    uint32_t count;
    uint64_t chunks;
    uint64_t raw_bytes; /* of buffers */
};

/* ST_INVALID: a reader would refuse the state, or data of the share is missing. Else as
 * ckpt_share_of. *out is undefined after an error. */
MUST_CHECK enum status ckpt_parts_of(const struct ckpt_state *state, uint32_t rank, uint32_t size,
                                     struct ckpt_parts *out);
/* Chunk `number` of the file, its raw bytes and its part. */
const struct ckpt_part *ckpt_parts_find(const struct ckpt_parts *parts, uint64_t number,
                                        struct ckpt_chunk_place *out_place,
                                        const uint8_t **out_raw);
