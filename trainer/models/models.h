/*
 * The models, by name: each a function that appends its nodes to a tape.
 *
 * Inputs of a tape made here, in this order:
 *   image models  images f32 [1, C, H, W], labels i32 [1]
 *   text models   tokens i32 [1, T],       labels i32 [1, T]
 *   bert          tokens i32 [1, T],       labels i32 [1, T],  kinds i32 [1, T]: 0, 1
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/tape/tape.h"

enum model_input { MODEL_IMAGES, MODEL_TOKENS };

struct model_options {
    /* "mlp", "lenet", "resnet18", "resnet50", "resnet152", "gpt2", "llama", "vit", "bert" */
    const char *arch;
    float label_smoothing;

    /* of image models */
    int64_t channels, height, width;
    int64_t classes;
    int64_t hidden; /* mlp */
    int64_t patch;  /* vit: side, which divides the image's */

    /* of transformers; 0: model_text_defaults */
    int64_t layers, heads, embed;
    float dropout; /* gpt2, vit: after the embedding and before each residual addition */

    /* of text models; 0: likewise */
    int64_t context; /* T */
    int64_t vocab;

    /* of llama; 0: model_text_defaults */
    int64_t kv_heads, intermediate;
    float rope_theta, norm_eps;
    bool tied; /* the output's weight is the table of tokens */
};

/* Returns the kind of input of an architecture. ST_NOT_FOUND: no such model. */
MUST_CHECK enum status model_input(const char *arch, enum model_input *out);

/* Fills in the numbers of a transformer that are 0: with the smallest GPT-2's, whose layers are
 * those of ViT-B, too; a Llama then has as many heads of k and v as of q, 2048 columns within its
 * gated parts, a base of 10000 and an epsilon of 1e-5, and a ViT patches of 16 pixels. */
void model_text_defaults(struct model_options *options);

/*
 * Makes the tape of a model. The caller owns *out.
 * Errors: ST_NOT_FOUND  no such model
 *         ST_INVALID    the image is too small for it, or a text model's numbers don't fit together
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status model_build(const struct model_options *options, struct tape **out);
