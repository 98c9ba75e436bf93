/*
 * Llama: pre-norm blocks with rms norms, rotary positions, heads of keys and values that heads of
 * queries share, a gated part, and no biases.
 *
 * The products of q, k and v are one, and so are those of the gate and of what it lets through: the
 * weights lie one after the other, under the names of Hugging Face's LlamaForCausalLM.
 *
 * Source: Touvron et al., "LLaMA: open and efficient foundation language models", 2023, section
 *         2.2; shared heads: Touvron et al., "Llama 2: open foundation and fine-tuned chat models",
 *         2023, section 2.2. Weights normal(0, 0.02), as Hugging Face's.
 */
#include <stdio.h>

#include "trainer/models/builders.h"

#define STD         0.02f
#define TOKEN_NAME  "model.embed_tokens"
#define TOKEN_TABLE TOKEN_NAME ".weight"

struct layer_name {
    char text[64];
};

static struct layer_name layer_name(int64_t layer, const char *part)
{
    struct layer_name out;
    (void)snprintf(out.text, sizeof(out.text), "model.layers.%d.%s", (int)layer, part);
    return out;
}

static int attend(struct tape *tape, int x, int64_t index, const struct model_options *options)
{
    const int heads = (int)options->heads, kv_heads = (int)options->kv_heads;
    const int64_t kv = options->embed / options->heads * options->kv_heads;
    const struct tape_linear qkv = {
        .out = options->embed + 2 * kv,
        .std = STD,
        .parts = { { "q_proj", options->embed }, { "k_proj", kv }, { "v_proj", kv } }
    };
    const struct tape_linear out = { .out = options->embed, .residual = x, .std = STD };

    int y = tape_rms_norm(tape, layer_name(index, "input_layernorm").text, x, options->norm_eps);
    y = tape_linear(tape, layer_name(index, "self_attn").text, y, &qkv);
    y = tape_rotary(tape, y, heads, kv_heads, options->rope_theta);
    y = tape_attention(tape, y, heads);
    return tape_linear(tape, layer_name(index, "self_attn.o_proj").text, y, &out);
}

static int feed_forward(struct tape *tape, int x, int64_t index,
                        const struct model_options *options)
{
    const int64_t wide = options->intermediate;
    const struct tape_linear both = { .out = 2 * wide,
                                      .std = STD,
                                      .parts = { { "gate_proj", wide }, { "up_proj", wide } } };
    const struct tape_linear down = { .out = options->embed, .residual = x, .std = STD };

    int y = tape_rms_norm(tape, layer_name(index, "post_attention_layernorm").text, x,
                          options->norm_eps);
    y = tape_linear(tape, layer_name(index, "mlp").text, y, &both);
    y = tape_gated(tape, y);
    return tape_linear(tape, layer_name(index, "mlp.down_proj").text, y, &down);
}

int model_llama(struct tape *tape, int tokens, const struct model_options *options)
{
    const struct tape_embedding embedding = {
        .token = TOKEN_NAME, .vocab = options->vocab, .out = options->embed, .std = STD
    };
    const struct tape_linear head = { .out = options->vocab,
                                      .tied = options->tied ? TOKEN_TABLE : NULL,
                                      .std = STD };

    int x = tape_embedding(tape, tokens, &embedding);
    for (int64_t i = 0; i < options->layers && tape->error == ST_OK; i++) {
        x = attend(tape, x, i, options);
        x = feed_forward(tape, x, i, options);
    }
    x = tape_rms_norm(tape, "model.norm", x, options->norm_eps);
    return tape_linear(tape, "lm_head", x, &head);
}
