/*
 * The state of step 0, in host memory: drawn from the seed, then model.weights, if the job names a
 * file, over it. The same on every rank.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>

#include "checkpoint/checkpoint.h"
#include "common/io.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "trainer/tape/tape.h"

struct initial_state_options {
    const struct jobspec *job;
    const struct io *io;
    const struct tape *tape;
    /* Buffers and tensors as optimizer_describe gives them. */
    const struct ckpt_buffer *buffers;
    uint32_t buffer_count;
    const struct ckpt_tensor *tensors;
    uint32_t tensor_count;
};

/*
 * Fills params and stats, the flat buffers of the tape; stats may be NULL where it has none.
 * Errors: ST_CONFIG  reason is one line "model.weights: FILE: cause; way out"
 *         ST_IO, …   reason is a cause
 */
MUST_CHECK enum status initial_state_fill(const struct initial_state_options *options,
                                          float *params, float *stats, struct reason *reason);

/* Checks that model.weights, if it is given, fits the model: reads only names, shapes and types,
 * and the values of an lm_head.weight. Errors: as initial_state_fill */
MUST_CHECK enum status initial_state_check(const struct jobspec *job, const struct io *io,
                                           const struct tape *tape, struct reason *reason);
