/*
 * The values of an open checkpoint's tensors, part by part.
 *
 * Memory: two buffers of CKPT_VALUES_ELEMENTS values.
 * Thread: one at a time.
 */
#pragma once

#include "checkpoint/checkpoint.h"

#define CKPT_VALUES_ELEMENTS ((size_t)1 << 19) /* of a part; a chunk of floats has no more */

struct ckpt_values {
    struct ckpt_reader *reader; /* borrowed, as the next two */
    const struct ckpt_buffer *buffers;
    const struct ckpt_tensor *tensors;
    uint32_t tensor_count;
    void *stored; /* the part that was read last */
    float *wide;  /* the same as float32, if ckpt_values_widen was called */
};

/* Released even after an error. ST_NO_MEMORY. */
MUST_CHECK enum status ckpt_values_open(struct ckpt_values *values, struct ckpt_reader *reader);
void ckpt_values_release(struct ckpt_values *values);

/* Some elements of a tensor, one after the other. */
struct ckpt_values_part {
    uint64_t first;
    size_t count; /* CKPT_VALUES_ELEMENTS at most */
};
/* Moves on to the tensor's next part, which ends at the border of a chunk, so that each chunk of
 * floats is decoded once. part: 0 before the first. False: that was the last. */
bool ckpt_values_next(const struct ckpt_values *values, const struct ckpt_tensor *tensor,
                      struct ckpt_values_part *part);
/* Reads a part to values->stored. Errors: as ckpt_read_buffer */
MUST_CHECK enum status ckpt_values_read(struct ckpt_values *values,
                                        const struct ckpt_tensor *tensor,
                                        const struct ckpt_values_part *part);
/* The first count of the values that were read last, as float32 to values->wide. Of floats only. */
void ckpt_values_widen(struct ckpt_values *values, const struct ckpt_tensor *tensor, size_t count);
