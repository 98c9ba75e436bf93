/*
 * Every op of the CPU backend against float64 differences, on odd shapes and in both formats.
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

#define CONV(k, s, p, o)                                                                           \
    .op = OP_CONV2D, .ndim = 4, .attr = { .kernel = (k), .stride = (s), .pad = (p), .out = (o) }
#define NORM .op = OP_BATCH_NORM, .ndim = 4
#define POOL(k, s, p)                                                                              \
    .op = OP_MAX_POOL, .ndim = 4, .attr = { .kernel = (k), .stride = (s), .pad = (p) }
#define BLOCKED  .format = FORMAT_BLOCKED
#define OWN      .format = FORMAT_BLOCKED, .tolerance = 5e-5, .wants = "own_wino"
#define WINOGRAD .format = FORMAT_BLOCKED, .tolerance = 5e-5, .wants = "wino"

static void convolution_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "3x3", CONV(3, 2, 1, 32), .dims = { 2, 16, 7, 9 }, BLOCKED },
        { "1x1 strided", CONV(1, 2, 0, 33), .dims = { 2, 20, 5, 6 }, BLOCKED },
        { "1x1", CONV(1, 1, 0, 16), .dims = { 1, 16, 3, 3 }, BLOCKED },
        { "5x5 odd channels", CONV(5, 1, 0, 16), .dims = { 2, 6, 9, 8 }, BLOCKED },
        { "7x7", CONV(7, 2, 3, 8), .dims = { 1, 3, 11, 10 }, .no_din = true },
        { "one of everything", CONV(1, 1, 0, 1), .dims = { 1, 1, 1, 1 } },
        { "stem", CONV(3, 1, 1, 64), .dims = { 2, 1, 8, 8 }, .no_din = true },
        { "plain, with gradient", CONV(3, 1, 1, 7), .dims = { 2, 1, 5, 4 } },
        { "plain, many channels", CONV(3, 1, 1, 17), .dims = { 2, 18, 4, 4 } },
        { "inference", CONV(3, 1, 1, 9), .dims = { 3, 5, 4, 4 }, BLOCKED, .inference = true },
    };
    CHECK_ALL(cases);
}

static void winograd_is_the_same_within_its_rounding(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "one pixel", CONV(3, 1, 1, 16), .dims = { 64, 16, 1, 1 }, WINOGRAD },
        { "two tiles", CONV(3, 1, 1, 32), .dims = { 32, 16, 2, 5 }, WINOGRAD },
        { "our own", CONV(3, 1, 1, 32), .dims = { 16, 32, 2, 3 }, OWN },
        { "our own, odd sides", CONV(3, 1, 1, 64), .dims = { 3, 32, 5, 9 }, OWN },
        { "our own, wide", CONV(3, 1, 1, 32), .dims = { 20, 320, 1, 1 }, OWN },
        { "our own, all directions", CONV(3, 1, 1, 32), .dims = { 16, 64, 2, 3 }, OWN },
        { "our own, two blocks", CONV(3, 1, 1, 64), .dims = { 17, 128, 1, 1 }, OWN },
        { "our own, several passes", CONV(3, 1, 1, 32), .dims = { 165, 64, 1, 1 }, OWN },
        { "our own, odd sides of all", CONV(3, 1, 1, 32), .dims = { 3, 64, 5, 9 }, OWN },
        { "our own, plain", CONV(3, 1, 1, 32), .dims = { 16, 32, 1, 1 }, .tolerance = 5e-5,
          .wants = "own_wino" },
        { "our own, more tiles than a block", CONV(3, 1, 1, 32), .dims = { 232, 32, 1, 1 }, OWN },
        { "odd sides", CONV(3, 1, 1, 16), .dims = { 16, 16, 5, 7 }, WINOGRAD },
    };
    CHECK_ALL(cases);
}

static void convolution_adds_a_bias(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "lenet 1", .op = OP_CONV2D, .ndim = 4, .dims = { 2, 1, 9, 9 }, .no_din = true,
          .attr = { .kernel = 5, .stride = 1, .pad = 2, .out = 6, .bias = true } },
        { "lenet 2", .op = OP_CONV2D, .ndim = 4, .dims = { 2, 6, 7, 7 }, BLOCKED,
          .attr = { .kernel = 5, .stride = 1, .out = 16, .bias = true } },
        { "winograd", .op = OP_CONV2D, .ndim = 4, .dims = { 64, 16, 1, 2 }, WINOGRAD,
          .attr = { .kernel = 3, .stride = 1, .pad = 1, .out = 32, .bias = true } },
        { "our winograd", .op = OP_CONV2D, .ndim = 4, .dims = { 16, 32, 1, 2 }, OWN,
          .attr = { .kernel = 3, .stride = 1, .pad = 1, .out = 32, .bias = true } },
    };
    CHECK_ALL(cases);
}

static void batch_norm_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "blocked", NORM, .dims = { 3, 16, 4, 5 }, BLOCKED, .attr = { .eps = 1e-5f } },
        { "blocked, odd", NORM, .dims = { 2, 21, 3, 3 }, BLOCKED, .attr = { .eps = 1e-5f } },
        { "plain", NORM, .dims = { 3, 5, 3, 3 }, .attr = { .eps = 1e-5f } },
        { "one channel, one pixel", NORM, .dims = { 3, 1, 1, 1 }, BLOCKED,
          .attr = { .eps = 1e-5f } },
        { "more than a chunk", NORM, .dims = { 2, 2, 25, 23 }, BLOCKED, .attr = { .eps = 1e-3f } },
        { "running", NORM, .dims = { 2, 19, 3, 2 }, BLOCKED, .inference = true,
          .attr = { .eps = 1e-5f } },
        { "running, plain, all fused", NORM, .dims = { 2, 3, 3, 2 }, .inference = true,
          .attr = { .eps = 1e-5f, .relu = true, .residual = true } },
    };
    CHECK_ALL(cases);
}

static void batch_norm_fuses_relu_and_residual(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "relu", NORM, .dims = { 3, 17, 4, 3 }, BLOCKED, .attr = { .eps = 1e-5f, .relu = true } },
        { "relu, plain", NORM, .dims = { 3, 4, 4, 3 }, .attr = { .eps = 1e-5f, .relu = true } },
        { "residual", NORM, .dims = { 2, 16, 3, 3 }, BLOCKED,
          .attr = { .eps = 1e-5f, .residual = true } },
        { "both", NORM, .dims = { 2, 35, 3, 3 }, BLOCKED,
          .attr = { .eps = 1e-5f, .residual = true, .relu = true } },
        { "both, plain", NORM, .dims = { 2, 5, 3, 3 },
          .attr = { .eps = 1e-5f, .residual = true, .relu = true } },
    };
    CHECK_ALL(cases);
}

static void pools_are_their_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "2x2", POOL(2, 2, 0), .dims = { 2, 6, 6, 6 }, BLOCKED },
        { "2x2, plain, odd", POOL(2, 2, 0), .dims = { 2, 3, 7, 5 } },
        { "overlapping, padded", POOL(3, 2, 1), .dims = { 2, 17, 7, 8 }, BLOCKED },
        { "overlapping, padded, plain", POOL(3, 1, 1), .dims = { 1, 2, 4, 4 } },
        { "one pixel", POOL(1, 1, 0), .dims = { 1, 1, 1, 1 }, BLOCKED },
        { "average", .op = OP_GLOBAL_AVG_POOL, .ndim = 4, .dims = { 3, 20, 4, 5 }, BLOCKED },
        { "average, plain", .op = OP_GLOBAL_AVG_POOL, .ndim = 4, .dims = { 3, 5, 1, 3 } },
    };
    CHECK_ALL(cases);
}

static void relu_flatten_and_sequence_are_their_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "sequence", .op = OP_SEQUENCE, .ndim = 4, .dims = { 3, 21, 2, 3 }, BLOCKED },
        { "sequence, plain", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 3, 2, 2 } },
        { "sequence, inference", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 8, 1, 1 }, BLOCKED,
          .inference = true },
        { "sequence to half", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 9, 2, 2 }, BLOCKED,
          .out_dtype = DTYPE_BF16 },
        { "relu", .op = OP_RELU, .ndim = 4, .dims = { 2, 5, 3, 3 }, BLOCKED },
        { "relu, plain", .op = OP_RELU, .ndim = 4, .dims = { 2, 5, 3, 3 } },
        { "flatten", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 21, 2, 3 }, BLOCKED },
        { "flatten, plain", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 3, 2, 3 } },
    };
    CHECK_ALL(cases);
}

static void linear_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "bias", .op = OP_LINEAR, .ndim = 2, .dims = { 5, 37 },
          .attr = { .out = 19, .bias = true } },
        { "relu", .op = OP_LINEAR, .ndim = 2, .dims = { 4, 50 },
          .attr = { .out = 33, .bias = true, .activation = ACTIVATION_RELU } },
        { "no bias", .op = OP_LINEAR, .ndim = 2, .dims = { 3, 16 }, .attr = { .out = 16 } },
        { "one of everything", .op = OP_LINEAR, .ndim = 2, .dims = { 1, 1 },
          .attr = { .out = 1, .bias = true } },
        { "data", .op = OP_LINEAR, .ndim = 2, .dims = { 6, 20 }, .no_din = true,
          .attr = { .out = 3, .bias = true, .activation = ACTIVATION_RELU } },
        { "inference", .op = OP_LINEAR, .ndim = 2, .dims = { 6, 20 }, .inference = true,
          .attr = { .out = 3, .bias = true, .activation = ACTIVATION_RELU } },
    };
    CHECK_ALL(cases);
}

static void loss_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "ten classes", .op = OP_SOFTMAX_CROSS_ENTROPY, .ndim = 2, .dims = { 13, 10 } },
        { "smoothed", .op = OP_SOFTMAX_CROSS_ENTROPY, .ndim = 2, .dims = { 7, 5 },
          .attr = { .label_smoothing = 0.1f } },
        { "two classes", .op = OP_SOFTMAX_CROSS_ENTROPY, .ndim = 2, .dims = { 3, 2 } },
        { "inference", .op = OP_SOFTMAX_CROSS_ENTROPY, .ndim = 2, .dims = { 3, 4 },
          .inference = true },
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
        { "convolution", CONV(3, 2, 1, 32), .dims = { 2, 16, 7, 9 }, BLOCKED },
        { "winograd", CONV(3, 1, 1, 16), .dims = { 64, 16, 1, 1 }, WINOGRAD },
        { "norm", NORM, .dims = { 2, 21, 3, 3 }, BLOCKED, .attr = { .eps = 1e-5f, .relu = true } },
        { "linear", .op = OP_LINEAR, .ndim = 2, .dims = { 5, 37 },
          .attr = { .out = 19, .bias = true } },
    };
    check_all(cases, sizeof(cases) / sizeof(cases[0]), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_is_its_definition),
        cmocka_unit_test(winograd_is_the_same_within_its_rounding),
        cmocka_unit_test(convolution_adds_a_bias),
        cmocka_unit_test(batch_norm_is_its_definition),
        cmocka_unit_test(batch_norm_fuses_relu_and_residual),
        cmocka_unit_test(pools_are_their_definition),
        cmocka_unit_test(relu_flatten_and_sequence_are_their_definition),
        cmocka_unit_test(linear_is_its_definition),
        cmocka_unit_test(loss_is_its_definition),
        cmocka_unit_test(two_threads_compute_the_same_functions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
