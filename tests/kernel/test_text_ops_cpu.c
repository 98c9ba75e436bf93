/*
 * Every op of the text models on the CPU backend against float64 differences, in float32 and in
 * bfloat16.
 */
#include <string.h>

#include "common/halves.h"
#include "tests/kernel/op_case.h"
#include "tests/test.h"

static struct backend *open_cpu(int threads)
{
    struct backend *backend = NULL;
    const struct backend_options options = { .threads = threads };
    assert_int_equal(backend_cpu()->open(&options, &backend), ST_OK);
    return backend;
}

static void check_all(const struct op_case *cases, size_t count, int threads)
{
    struct backend *backend = open_cpu(threads);
    for (size_t i = 0; i < count; i++)
        op_case_check(backend_cpu(), backend, &cases[i]);
    backend_cpu()->close(backend);
}

#define CHECK_ALL(cases) check_all(cases, sizeof(cases) / sizeof((cases)[0]), 1)

/* Half precision all over, and with the residual stream in float32. */
#define HALF   .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .math = MATH_BF16
#define WIDEN  .dtype = DTYPE_BF16, .math = MATH_BF16
#define NARROW .out_dtype = DTYPE_BF16, .math = MATH_BF16

#define LINEAR .op = OP_LINEAR, .ndim = 3, .dims = { 2, 9, 37 }

static void linear_takes_any_rows_residuals_and_activations(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "three dims", LINEAR, .attr = { .out = 21, .bias = true } },
        { "residual", LINEAR, .attr = { .out = 21, .bias = true, .residual = true } },
        { "gelu", LINEAR, .attr = { .out = 21, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "gelu, erf, no bias", LINEAR, .attr = { .out = 5, .activation = ACTIVATION_GELU_ERF } },
        { "gelu, inference", LINEAR, .inference = true,
          .attr = { .out = 21, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "relu", LINEAR, .attr = { .out = 64, .activation = ACTIVATION_RELU } },
        { "four dims", .op = OP_LINEAR, .ndim = 4, .dims = { 2, 3, 2, 16 }, .attr = { .out = 8 } },
        { "data", LINEAR, .no_din = true, .attr = { .out = 3, .residual = true } },
        { "large", .op = OP_LINEAR, .ndim = 2, .dims = { 70, 130 },
          .attr = { .out = 150, .bias = true } },
    };
    CHECK_ALL(cases);
}

static void linear_multiplies_in_bfloat16(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "half", LINEAR, HALF, .attr = { .out = 21, .bias = true } },
        { "half, no bias", LINEAR, HALF, .attr = { .out = 32 } },
        { "half, gelu", LINEAR, HALF,
          .attr = { .out = 21, .bias = true, .activation = ACTIVATION_GELU_TANH } },
        { "half, gelu, inference", LINEAR, HALF, .inference = true,
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
        { "large", .op = OP_LINEAR, .ndim = 2, .dims = { 70, 130 }, HALF,
          .attr = { .out = 150, .bias = true } },
    };
    CHECK_ALL(cases);
}

#define GELU(kind) .op = OP_GELU, .ndim = 2, .dims = { 5, 37 }, .attr = { .activation = (kind) }

static void linear_in_bfloat16_cuts_large_matrices_into_blocks(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "many rows", .op = OP_LINEAR, .ndim = 2, .dims = { 290, 40 }, HALF,
          .attr = { .out = 70, .bias = true } },
        { "many rows, whole tiles", .op = OP_LINEAR, .ndim = 2, .dims = { 288, 64 }, HALF,
          .attr = { .out = 64, .bias = true } },
        { "deep", .op = OP_LINEAR, .ndim = 2, .dims = { 3, 3300 }, HALF, .attr = { .out = 40 } },
        { "deep, to float32", .op = OP_LINEAR, .ndim = 2, .dims = { 32, 3104 }, WIDEN,
          .attr = { .out = 32 } },
        { "wide", .op = OP_LINEAR, .ndim = 2, .dims = { 3, 40 }, HALF, .attr = { .out = 3300 } },
    };
    CHECK_ALL(cases);
}

static void gelu_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "tanh", GELU(ACTIVATION_GELU_TANH) },
        { "erf", GELU(ACTIVATION_GELU_ERF) },
        { "tanh, half", GELU(ACTIVATION_GELU_TANH), HALF },
        { "erf, half", GELU(ACTIVATION_GELU_ERF), HALF },
        { "inference", GELU(ACTIVATION_GELU_ERF), .inference = true },
    };
    CHECK_ALL(cases);
}

#define DROPOUT .op = OP_DROPOUT, .ndim = 3, .dims = { 3, 5, 31 }

static void dropout_draws_by_counter(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "plain", DROPOUT, .attr = { .drop = 0.1f, .layer = 3 } },
        { "residual", DROPOUT, .attr = { .drop = 0.5f, .layer = 1, .residual = true } },
        { "nothing is dropped", DROPOUT, .attr = { .drop = 0.0f } },
        { "half", DROPOUT, HALF, .attr = { .drop = 0.3f, .layer = 2 } },
        { "half, residual", DROPOUT, HALF, .attr = { .drop = 0.3f, .residual = true } },
        { "to float32, residual", DROPOUT, WIDEN, .attr = { .drop = 0.3f, .residual = true } },
        { "from float32", DROPOUT, NARROW, .attr = { .drop = 0.3f } },
        { "inference", DROPOUT, .attr = { .drop = 0.3f }, .inference = true },
        { "inference, residual", DROPOUT, WIDEN, .inference = true,
          .attr = { .drop = 0.3f, .residual = true } },
        { "one element", .op = OP_DROPOUT, .ndim = 1, .dims = { 1 }, .attr = { .drop = 0.25f } },
    };
    CHECK_ALL(cases);
}

#define LAYER(c) .op = OP_LAYER_NORM, .ndim = 3, .dims = { 2, 35, (c) }, .attr = { .eps = 1e-5f }

static void layer_norm_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "odd", LAYER(37) },
        { "one vector", LAYER(16) },
        { "few", LAYER(3) },
        { "half", LAYER(40), HALF },
        { "from float32", LAYER(37), NARROW },
        { "to float32", LAYER(24), WIDEN },
        { "inference", LAYER(37), .inference = true },
        { "two dims", .op = OP_LAYER_NORM, .ndim = 2, .dims = { 1, 70 }, .attr = { .eps = 1e-3f } },
    };
    CHECK_ALL(cases);
}

#define EMBEDDING .op = OP_EMBEDDING, .ndim = 2, .dims = { 3, 7 }

#define RMS(c)                                                                                     \
    .op = OP_LAYER_NORM, .ndim = 3, .dims = { 2, 35, (c) }, .attr = { .eps = 1e-5f, .rms = true }

static void rms_norm_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "odd", RMS(37) },
        { "one vector", RMS(16) },
        { "few", RMS(3) },
        { "half", RMS(40), HALF },
        { "from float32", RMS(37), NARROW },
        { "to float32", RMS(24), WIDEN },
        { "inference", RMS(37), .inference = true },
    };
    CHECK_ALL(cases);
}

#define GATED(c) .op = OP_GATED, .ndim = 3, .dims = { 2, 5, 2 * (c) }

static void gated_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "odd", GATED(37) },
        { "few", GATED(3) },
        { "one vector", GATED(16) },
        { "half", GATED(21), HALF },
        { "inference", GATED(8), .inference = true },
        { "two dims", .op = OP_GATED, .ndim = 2, .dims = { 3, 34 } },
    };
    CHECK_ALL(cases);
}

#define ROTARY(t, h, kv, d)                                                                        \
    .op = OP_ROTARY, .ndim = 3, .dims = { 2, (t), ((h) + 2 * (kv)) * (d) },                        \
    .attr = { .heads = (h), .kv_heads = (kv), .rope_theta = 10000.0f }

static void rotary_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "a head each", ROTARY(9, 3, 3, 8) },
        { "two share", ROTARY(13, 4, 2, 8) },
        { "all share", ROTARY(5, 3, 1, 32) },
        { "odd pairs", ROTARY(7, 2, 1, 6) },
        { "one pair", ROTARY(3, 2, 2, 2) },
        { "far", ROTARY(700, 1, 1, 4), .tolerance = 1e-4 },
        { "half", ROTARY(13, 4, 2, 16), HALF },
        { "half, odd pairs", ROTARY(5, 2, 1, 38), HALF },
        { "inference", ROTARY(6, 2, 1, 8), .inference = true },
        { "another base", .op = OP_ROTARY, .ndim = 3, .dims = { 1, 11, 32 },
          .attr = { .heads = 2, .kv_heads = 1, .rope_theta = 500000.0f } },
    };
    CHECK_ALL(cases);
}

static void embedding_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "positions", EMBEDDING, .attr = { .out = 19, .rows = 11, .positions = 9 } },
        { "no positions", EMBEDDING, .attr = { .out = 32, .rows = 50 } },
        { "half", EMBEDDING, .out_dtype = DTYPE_BF16,
          .attr = { .out = 19, .rows = 5, .positions = 7 } },
        { "inference", EMBEDDING, .attr = { .out = 4, .rows = 3 }, .inference = true },
        { "residual", EMBEDDING, .attr = { .out = 19, .rows = 2, .residual = true } },
        { "residual, half", EMBEDDING, .out_dtype = DTYPE_BF16,
          .attr = { .out = 16, .rows = 5, .residual = true } },
    };
    CHECK_ALL(cases);
}

#define ATTENTION(t, h, d)                                                                         \
    .op = OP_ATTENTION, .ndim = 3, .dims = { 2, (t), 3 * (h) * (d) }, .attr = { .heads = (h) }

static void attention_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "one tile", ATTENTION(16, 2, 8) },
        { "part of a tile", ATTENTION(13, 3, 5) },
        { "one token", ATTENTION(1, 1, 4) },
        { "more tiles", ATTENTION(131, 1, 6) },
        { "whole tiles", ATTENTION(128, 2, 4) },
        { "half", ATTENTION(21, 2, 16), HALF },
        { "half, more tiles", ATTENTION(70, 2, 8), HALF },
        { "float32, half products", ATTENTION(21, 2, 16), .math = MATH_BF16 },
        { "inference", ATTENTION(70, 1, 8), .inference = true },
    };
    CHECK_ALL(cases);
}

#define BOTH(t, h, d)                                                                              \
    .op = OP_ATTENTION, .ndim = 3, .dims = { 3, (t), 3 * (h) * (d) },                              \
    .attr = { .heads = (h), .bidirectional = true }

static void attention_in_both_directions_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "one tile", BOTH(16, 2, 8) },
        { "part of a tile", BOTH(13, 3, 5) },
        { "one token", BOTH(1, 1, 4) },
        { "more tiles", BOTH(131, 1, 6) },
        { "half", BOTH(21, 2, 16), HALF },
        { "half, more tiles", BOTH(70, 2, 8), HALF },
        { "inference", BOTH(70, 1, 8), .inference = true },
        { "padded", BOTH(16, 2, 8), .padded = true },
        { "padded, more tiles", BOTH(131, 1, 6), .padded = true },
        { "padded, half", BOTH(70, 2, 8), HALF, .padded = true },
        { "padded, inference", BOTH(70, 1, 8), .inference = true, .padded = true },
        { "padded, causal", ATTENTION(70, 2, 4), .padded = true },
    };
    CHECK_ALL(cases);
}

static void select_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "first", .op = OP_SELECT, .ndim = 3, .dims = { 3, 5, 7 } },
        { "last", .op = OP_SELECT, .ndim = 3, .dims = { 2, 5, 8 }, .attr = { .row = 4 } },
        { "half", .op = OP_SELECT, .ndim = 3, .dims = { 2, 5, 8 }, HALF, .attr = { .row = 2 } },
        { "inference", .op = OP_SELECT, .ndim = 3, .dims = { 1, 1, 1 }, .inference = true },
    };
    CHECK_ALL(cases);
}

#define LOSS(rows, n) .op = OP_SOFTMAX_CROSS_ENTROPY, .ndim = 3, .dims = { 2, (rows), (n) }

static void loss_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "three dims", LOSS(5, 37) },
        { "many classes", LOSS(2, 2100) },
        { "smoothed", LOSS(4, 21), .attr = { .label_smoothing = 0.1f } },
        { "half", LOSS(5, 37), .dtype = DTYPE_BF16 },
        { "half, smoothed", LOSS(5, 16), .dtype = DTYPE_BF16, .attr = { .label_smoothing = 0.1f } },
    };
    CHECK_ALL(cases);
}

static void the_decay_map_says_which_elements_decay(void **state)
{
    (void)state;
    enum { COUNT = 70 };
    static const uint64_t borders[] = { 3, 20, 20, 37, 64, 69 };
    const struct decay_map map = { .borders = borders, .count = 6 };
    struct backend *backend = open_cpu(1);
    const struct vector_table *vector = &backend_cpu()->vector;
    for (int kind = 0; kind < 4; kind++) {
        float param[2][COUNT], m[2][COUNT], v[2][COUNT], grad[COUNT];
        for (int i = 0; i < COUNT; i++) {
            param[0][i] = param[1][i] = 1.0f + (float)i;
            m[0][i] = m[1][i] = 0.25f;
            v[0][i] = v[1][i] = 0.5f;
            grad[i] = (float)(i % 7) - 3.0f;
        }
        struct adamw_args adamw = { .lr = 0.01f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .grad_scale = 0.5f,
                                    .t = 3 };
        struct sgd_args sgd = { .lr = 0.01f,
                                .momentum = kind == 1 ? 0.9f : 0.0f,
                                .weight_decay = 0.1f,
                                .grad_scale = 0.5f };
        for (int i = 0; i < COUNT; i++) { /* one by one, without a map */
            int passed = 0;
            for (int b = 0; b < 6; b++)
                passed += borders[b] <= (uint64_t)i;
            adamw.weight_decay = sgd.weight_decay = passed % 2 == 0 ? 0.1f : 0.0f;
            if (kind < 2) {
                assert_int_equal(
                    vector->sgd(backend, &param[0][i], &m[0][i], &grad[i], 1, &sgd, NULL), ST_OK);
            } else {
                assert_int_equal(vector->adamw(backend, &param[0][i], &m[0][i], &v[0][i], &grad[i],
                                               1, &adamw, NULL),
                                 ST_OK);
            }
        }
        adamw.weight_decay = sgd.weight_decay = 0.1f;
        adamw.decay = sgd.decay = &map;
        if (kind < 2) {
            assert_int_equal(vector->sgd(backend, param[1], m[1], grad, COUNT, &sgd, NULL), ST_OK);
        } else {
            assert_int_equal(
                vector->adamw(backend, param[1], m[1], v[1], grad, COUNT, &adamw, NULL), ST_OK);
        }
        assert_memory_equal(param[0], param[1], sizeof(param[0]));
        assert_memory_equal(m[0], m[1], sizeof(m[0]));
    }
    backend_cpu()->close(backend);
}

static void large_fills_and_conversions_are_whole(void **state)
{
    (void)state;
    const size_t count = ((size_t)1 << 20) + 37;
    struct backend *backend = open_cpu(1);
    const struct op_spec spec = { .op = OP_DROPOUT,
                                  .in = { tensor_plain(DTYPE_F32, 1,
                                                       (const int64_t[]){ (int64_t)count }) },
                                  .in_count = 1,
                                  .out_dtype = DTYPE_BF16 };
    struct kernel *kernel = NULL;
    struct kernel_info info;
    void *memory[2];
    const struct op_table *op = &backend_cpu()->op[OP_DROPOUT];
    assert_int_equal(op->prepare(backend, &spec, &kernel, &info), ST_OK);
    assert_int_equal(backend_cpu()->alloc(backend, (count + 3) * sizeof(float), &memory[0]), ST_OK);
    assert_int_equal(backend_cpu()->alloc(backend, count * sizeof(float), &memory[1]), ST_OK);
    float *x = memory[0];
    const uint16_t *half = memory[1];
    assert_int_equal(backend_cpu()->vector.fill(backend, x + 3, 1.5f, count, NULL), ST_OK);
    assert_true(x[2] == 0.0f);
    for (size_t i = 0; i < count; i++)
        assert_true(x[i + 3] == 1.5f);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(i % 256);
    const struct op_buffers buffers = { .in = { x }, .out = memory[1] };
    assert_int_equal(op->forward(backend, kernel, &buffers, NULL), ST_OK); /* inference: a copy */
    for (size_t i = 0; i < count; i++)
        assert_true(bf16_widen(half[i]) == (float)(i % 256));
    backend_cpu()->kernel_free(backend, kernel);
    backend_cpu()->free(backend, memory[0]);
    backend_cpu()->free(backend, memory[1]);
    backend_cpu()->close(backend);
}

static void tokens_and_labels_out_of_range_are_refused(void **state)
{
    (void)state;
    struct backend *backend = open_cpu(1);
    const int64_t dims[2] = { 1, 2 };
    const struct op_spec spec = { .op = OP_EMBEDDING,
                                  .in = { tensor_plain(DTYPE_I32, 2, dims) },
                                  .in_count = 1,
                                  .attr = { .out = 1, .rows = 5 } };
    struct kernel *kernel = NULL;
    struct kernel_info info;
    const float table[5] = { 0 };
    float out[2];
    assert_int_equal(backend_cpu()->op[OP_EMBEDDING].prepare(backend, &spec, &kernel, &info),
                     ST_OK);
    static const int32_t tokens[][2] = { { 0, 4 }, { 0, 5 }, { -1, 0 } };
    for (int i = 0; i < 3; i++) {
        const struct op_buffers buffers = { .in = { tokens[i] }, .param = { table }, .out = out };
        assert_int_equal(backend_cpu()->op[OP_EMBEDDING].forward(backend, kernel, &buffers, NULL),
                         i == 0 ? ST_OK : ST_INVALID);
    }
    backend_cpu()->kernel_free(backend, kernel);
    backend_cpu()->close(backend);
}

/* Prepare says what an op does not take. */
static void specs_outside_what_ops_take_are_refused(void **state)
{
    (void)state;
    struct backend *backend = open_cpu(1);
    const struct tensor x = tensor_plain(DTYPE_F32, 3, (const int64_t[]){ 2, 3, 12 });
    const struct tensor half = tensor_plain(DTYPE_BF16, 3, (const int64_t[]){ 2, 3, 12 });
    const struct tensor tokens = tensor_plain(DTYPE_I32, 2, (const int64_t[]){ 2, 6 });
    const struct op_spec specs[] = {
        { .op = OP_LINEAR, .in = { x }, .in_count = 1, .attr = { .out = 4 }, .math = MATH_F16 },
        { .op = OP_LINEAR, .in = { x }, .in_count = 1, .attr = { .out = 4 }, .math = MATH_TF32 },
        { .op = OP_LINEAR, .in = { half }, .in_count = 1, .attr = { .out = 4 } },
        { .op = OP_LINEAR, .in = { x, x }, .in_count = 2, .attr = { .out = 4, .residual = true } },
        { .op = OP_LINEAR,
          .in = { x, x },
          .in_count = 2,
          .attr = { .out = 12, .residual = true, .activation = ACTIVATION_RELU } },
        { .op = OP_GELU, .in = { x }, .in_count = 1 },
        { .op = OP_GELU,
          .in = { x },
          .in_count = 1,
          .out_dtype = DTYPE_BF16,
          .attr = { .activation = ACTIVATION_GELU_ERF } },
        { .op = OP_DROPOUT, .in = { x }, .in_count = 1, .attr = { .drop = 1.0f } },
        { .op = OP_DROPOUT, .in = { x, half }, .in_count = 2, .attr = { .residual = true } },
        { .op = OP_LAYER_NORM, .in = { x }, .in_count = 1, .out_dtype = DTYPE_F16 },
        { .op = OP_GATED, .in = { x }, .in_count = 1, .out_dtype = DTYPE_BF16 },
        { .op = OP_ROTARY, .in = { x }, .in_count = 1, .attr = { .heads = 1, .kv_heads = 1 } },
        { .op = OP_ROTARY,
          .in = { x },
          .in_count = 1,
          .attr = { .heads = 3, .kv_heads = 2, .rope_theta = 1e4f } },
        { .op = OP_EMBEDDING, .in = { x }, .in_count = 1, .attr = { .out = 4, .rows = 4 } },
        { .op = OP_EMBEDDING,
          .in = { tokens },
          .in_count = 1,
          .attr = { .out = 4, .rows = 4, .positions = 5 } },
        { .op = OP_ATTENTION, .in = { x }, .in_count = 1, .attr = { .heads = 3 } },
        { .op = OP_ATTENTION,
          .in = { x },
          .in_count = 1,
          .out_dtype = DTYPE_BF16,
          .attr = { .heads = 2 } },
        { .op = OP_ATTENTION, .in = { x, tokens }, .in_count = 2, .attr = { .heads = 2 } },
        { .op = OP_EMBEDDING,
          .in = { tokens, x },
          .in_count = 2,
          .attr = { .out = 4, .rows = 4, .residual = true } },
        { .op = OP_SELECT, .in = { x }, .in_count = 1, .attr = { .row = 3 } },
        { .op = OP_SELECT, .in = { x }, .in_count = 1, .out_dtype = DTYPE_BF16 },
        { .op = OP_SEQUENCE, .in = { x }, .in_count = 1 },
        { .op = OP_SOFTMAX_CROSS_ENTROPY, .in = { x, x }, .in_count = 2 },
        { .op = OP_SOFTMAX_CROSS_ENTROPY, .in = { x, tokens }, .in_count = 2 },
    };
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        struct kernel *kernel = NULL;
        struct kernel_info info;
        assert_int_equal(backend_cpu()->op[specs[i].op].prepare(backend, &specs[i], &kernel, &info),
                         ST_INVALID);
        assert_null(kernel);
    }
    backend_cpu()->close(backend);
}

static void two_threads_compute_the_same_functions(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* the barriers of libgomp are not seen by the sanitizer */
#endif
    static const struct op_case cases[] = {
        { "linear", LINEAR, .attr = { .out = 21, .bias = true, .residual = true } },
        { "linear, half", LINEAR, HALF, .attr = { .out = 21, .bias = true } },
        { "attention", ATTENTION(70, 2, 8) },
    };
    check_all(cases, sizeof(cases) / sizeof(cases[0]), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_takes_any_rows_residuals_and_activations),
        cmocka_unit_test(linear_multiplies_in_bfloat16),
        cmocka_unit_test(linear_in_bfloat16_cuts_large_matrices_into_blocks),
        cmocka_unit_test(gelu_is_its_definition),
        cmocka_unit_test(dropout_draws_by_counter),
        cmocka_unit_test(layer_norm_is_its_definition),
        cmocka_unit_test(rms_norm_is_its_definition),
        cmocka_unit_test(gated_is_its_definition),
        cmocka_unit_test(rotary_is_its_definition),
        cmocka_unit_test(embedding_is_its_definition),
        cmocka_unit_test(attention_is_its_definition),
        cmocka_unit_test(attention_in_both_directions_is_its_definition),
        cmocka_unit_test(select_is_its_definition),
        cmocka_unit_test(loss_is_its_definition),
        cmocka_unit_test(the_decay_map_says_which_elements_decay),
        cmocka_unit_test(large_fills_and_conversions_are_whole),
        cmocka_unit_test(tokens_and_labels_out_of_range_are_refused),
        cmocka_unit_test(specs_outside_what_ops_take_are_refused),
        cmocka_unit_test(two_threads_compute_the_same_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
