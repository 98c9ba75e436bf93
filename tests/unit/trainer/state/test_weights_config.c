/* config.json beside model.weights: what it says that no shape tells. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "tests/test.h"
#include "trainer/state/weights_config.h"

#define SIZES "\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 64, "

static char folder[64];

static enum status check(const char *text, int64_t heads, struct reason *reason)
{
    static struct jobspec job;
    char path[LIMIT_PATH];
    job.model = (struct jobspec_model){
        .arch = JOBSPEC_ARCH_GPT2, .layers = 2, .width = 64, .heads = heads
    };
    (void)snprintf(job.model.weights, sizeof(job.model.weights), "%s/model.safetensors", folder);
    (void)snprintf(path, sizeof(path), "%s/config.json", folder);
    (void)remove(path);
    if (text != NULL)
        assert_int_equal(io_replace(io_system(), path, text, strlen(text)), ST_OK);
    return weights_config_check(&job, io_system(), reason);
}

static void refuse(const char *text, const char *word)
{
    struct reason reason = { "" };
    assert_int_equal(check(text, 2, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, word));
    assert_non_null(strstr(reason.text, "/config.json"));
}

static void take(const char *text)
{
    struct reason reason = { "" };
    assert_int_equal(check(text, 2, &reason), ST_OK);
    assert_string_equal(reason.text, "");
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
        cmocka_unit_test(what_is_no_config_of_this_model_says_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
