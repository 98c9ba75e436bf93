/* The tape of a Llama: names, counts, weights in parts, and what is refused. */
#include <string.h>

#include "tests/test.h"
#include "trainer/models/models.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/precision.h"

static struct tape *small_llama(bool tied)
{
    const struct model_options options = { .arch = "llama",
                                           .layers = 2,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .embed = 32,
                                           .intermediate = 48,
                                           .context = 16,
                                           .vocab = 31,
                                           .tied = tied };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    return tape;
}

/* Llama 2 7B and 70B, Llama 3 8B, TinyLlama 1.1B: as many as their published weights have. */
static void llama_has_the_counts_of_published_ones(void **state)
{
    (void)state;
    const struct {
        int64_t layers, heads, kv_heads, embed, intermediate, vocab;
        size_t elements;
    } rows[] = { { 32, 32, 32, 4096, 11008, 32000, 6738415616 },
                 { 80, 64, 8, 8192, 28672, 32000, 68976648192 },
                 { 32, 32, 8, 4096, 14336, 128256, 8030261248 },
                 { 22, 32, 4, 2048, 5632, 32000, 1100048384 } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct model_options options = { .arch = "llama",
                                               .layers = rows[i].layers,
                                               .heads = rows[i].heads,
                                               .kv_heads = rows[i].kv_heads,
                                               .embed = rows[i].embed,
                                               .intermediate = rows[i].intermediate,
                                               .vocab = rows[i].vocab };
        struct tape *tape = NULL;
        assert_int_equal(model_build(&options, &tape), ST_OK);
        assert_int_equal(tape->param_elements, rows[i].elements);
        assert_int_equal(tape->param_count, 9 * rows[i].layers + 3);
        tape_free(tape);
    }
}

static void the_parts_of_a_weight_are_parameters_that_lie_together(void **state)
{
    (void)state;
    static const char *const parts[] = { "model.layers.1.self_attn.q_proj.weight",
                                         "model.layers.1.self_attn.k_proj.weight",
                                         "model.layers.1.self_attn.v_proj.weight" };
    static const int64_t rows[] = { 32, 16, 16 };
    struct tape *tape = small_llama(false);
    const int first = tape_find_param(tape, parts[0]);
    int readers = 0;
    assert_true(first > 0);
    for (int i = 0; i < 3; i++) {
        const struct tape_tensor *tensor = &tape->params[first + i];
        assert_string_equal(tensor->name, parts[i]);
        assert_int_equal(tensor->dims[0], rows[i]);
        assert_int_equal(tensor->dims[1], 32);
        assert_int_equal(tensor->first_node, tape->params[first].first_node);
        assert_int_equal(tensor->more_parts, i == 0 ? 2 : 0);
    }
    for (int n = 0; n < tape->node_count; n++)
        readers += tape->nodes[n].param[0] >= first && tape->nodes[n].param[0] < first + 3;
    assert_int_equal(readers, 1);
    assert_int_equal(tape->nodes[tape->params[first].first_node].attr.out, 64);
    assert_int_equal(tape_param_elements(tape, first), 64 * 32);
    assert_int_equal(tape_param_elements(tape, first + 1), 16 * 32);
    assert_int_equal(tape_param_elements(tape, -1), 0);
    size_t at = 0;
    for (int i = 0; i < tape->param_count; i++) {
        assert_int_equal(tape->params[i].offset, at);
        at += tape->params[i].count;
    }
    assert_int_equal(at, tape->param_elements);
    tape_free(tape);
}

static void the_head_of_a_tied_llama_reads_the_embedding(void **state)
{
    (void)state;
    struct tape *tied = small_llama(true), *apart = small_llama(false);
    assert_int_equal(tied->tie_count, 1);
    assert_int_equal(apart->tie_count, 0);
    assert_int_equal(tape_find_param(tied, "lm_head.weight"), -1);
    assert_int_equal(apart->param_elements, tied->param_elements + 31 * (size_t)32);
    assert_string_equal(tied->params[0].name, "model.embed_tokens.weight");
    assert_int_equal(lane_gradient_at(tied, tied->node_count - 2, 0), tied->param_elements);
    tape_free(tied);
    tape_free(apart);
}

static void only_the_residual_stream_and_the_loss_of_llama_stay_float32(void **state)
{
    (void)state;
    struct tape *tape = small_llama(false);
    for (int n = 0; n < tape->node_count; n++) {
        const struct tape_node *node = &tape->nodes[n];
        const bool stays =
            node->op == OP_SOFTMAX_CROSS_ENTROPY || node->op == OP_EMBEDDING || node->attr.residual;
        assert_int_equal(precision_out(tape, n, DTYPE_BF16, MATH_BF16, AMP_O1),
                         stays ? DTYPE_F32 : DTYPE_BF16);
    }
    tape_free(tape);
}

static void numbers_of_llama_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    const struct model_options rows[] = {
        { .arch = "llama", .layers = 1, .embed = 32, .heads = 5 },
        { .arch = "llama", .layers = 1, .embed = 32, .heads = 4, .kv_heads = 3 },
        { .arch = "llama", .layers = 1, .embed = 12, .heads = 4 },
        { .arch = "llama", .layers = 1, .heads = -12 },
        { .arch = "llama", .layers = 1, .kv_heads = -1 },
        { .arch = "llama", .layers = 1, .intermediate = -1 },
        { .arch = "llama", .layers = 1, .rope_theta = -1 },
        { .arch = "llama", .layers = 1, .norm_eps = -1 },
        { .arch = "llama", .layers = 114 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tape *tape = NULL;
        assert_int_equal(model_build(&rows[i], &tape), ST_INVALID);
        assert_null(tape);
    }
}

static void parts_that_are_not_all_rows_are_refused(void **state)
{
    (void)state;
    const struct tape_linear rows[] = {
        { .out = 8, .parts = { { "a", 4 }, { "b", 3 } } },
        { .out = 8, .parts = { { "a", 8 }, { "b", 0 } } },
        { .out = 8, .bias = true, .parts = { { "a", 7 } } },
        { .out = 8, .tied = "other.weight", .parts = { { "a", 8 } } },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tape *tape = NULL;
        assert_int_equal(tape_new(&tape), ST_OK);
        const int x = tape_input(tape, DTYPE_F32, 2, (const int64_t[]){ 1, 8 });
        const int y = tape_linear(tape, "other", x, &(struct tape_linear){ .out = 8 });
        (void)tape_linear(tape, "parted", y, &rows[i]);
        assert_int_equal(tape->error, ST_INVALID);
        tape_free(tape);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_has_the_counts_of_published_ones),
        cmocka_unit_test(the_parts_of_a_weight_are_parameters_that_lie_together),
        cmocka_unit_test(the_head_of_a_tied_llama_reads_the_embedding),
        cmocka_unit_test(only_the_residual_stream_and_the_loss_of_llama_stay_float32),
        cmocka_unit_test(numbers_of_llama_that_do_not_fit_are_refused),
        cmocka_unit_test(parts_that_are_not_all_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
