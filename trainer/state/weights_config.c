#include "trainer/state/weights_config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "trainer/tape/tape_append.h"

#define CONFIG_BYTES ((size_t)1024 * 1024)
#define EPSILON      1e-12 /* of trainer/models/vit.c and trainer/models/bert.c */

/* True if the configuration has that value, or none. */
static bool is_equal(const json_t *config, const char *name, int64_t value)
{
    const json_t *said = json_object_get(config, name);
    return !json_is_integer(said) || json_integer_value(said) == value;
}

/* True if sizes that shapes show, too, are the model's; else the configuration is of another
 * model. */
static bool is_of_model(const json_t *config, const struct jobspec_model *model)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const bool gpt2 = model->arch == JOBSPEC_ARCH_GPT2;
    return json_is_object(config) &&
           (type == NULL || strcmp(type, jobspec_arch_word(model->arch)) == 0) &&
           is_equal(config, gpt2 ? "n_layer" : "num_hidden_layers", model->layers) &&
           is_equal(config, gpt2 ? "n_embd" : "hidden_size", model->width);
}

static bool is_near(const json_t *said, double value)
{
    return !json_is_number(said) || fabs(json_number_value(said) / value - 1) <= 1e-3;
}

/* gelu_new and its like are the form with tanh, which is ours. */
static bool is_our_activation(const char *name)
{
    return name == NULL || strcmp(name, "gelu_new") == 0 || strcmp(name, "gelu_pytorch_tanh") == 0;
}

static enum status refuse_heads(const char *path, const char *key, const char *what, int64_t said,
                                int64_t value, struct reason *reason)
{
    reason_set(reason,
               "model.weights: %s: it was trained with %lld %s, not %lld; set model.%s to %lld",
               path, (long long)said, what, (long long)value, key, (long long)said);
    return ST_CONFIG;
}

static enum status compare_gpt2(const json_t *config, const char *path,
                                const struct jobspec_model *model, struct reason *reason)
{
    const char *activation = json_string_value(json_object_get(config, "activation_function"));
    if (!is_equal(config, "n_head", model->heads)) {
        return refuse_heads(path, "heads", "heads",
                            json_integer_value(json_object_get(config, "n_head")), model->heads,
                            reason);
    }
    const char *other = NULL;
    if (!is_our_activation(activation)) {
        other = "activation_function";
    } else if (!is_near(json_object_get(config, "layer_norm_epsilon"), (double)TAPE_NORM_EPSILON)) {
        other = "layer_norm_epsilon";
    } else if (json_is_true(json_object_get(config, "scale_attn_by_inverse_layer_idx"))) {
        other = "scale_attn_by_inverse_layer_idx";
    } else if (json_is_false(json_object_get(config, "scale_attn_weights"))) {
        other = "scale_attn_weights";
    }
    if (other == NULL)
        return ST_OK;
    reason_set(reason, "model.weights: %s: its %s isn't that of gpt2 here; take other weights",
               path, other);
    return ST_CONFIG;
}

/* What a Llama of this program never does; NULL: nothing of it. */
static const char *other_llama(const json_t *config, const struct jobspec_model *model)
{
    const char *activation = json_string_value(json_object_get(config, "hidden_act"));
    const json_t *scaling = json_object_get(config, "rope_scaling");
    const json_t *rope = json_object_get(config, "rope_parameters");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (activation != NULL && strcmp(activation, "silu") != 0)
        return "hidden_act";
    if (json_is_object(scaling))
        return "rope_scaling";
    if (type != NULL && strcmp(type, "default") != 0)
        return "rope_parameters";
    if (json_is_true(json_object_get(config, "attention_bias")))
        return "attention_bias";
    if (json_is_true(json_object_get(config, "mlp_bias")))
        return "mlp_bias";
    return is_equal(config, "head_dim", model->width / model->heads) ? NULL : "head_dim";
}

static enum status compare_llama(const json_t *config, const char *path,
                                 const struct jobspec_model *model, struct reason *reason)
{
    const json_t *rope = json_object_get(config, "rope_parameters");
    const json_t *theta = json_object_get(json_is_object(rope) ? rope : config, "rope_theta");
    const json_t *epsilon = json_object_get(config, "rms_norm_eps");
    const json_t *tied = json_object_get(config, "tie_word_embeddings");
    const json_t *heads = json_object_get(config, "num_attention_heads");
    const json_t *kv_heads = json_object_get(config, "num_key_value_heads");
    if (!is_equal(config, "num_attention_heads", model->heads)) {
        return refuse_heads(path, "heads", "heads", json_integer_value(heads), model->heads,
                            reason);
    }
    if (!is_equal(config, "num_key_value_heads", model->kv_heads)) {
        return refuse_heads(path, "kv_heads", "heads of keys and values",
                            json_integer_value(kv_heads), model->kv_heads, reason);
    }
    if (!is_near(theta, model->rope_theta)) {
        reason_set(reason, "model.weights: %s: its rope_theta is %g; set model.rope_theta to that",
                   path, json_number_value(theta));
        return ST_CONFIG;
    }
    if (!is_near(epsilon, model->norm_eps)) {
        reason_set(reason, "model.weights: %s: its rms_norm_eps is %g; set model.norm_eps to that",
                   path, json_number_value(epsilon));
        return ST_CONFIG;
    }
    if (json_is_boolean(tied) && json_is_true(tied) != model->tied) {
        reason_set(reason, "model.weights: %s: its tie_word_embeddings is %s; set model.tied to %s",
                   path, json_is_true(tied) ? "true" : "false",
                   json_is_true(tied) ? "true" : "false");
        return ST_CONFIG;
    }
    const char *other = other_llama(config, model);
    if (other == NULL)
        return ST_OK;
    reason_set(reason, "model.weights: %s: its %s isn't that of llama here; take other weights",
               path, other);
    return ST_CONFIG;
}

/* A BERT is compared like a ViT. */
static enum status compare_vit(const json_t *config, const char *path,
                               const struct jobspec_model *model, struct reason *reason)
{
    const char *activation = json_string_value(json_object_get(config, "hidden_act"));
    const json_t *heads = json_object_get(config, "num_attention_heads");
    if (!is_equal(config, "num_attention_heads", model->heads)) {
        return refuse_heads(path, "heads", "heads", json_integer_value(heads), model->heads,
                            reason);
    }
    const char *other = NULL;
    if (activation != NULL && strcmp(activation, "gelu") != 0) {
        other = "hidden_act";
    } else if (!is_near(json_object_get(config, "layer_norm_eps"), EPSILON)) {
        other = "layer_norm_eps";
    } else if (json_is_false(json_object_get(config, "qkv_bias"))) {
        other = "qkv_bias";
    }
    if (other == NULL)
        return ST_OK;
    reason_set(reason, "model.weights: %s: its %s isn't that of %s here; take other weights", path,
               other, jobspec_arch_word(model->arch));
    return ST_CONFIG;
}

static enum status compare(const json_t *config, const char *path,
                           const struct jobspec_model *model, struct reason *reason)
{
    if (model->arch == JOBSPEC_ARCH_GPT2)
        return compare_gpt2(config, path, model, reason);
    return model->arch == JOBSPEC_ARCH_LLAMA ? compare_llama(config, path, model, reason)
                                             : compare_vit(config, path, model, reason);
}

enum status weights_config_check(const struct jobspec *job, const struct io *io,
                                 struct reason *reason)
{
    char path[LIMIT_PATH];
    auto_free char *text = NULL;
    size_t size = 0;
    const char *file = job->model.weights, *last = strrchr(file, '/');
    if ((!jobspec_is_text(&job->model) && job->model.arch != JOBSPEC_ARCH_VIT) || last == NULL)
        return ST_OK;
    const int length = snprintf(path, sizeof(path), "%.*s/config.json", (int)(last - file), file);
    if (length < 0 || (size_t)length >= sizeof(path) ||
        io_read_file(io, path, CONFIG_BYTES, &text, &size) != ST_OK)
        return ST_OK;
    json_t *config = json_loadb(text, size, 0, NULL);
    enum status st = ST_OK;
    if (config != NULL && is_of_model(config, &job->model))
        st = compare(config, path, &job->model, reason);
    json_decref(config);
    return st;
}
