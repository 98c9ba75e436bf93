/*
 * The codec: the raw bytes of a chunk to planes in frames, and back (docs/format.md).
 *
 *     raw words ─change─▶ words ─split─▶ byte planes ─coder─▶ frames: the chunk's stored bytes
 *
 *     change    of the words of floats; other dtypes are one plane, their bytes
 *       rotation      the sign to the lowest bit
 *       difference    to a base, where one is given and that is smaller
 *       prediction    of positive float32 by row and column (table.h), at level max, if smaller
 *
 *     coder     of each plane, by the entropy of a sample of it (probe.h)
 *       none                 above 7.85 bits a byte: it is stored raw
 *       entropy alone        in between: on training state both the smallest and the fastest
 *       zstd with matches    below 1.2: mostly zeros
 *       nibbles              at level fast and without a base, where 15 values cover most of it;
 *                            every other plane is stored raw then
 *
 * All decisions are integer arithmetic or sums in a fixed order, and all loops exist in plain C, so
 * all machines store the same bytes (with the same libzstd).
 *
 * Thread: a codec belongs to one thread at a time.
 * Memory: 2.5 MB each, allocated at the start, 0.3 more at level max; libzstd takes 2 more on use.
 *
 * What was encoded is decoded again and compared: one chunk in CODEC_CHECKED_EVERY, in test builds
 * each. One that doesn't come back as it was is stored plain instead, and counted: a mistake of the
 * coders costs size, never a checkpoint.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/format/disk.h"
#include "common/status.h"

struct ckpt_codec;

#ifdef CAIRN_FAULTS
#define CODEC_CHECKED_EVERY 1u
#else
#define CODEC_CHECKED_EVERY 64u
#endif

/* level: how ckpt_encode weighs size against speed; decoding is the same for all. */
MUST_CHECK enum status ckpt_codec_new(enum ckpt_level level, struct ckpt_codec **out);
void ckpt_codec_free(struct ckpt_codec *codec);

/*
 * Encodes raw into out, which has room for DISK_STORED_MAX bytes, and sets dtype, raw_size,
 * stored_size, codec and the planes of *chunk. size: 1..DISK_CHUNK_BYTES, whole elements.
 * base: the same elements of an earlier state, or NULL; a difference to it is stored where that is
 * smaller (ckpt_chunk_needs_base in chunk.h tells whether it was).
 */
MUST_CHECK enum status ckpt_encode(struct ckpt_codec *codec, enum ckpt_dtype dtype, const void *raw,
                                   const void *base, uint32_t size, struct disk_chunk *chunk,
                                   uint8_t *out);

/* Chunks so far that had to be stored plain, because decoding them gave something else. */
uint64_t ckpt_codec_mistakes(const struct ckpt_codec *codec);

/*
 * Decodes the stored bytes of a chunk, whatever they are, into out (raw_size bytes).
 * base: what ckpt_encode got; ignored unless the chunk is a difference. May be out itself.
 * Errors: ST_CORRUPT, ST_VERSION (a dtype or codec of a later version); ST_INVALID: the chunk is a
 * difference and base is NULL. out is undefined then.
 */
MUST_CHECK enum status ckpt_decode(struct ckpt_codec *codec, const struct disk_chunk *chunk,
                                   const uint8_t *stored, const void *base, void *out);
