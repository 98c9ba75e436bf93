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

static json_t *config_of(const struct jobspec_model *model, enum ckpt_dtype dtype)
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

enum exit_code ckpt_write_config(const struct client *client, const char *file,
                                 const struct jobspec_model *model,
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
    json_t *config = config_of(model, options->dtype);
    auto_free char *text = config == NULL ? NULL : json_dumps(config, JSON_INDENT(2));
    json_decref(config);
    if (text == NULL)
        return EXIT_INTERNAL;
    const enum status st = io_replace(io_system(), path, text, strlen(text));
    if (st != ST_OK)
        client_error("%s: %s", path, status_string(st));
    return st == ST_OK ? EXIT_DONE : exit_of_status(st);
}
