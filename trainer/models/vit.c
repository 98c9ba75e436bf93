/*
 * Vision Transformer: patches of the image as tokens behind a class token, pre-norm blocks of
 * attention in both directions, and classes from the class token.
 *
 * Source: Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at
 * scale", ICLR 2021; names and layers as in Hugging Face's files of ViTForImageClassification.
 * Query, key and value are one product. Weights normal(0, 0.02), biases 0.
 */
#include <stdio.h>

#include "trainer/models/builders.h"

#define STD     0.02f
#define EPSILON 1e-12f

struct layer_name {
    char text[80];
};

static struct layer_name layer_name(int64_t layer, const char *part)
{
    struct layer_name out;
    (void)snprintf(out.text, sizeof(out.text), "vit.encoder.layer.%d.%s", (int)layer, part);
    return out;
}

/* x + dropout(y·Wᵀ + b). */
static int project(struct tape *tape, const char *name, int y, int x,
                   const struct model_options *options)
{
    const bool drops = options->dropout > 0;
    struct tape_linear linear = {
        .out = options->embed, .bias = true, .residual = drops ? TAPE_NO_RESIDUAL : x, .std = STD
    };
    y = tape_linear(tape, name, y, &linear);
    return drops ? tape_dropout(tape, y, x, options->dropout) : y;
}

static int layer(struct tape *tape, int x, int64_t index, const struct model_options *options)
{
    const int64_t width = options->embed;
    struct tape_linear qkv = { .out = 3 * width,
                               .bias = true,
                               .std = STD,
                               .parts = {
                                   { "query", width }, { "key", width }, { "value", width } } };
    struct tape_linear wide = {
        .out = 4 * options->embed, .bias = true, .activation = ACTIVATION_GELU_ERF, .std = STD
    };

    int y = tape_layer_norm_eps(tape, layer_name(index, "layernorm_before").text, x, EPSILON);
    y = tape_linear(tape, layer_name(index, "attention.attention").text, y, &qkv);
    y = tape_attention_both(tape, y, TAPE_NO_TOKENS, (int)options->heads);
    x = project(tape, layer_name(index, "attention.output.dense").text, y, x, options);
    y = tape_layer_norm_eps(tape, layer_name(index, "layernorm_after").text, x, EPSILON);
    y = tape_linear(tape, layer_name(index, "intermediate.dense").text, y, &wide);
    return project(tape, layer_name(index, "output.dense").text, y, x, options);
}

int model_vit(struct tape *tape, int images, const struct model_options *options)
{
    struct tape_conv2d patches = { .out = options->embed,
                                   .kernel = (int)options->patch,
                                   .stride = (int)options->patch,
                                   .bias = true,
                                   .std = STD };
    struct tape_sequence sequence = { .name = "vit.embeddings",
                                      .first = "cls_token",
                                      .position = "position_embeddings",
                                      .std = STD };
    struct tape_linear head = { .out = options->classes, .bias = true, .std = STD };

    if (options->height % options->patch != 0 || options->width % options->patch != 0)
        return -1;
    int x = tape_conv2d(tape, "vit.embeddings.patch_embeddings.projection", images, &patches);
    x = tape_sequence(tape, x, &sequence);
    x = tape_dropout(tape, x, TAPE_NO_RESIDUAL, options->dropout);
    for (int64_t i = 0; i < options->layers && tape->error == ST_OK; i++)
        x = layer(tape, x, i, options);
    x = tape_select(tape, x, 0); /* a norm is per token, so that the others' can be left out */
    x = tape_layer_norm_eps(tape, "vit.layernorm", x, EPSILON);
    return tape_linear(tape, "classifier", x, &head);
}
