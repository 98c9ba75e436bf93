/*
 * The models, by name: each a function that appends its nodes to a tape.
 *
 * Inputs of a tape made here: of an image model images f32 [1, C, H, W] and labels i32 [1]; of a
 * text model tokens i32 [1, T] and labels i32 [1, T].
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "trainer/tape/tape.h"

enum model_input { MODEL_IMAGES, MODEL_TOKENS };

struct model_options {
    const char *arch; /* "mlp", "lenet", "resnet18", "resnet50", "resnet152", "gpt2" */
    float label_smoothing;

    /* of image models */
    int64_t channels, height, width;
    int64_t classes;
    int64_t hidden; /* mlp */

    /* of text models; 0 takes what size says: see model_size */
    const char *size; /* "124M", "355M", "774M", "1558M"; NULL or "": 124M's numbers */
    int64_t layers, heads, embed;
    int64_t context; /* T */
    int64_t vocab;
    float dropout; /* after the embedding and before each residual addition */
};

/* What an architecture eats. ST_NOT_FOUND: no such model. */
MUST_CHECK enum status model_input(const char *arch, enum model_input *out);

/* Fills in layers, heads, embed, context and vocab where they are 0: those of GPT-2 of this size.
 * ST_NOT_FOUND: no such size. */
MUST_CHECK enum status model_size(struct model_options *options);

/* ST_NOT_FOUND: no such model, or size; ST_INVALID: the image is too small for it, or the numbers
 * of a text model don't fit each other. */
MUST_CHECK enum status model_build(const struct model_options *options, struct tape **out);
