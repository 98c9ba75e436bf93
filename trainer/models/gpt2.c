/*
 * GPT-2: pre-norm blocks, GELU by tanh, the output's weight is the token embedding's.
 *
 * Source: Radford et al., "Language models are unsupervised multitask learners", 2019; weights
 * normal(0, 0.02), those of the projections onto the residual stream by 1/sqrt(2·layers) less;
 * biases 0. Names and layers as Hugging Face's GPT2LMHeadModel, its weights turned to [out, in]
 * (trainer/tape/tape.h).
 */
#include <math.h>
#include <stdio.h>

#include "trainer/models/builders.h"

#define STD         0.02f
#define TOKEN_NAME  "transformer.wte"
#define TOKEN_TABLE TOKEN_NAME ".weight"

struct layer_name {
    char text[64];
};

static struct layer_name layer_name(int64_t layer, const char *part)
{
    struct layer_name out;
    (void)snprintf(out.text, sizeof(out.text), "transformer.h.%d.%s", (int)layer, part);
    return out;
}

/* x + dropout(y·Wᵀ + b). */
static int project(struct tape *tape, const char *name, int y, int x,
                   const struct model_options *options)
{
    bool drops = options->dropout > 0;
    struct tape_linear linear = { .out = options->embed,
                                  .bias = true,
                                  .residual = drops ? TAPE_NO_RESIDUAL : x,
                                  .std = STD / sqrtf(2.0f * (float)options->layers) };
    y = tape_linear(tape, name, y, &linear);
    return drops ? tape_dropout(tape, y, x, options->dropout) : y;
}

static int layer(struct tape *tape, int x, int64_t index, const struct model_options *options)
{
    struct tape_linear qkv = { .out = 3 * options->embed, .bias = true, .std = STD };
    struct tape_linear wide = {
        .out = 4 * options->embed, .bias = true, .activation = ACTIVATION_GELU_TANH, .std = STD
    };

    int y = tape_layer_norm(tape, layer_name(index, "ln_1").text, x);
    y = tape_linear(tape, layer_name(index, "attn.c_attn").text, y, &qkv);
    y = tape_attention(tape, y, (int)options->heads);
    x = project(tape, layer_name(index, "attn.c_proj").text, y, x, options);
    y = tape_layer_norm(tape, layer_name(index, "ln_2").text, x);
    y = tape_linear(tape, layer_name(index, "mlp.c_fc").text, y, &wide);
    return project(tape, layer_name(index, "mlp.c_proj").text, y, x, options);
}

int model_gpt2(struct tape *tape, int tokens, const struct model_options *options)
{
    struct tape_embedding embedding = { .token = TOKEN_NAME,
                                        .position = "transformer.wpe",
                                        .vocab = options->vocab,
                                        .context = options->context,
                                        .out = options->embed,
                                        .std = STD };
    struct tape_linear head = { .out = options->vocab, .tied = TOKEN_TABLE };

    int x = tape_embedding(tape, tokens, &embedding);
    x = tape_dropout(tape, x, TAPE_NO_RESIDUAL, options->dropout);
    for (int64_t i = 0; i < options->layers && tape->error == ST_OK; i++)
        x = layer(tape, x, i, options);
    x = tape_layer_norm(tape, "transformer.ln_f", x);
    return tape_linear(tape, "lm_head", x, &head);
}
