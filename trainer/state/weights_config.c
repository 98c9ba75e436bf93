#include "trainer/state/weights_config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "trainer/tape/tape_append.h"

#define CONFIG_BYTES ((size_t)1024 * 1024)

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
    return json_is_object(config) && (type == NULL || strcmp(type, "gpt2") == 0) &&
           is_equal(config, "n_layer", model->layers) && is_equal(config, "n_embd", model->width);
}

/* gelu_new and its like are the form with tanh, which is ours. */
static bool is_our_activation(const char *name)
{
    return name == NULL || strcmp(name, "gelu_new") == 0 || strcmp(name, "gelu_pytorch_tanh") == 0;
}

static enum status compare(const json_t *config, const char *path,
                           const struct jobspec_model *model, struct reason *reason)
{
    const char *activation = json_string_value(json_object_get(config, "activation_function"));
    const json_t *epsilon = json_object_get(config, "layer_norm_epsilon");
    if (!is_equal(config, "n_head", model->heads)) {
        const long long heads = json_integer_value(json_object_get(config, "n_head"));
        reason_set(reason,
                   "model.weights: %s: it was trained with %lld heads, not %lld; set "
                   "model.heads to %lld",
                   path, heads, (long long)model->heads, heads);
        return ST_CONFIG;
    }
    const char *other = NULL;
    if (!is_our_activation(activation)) {
        other = "activation_function";
    } else if (json_is_number(epsilon) &&
               fabs(json_number_value(epsilon) / (double)TAPE_NORM_EPSILON - 1) > 1e-3) {
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

enum status weights_config_check(const struct jobspec *job, const struct io *io,
                                 struct reason *reason)
{
    char path[LIMIT_PATH];
    auto_free char *text = NULL;
    size_t size = 0;
    const char *file = job->model.weights, *last = strrchr(file, '/');
    if (job->model.arch != JOBSPEC_ARCH_GPT2 || last == NULL)
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
