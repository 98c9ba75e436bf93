/* config.json beside model.weights: what it says that no shape tells. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "tests/test.h"
#include "trainer/state/weights_config.h"

#define SIZES "\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 64, "

static char folder[64];

static const struct jobspec_model gpt2 = {
    .arch = JOBSPEC_ARCH_GPT2, .layers = 2, .width = 64, .heads = 2
};
static const struct jobspec_model llama = { .arch = JOBSPEC_ARCH_LLAMA,
                                            .layers = 2,
                                            .width = 64,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .rope_theta = 10000,
                                            .norm_eps = 1e-5 };

static enum status check(const struct jobspec_model *model, const char *text, struct reason *reason)
{
    static struct jobspec job;
    char path[LIMIT_PATH];
    job.model = *model;
    (void)snprintf(job.model.weights, sizeof(job.model.weights), "%s/model.safetensors", folder);
    (void)snprintf(path, sizeof(path), "%s/config.json", folder);
    (void)remove(path);
    if (text != NULL)
        assert_int_equal(io_replace(io_system(), path, text, strlen(text)), ST_OK);
    return weights_config_check(&job, io_system(), reason);
}

static void refuse_of(const struct jobspec_model *model, const char *text, const char *word)
{
    struct reason reason = { "" };
    assert_int_equal(check(model, text, &reason), ST_CONFIG);
    if (strstr(reason.text, word) == NULL)
        fail_msg("'%s' doesn't say '%s'", reason.text, word);
    assert_non_null(strstr(reason.text, "/config.json"));
}

static void take_of(const struct jobspec_model *model, const char *text)
{
    struct reason reason = { "" };
    assert_int_equal(check(model, text, &reason), ST_OK);
    assert_string_equal(reason.text, "");
}

static void refuse(const char *text, const char *word)
{
    refuse_of(&gpt2, text, word);
}

static void take(const char *text)
{
    take_of(&gpt2, text);
}

static void another_number_of_heads_is_refused_with_the_right_one(void **state)
{
    (void)state;
    refuse("{" SIZES "\"n_head\": 4}", "set model.heads to 4");
    take("{" SIZES "\"n_head\": 2}");
    refuse("{\"n_head\": 4}", "set model.heads to 4");
}

static void what_is_computed_otherwise_is_refused_by_its_name(void **state)
{
    (void)state;
    refuse("{" SIZES "\"activation_function\": \"relu\"}", "activation_function");
    refuse("{" SIZES "\"layer_norm_epsilon\": 1e-6}", "layer_norm_epsilon");
    refuse("{" SIZES "\"scale_attn_weights\": false}", "scale_attn_weights");
    refuse("{" SIZES "\"scale_attn_by_inverse_layer_idx\": true}", "inverse_layer_idx");
    take("{" SIZES "\"activation_function\": \"gelu_new\", \"layer_norm_epsilon\": 1e-05, "
         "\"scale_attn_weights\": true, \"scale_attn_by_inverse_layer_idx\": false}");
}

static void what_is_no_config_of_this_model_says_nothing(void **state)
{
    (void)state;
    take(NULL);
    take("");
    take("no JSON");
    take("[1]");
    take("{\"model_type\": \"llama\", \"n_head\": 4}");
    take("{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_head\": 4}");
    take("{" SIZES "\"n_head\": \"4\"}");
}

#define LLAMA "\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "

static void a_llama_is_what_its_config_says(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } rows[] = {
        { "\"num_attention_heads\": 8", "set model.heads to 8" },
        { "\"num_key_value_heads\": 4", "set model.kv_heads to 4" },
        { "\"rope_theta\": 500000.0", "its rope_theta is 500000; set model.rope_theta" },
        { "\"rope_parameters\": {\"rope_theta\": 5e5}", "its rope_theta is 500000" },
        { "\"rope_parameters\": {\"rope_type\": \"llama3\"}", "its rope_parameters isn't" },
        { "\"rope_scaling\": {\"factor\": 8.0}", "its rope_scaling isn't" },
        { "\"rms_norm_eps\": 1e-6", "its rms_norm_eps is 1e-06; set model.norm_eps" },
        { "\"tie_word_embeddings\": true", "set model.tied to true" },
        { "\"hidden_act\": \"gelu\"", "its hidden_act isn't" },
        { "\"attention_bias\": true", "its attention_bias isn't" },
        { "\"mlp_bias\": true", "its mlp_bias isn't" },
        { "\"head_dim\": 32", "its head_dim isn't" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[256];
        (void)snprintf(text, sizeof(text), "{" LLAMA "%s}", rows[i].text);
        refuse_of(&llama, text, rows[i].word);
    }
    take_of(&llama, "{" LLAMA "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                    "\"rope_theta\": 10000, \"rope_scaling\": null, \"rms_norm_eps\": 1e-05, "
                    "\"tie_word_embeddings\": false, \"hidden_act\": \"silu\", "
                    "\"attention_bias\": false, \"head_dim\": 16, \"vocab_size\": 99}");
    take_of(&llama, "{\"model_type\": \"mistral\", \"num_attention_heads\": 8}");
    take_of(&llama, "{\"model_type\": \"llama\", \"hidden_size\": 32, \"head_dim\": 8}");
}

#define VIT "\"model_type\": \"vit\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "

static void a_vit_is_what_its_config_says(void **state)
{
    (void)state;
    static const struct jobspec_model vit = {
        .arch = JOBSPEC_ARCH_VIT, .layers = 2, .width = 64, .heads = 4, .patch = 7
    };
    refuse_of(&vit, "{" VIT "\"num_attention_heads\": 8}", "set model.heads to 8");
    refuse_of(&vit, "{" VIT "\"hidden_act\": \"gelu_new\"}", "its hidden_act isn't that of vit");
    refuse_of(&vit, "{" VIT "\"layer_norm_eps\": 1e-06}", "its layer_norm_eps isn't");
    refuse_of(&vit, "{" VIT "\"qkv_bias\": false}", "its qkv_bias isn't");
    take_of(&vit, "{" VIT "\"num_attention_heads\": 4, \"hidden_act\": \"gelu\", "
                  "\"layer_norm_eps\": 1e-12, \"qkv_bias\": true, \"image_size\": 28}");
    take_of(&vit, "{\"model_type\": \"deit\", \"num_attention_heads\": 8}");
}

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/cairn-config-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -r '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_number_of_heads_is_refused_with_the_right_one),
        cmocka_unit_test(what_is_computed_otherwise_is_refused_by_its_name),
        cmocka_unit_test(a_llama_is_what_its_config_says),
        cmocka_unit_test(a_vit_is_what_its_config_says),
        cmocka_unit_test(what_is_no_config_of_this_model_says_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
