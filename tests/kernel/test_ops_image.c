/*
 * The ops of image models in bfloat16 on the CPU, channels innermost, against float64 differences.
 *
 * Processors without AMX run the same cases by the float32 kernels between conversions; `wants`
 * names an implementation where there is AVX-512 only, so it is not used here.
 */
#include "tests/kernel/op_case.h"
#include "tests/test.h"

static void check_all(const struct op_case *cases, size_t count)
{
    struct backend *backend = NULL;
    const struct backend_options options = { .threads = 1 };
    assert_int_equal(backend_cpu()->open(&options, &backend), ST_OK);
    for (size_t i = 0; i < count; i++)
        op_case_check(backend_cpu(), backend, &cases[i]);
    backend_cpu()->close(backend);
}

#define CHECK_ALL(cases) check_all(cases, sizeof(cases) / sizeof((cases)[0]))

#define HALF  .dtype = DTYPE_BF16, .out_dtype = DTYPE_BF16, .format = FORMAT_NHWC
#define IMAGE .out_dtype = DTYPE_BF16, .math = MATH_BF16, .no_din = true
#define CONV(k, s, p, o)                                                                           \
    .op = OP_CONV2D, .ndim = 4, .math = MATH_BF16,                                                 \
    .attr = { .kernel = (k), .stride = (s), .pad = (p), .out = (o) }
#define NORM .op = OP_BATCH_NORM, .ndim = 4
#define POOL(k, s, p)                                                                              \
    .op = OP_MAX_POOL, .ndim = 4, .attr = { .kernel = (k), .stride = (s), .pad = (p) }

static void convolution_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "1x1", CONV(1, 1, 0, 64), .dims = { 2, 32, 5, 7 }, HALF },
        { "1x1, fewer positions than a tile", CONV(1, 1, 0, 32), .dims = { 1, 64, 3, 3 }, HALF },
        { "1x1, strided", CONV(1, 2, 0, 32), .dims = { 2, 32, 5, 6 }, HALF },
        { "1x1, padded", CONV(1, 1, 1, 32), .dims = { 1, 32, 4, 3 }, HALF },
        { "3x3", CONV(3, 1, 1, 32), .dims = { 2, 64, 5, 7 }, HALF },
        { "3x3, one pixel", CONV(3, 1, 1, 32), .dims = { 3, 32, 1, 1 }, HALF },
        { "3x3, not padded", CONV(3, 1, 0, 32), .dims = { 2, 32, 6, 5 }, HALF },
        { "3x3, padded twice", CONV(3, 1, 2, 32), .dims = { 2, 32, 4, 5 }, HALF },
        { "3x3, strided, even", CONV(3, 2, 1, 32), .dims = { 2, 32, 6, 8 }, HALF },
        { "3x3, strided, odd", CONV(3, 2, 1, 64), .dims = { 2, 32, 7, 5 }, HALF },
        { "2x2, strided", CONV(2, 2, 0, 32), .dims = { 1, 32, 7, 6 }, HALF },
        { "5x5", CONV(5, 1, 2, 32), .dims = { 1, 32, 6, 6 }, HALF },
        { "7x7, strided", CONV(7, 2, 3, 32), .dims = { 1, 32, 9, 10 }, HALF },
        { "inference", CONV(3, 1, 1, 32), .dims = { 2, 32, 4, 4 }, HALF, .inference = true },
    };
    CHECK_ALL(cases);
}

static void convolution_takes_shapes_that_tiles_do_not(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "odd channels", CONV(3, 1, 1, 20), .dims = { 2, 6, 5, 5 }, HALF },
        { "stride of 3", CONV(3, 3, 1, 32), .dims = { 2, 32, 7, 7 }, HALF },
        { "bias", .op = OP_CONV2D, .ndim = 4, .math = MATH_BF16, .dims = { 2, 32, 5, 5 }, HALF,
          .attr = { .kernel = 3, .stride = 1, .pad = 1, .out = 32, .bias = true } },
    };
    CHECK_ALL(cases);
}

static void convolution_reads_plain_images(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "7x7", .op = OP_CONV2D, .ndim = 4, IMAGE, .dims = { 1, 3, 11, 10 },
          .attr = { .kernel = 7, .stride = 2, .pad = 3, .out = 32 } },
        { "3x3", .op = OP_CONV2D, .ndim = 4, IMAGE, .dims = { 2, 1, 8, 8 },
          .attr = { .kernel = 3, .stride = 1, .pad = 1, .out = 64 } },
        { "rows longer than a block", .op = OP_CONV2D, .ndim = 4, IMAGE, .dims = { 1, 2, 3, 37 },
          .attr = { .kernel = 3, .stride = 1, .pad = 1, .out = 32 } },
        { "bias, odd channels", .op = OP_CONV2D, .ndim = 4, IMAGE, .dims = { 2, 1, 9, 9 },
          .attr = { .kernel = 5, .stride = 1, .pad = 2, .out = 6, .bias = true } },
    };
    CHECK_ALL(cases);
}

static void batch_norm_is_its_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "plain norm", NORM, .dims = { 3, 32, 4, 5 }, HALF, .attr = { .eps = 1e-5f } },
        { "odd channels", NORM, .dims = { 2, 21, 3, 3 }, HALF, .attr = { .eps = 1e-5f } },
        { "more than a chunk", NORM, .dims = { 2, 2, 25, 23 }, HALF, .attr = { .eps = 1e-3f } },
        { "relu", NORM, .dims = { 3, 17, 4, 3 }, HALF, .attr = { .eps = 1e-5f, .relu = true } },
        { "residual", NORM, .dims = { 2, 16, 3, 3 }, HALF,
          .attr = { .eps = 1e-5f, .residual = true } },
        { "both", NORM, .dims = { 2, 35, 3, 3 }, HALF,
          .attr = { .eps = 1e-5f, .residual = true, .relu = true } },
        { "running", NORM, .dims = { 2, 19, 3, 2 }, HALF, .inference = true,
          .attr = { .eps = 1e-5f, .relu = true, .residual = true } },
    };
    CHECK_ALL(cases);
}

static void pools_are_their_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "2x2", POOL(2, 2, 0), .dims = { 2, 6, 6, 6 }, HALF },
        { "overlapping, padded", POOL(3, 2, 1), .dims = { 1, 17, 7, 8 }, HALF },
        { "dense windows", POOL(3, 1, 1), .dims = { 1, 3, 4, 4 }, HALF },
        { "average", .op = OP_GLOBAL_AVG_POOL, .ndim = 4, .dims = { 3, 20, 4, 5 }, HALF },
        { "average, in float32", .op = OP_GLOBAL_AVG_POOL, .ndim = 4, .dims = { 2, 16, 3, 3 },
          .dtype = DTYPE_BF16, .format = FORMAT_NHWC },
    };
    CHECK_ALL(cases);
}

static void relu_and_flatten_are_their_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "relu", .op = OP_RELU, .ndim = 4, .dims = { 2, 5, 3, 3 }, HALF },
        { "flatten", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 21, 2, 3 }, HALF },
        { "flatten to float32", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 5, 2, 3 },
          .dtype = DTYPE_BF16, .format = FORMAT_NHWC },
    };
    CHECK_ALL(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_is_its_definition),
        cmocka_unit_test(convolution_takes_shapes_that_tiles_do_not),
        cmocka_unit_test(convolution_reads_plain_images),
        cmocka_unit_test(batch_norm_is_its_definition),
        cmocka_unit_test(pools_are_their_definition),
        cmocka_unit_test(relu_and_flatten_are_their_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
