/* The tape's builders, the flat buffers' order, the lane vector and its buckets. */
#include <string.h>

#include "tests/test.h"
#include "trainer/models/models.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/precision.h"
#include "trainer/tape/tape.h"

static struct tape *build(const char *arch, int64_t side)
{
    struct model_options options = {
        .arch = arch, .channels = 1, .height = side, .width = side, .classes = 10, .hidden = 256
    };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    return tape;
}

static const struct tape_tensor *find(const struct tape_tensor *tensors, int count,
                                      const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0)
            return &tensors[i];
    }
    return NULL;
}

static void resnet18_has_the_names_and_counts_of_pytorch(void **state)
{
    (void)state;
    struct tape *tape = build("resnet18", 28);
    assert_int_equal(tape->param_elements, 11172810);
    assert_int_equal(tape->stat_elements, 9600);
    assert_int_equal(tape->param_count, 62);
    assert_int_equal(tape->stat_count, 40);
    const struct tape_tensor *down =
        find(tape->params, tape->param_count, "layer2.0.downsample.0.weight");
    assert_non_null(down);
    assert_int_equal(down->dims[0], 128);
    assert_int_equal(down->dims[1], 64);
    assert_int_equal(down->dims[3], 1);
    assert_non_null(find(tape->params, tape->param_count, "layer4.1.bn2.bias"));
    assert_non_null(find(tape->params, tape->param_count, "fc.bias"));
    assert_non_null(find(tape->stats, tape->stat_count, "layer1.0.bn1.running_var"));
    assert_null(find(tape->params, tape->param_count, "layer1.0.downsample.0.weight"));
    tape_free(tape);
}

static void large_resnets_have_the_counts_of_torchvision(void **state)
{
    (void)state;
    const struct {
        const char *arch;
        size_t elements;
        int params;
    } rows[] = { { "resnet50", 25557032, 161 }, { "resnet152", 60192808, 467 } };
    for (size_t i = 0; i < 2; i++) {
        struct model_options options = {
            .arch = rows[i].arch, .channels = 3, .height = 224, .width = 224, .classes = 1000
        };
        struct tape *tape = NULL;
        assert_int_equal(model_build(&options, &tape), ST_OK);
        assert_int_equal(tape->param_elements, rows[i].elements);
        assert_int_equal(tape->param_count, rows[i].params);
        int down = tape_find_param(tape, "layer1.0.downsample.0.weight");
        assert_true(down >= 0);
        assert_int_equal(tape->params[down].dims[0], 256);
        int stem = tape_find_param(tape, "conv1.weight");
        assert_int_equal(tape->params[stem].dims[2], 7);
        tape_free(tape);
        options.height = options.width = 64;
        assert_int_equal(model_build(&options, &tape), ST_OK);
        assert_int_equal(tape->params[tape_find_param(tape, "conv1.weight")].dims[2], 3);
        tape_free(tape);
    }
}

static void the_stride_of_a_bottleneck_is_in_its_3x3(void **state)
{
    (void)state;
    struct model_options options = {
        .arch = "resnet50", .channels = 3, .height = 224, .width = 224, .classes = 10
    };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    int strided = 0;
    for (int n = 0; n < tape->node_count; n++) {
        const struct op_attr *attr = &tape->nodes[n].attr;
        if (tape->nodes[n].op != OP_CONV2D || attr->stride == 1)
            continue;
        const char *name = tape->params[tape->nodes[n].param[0]].name;
        bool down = strstr(name, "downsample") != NULL;
        assert_int_equal(attr->kernel, strcmp(name, "conv1.weight") == 0 ? 7 : down ? 1 : 3);
        strided++;
    }
    assert_int_equal(strided, 1 + 3 + 3);
    tape_free(tape);
}

static void gpt2_has_the_names_and_counts_of_its_sizes(void **state)
{
    (void)state;
    const struct {
        int64_t layers, heads, embed; /* 0: the default */
        size_t elements;
    } rows[] = { { 0, 0, 0, 124439808 },
                 { 24, 16, 1024, 354823168 },
                 { 36, 20, 1280, 774030080 },
                 { 48, 25, 1600, 1557611200 } };
    for (size_t i = 0; i < 4; i++) {
        struct model_options options = {
            .arch = "gpt2", .layers = rows[i].layers, .heads = rows[i].heads, .embed = rows[i].embed
        };
        struct tape *tape = NULL;
        assert_int_equal(model_build(&options, &tape), ST_OK);
        assert_int_equal(tape->param_elements, rows[i].elements);
        assert_int_equal(tape->param_count, 12 * (i == 0 ? 12 : rows[i].layers) + 4);
        assert_string_equal(tape->params[0].name, "transformer.wte.weight");
        assert_int_equal(tape->params[0].dims[0], 50257);
        assert_string_equal(tape->params[2].name, "transformer.h.0.ln_1.weight");
        assert_string_equal(tape->params[4].name, "transformer.h.0.attn.c_attn.weight");
        assert_int_equal(tape->params[4].dims[0], 3 * tape->params[4].dims[1]); /* [out, in] */
        assert_int_equal(tape_find_param(tape, "lm_head.weight"), -1);
        tape_free(tape);
    }
}

/* ViT-B/16, -B/32, -L/16 with the classes of ImageNet, as Dosovitskiy et al. count them. */
static void vit_has_the_names_and_counts_of_its_sizes(void **state)
{
    (void)state;
    const struct {
        int64_t layers, heads, embed, patch; /* 0: the default */
        size_t elements;
    } rows[] = { { 0, 0, 0, 0, 86567656 },
                 { 0, 0, 0, 32, 88224232 },
                 { 24, 16, 1024, 16, 304326632 } };
    for (size_t i = 0; i < 3; i++) {
        struct model_options options = { .arch = "vit",
                                         .channels = 3,
                                         .height = 224,
                                         .width = 224,
                                         .classes = 1000,
                                         .layers = rows[i].layers,
                                         .heads = rows[i].heads,
                                         .embed = rows[i].embed,
                                         .patch = rows[i].patch };
        struct tape *tape = NULL;
        assert_int_equal(model_build(&options, &tape), ST_OK);
        assert_int_equal(tape->param_elements, rows[i].elements);
        assert_int_equal(tape->param_count, 16 * (i < 2 ? 12 : 24) + 8);
        const int first = tape_find_param(tape, "vit.embeddings.cls_token");
        const int position = tape_find_param(tape, "vit.embeddings.position_embeddings");
        assert_int_equal(tape->params[first].ndim, 3);
        assert_int_equal(tape->params[first].kind, TAPE_EMBEDDING);
        assert_int_equal(tape->params[position].dims[1], i == 1 ? 50 : 197);
        assert_true(tape_find_param(tape, "vit.encoder.layer.11.output.dense.weight") >= 0);
        tape_free(tape);
    }
}

/* BERT-base and -large with their vocabulary, as Hugging Face's BertForMaskedLM. */
static void bert_has_the_names_and_counts_of_its_sizes(void **state)
{
    (void)state;
    const struct {
        int64_t layers, heads, embed;
        size_t elements;
    } rows[] = { { 12, 12, 768, 109514298 }, { 24, 16, 1024, 335174458 } };
    for (size_t i = 0; i < 2; i++) {
        struct model_options options = { .arch = "bert",
                                         .layers = rows[i].layers,
                                         .heads = rows[i].heads,
                                         .embed = rows[i].embed,
                                         .context = 512,
                                         .vocab = 30522 };
        struct tape *tape = NULL;
        assert_int_equal(model_build(&options, &tape), ST_OK);
        assert_int_equal(tape->param_elements, rows[i].elements);
        assert_int_equal(tape->param_count, 16 * rows[i].layers + 10);
        assert_int_equal(tape->input_count, 3);
        assert_int_equal(tape->tie_count, 1);
        assert_true(tape_find_param(tape, "bert.embeddings.token_type_embeddings.weight") >= 0);
        assert_true(tape_find_param(tape, "bert.encoder.layer.11.attention.self.key.bias") >= 0);
        assert_true(tape_find_param(tape, "cls.predictions.bias") >= 0);
        assert_int_equal(tape_find_param(tape, "cls.predictions.weight"), -1);
        tape_free(tape);
    }
}

static void check_residuals(const struct tape *tape, enum amp amp)
{
    enum dtype dtype[TAPE_NODES_MAX + TAPE_INPUTS_MAX];
    for (int i = 0; i < tape->input_count; i++)
        dtype[tape->inputs[i]] = tape->values[tape->inputs[i]].tensor.dtype;
    for (int n = 0; n < tape->node_count; n++) {
        const struct tape_node *node = &tape->nodes[n];
        dtype[node->out] = precision_out(tape, n, dtype[node->in[0]], MATH_BF16, amp);
        if (!node->attr.residual)
            continue;
        assert_int_equal(dtype[node->in[1]], dtype[node->out]);
        assert_int_equal(dtype[node->out], amp == AMP_O1 ? DTYPE_F32 : DTYPE_BF16);
    }
}

static void what_is_added_has_the_dtype_of_the_sum(void **state)
{
    (void)state;
    static const char *const archs[] = { "gpt2", "vit", "bert", "llama" };
    for (int i = 0; i < 16; i++) {
        struct model_options options = { .arch = archs[i / 4],
                                         .channels = 1,
                                         .height = 32,
                                         .width = 32,
                                         .classes = 10,
                                         .layers = 2,
                                         .dropout = i % 2 == 0 ? 0.0f : 0.1f };
        struct tape *tape = NULL;
        assert_int_equal(model_build(&options, &tape), ST_OK);
        check_residuals(tape, i / 2 % 2 == 0 ? AMP_O1 : AMP_O2);
        tape_free(tape);
    }
}

static void vit_takes_images_that_patches_cover(void **state)
{
    (void)state;
    struct model_options options = { .arch = "vit", .channels = 1, .classes = 10, .embed = 8 };
    static const int64_t rows[][3] = { { 28, 28, 6 }, { 28, 30, 7 }, { 7, 7, 14 }, { 28, 21, 7 } };
    options.heads = 2;
    for (size_t i = 0; i < 4; i++) {
        struct tape *tape = NULL;
        options.height = rows[i][0];
        options.width = rows[i][1];
        options.patch = rows[i][2];
        assert_int_equal(model_build(&options, &tape), i < 3 ? ST_INVALID : ST_OK);
        if (i == 3)
            tape_free(tape);
    }
}

static struct tape *small_gpt2(float dropout)
{
    struct model_options options = { .arch = "gpt2",
                                     .layers = 2,
                                     .heads = 4,
                                     .embed = 32,
                                     .context = 16,
                                     .vocab = 31,
                                     .dropout = dropout };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    return tape;
}

static void the_head_of_gpt2_reads_the_embedding(void **state)
{
    (void)state;
    struct tape *tape = small_gpt2(0);
    const struct tape_node *head = &tape->nodes[tape->node_count - 2];
    assert_int_equal(head->op, OP_LINEAR);
    assert_int_equal(head->param[0], 0);
    assert_int_equal(tape->params[0].first_node, 0);
    assert_int_equal(tape->tie_count, 1);
    assert_int_equal(tape->ties[0].node, tape->node_count - 2);
    assert_int_equal(tape->ties[0].param, 0);
    assert_int_equal(head->tie[0], 0);
    assert_int_equal(lane_gradient_at(tape, 0, 0), 0);
    assert_int_equal(lane_gradient_at(tape, tape->node_count - 2, 0), tape->param_elements);
    assert_int_equal(lane_layout(tape).stat_at, tape->param_elements + tape->params[0].count);
    assert_int_equal(tape->params[0].kind, TAPE_EMBEDDING);
    assert_false(head->attr.bias);
    tape_free(tape);
}

static void dropout_of_gpt2_is_after_the_embedding_and_before_each_addition(void **state)
{
    (void)state;
    struct tape *without = small_gpt2(0);
    struct tape *with = small_gpt2(0.1f);
    assert_int_equal(with->node_count, without->node_count + 1 + 2 * 2);
    assert_int_equal(with->param_elements, without->param_elements);
    int layer = 0;
    for (int n = 0; n < with->node_count; n++) {
        const struct tape_node *node = &with->nodes[n];
        assert_false(node->op == OP_LINEAR && node->attr.residual);
        if (node->op == OP_DROPOUT) {
            assert_int_equal(node->attr.layer, layer);
            assert_int_equal(node->attr.residual, layer > 0);
            layer++;
        }
    }
    assert_int_equal(layer, 5);
    tape_free(with);
    tape_free(without);
}

static void numbers_of_gpt2_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    const struct model_options rows[] = {
        { .arch = "gpt2", .heads = 5, .embed = 32, .layers = 1 },
        { .arch = "gpt2", .layers = 2000 },
        { .arch = "gpt2", .context = -1 },
        { .arch = "gpt2", .vocab = INT64_MAX },
        { .arch = "gpt2", .embed = INT64_MAX / 4, .heads = 1 },
        { .arch = "gpt2", .dropout = 1 },
        { .arch = "gpt2", .heads = -12 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tape *tape = NULL;
        assert_int_equal(model_build(&rows[i], &tape), ST_INVALID);
        assert_null(tape);
    }
}

/* ---- mixed precision ---- */

static enum dtype out_of(const struct tape *tape, int n, enum dtype in0, enum amp amp)
{
    return precision_out(tape, n, in0, MATH_BF16, amp);
}

static void only_the_residual_stream_and_the_loss_of_gpt2_stay_float32(void **state)
{
    (void)state;
    struct tape *tape = small_gpt2(0.1f);
    for (int n = 0; n < tape->node_count; n++) {
        const struct tape_node *node = &tape->nodes[n];
        bool loss = node->op == OP_SOFTMAX_CROSS_ENTROPY;
        bool stream = node->op == OP_EMBEDDING || node->op == OP_DROPOUT;
        assert_int_equal(out_of(tape, n, DTYPE_F32, AMP_O1),
                         loss || stream ? DTYPE_F32 : DTYPE_BF16);
        assert_int_equal(out_of(tape, n, DTYPE_BF16, AMP_O2), loss ? DTYPE_F32 : DTYPE_BF16);
        assert_int_equal(precision_out(tape, n, DTYPE_F32, MATH_TF32, AMP_O1), DTYPE_F32);
        bool product = node->op == OP_LINEAR || node->op == OP_ATTENTION;
        assert_int_equal(precision_math(tape, n, MATH_F16), product ? MATH_F16 : MATH_F32);
    }
    tape_free(tape);
}

static void parameters_lie_in_tape_order_without_gaps(void **state)
{
    (void)state;
    const char *const models[] = { "mlp", "lenet", "resnet18" };
    for (size_t m = 0; m < 3; m++) {
        struct tape *tape = build(models[m], 28);
        size_t at = 0;
        for (int i = 0; i < tape->param_count; i++) {
            assert_int_equal(tape->params[i].offset, at);
            at += tape->params[i].count;
        }
        assert_int_equal(at, tape->param_elements);
        int last = -1;
        for (int n = 0; n < tape->node_count; n++) {
            for (int i = 0; i < OP_PARAM_MAX && tape->nodes[n].param[i] >= 0; i++) {
                assert_int_equal(tape->nodes[n].param[i], last + 1);
                last++;
            }
        }
        tape_free(tape);
    }
}

static void an_image_too_small_for_the_model_is_refused(void **state)
{
    (void)state;
    struct model_options options = {
        .arch = "lenet", .channels = 1, .height = 11, .width = 11, .classes = 10
    };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_INVALID);
    assert_null(tape);
    options.height = options.width = 12;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    tape_free(tape);
}

static void an_unknown_model_is_not_found(void **state)
{
    (void)state;
    struct model_options options = { .arch = "resnet19" };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_NOT_FOUND);
    assert_null(tape);
}

static void the_first_mistake_of_a_builder_is_kept(void **state)
{
    (void)state;
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 4, (int64_t[]){ 1, 3, 8, 8 });
    assert_int_equal(tape_max_pool(tape, x, 9, 1, 0), -1);
    assert_int_equal(tape_flatten(tape, x), -1);
    assert_int_equal(tape_finish(tape), ST_INVALID);
    tape_free(tape);
}

static void a_tape_with_a_value_that_nobody_reads_is_refused(void **state)
{
    (void)state;
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 4, (int64_t[]){ 1, 1, 8, 8 });
    int labels = tape_input(tape, DTYPE_I32, 1, (int64_t[]){ 1 });
    int flat = tape_flatten(tape, x);
    int logits = tape_linear(tape, "fc", flat, &(struct tape_linear){ .out = 10, .bias = true });
    (void)tape_linear(tape, "dead", flat, &(struct tape_linear){ .out = 10, .bias = true });
    assert_true(tape_loss(tape, logits, labels, 0) >= 0);
    assert_int_equal(tape_finish(tape), ST_INVALID);
    tape_free(tape);
}

static void a_name_that_is_too_long_is_refused(void **state)
{
    (void)state;
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 2, (int64_t[]){ 1, 4 });
    char name[LIMIT_NAME];
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    (void)tape_linear(tape, name, x, &(struct tape_linear){ .out = 4, .bias = true });
    assert_int_equal(tape->error, ST_INVALID);
    tape_free(tape);
}

static void more_nodes_than_the_bound_are_refused(void **state)
{
    (void)state;
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 2, (int64_t[]){ 1, 4 });
    for (int i = 0; i < TAPE_NODES_MAX; i++)
        x = tape_relu(tape, x);
    assert_true(x >= 0);
    assert_int_equal(tape_relu(tape, x), -1);
    assert_int_equal(tape->error, ST_INVALID);
    tape_free(tape);
}

static void the_lane_vector_holds_gradients_statistics_and_scalars(void **state)
{
    (void)state;
    struct tape *tape = build("resnet18", 28);
    struct lane_layout layout = lane_layout(tape);
    assert_int_equal(layout.param_count, tape->param_elements);
    assert_int_equal(layout.stat_at, tape->param_elements);
    assert_int_equal(layout.loss_at, tape->param_elements + 9600);
    assert_int_equal(layout.count, layout.micro_at + 1);
    tape_free(tape);
}

static void check_buckets(size_t count, size_t wanted)
{
    struct lane_layout layout = { .count = count };
    static size_t begin[LANE_BUCKETS_MAX + 1];
    size_t buckets = 0;
    assert_int_equal(lane_buckets(&layout, wanted, begin, LANE_BUCKETS_MAX, &buckets), ST_OK);
    assert_true(buckets >= 1);
    assert_int_equal(begin[0], 0);
    begin[buckets] = count;
    for (size_t i = 0; i < buckets; i++) {
        assert_true(begin[i] < begin[i + 1]);
        assert_int_equal(begin[i] % PIECE_ELEMENTS, 0);
        size_t size = begin[i + 1] - begin[i];
        assert_true(size <= wanted + 2 * PIECE_ELEMENTS);
    }
}

static void bucket_borders_are_multiples_of_a_piece(void **state)
{
    (void)state;
    const size_t counts[] = { 1,
                              PIECE_ELEMENTS - 1,
                              PIECE_ELEMENTS,
                              PIECE_ELEMENTS + 1,
                              2 * PIECE_ELEMENTS + 1,
                              11182413,
                              50000000 };
    const size_t wanted[] = { 0, 1, PIECE_ELEMENTS, 100000, 1 << 20 };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (size_t j = 0; j < sizeof(wanted) / sizeof(wanted[0]); j++)
            check_buckets(counts[i], wanted[j]);
    }
}

/* The counts go up to models whose buckets have the usual size, and beyond. */
static void buckets_of_however_large_a_vector_have_room(void **state)
{
    (void)state;
    static const size_t counts[] = { 1, 124000000, 17000000000, 17250000000, 1000000000000 };
    static size_t begin[LANE_BUCKETS_MAX];
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct lane_layout layout = { .count = counts[i] };
        const size_t wanted = lane_wanted(counts[i], LANE_BUCKETS_MAX);
        size_t buckets = 0;
        assert_int_equal(wanted == LANE_BUCKET_ELEMENTS, i < 3);
        assert_int_equal(lane_buckets(&layout, wanted, begin, LANE_BUCKETS_MAX, &buckets), ST_OK);
    }
}

static void too_many_buckets_are_refused(void **state)
{
    (void)state;
    struct lane_layout layout = { .count = 10 * PIECE_ELEMENTS };
    size_t begin[4];
    size_t buckets = 77;
    assert_int_equal(lane_buckets(&layout, PIECE_ELEMENTS, begin, 4, &buckets), ST_FULL);
    assert_int_equal(buckets, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resnet18_has_the_names_and_counts_of_pytorch),
        cmocka_unit_test(large_resnets_have_the_counts_of_torchvision),
        cmocka_unit_test(the_stride_of_a_bottleneck_is_in_its_3x3),
        cmocka_unit_test(gpt2_has_the_names_and_counts_of_its_sizes),
        cmocka_unit_test(vit_has_the_names_and_counts_of_its_sizes),
        cmocka_unit_test(vit_takes_images_that_patches_cover),
        cmocka_unit_test(bert_has_the_names_and_counts_of_its_sizes),
        cmocka_unit_test(what_is_added_has_the_dtype_of_the_sum),
        cmocka_unit_test(the_head_of_gpt2_reads_the_embedding),
        cmocka_unit_test(dropout_of_gpt2_is_after_the_embedding_and_before_each_addition),
        cmocka_unit_test(numbers_of_gpt2_that_do_not_fit_are_refused),
        cmocka_unit_test(only_the_residual_stream_and_the_loss_of_gpt2_stay_float32),
        cmocka_unit_test(parameters_lie_in_tape_order_without_gaps),
        cmocka_unit_test(an_image_too_small_for_the_model_is_refused),
        cmocka_unit_test(an_unknown_model_is_not_found),
        cmocka_unit_test(the_first_mistake_of_a_builder_is_kept),
        cmocka_unit_test(a_tape_with_a_value_that_nobody_reads_is_refused),
        cmocka_unit_test(a_name_that_is_too_long_is_refused),
        cmocka_unit_test(more_nodes_than_the_bound_are_refused),
        cmocka_unit_test(the_lane_vector_holds_gradients_statistics_and_scalars),
        cmocka_unit_test(bucket_borders_are_multiples_of_a_piece),
        cmocka_unit_test(buckets_of_however_large_a_vector_have_room),
        cmocka_unit_test(too_many_buckets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
