/*
 * Planes in frames: the second half of the codec. A plane is stored raw or as nibbles in a
 * skippable frame, or in one zstd frame.
 *
 * Thread: as the codec. Memory: 48 KiB and what libzstd needs, allocated at the start.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/codec/planes.h"
#include "checkpoint/format/disk.h"
#include "common/status.h"

/* Ways to store a plane. A plane that gets no smaller by it is stored raw. */
enum coder {
    CODER_RAW,
    CODER_NIBBLES,
    CODER_ENTROPY, /* numbers: huffman.h's frames, or zstd without matches */
    CODER_SPARSE,  /* mostly zeros: zstd with a fast match finder */
    CODER_BYTES,   /* texts, tables, integers: zstd as usual */
};

struct frames;

MUST_CHECK enum status frames_new(struct frames **out);
void frames_free(struct frames *frames);

/*
 * Appends the next plane of *chunk at out + chunk->stored_size, and counts it there. data may lie
 * where a raw plane would (DISK_FRAME_BYTES behind that); out has room for a raw plane.
 */
void frames_put(struct frames *frames, enum coder coder, const uint8_t *data, uint32_t size,
                struct disk_chunk *chunk, uint8_t *out);

/*
 * The bytes of a plane, where they lie when they are raw, else decoded into scratch (length bytes).
 * NULL: the frame is damaged or doesn't hold just length bytes.
 */
const uint8_t *frames_get(struct frames *frames, const uint8_t *frame, size_t frame_size,
                          enum disk_mode mode, uint8_t *scratch, size_t length);
/* Bytes that a plane says it holds; 0: damaged. */
size_t frames_length(const uint8_t *frame, size_t frame_size, enum disk_mode mode);
