/* The config.json beside an exported model. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ckpt/commands.h"
#include "common/cleanup.h"
#include "common/io.h"

/* As torch has them. */
static const char *dtype_name(enum ckpt_dtype dtype)
{
    return dtype == CKPT_BF16 ? "bfloat16" : dtype == CKPT_F16 ? "float16" : "float32";
}

static json_t *config_of_llama(const struct jobspec_model *model, enum ckpt_dtype dtype)
{
    json_t *rope = json_pack("{s:s, s:f}", "rope_type", "default", "rope_theta", model->rope_theta);
    return json_pack(
        "{s:[s], s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:f, s:o}",
        "architectures", "LlamaForCausalLM", "model_type", "llama", "hidden_act", "silu", "dtype",
        dtype_name(dtype), "num_hidden_layers", (json_int_t)model->layers, "num_attention_heads",
        (json_int_t)model->heads, "num_key_value_heads", (json_int_t)model->kv_heads, "hidden_size",
        (json_int_t)model->width, "intermediate_size", (json_int_t)model->intermediate,
        "max_position_embeddings", (json_int_t)model->context, "vocab_size",
        (json_int_t)model->vocab, "rms_norm_eps", model->norm_eps, "tie_word_embeddings",
        (int)model->tied, "rope_theta", model->rope_theta, /* of old ones */
        "rope_parameters", rope);
}

/* Returns a dim of the tensor whose name ends so; 0: there is none. */
static int64_t dim_of(const struct ckpt_reader *reader, const char *end, int dim)
{
    const struct ckpt_tensor *tensors = NULL;
    const uint32_t count = ckpt_reader_tensors(reader, &tensors);
    for (uint32_t i = 0; i < count; i++) {
        const size_t size = strlen(tensors[i].name), end_size = strlen(end);
        if (size >= end_size && strcmp(tensors[i].name + size - end_size, end) == 0)
            return (int64_t)tensors[i].dims[dim];
    }
    return 0;
}

/* Hugging Face's ViTs want square images. Of others the file has the size of the largest square
 * with no more patches. */
static json_t *config_of_vit(const struct jobspec_model *model, const struct ckpt_reader *reader,
                             enum ckpt_dtype dtype)
{
    const int64_t patches = dim_of(reader, "vit.embeddings.position_embeddings", 1) - 1;
    const int64_t channels = dim_of(reader, "patch_embeddings.projection.weight", 1);
    json_int_t side = 1;
    while ((side + 1) * (side + 1) <= patches)
        side++;
    return json_pack(
        "{s:[s], s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b}", "architectures",
        "ViTForImageClassification", "model_type", "vit", "hidden_act", "gelu", "dtype",
        dtype_name(dtype), "num_hidden_layers", (json_int_t)model->layers, "num_attention_heads",
        (json_int_t)model->heads, "hidden_size", (json_int_t)model->width, "intermediate_size",
        4 * (json_int_t)model->width, "patch_size", (json_int_t)model->patch, "image_size",
        side * (json_int_t)model->patch, "num_channels", (json_int_t)channels, "num_labels",
        (json_int_t)model->classes, "layer_norm_eps", 1e-12, "qkv_bias", 1);
}

static json_t *config_of_bert(const struct jobspec_model *model, enum ckpt_dtype dtype)
{
    return json_pack("{s:[s], s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:f, s:i}",
                     "architectures", "BertForMaskedLM", "model_type", "bert", "hidden_act", "gelu",
                     "dtype", dtype_name(dtype), "num_hidden_layers", (json_int_t)model->layers,
                     "num_attention_heads", (json_int_t)model->heads, "hidden_size",
                     (json_int_t)model->width, "intermediate_size", 4 * (json_int_t)model->width,
                     "max_position_embeddings", (json_int_t)model->context, "vocab_size",
                     (json_int_t)model->vocab, "type_vocab_size", 2, "layer_norm_eps", 1e-12,
                     "pad_token_id", 0);
}

static json_t *config_of(const struct jobspec_model *model, const struct ckpt_reader *reader,
                         enum ckpt_dtype dtype)
{
    if (model->arch == JOBSPEC_ARCH_VIT)
        return config_of_vit(model, reader, dtype);
    return model->arch == JOBSPEC_ARCH_BERT ? config_of_bert(model, dtype)
                                            : config_of_llama(model, dtype);
}

enum exit_code ckpt_write_config(const struct client *client, const char *file,
                                 const struct jobspec_model *model,
                                 const struct ckpt_reader *reader,
                                 const struct weights_export *options)
{
    char path[LIMIT_PATH];
    const char *last = strrchr(file, '/');
    const int folder = last == NULL ? 0 : (int)(last - file) + 1;
    const int length = snprintf(path, sizeof(path), "%.*sconfig.json", folder, file);
    if (length < 0 || (size_t)length >= sizeof(path))
        return EXIT_INTERNAL;
    if (!options->replace && access(path, F_OK) == 0) {
        client_note(client, "%s is there and stays as it is\n", path);
        return EXIT_DONE;
    }
    json_t *config = config_of(model, reader, options->dtype);
    auto_free char *text = config == NULL ? NULL : json_dumps(config, JSON_INDENT(2));
    json_decref(config);
    if (text == NULL)
        return EXIT_INTERNAL;
    const enum status st = io_replace(io_system(), path, text, strlen(text));
    if (st != ST_OK)
        client_error("%s: %s", path, status_string(st));
    return st == ST_OK ? EXIT_DONE : exit_of_status(st);
}
