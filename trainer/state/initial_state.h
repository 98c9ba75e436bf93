/*
 * The state of step 0, in host memory: drawn from the seed, then what model.weights names over it.
 * The same on every rank.
 */
#pragma once

#include <stddef.h>

#include "checkpoint/checkpoint.h"
#include "common/io.h"
#include "common/status.h"
#include "job/job.h"
#include "trainer/tape/tape.h"

struct initial_options {
    const struct job *job;
    const struct io *io;
    const struct tape *tape;
    /* As optimizer_describe says. */
    const struct ckpt_buffer *buffers;
    uint32_t buffer_count;
    const struct ckpt_tensor *tensors;
    uint32_t tensor_count;
};

/*
 * params, stats: the tape's elements; stats may be NULL where there are none.
 * Errors: ST_CONFIG  message is one line "model.weights: FILE: cause; way out"
 *         ST_IO, …   message is a cause
 */
MUST_CHECK enum status initial_state(const struct initial_options *options, float *params,
                                     float *stats, char *message, size_t capacity);

/* Whether model.weights, if it is given, fits the model: nothing is read but names, shapes and
 * types (of an lm_head.weight its values). Errors: as initial_state. */
MUST_CHECK enum status initial_check(const struct job *job, const struct io *io,
                                     const struct tape *tape, char *message, size_t capacity);
