/* Weights of other people's files go to the right places of a model, or the file is refused whole.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/weights/safetensors.h"
#include "checkpoint/weights/weights.h"
#include "common/cleanup.h"
#include "tests/test.h"

#define PARAMETERS 16
#define STATISTICS 2

/* A tiny gpt2: a token table [3, 2], a Conv1D [3, 2] (in files [2, 3]), a bias; one statistic. */
static const struct ckpt_buffer buffers[] = {
    { .name = "parameters", .dtype = CKPT_F32, .count = PARAMETERS },
    { .name = "adam.m", .dtype = CKPT_F32, .count = PARAMETERS },
    { .name = "statistics", .dtype = CKPT_F32, .count = STATISTICS },
};
static const struct ckpt_tensor tensors[] = {
    { .name = "transformer.wte.weight", .offset = 0, .ndim = 2, .dims = { 3, 2 } },
    { .name = "transformer.h.0.attn.c_attn.weight", .offset = 6, .ndim = 2, .dims = { 3, 2 } },
    { .name = "transformer.h.0.attn.c_attn.bias", .offset = 12, .ndim = 1, .dims = { 4 } },
    { .name = "adam.m/transformer.wte.weight", .buffer = 1, .ndim = 2, .dims = { 3, 2 } },
    { .name = "norm.running_mean", .buffer = 2, .ndim = 1, .dims = { 2 } },
};

static float parameters[PARAMETERS], statistics[STATISTICS];
static char folder[] = "/tmp/cairn-weights-XXXXXX";
static char path[128];

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/weights", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

/* ---- files ---- */

struct part {
    const char *name;
    enum safetensors_dtype dtype;
    int32_t ndim;
    uint64_t dims[2];
    const void *data;
};

static const float table[6] = { 1, 2, 3, 4, 5, 6 };
static const float conv[6] = { 10, 11, 12, 13, 14, 15 }; /* [2, 3] */
static const float bias[4] = { 20, 21, 22, 23 };
static const float noise[6] = { 9, 9, 9, 9, 9, 9 };

#define TABLE                                                                                      \
    {                                                                                              \
        "transformer.wte.weight", SAFETENSORS_F32, 2, { 3, 2 }, table                              \
    }
#define CONV                                                                                       \
    {                                                                                              \
        "transformer.h.0.attn.c_attn.weight", SAFETENSORS_F32, 2, { 2, 3 }, conv                   \
    }
#define BIAS                                                                                       \
    {                                                                                              \
        "transformer.h.0.attn.c_attn.bias", SAFETENSORS_F32, 1, { 4 }, bias                        \
    }

static void write_file(const struct part *parts, uint32_t count, const char *names)
{
    struct safetensors_tensor list[8] = { 0 };
    struct safetensors_text text = { "cairn.names", names };
    struct safetensors_writer *writer = NULL;
    assert_true(count <= 8);
    for (uint32_t i = 0; i < count; i++) {
        list[i].name = parts[i].name;
        list[i].dtype = parts[i].dtype;
        list[i].ndim = parts[i].ndim;
        memcpy(list[i].dims, parts[i].dims, sizeof(parts[i].dims));
    }
    struct safetensors_content content = {
        .tensors = list, .tensor_count = count, .metadata = &text, .metadata_count = names != NULL
    };
    assert_int_equal(safetensors_create(io_system(), path, true, &content, &writer), ST_OK);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(safetensors_write(writer, parts[i].data, (size_t)list[i].size), ST_OK);
    assert_int_equal(safetensors_publish(writer), ST_OK);
}

static enum status load(struct weights_loaded *out, struct reason *message)
{
    float *data[] = { parameters, NULL, statistics };
    struct weights_target target = { .arch = "gpt2",
                                     .buffers = buffers,
                                     .data = data,
                                     .buffer_count = 3,
                                     .tensors = tensors,
                                     .tensor_count = sizeof(tensors) / sizeof(tensors[0]) };
    for (int i = 0; i < PARAMETERS; i++)
        parameters[i] = -1;
    statistics[0] = statistics[1] = -2;
    return weights_load(io_system(), path, &target, out, message);
}

static void assert_refused(const char *cause)
{
    struct weights_loaded loaded;
    struct reason message;
    assert_int_equal(load(&loaded, &message), ST_CONFIG);
    if (strstr(message.text, cause) == NULL)
        fail_msg("'%s' doesn't say '%s'", message.text, cause);
    assert_non_null(strstr(message.text, path));
    for (int i = 0; i < PARAMETERS; i++) /* checked whole before a bit was used */
        assert_true(parameters[i] == -1);
}

static void assert_loaded(uint32_t count, uint32_t passed_over, uint32_t kept)
{
    static const float expected[PARAMETERS] = { 1,  2,  3,  4,  5,  6,  10, 13,
                                                11, 14, 12, 15, 20, 21, 22, 23 };
    struct weights_loaded loaded;
    struct reason message;
    if (load(&loaded, &message) != ST_OK)
        fail_msg("%s", message.text);
    assert_memory_equal(parameters, expected, sizeof(parameters));
    assert_int_equal(loaded.tensors, count);
    assert_int_equal(loaded.passed_over, passed_over);
    assert_int_equal(loaded.kept, kept);
}

/* ---- what is accepted ---- */

static void conv1d_weights_are_turned_and_missing_statistics_kept(void **state)
{
    (void)state;
    const struct part parts[] = { TABLE, CONV, BIAS };
    write_file(parts, 3, NULL);
    assert_loaded(3, 0, 1);
    assert_true(statistics[0] == -2 && statistics[1] == -2);
}

static void names_of_the_bare_model_and_its_masks_are_known(void **state)
{
    (void)state;
    const struct part parts[] = {
        { "wte.weight", SAFETENSORS_F32, 2, { 3, 2 }, table },
        { "h.0.attn.c_attn.weight", SAFETENSORS_F32, 2, { 2, 3 }, conv },
        { "h.0.attn.c_attn.bias", SAFETENSORS_F32, 1, { 4 }, bias },
        { "h.0.attn.bias", SAFETENSORS_F32, 2, { 2, 3 }, noise },
        { "h.0.attn.masked_bias", SAFETENSORS_F32, 1, { 1 }, noise },
        { "norm.running_mean", SAFETENSORS_F32, 1, { 2 }, bias },
    };
    write_file(parts, 6, NULL);
    assert_loaded(4, 2, 0);
    assert_true(statistics[0] == 20 && statistics[1] == 21);
}

/* What torch.compile, DDP and Lightning put before each name; some of them around each other. */
static void names_of_wrapped_models_are_known(void **state)
{
    (void)state;
    static const char *const wraps[] = { "_orig_mod.", "module.", "model.", "module._orig_mod." };
    static const char *const cores[] = { "transformer.", "" };
    for (size_t i = 0; i < 8; i++) {
        char names[4][128];
        const char *wrap = wraps[i / 2], *core = cores[i % 2];
        (void)snprintf(names[0], 128, "%s%swte.weight", wrap, core);
        (void)snprintf(names[1], 128, "%s%sh.0.attn.c_attn.weight", wrap, core);
        (void)snprintf(names[2], 128, "%s%sh.0.attn.c_attn.bias", wrap, core);
        (void)snprintf(names[3], 128, "%slm_head.weight", wrap);
        struct part parts[] = {
            { names[0], SAFETENSORS_F32, 2, { 3, 2 }, table },
            { names[1], SAFETENSORS_F32, 2, { 2, 3 }, conv },
            { names[2], SAFETENSORS_F32, 1, { 4 }, bias },
            { names[3], SAFETENSORS_F32, 2, { 3, 2 }, table },
        };
        write_file(parts, 4, NULL);
        assert_loaded(3, 1, 1);
        parts[3].data = noise;
        write_file(parts, 4, NULL);
        assert_refused("lm_head.weight is not its");
        parts[0].name += strlen(wrap); /* of all names, or of none */
        write_file(parts, 4, NULL);
        assert_refused("no tensor");
    }
}

static void what_is_the_matter_with_files_of_others_is_told(void **state)
{
    (void)state;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n";
    struct part parts[] = { TABLE, CONV, BIAS };
    const size_t end = strlen(path);
    (void)snprintf(path + end, sizeof(path) - end, "-00001-of-00002.safetensors");
    write_file(parts, 2, NULL);
    assert_refused("is one of several files of a model: join them");
    assert_int_equal(unlink(path), 0);
    path[end] = '\0';
    parts[1].dims[0] = 3;
    parts[1].dims[1] = 2;
    write_file(parts, 3, NULL);
    assert_refused("is stored as [out, in], as nanoGPT does");
    (void)unlink(path);
    assert_int_equal(io_publish(io_system(), path, pointer, sizeof(pointer) - 1), ST_OK);
    assert_refused("git lfs pull");
    (void)unlink(path);
    assert_int_equal(io_publish(io_system(), path, "PK\003\004 and much more", 18), ST_OK);
    assert_refused("torch.save");
}

static void our_own_names_have_our_own_shapes(void **state)
{
    (void)state;
    static const float own[6] = { 10, 13, 11, 14, 12, 15 };
    const struct part parts[] = {
        TABLE,
        { "transformer.h.0.attn.c_attn.weight", SAFETENSORS_F32, 2, { 3, 2 }, own },
        BIAS,
        { "adam.m/transformer.wte.weight", SAFETENSORS_F32, 2, { 3, 2 }, noise },
    };
    write_file(parts, 4, "cairn");
    assert_loaded(3, 1, 1);
    write_file(parts, 4, "hf");
    assert_refused("is stored as [out, in]");
}

static void halves_become_the_floats_that_they_are(void **state)
{
    (void)state;
    static const uint16_t brain[6] = { 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0 };
    static const uint16_t half[4] = { 0x4d00, 0x4d40, 0x4d80, 0x4dc0 };
    const struct part parts[] = {
        { "transformer.wte.weight", SAFETENSORS_BF16, 2, { 3, 2 }, brain },
        CONV,
        { "transformer.h.0.attn.c_attn.bias", SAFETENSORS_F16, 1, { 4 }, half },
    };
    write_file(parts, 3, NULL);
    assert_loaded(3, 0, 1);
}

static void an_output_weight_must_be_the_token_table(void **state)
{
    (void)state;
    struct part parts[] = {
        TABLE, CONV, BIAS, { "lm_head.weight", SAFETENSORS_F32, 2, { 3, 2 }, table }
    };
    write_file(parts, 4, NULL);
    assert_loaded(3, 1, 1);
    parts[3].data = noise;
    write_file(parts, 4, NULL);
    assert_refused("its lm_head.weight is not its transformer.wte.weight");
}

/* ---- llama ---- */

static const struct ckpt_tensor llama_tensors[] = {
    { .name = "model.embed_tokens.weight", .offset = 0, .ndim = 2, .dims = { 3, 2 } },
    { .name = "model.layers.0.self_attn.q_proj.weight", .offset = 6, .ndim = 2, .dims = { 2, 3 } },
    { .name = "lm_head.weight", .offset = 12, .ndim = 2, .dims = { 2, 2 } }, /* or none: tied */
};

static enum status load_llama(bool tied, struct reason *message)
{
    float *data[] = { parameters };
    const struct weights_target target = { .arch = "llama",
                                           .buffers = buffers,
                                           .data = data,
                                           .buffer_count = 1,
                                           .tensors = llama_tensors,
                                           .tensor_count = tied ? 2 : 3 };
    struct weights_loaded loaded;
    memset(parameters, 0, sizeof(parameters));
    const enum status st = weights_load(io_system(), path, &target, &loaded, message);
    if (st == ST_OK) {
        assert_true(parameters[0] == 1 && parameters[5] == 6);
        for (int i = 0; i < 6; i++) /* not turned */
            assert_true(parameters[6 + i] == conv[i]);
    }
    return st;
}

static void all_names_of_a_tied_llama_may_begin_alike(void **state)
{
    (void)state;
    static const char *const first[] = { "model.", "", "module.model." };
    struct reason message = { "" };
    for (size_t i = 0; i < 3; i++) {
        char names[3][128];
        (void)snprintf(names[0], 128, "%sembed_tokens.weight", first[i]);
        (void)snprintf(names[1], 128, "%slayers.0.self_attn.q_proj.weight", first[i]);
        (void)snprintf(names[2], 128, "%slayers.0.self_attn.rotary_emb.inv_freq", first[i]);
        const struct part parts[] = { { names[0], SAFETENSORS_F32, 2, { 3, 2 }, table },
                                      { names[1], SAFETENSORS_F32, 2, { 2, 3 }, conv },
                                      { names[2], SAFETENSORS_F32, 1, { 4 }, bias } };
        write_file(parts, 3, NULL);
        if (load_llama(true, &message) != ST_OK)
            fail_msg("%s", message.text);
    }
}

static void a_llama_has_a_head_of_its_own_unless_it_is_tied(void **state)
{
    (void)state;
    struct part parts[] = {
        { "model.embed_tokens.weight", SAFETENSORS_F32, 2, { 3, 2 }, table },
        { "model.layers.0.self_attn.q_proj.weight", SAFETENSORS_F32, 2, { 2, 3 }, conv },
        { "lm_head.weight", SAFETENSORS_F32, 2, { 2, 2 }, bias },
    };
    struct reason message = { "" };
    write_file(parts, 3, NULL);
    assert_int_equal(load_llama(false, &message), ST_OK);
    assert_true(parameters[12] == 20 && parameters[15] == 23);
    assert_int_equal(load_llama(true, &message), ST_CONFIG);
    assert_non_null(strstr(message.text, "or set model.tied to false"));
    parts[2] = (struct part){ "lm_head.weight", SAFETENSORS_F32, 2, { 3, 2 }, table };
    write_file(parts, 3, NULL);
    assert_int_equal(load_llama(true, &message), ST_OK);
    write_file(parts, 2, NULL);
    assert_int_equal(load_llama(false, &message), ST_CONFIG);
    assert_non_null(strstr(message.text, "no tensor lm_head.weight"));
}

/* ---- what is refused ---- */

static void what_does_not_fit_is_refused_before_a_bit_is_used(void **state)
{
    (void)state;
    static const double wide[6] = { 1, 2, 3, 4, 5, 6 };
    struct part parts[] = {
        TABLE, CONV, BIAS, { "transformer.h.1.attn.c_attn.bias", SAFETENSORS_F32, 1, { 4 }, bias }
    };
    write_file(parts, 2, NULL);
    assert_refused("no tensor transformer.h.0.attn.c_attn.bias in it (1 of the model's");
    write_file(parts, 4, NULL);
    assert_refused("its tensor transformer.h.1.attn.c_attn.bias has no place in the model");
    parts[0] = (struct part){ "transformer.wte.weight", SAFETENSORS_F64, 2, { 3, 2 }, wide };
    write_file(parts, 3, NULL);
    assert_refused("is F64; weights can be F32, BF16 or F16");
    parts[0] = (struct part){ "transformer.wte.weight", SAFETENSORS_F32, 1, { 6 }, table };
    write_file(parts, 3, NULL);
    assert_refused("is [6], the model has [3, 2]");
    (void)unlink(path);
    assert_refused("not found");
    assert_int_equal(io_publish(io_system(), path, "nonsense", 8), ST_OK);
    assert_refused("no safetensors file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv1d_weights_are_turned_and_missing_statistics_kept),
        cmocka_unit_test(names_of_the_bare_model_and_its_masks_are_known),
        cmocka_unit_test(names_of_wrapped_models_are_known),
        cmocka_unit_test(what_is_the_matter_with_files_of_others_is_told),
        cmocka_unit_test(our_own_names_have_our_own_shapes),
        cmocka_unit_test(halves_become_the_floats_that_they_are),
        cmocka_unit_test(an_output_weight_must_be_the_token_table),
        cmocka_unit_test(all_names_of_a_tied_llama_may_begin_alike),
        cmocka_unit_test(a_llama_has_a_head_of_its_own_unless_it_is_tied),
        cmocka_unit_test(what_does_not_fit_is_refused_before_a_bit_is_used),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
