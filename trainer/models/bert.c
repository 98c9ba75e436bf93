/*
 * BERT for masked tokens: post-norm blocks of attention in both directions, tokens of two kinds,
 * and a head whose weight is the token embedding's. The sentence pairs' head is left out.
 *
 * Source: Devlin et al., "BERT: pre-training of deep bidirectional transformers for language
 * understanding", NAACL 2019; names and layers as Hugging Face's BertForMaskedLM. Weights
 * normal(0, 0.02), biases 0.
 */
#include <stdio.h>

#include "trainer/models/builders.h"

#define STD         0.02f
#define EPSILON     1e-12f
#define KINDS       2 /* of tokens: of the first sentence, of the second */
#define EMBEDDINGS  "bert.embeddings."
#define TOKEN_NAME  EMBEDDINGS "word_embeddings"
#define TOKEN_TABLE TOKEN_NAME ".weight"

struct layer_name {
    char text[80];
};

static struct layer_name layer_name(int64_t layer, const char *part)
{
    struct layer_name out;
    (void)snprintf(out.text, sizeof(out.text), "bert.encoder.layer.%d.%s", (int)layer, part);
    return out;
}

/* norm(x + dropout(y·Wᵀ + b)), the parameters PART.dense and PART.LayerNorm of a layer. */
static int project(struct tape *tape, int64_t index, const char *part, int y, int x,
                   const struct model_options *options)
{
    const bool drops = options->dropout > 0;
    const struct tape_linear linear = {
        .out = options->embed, .bias = true, .residual = drops ? TAPE_NO_RESIDUAL : x, .std = STD
    };
    char name[40];
    (void)snprintf(name, sizeof(name), "%s.dense", part);
    y = tape_linear(tape, layer_name(index, name).text, y, &linear);
    y = drops ? tape_dropout(tape, y, x, options->dropout) : y;
    (void)snprintf(name, sizeof(name), "%s.LayerNorm", part);
    return tape_layer_norm_eps(tape, layer_name(index, name).text, y, EPSILON);
}

static int layer(struct tape *tape, int x, int tokens, int64_t index,
                 const struct model_options *options)
{
    const int64_t width = options->embed;
    const struct tape_linear qkv = {
        .out = 3 * width,
        .bias = true,
        .std = STD,
        .parts = { { "query", width }, { "key", width }, { "value", width } }
    };
    const struct tape_linear wide = {
        .out = 4 * width, .bias = true, .activation = ACTIVATION_GELU_ERF, .std = STD
    };

    int y = tape_linear(tape, layer_name(index, "attention.self").text, x, &qkv);
    y = tape_attention_both(tape, y, tokens, (int)options->heads);
    x = project(tape, index, "attention.output", y, x, options);
    y = tape_linear(tape, layer_name(index, "intermediate.dense").text, x, &wide);
    return project(tape, index, "output", y, x, options);
}

int model_bert(struct tape *tape, int tokens, const struct model_options *options)
{
    const int64_t window[2] = { 1, options->context };
    const struct tape_embedding words = { .token = TOKEN_NAME,
                                          .position = EMBEDDINGS "position_embeddings",
                                          .vocab = options->vocab,
                                          .context = options->context,
                                          .out = options->embed,
                                          .std = STD };
    struct tape_embedding kinds = { .token = EMBEDDINGS "token_type_embeddings",
                                    .vocab = KINDS,
                                    .out = options->embed,
                                    .std = STD };
    const struct tape_linear transform = {
        .out = options->embed, .bias = true, .activation = ACTIVATION_GELU_ERF, .std = STD
    };
    const struct tape_linear head = {
        .out = options->vocab, .bias = true, .tied = TOKEN_TABLE, .std = STD
    };

    kinds.residual = tape_embedding(tape, tokens, &words);
    int x = tape_embedding(tape, tape_input(tape, DTYPE_I32, 2, window), &kinds);
    x = tape_layer_norm_eps(tape, EMBEDDINGS "LayerNorm", x, EPSILON);
    x = tape_dropout(tape, x, TAPE_NO_RESIDUAL, options->dropout);
    for (int64_t i = 0; i < options->layers && tape->error == ST_OK; i++)
        x = layer(tape, x, tokens, i, options);
    x = tape_linear(tape, "cls.predictions.transform.dense", x, &transform);
    x = tape_layer_norm_eps(tape, "cls.predictions.transform.LayerNorm", x, EPSILON);
    return tape_linear(tape, "cls.predictions", x, &head);
}
