/*
 * Every op of the text models on the CPU backend against float64 differences, in float32 and in
 * bfloat16.
 */
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

static void embedding_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "positions", EMBEDDING, .attr = { .out = 19, .rows = 11, .positions = 9 } },
        { "no positions", EMBEDDING, .attr = { .out = 32, .rows = 50 } },
        { "half", EMBEDDING, .out_dtype = DTYPE_BF16,
          .attr = { .out = 19, .rows = 5, .positions = 7 } },
        { "inference", EMBEDDING, .attr = { .out = 4, .rows = 3 }, .inference = true },
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
        cmocka_unit_test(gelu_is_its_definition),
        cmocka_unit_test(dropout_draws_by_counter),
        cmocka_unit_test(layer_norm_is_its_definition),
        cmocka_unit_test(embedding_is_its_definition),
        cmocka_unit_test(attention_is_its_definition),
        cmocka_unit_test(loss_is_its_definition),
        cmocka_unit_test(two_threads_compute_the_same_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
