/*
 * The values of an open checkpoint's tensors, part by part.
 *
 * Memory: two buffers of CKPT_PART_ELEMENTS values.
 * Thread: one at a time.
 */
#pragma once

#include "checkpoint/checkpoint.h"

#define CKPT_PART_ELEMENTS ((size_t)1 << 18) /* of a chunk; no float buffer has more in one */

struct ckpt_parts {
    struct ckpt_reader *reader; /* borrowed, like the next two */
    const struct ckpt_buffer *buffers;
    const struct ckpt_tensor *tensors;
    uint32_t tensor_count;
    void *stored; /* what was read last */
    float *wide;  /* for whoever needs it as float32 */
};

/* Released even after an error. ST_NO_MEMORY. */
MUST_CHECK enum status ckpt_parts_open(struct ckpt_parts *parts, struct ckpt_reader *reader);
void ckpt_parts_release(struct ckpt_parts *parts);

/* How many of the elements [first, end) the part that begins with first has: up to the next border
 * of a chunk, so that each is decoded once. */
size_t ckpt_parts_size(const struct ckpt_parts *parts, const struct ckpt_tensor *tensor,
                       uint64_t first, uint64_t end);
/* Elements [first, first + count) of a tensor to parts->stored; count: at most
 * CKPT_PART_ELEMENTS. Errors: as ckpt_read_buffer. */
MUST_CHECK enum status ckpt_parts_read(struct ckpt_parts *parts, const struct ckpt_tensor *tensor,
                                       uint64_t first, size_t count);
