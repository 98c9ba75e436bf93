#include "tests/kernel/cuda_cases.h"

#include "tests/kernel/mirror.h"
#include "tests/kernel/op_case.h"
#include "tests/test.h"

/* Twice: with flat parameters at any address, and with aligned ones. */
static void check_all(void **state, const struct op_case *cases, size_t count)
{
    const struct module *module = *state;
    for (int weak = 0; weak < 2; weak++) {
        struct backend *backend = NULL;
        const struct mirror_options options = { .device = module->backend, .weak = weak == 1 };
        assert_int_equal(mirror_open(&options, &backend), ST_OK);
        for (size_t i = 0; i < count; i++)
            op_case_check(mirror_table(), backend, &cases[i]);
        mirror_table()->close(backend);
    }
}

#define CHECK_ALL(cases) check_all(state, cases, sizeof(cases) / sizeof((cases)[0]))

#define HALF   .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .math = MATH_BF16
#define WIDEN  .dtype = DTYPE_BF16, .math = MATH_BF16
#define NARROW .out_dtype = DTYPE_BF16, .math = MATH_BF16
#define F16    .dtype = DTYPE_F16, .out_dtype = DTYPE_F16, .math = MATH_F16
#define TF32   .math = MATH_TF32, .tolerance = 2e-3
#define NHWC   .format = FORMAT_NHWC

#define LINEAR .op = OP_LINEAR, .ndim = 3, .dims = { 2, 9, 37 }
#define EVEN   .op = OP_LINEAR, .ndim = 3, .dims = { 2, 9, 40 }

static void linear_is_its_definition(void **state)
{
    static const struct op_case cases[] = {
        { "bias", LINEAR, .attr = { .out = 21, .bias = true } },
        { "no bias", LINEAR, .attr = { .out = 16 } },
        { "residual", LINEAR, .attr = { .out = 21, .bias = true, .residual = true } },
        { "gelu", LINEAR, .attr = { .out = 21, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "gelu, erf, no bias", LINEAR, .attr = { .out = 5, .activation = ACTIVATION_GELU_ERF } },
        { "gelu, inference", LINEAR, .inference = true,
          .attr = { .out = 21, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "relu", LINEAR, .attr = { .out = 64, .activation = ACTIVATION_RELU } },
        { "relu and bias", LINEAR,
          .attr = { .out = 20, .bias = true, .activation = ACTIVATION_RELU } },
        { "four dims", .op = OP_LINEAR, .ndim = 4, .dims = { 2, 3, 2, 16 }, .attr = { .out = 8 } },
        { "one of everything", .op = OP_LINEAR, .ndim = 2, .dims = { 1, 1 },
          .attr = { .out = 1, .bias = true } },
        { "data", LINEAR, .no_din = true, .attr = { .out = 3, .residual = true } },
        { "inference", LINEAR, .inference = true, .attr = { .out = 3, .bias = true } },
        { "pitched", LINEAR, .pitched = true, .attr = { .out = 21 } },
    };
    CHECK_ALL(cases);
}

static void linear_multiplies_in_bfloat16_and_tf32(void **state)
{
    static const struct op_case cases[] = {
        { "tf32", LINEAR, TF32, .attr = { .out = 21, .bias = true } },
        { "tf32, gelu", EVEN, TF32,
          .attr = { .out = 24, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "half", LINEAR, HALF, .attr = { .out = 21, .bias = true } },
        { "half, no bias", LINEAR, HALF, .attr = { .out = 32 } },
        { "half, gelu beside", LINEAR, HALF,
          .attr = { .out = 21, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "half, gelu within", EVEN, HALF,
          .attr = { .out = 24, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "half, gelu within, no bias", EVEN, HALF,
          .attr = { .out = 8, .activation = ACTIVATION_GELU_TANH } },
        { "half, gelu within, inference", EVEN, HALF, .inference = true,
          .attr = { .out = 24, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "half, gelu, erf", LINEAR, HALF,
          .attr = { .out = 21, .bias = true, .activation = ACTIVATION_GELU_ERF } },
        { "half, relu", LINEAR, HALF,
          .attr = { .out = 20, .bias = true, .activation = ACTIVATION_RELU } },
        { "half, residual", LINEAR, HALF, .attr = { .out = 21, .bias = true, .residual = true } },
        { "to float32, residual", LINEAR, WIDEN,
          .attr = { .out = 21, .bias = true, .residual = true } },
        { "to float32, gelu", LINEAR, WIDEN,
          .attr = { .out = 21, .activation = ACTIVATION_GELU_TANH } },
        { "from float32", LINEAR, NARROW, .attr = { .out = 21, .bias = true } },
        { "float32, half products", LINEAR, .math = MATH_BF16, .attr = { .out = 21 } },
        { "data", LINEAR, NARROW, .no_din = true, .attr = { .out = 3, .bias = true } },
        { "half, pitched", LINEAR, HALF, .pitched = true, .attr = { .out = 69 } },
        { "half, pitched, inference", LINEAR, HALF, .pitched = true, .inference = true,
          .attr = { .out = 69 } },
        { "from float32, pitched", LINEAR, NARROW, .pitched = true, .attr = { .out = 21 } },
    };
    CHECK_ALL(cases);
}

#define GELU(kind) .op = OP_GELU, .ndim = 2, .dims = { 5, 37 }, .attr = { .activation = (kind) }
#define DROPOUT    .op = OP_DROPOUT, .ndim = 3, .dims = { 3, 5, 31 }

static void gelu_and_dropout_are_their_definition(void **state)
{
    static const struct op_case cases[] = {
        { "tanh", GELU(ACTIVATION_GELU_TANH) },
        { "erf", GELU(ACTIVATION_GELU_ERF) },
        { "tanh, half", GELU(ACTIVATION_GELU_TANH), HALF },
        { "inference", GELU(ACTIVATION_GELU_ERF), .inference = true },
        { "drop", DROPOUT, .attr = { .drop = 0.1f, .layer = 3 } },
        { "drop, residual", DROPOUT, .attr = { .drop = 0.5f, .layer = 1, .residual = true } },
        { "nothing is dropped", DROPOUT, .attr = { .drop = 0.0f } },
        { "drop, half", DROPOUT, HALF, .attr = { .drop = 0.3f, .layer = 2 } },
        { "drop, to float32, residual", DROPOUT, WIDEN,
          .attr = { .drop = 0.3f, .residual = true } },
        { "drop, from float32", DROPOUT, NARROW, .attr = { .drop = 0.3f } },
        { "drop, inference", DROPOUT, .attr = { .drop = 0.3f }, .inference = true },
        { "drop, inference, residual", DROPOUT, WIDEN, .inference = true,
          .attr = { .drop = 0.3f, .residual = true } },
    };
    CHECK_ALL(cases);
}

#define LAYER(c)  .op = OP_LAYER_NORM, .ndim = 3, .dims = { 2, 35, (c) }, .attr = { .eps = 1e-5f }
#define EMBEDDING .op = OP_EMBEDDING, .ndim = 2, .dims = { 3, 7 }

static void layer_norm_and_embedding_are_their_definition(void **state)
{
    static const struct op_case cases[] = {
        { "odd", LAYER(37) },
        { "few", LAYER(3) },
        { "half", LAYER(40), HALF },
        { "from float32", LAYER(37), NARROW },
        { "inference", LAYER(37), .inference = true },
        { "positions", EMBEDDING, .attr = { .out = 19, .rows = 11, .positions = 9 } },
        { "no positions", EMBEDDING, .attr = { .out = 32, .rows = 50 } },
        { "embedding, half", EMBEDDING, .out_dtype = DTYPE_BF16,
          .attr = { .out = 19, .rows = 5, .positions = 7 } },
        { "embedding, inference", EMBEDDING, .attr = { .out = 4, .rows = 3 }, .inference = true },
        { "residual", EMBEDDING, .attr = { .out = 19, .rows = 2, .residual = true } },
        { "residual, half", EMBEDDING, .out_dtype = DTYPE_BF16,
          .attr = { .out = 16, .rows = 5, .residual = true } },
    };
    CHECK_ALL(cases);
}

#define ATTENTION(t, h, d)                                                                         \
    .op = OP_ATTENTION, .ndim = 3, .dims = { 2, (t), 3 * (h) * (d) }, .attr = { .heads = (h) }
#define BOTH(t, h, d)                                                                              \
    .op = OP_ATTENTION, .ndim = 3, .dims = { 3, (t), 3 * (h) * (d) },                              \
    .attr = { .heads = (h), .bidirectional = true }
#define LOSS(rows, n) .op = OP_SOFTMAX_CROSS_ENTROPY, .ndim = 3, .dims = { 2, (rows), (n) }

static void attention_and_loss_are_their_definition(void **state)
{
    static const struct op_case cases[] = {
        { "plain", ATTENTION(13, 3, 8) },
        { "one token", ATTENTION(1, 1, 4) },
        { "half", ATTENTION(21, 2, 16), HALF },
        { "half, tensor cores", ATTENTION(33, 1, 32), HALF },
        { "inference", ATTENTION(20, 1, 8), .inference = true },
        { "both directions", BOTH(13, 3, 8) },
        { "both, half, tensor cores", BOTH(33, 1, 32), HALF },
        { "both, inference", BOTH(20, 1, 8), .inference = true },
        { "padded", BOTH(67, 1, 8), .padded = true },
        { "padded, half, tensor cores", BOTH(70, 1, 32), HALF, .padded = true },
        { "padded, inference", BOTH(20, 1, 8), .inference = true, .padded = true },
        { "padded, causal", ATTENTION(20, 1, 8), .padded = true },
        { "padded, causal, tensor cores", ATTENTION(35, 1, 32), HALF, .padded = true },
        { "loss", LOSS(5, 37) },
        { "loss, smoothed", LOSS(4, 21), .attr = { .label_smoothing = 0.1f } },
        { "loss, half", LOSS(5, 37), .dtype = DTYPE_BF16 },
        { "loss, pitched", LOSS(5, 37), .format = FORMAT_PITCHED },
        { "loss, pitched, half", LOSS(5, 69), .dtype = DTYPE_BF16, .format = FORMAT_PITCHED,
          .attr = { .label_smoothing = 0.1f } },
        { "loss, dying", LOSS(5, 37), .dying = true },
        { "loss, dying, pitched, half", LOSS(5, 69), .dtype = DTYPE_BF16, .dying = true,
          .format = FORMAT_PITCHED, .attr = { .label_smoothing = 0.1f } },
        { "loss, inference", .op = OP_SOFTMAX_CROSS_ENTROPY, .ndim = 2, .dims = { 3, 4 },
          .inference = true },
    };
    CHECK_ALL(cases);
}

#define RMS(c)                                                                                     \
    .op = OP_LAYER_NORM, .ndim = 3, .dims = { 2, 35, (c) }, .attr = { .eps = 1e-5f, .rms = true }
#define GATED(c) .op = OP_GATED, .ndim = 3, .dims = { 2, 5, 2 * (c) }
#define ROTARY(t, h, kv, d)                                                                        \
    .op = OP_ROTARY, .ndim = 3, .dims = { 2, (t), ((h) + 2 * (kv)) * (d) },                        \
    .attr = { .heads = (h), .kv_heads = (kv), .rope_theta = 10000.0f }

static void rms_norm_gated_and_rotary_are_their_definition(void **state)
{
    static const struct op_case cases[] = {
        { "rms, odd", RMS(37) },
        { "rms, vectors", RMS(40) },
        { "rms, half", RMS(40), HALF },
        { "rms, from float32", RMS(37), NARROW },
        { "rms, float16", RMS(40), F16 },
        { "rms, inference", RMS(37), .inference = true },
        { "gated", GATED(36) },
        { "gated, odd", GATED(37) },
        { "gated, half", GATED(40), HALF },
        { "gated, float16", GATED(21), F16 },
        { "gated, inference", GATED(8), .inference = true },
        { "a head each", ROTARY(9, 3, 3, 8) },
        { "two share", ROTARY(13, 4, 2, 8) },
        { "all share, many items", ROTARY(5, 6, 1, 96) },
        { "odd pairs", ROTARY(7, 2, 1, 6) },
        { "far", ROTARY(700, 1, 1, 4), .tolerance = 1e-4 },
        { "rotary, half", ROTARY(13, 4, 2, 16), HALF },
        { "rotary, float16", ROTARY(13, 4, 2, 16), F16 },
        { "rotary, inference", ROTARY(6, 2, 1, 8), .inference = true },
    };
    CHECK_ALL(cases);
}

#define CONV(k, s, p, o)                                                                           \
    .op = OP_CONV2D, .ndim = 4, .attr = { .kernel = (k), .stride = (s), .pad = (p), .out = (o) }

static void convolution_is_its_definition(void **state)
{
    static const struct op_case cases[] = {
        { "3x3", CONV(3, 2, 1, 8), .dims = { 2, 6, 7, 9 }, NHWC },
        { "1x1 strided", CONV(1, 2, 0, 9), .dims = { 2, 5, 5, 6 }, NHWC },
        { "1x1, a product", CONV(1, 1, 0, 16), .dims = { 2, 6, 3, 3 }, NHWC },
        { "1x1, plain", CONV(1, 1, 0, 7), .dims = { 2, 6, 3, 3 } },
        { "5x5", CONV(5, 1, 0, 4), .dims = { 2, 3, 9, 8 }, NHWC },
        { "stem", CONV(7, 2, 3, 8), .dims = { 1, 3, 11, 10 }, .no_din = true },
        { "one of everything", CONV(1, 1, 0, 1), .dims = { 1, 1, 1, 1 } },
        { "plain, with gradient", CONV(3, 1, 1, 7), .dims = { 2, 2, 5, 4 } },
        { "inference", CONV(3, 1, 1, 9), .dims = { 3, 5, 4, 4 }, NHWC, .inference = true },
        { "bias", .op = OP_CONV2D, .ndim = 4, .dims = { 2, 3, 5, 5 }, NHWC,
          .attr = { .kernel = 3, .stride = 1, .pad = 2, .out = 6, .bias = true } },
        { "1x1, bias", .op = OP_CONV2D, .ndim = 4, .dims = { 2, 3, 4, 5 }, NHWC,
          .attr = { .kernel = 1, .stride = 1, .out = 6, .bias = true } },
    };
    CHECK_ALL(cases);
}

static void convolution_multiplies_in_bfloat16_and_tf32(void **state)
{
    static const struct op_case cases[] = {
        { "tf32", CONV(3, 1, 1, 8), .dims = { 2, 6, 5, 5 }, NHWC, TF32 },
        { "half", CONV(3, 2, 1, 8), .dims = { 2, 6, 7, 9 }, NHWC, HALF },
        { "half, 1x1", CONV(1, 1, 0, 9), .dims = { 2, 5, 5, 6 }, NHWC, HALF },
        { "half, stem", CONV(7, 2, 3, 8), .dims = { 2, 3, 9, 8 }, NARROW, .no_din = true },
        { "half, one channel", CONV(3, 1, 1, 5), .dims = { 2, 1, 6, 5 }, NARROW, .no_din = true },
        { "half, stem, inference", CONV(3, 1, 1, 5), .dims = { 2, 3, 6, 5 }, NARROW,
          .inference = true },
        { "half, from float32", CONV(3, 1, 1, 5), .dims = { 2, 3, 6, 5 }, NARROW },
        { "half, bias", .op = OP_CONV2D, .ndim = 4, .dims = { 2, 3, 5, 5 }, NHWC, HALF,
          .attr = { .kernel = 3, .stride = 1, .pad = 1, .out = 6, .bias = true } },
    };
    CHECK_ALL(cases);
}

#define NORM .op = OP_BATCH_NORM, .ndim = 4

static void batch_norm_is_its_definition(void **state)
{
    static const struct op_case cases[] = {
        { "norm", NORM, .dims = { 3, 16, 4, 5 }, NHWC, .attr = { .eps = 1e-5f } },
        { "odd", NORM, .dims = { 2, 21, 3, 3 }, NHWC, .attr = { .eps = 1e-5f } },
        { "plain", NORM, .dims = { 3, 5, 3, 3 }, .attr = { .eps = 1e-5f } },
        { "relu", NORM, .dims = { 3, 17, 4, 3 }, NHWC, .attr = { .eps = 1e-5f, .relu = true } },
        { "relu, plain", NORM, .dims = { 3, 4, 4, 3 }, .attr = { .eps = 1e-5f, .relu = true } },
        { "residual", NORM, .dims = { 2, 16, 3, 3 }, NHWC,
          .attr = { .eps = 1e-5f, .residual = true } },
        { "both", NORM, .dims = { 2, 35, 3, 3 }, NHWC,
          .attr = { .eps = 1e-5f, .residual = true, .relu = true } },
        { "both, plain", NORM, .dims = { 2, 5, 3, 3 },
          .attr = { .eps = 1e-5f, .residual = true, .relu = true } },
        { "half", NORM, .dims = { 3, 16, 4, 5 }, NHWC, HALF,
          .attr = { .eps = 1e-5f, .relu = true, .residual = true } },
        { "running", NORM, .dims = { 2, 19, 3, 2 }, NHWC, .inference = true,
          .attr = { .eps = 1e-5f } },
        { "running, plain, all fused", NORM, .dims = { 2, 3, 3, 2 }, .inference = true,
          .attr = { .eps = 1e-5f, .relu = true, .residual = true } },
    };
    CHECK_ALL(cases);
}

#define POOL(k, s, p)                                                                              \
    .op = OP_MAX_POOL, .ndim = 4, .attr = { .kernel = (k), .stride = (s), .pad = (p) }

static void sequence_and_select_are_their_definition(void **state)
{
    static const struct op_case cases[] = {
        { "sequence", .op = OP_SEQUENCE, .ndim = 4, .dims = { 3, 20, 2, 3 }, NHWC },
        { "sequence, odd", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 21, 2, 3 }, NHWC },
        { "sequence, plain", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 3, 2, 2 } },
        { "sequence, half", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 8, 2, 2 }, NHWC, HALF },
        { "sequence to float32", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 8, 2, 2 }, NHWC,
          .dtype = DTYPE_BF16 },
        { "sequence, inference", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 8, 1, 1 }, NHWC,
          .inference = true },
        { "first", .op = OP_SELECT, .ndim = 3, .dims = { 3, 5, 7 } },
        { "last", .op = OP_SELECT, .ndim = 3, .dims = { 2, 5, 8 }, .attr = { .row = 4 } },
        { "select, half", .op = OP_SELECT, .ndim = 3, .dims = { 2, 5, 8 }, HALF,
          .attr = { .row = 2 } },
        { "select, float16", .op = OP_SELECT, .ndim = 3, .dims = { 2, 5, 8 }, F16 },
    };
    CHECK_ALL(cases);
}

static void pools_relu_and_flatten_are_their_definition(void **state)
{
    static const struct op_case cases[] = {
        { "2x2", POOL(2, 2, 0), .dims = { 2, 6, 6, 6 }, NHWC },
        { "2x2, plain, odd", POOL(2, 2, 0), .dims = { 2, 3, 7, 5 } },
        { "overlapping, padded", POOL(3, 2, 1), .dims = { 2, 17, 7, 8 }, NHWC },
        { "overlapping, inference", POOL(3, 1, 1), .dims = { 1, 2, 4, 4 }, .inference = true },
        { "average", .op = OP_GLOBAL_AVG_POOL, .ndim = 4, .dims = { 3, 20, 4, 5 }, NHWC },
        { "average, half", .op = OP_GLOBAL_AVG_POOL, .ndim = 4, .dims = { 3, 20, 4, 5 }, NHWC,
          HALF },
        { "average, plain", .op = OP_GLOBAL_AVG_POOL, .ndim = 4, .dims = { 3, 5, 1, 3 } },
        { "relu", .op = OP_RELU, .ndim = 4, .dims = { 2, 5, 3, 3 }, NHWC },
        { "relu, plain", .op = OP_RELU, .ndim = 2, .dims = { 2, 5 } },
        { "flatten", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 21, 2, 3 }, NHWC },
        { "flatten, half", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 21, 2, 3 }, NHWC, HALF },
        { "flatten, plain", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 3, 2, 3 } },
    };
    CHECK_ALL(cases);
}

static void float16_computes_the_same_functions(void **state)
{
    static const struct op_case cases[] = {
        { "linear", LINEAR, F16, .attr = { .out = 21, .bias = true } },
        { "linear, gelu within", EVEN, F16,
          .attr = { .out = 24, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "linear to float32, residual", LINEAR, .dtype = DTYPE_F16, .math = MATH_F16,
          .attr = { .out = 21, .bias = true, .residual = true } },
        { "gelu", GELU(ACTIVATION_GELU_TANH), F16 },
        { "drop", DROPOUT, F16, .attr = { .drop = 0.3f, .residual = true } },
        { "layer norm", LAYER(40), F16 },
        { "layer norm from float32", LAYER(37), .out_dtype = DTYPE_F16 },
        { "embedding", EMBEDDING, .out_dtype = DTYPE_F16,
          .attr = { .out = 19, .rows = 5, .positions = 7 } },
        { "attention", ATTENTION(33, 1, 32), F16 },
        { "loss", LOSS(5, 37), .dtype = DTYPE_F16 },
        { "convolution", CONV(3, 2, 1, 8), .dims = { 2, 6, 7, 9 }, NHWC, F16 },
        { "stem", CONV(7, 2, 3, 8), .dims = { 2, 3, 9, 8 }, .out_dtype = DTYPE_F16,
          .math = MATH_F16, .no_din = true },
        { "norm", NORM, .dims = { 3, 16, 4, 5 }, NHWC, F16,
          .attr = { .eps = 1e-5f, .relu = true, .residual = true } },
        { "pool", POOL(3, 2, 1), .dims = { 2, 17, 7, 8 }, NHWC, F16 },
    };
    CHECK_ALL(cases);
}

static const struct module *under_test(const struct module *set)
{
    static const struct module *module;
    module = set != NULL ? set : module;
    return module;
}

static int take_module(void **state)
{
    *state = (void *)(uintptr_t)under_test(NULL);
    return 0;
}

int cuda_cases_run(const struct module *module)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_its_definition),
        cmocka_unit_test(linear_multiplies_in_bfloat16_and_tf32),
        cmocka_unit_test(gelu_and_dropout_are_their_definition),
        cmocka_unit_test(layer_norm_and_embedding_are_their_definition),
        cmocka_unit_test(attention_and_loss_are_their_definition),
        cmocka_unit_test(rms_norm_gated_and_rotary_are_their_definition),
        cmocka_unit_test(convolution_is_its_definition),
        cmocka_unit_test(convolution_multiplies_in_bfloat16_and_tf32),
        cmocka_unit_test(batch_norm_is_its_definition),
        cmocka_unit_test(pools_relu_and_flatten_are_their_definition),
        cmocka_unit_test(sequence_and_select_are_their_definition),
        cmocka_unit_test(float16_computes_the_same_functions),
        cmocka_unit_test(cuda_memory_of_parts_is_that_of_their_granules),
    };
    (void)under_test(module);
    return cmocka_run_group_tests(tests, take_module, NULL);
}
