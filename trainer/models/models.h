/*
 * The models, by name: each a function that appends its nodes to a tape.
 *
 * Inputs of a tape made here: images f32 [1, C, H, W], labels i32 [1].
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "trainer/tape/tape.h"

struct model_options {
    const char *arch; /* "mlp", "lenet", "resnet18" */
    int64_t channels, height, width;
    int64_t classes;
    int64_t hidden; /* mlp */
    float label_smoothing;
};

/* ST_NOT_FOUND: no such model; ST_INVALID: the image is too small for it. */
MUST_CHECK enum status model_build(const struct model_options *options, struct tape **out);
