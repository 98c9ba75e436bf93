#include <stdio.h>
#include <string.h>

#include "checkpoint/weights/weights.h"

static bool ends_with(const char *text, const char *end)
{
    size_t size = strlen(text), end_size = strlen(end);
    return size >= end_size && strcmp(text + size - end_size, end) == 0;
}

static bool is_gpt2(const char *arch)
{
    return strcmp(arch, "gpt2") == 0;
}

static bool is_bert(const char *arch)
{
    return strcmp(arch, "bert") == 0;
}

static bool is_vit(const char *arch)
{
    return strcmp(arch, "vit") == 0;
}

static bool is_llama(const char *arch)
{
    return strcmp(arch, "llama") == 0;
}

/* transformers' Conv1D. */
static bool is_conv1d(const char *name)
{
    static const char *const weights[] = { ".attn.c_attn.weight", ".attn.c_proj.weight",
                                           ".mlp.c_fc.weight", ".mlp.c_proj.weight" };
    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
        if (ends_with(name, weights[i]))
            return true;
    }
    return false;
}

void weights_name(const char *arch, const struct ckpt_tensor *tensor, struct weights_name *out)
{
    (void)snprintf(out->text, sizeof(out->text), "%s", tensor->name);
    out->transposed = is_gpt2(arch) && tensor->ndim == 2 && is_conv1d(tensor->name);
}

const char *weights_first_part(const char *arch)
{
    static const struct {
        const char *arch, *part;
    } rows[] = {
        { "gpt2", "transformer." }, { "llama", "model." }, { "vit", "vit." }, { "bert", "bert." }
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (strcmp(rows[i].arch, arch) == 0)
            return rows[i].part;
    }
    return "";
}

const char *weights_token_table(const char *arch)
{
    return is_gpt2(arch)    ? "transformer.wte.weight"
           : is_llama(arch) ? "model.embed_tokens.weight"
                            : NULL;
}

bool weights_pass_over(const char *arch, const char *name)
{
    static const char *const moments[] = { "momentum/", "adam.m/", "adam.v/", "lion.m/", "lamb.m/",
                                           "lamb.v/",   "muon.m/", "muon.v/", "ema/" };
    for (size_t i = 0; i < sizeof(moments) / sizeof(moments[0]); i++) {
        if (strncmp(name, moments[i], strlen(moments[i])) == 0)
            return true;
    }
    if (is_gpt2(arch)) {
        return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
               strcmp(name, WEIGHTS_HEAD) == 0;
    }
    if (is_bert(arch)) {
        return strstr(name, "pooler.dense.") != NULL || ends_with(name, ".position_ids") ||
               strncmp(name, "cls.predictions.decoder.", 24) == 0 ||
               strncmp(name, "cls.seq_relationship.", 21) == 0;
    }
    if (is_vit(arch))
        return ends_with(name, "pooler.dense.weight") || ends_with(name, "pooler.dense.bias");
    if (is_llama(arch))
        return ends_with(name, ".rotary_emb.inv_freq") || strcmp(name, WEIGHTS_HEAD) == 0;
    return ends_with(name, ".num_batches_tracked");
}
