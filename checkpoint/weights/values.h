/*
 * The values of an open checkpoint's tensors, part by part.
 *
 * Memory: two buffers of CKPT_VALUES_ELEMENTS values.
 * Thread: one at a time.
 */
#pragma once

#include "checkpoint/checkpoint.h"

#define CKPT_VALUES_ELEMENTS ((size_t)1 << 18) /* of a chunk; no float buffer has more in one */

struct ckpt_values {
    struct ckpt_reader *reader; /* borrowed, like the next two */
    const struct ckpt_buffer *buffers;
    const struct ckpt_tensor *tensors;
    uint32_t tensor_count;
    void *stored; /* what was read last */
    float *wide;  /* for whoever needs it as float32 */
};

/* Released even after an error. ST_NO_MEMORY. */
MUST_CHECK enum status ckpt_values_open(struct ckpt_values *values, struct ckpt_reader *reader);
void ckpt_values_release(struct ckpt_values *values);

/* How many of the elements [first, end) the part that begins with first has: up to the next border
 * of a chunk, so that each is decoded once. */
size_t ckpt_values_size(const struct ckpt_values *values, const struct ckpt_tensor *tensor,
                        uint64_t first, uint64_t end);
/* Elements [first, first + count) of a tensor to values->stored; count: at most
 * CKPT_VALUES_ELEMENTS. Errors: as ckpt_read_buffer. */
MUST_CHECK enum status ckpt_values_read(struct ckpt_values *values,
                                        const struct ckpt_tensor *tensor, uint64_t first,
                                        size_t count);
