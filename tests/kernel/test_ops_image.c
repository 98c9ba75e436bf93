/*
 * The ops of image models in bfloat16 on the CPU, channels innermost, against float64 differences.
 *
 * Processors without AMX run the same cases by the float32 kernels between conversions; `wants`
 * names an implementation where there is AVX-512 only, so it is not used here.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/halves.h"
#include "common/rng.h"
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
        { "1x1, more positions than a chunk", CONV(1, 1, 0, 32), .dims = { 3, 32, 27, 26 }, HALF },
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

static void relu_flatten_and_sequence_are_their_definition(void **state)
{
    (void)state;
    static const struct op_case cases[] = {
        { "relu", .op = OP_RELU, .ndim = 4, .dims = { 2, 5, 3, 3 }, HALF },
        { "flatten", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 21, 2, 3 }, HALF },
        { "flatten to float32", .op = OP_FLATTEN, .ndim = 4, .dims = { 2, 5, 2, 3 },
          .dtype = DTYPE_BF16, .format = FORMAT_NHWC },
        { "sequence", .op = OP_SEQUENCE, .ndim = 4, .dims = { 2, 21, 2, 3 }, HALF },
        { "sequence to float32", .op = OP_SEQUENCE, .ndim = 4, .dims = { 3, 5, 2, 3 },
          .dtype = DTYPE_BF16, .format = FORMAT_NHWC },
    };
    CHECK_ALL(cases);
}

/* --- what only large batches reach: several copies and chunks of the AMX kernels -------------- */

#define CHANNELS 32

struct large {
    struct backend *backend;
    struct kernel *kernel;
    struct kernel_info info;
    struct op_buffers buffers;
};

static void *take(struct backend *backend, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(backend_cpu()->alloc(backend, bytes == 0 ? 64 : bytes, &memory), ST_OK);
    return memory;
}

/* Random bfloat16 in about [-1, 1). */
static void fill(uint16_t *to, size_t count, uint32_t array)
{
    for (size_t i = 0; i < count; i++) {
        const struct rng_counter w = rng_words(rng_key(7, RNG_SYNTHETIC), (uint32_t)i, array, 0, 0);
        const float x = 2.0f * rng_uniform(w.word[0]) - 1.0f;
        to[i] = (uint16_t)(float_bits(x) >> 16);
    }
}

static void large_open(struct large *l, int64_t n, int stride)
{
    const struct backend_options options = { .threads = 1 };
    struct op_spec spec = { .op = OP_CONV2D, .in_count = 1, .training = true, .need_din0 = true };
    const struct backend_table *table = backend_cpu();
    memset(l, 0, sizeof(*l));
    spec.math = MATH_BF16;
    spec.out_dtype = DTYPE_BF16;
    spec.attr = (struct op_attr){ .kernel = 3, .stride = stride, .pad = 1, .out = CHANNELS };
    spec.in[0] = tensor_plain(DTYPE_BF16, 4, (const int64_t[]){ n, CHANNELS, 30, 29 });
    spec.in[0].format = FORMAT_NHWC;
    assert_int_equal(table->open(&options, &l->backend), ST_OK);
    assert_int_equal(table->op[OP_CONV2D].prepare(l->backend, &spec, &l->kernel, &l->info), ST_OK);
    struct op_buffers *b = &l->buffers;
    float *weight = take(l->backend, sizeof(float) * CHANNELS * CHANNELS * 9);
    for (int i = 0; i < CHANNELS * CHANNELS * 9; i++)
        weight[i] = bf16_widen((uint16_t)(0x3c00 + i * 37 % 500)) * (i % 3 == 0 ? -1.0f : 1.0f);
    uint16_t *in = take(l->backend, spec.in[0].bytes), *dout = take(l->backend, l->info.out.bytes);
    fill(in, spec.in[0].bytes / sizeof(*in), 0);
    fill(dout, l->info.out.bytes / sizeof(*dout), 1);
    b->in[0] = in;
    b->dout[0] = dout;
    b->param[0] = weight;
    b->out = take(l->backend, l->info.out.bytes);
    b->din[0] = take(l->backend, spec.in[0].bytes);
    b->dparam[0] = take(l->backend, sizeof(float) * CHANNELS * CHANNELS * 9);
    b->cache = take(l->backend, l->info.cache_bytes);
    b->scratch = take(l->backend, l->info.scratch_bytes);
    assert_int_equal(table->refresh(l->backend, l->kernel, b->param, b->cache, NULL), ST_OK);
}

static void large_run(struct large *l)
{
    const struct op_table *op = &backend_cpu()->op[OP_CONV2D];
    assert_int_equal(op->forward(l->backend, l->kernel, &l->buffers, NULL), ST_OK);
    assert_int_equal(op->backward(l->backend, l->kernel, &l->buffers, NULL), ST_OK);
}

static void large_close(struct large *l)
{
    const struct backend_table *table = backend_cpu();
    const struct op_buffers *b = &l->buffers;
    const void *const all[] = { b->in[0],  b->dout[0],   b->param[0], b->out,
                                b->din[0], b->dparam[0], b->cache,    b->scratch };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        table->free(l->backend, (void *)all[i]);
    table->kernel_free(l->backend, l->kernel);
    table->close(l->backend);
}

/* One rounding apart at most. */
static void assert_close(const uint16_t *x, const uint16_t *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const double a = (double)bf16_widen(x[i]), b = (double)bf16_widen(y[i]);
        if (!(fabs(a - b) <= 0.01 * (fabs(a) + 0.1)))
            fail_msg("element %zu is %g, alone it was %g", i, a, b);
    }
}

/* Compares all samples at once with the same samples one by one: outputs, gradients of the input,
 * and the sum of the weights' gradients. */
static void check_large(int64_t n, int stride)
{
    struct large all, one;
    large_open(&all, n, stride);
    large_open(&one, 1, stride);
    large_run(&all);
    const size_t in = one.info.din[0].bytes, out = one.info.out.bytes;
    const char *x = all.buffers.in[0], *dy = all.buffers.dout[0];
    const char *y = all.buffers.out, *dx = all.buffers.din[0];
    void *const own_in = (void *)one.buffers.in[0], *const own_dout = (void *)one.buffers.dout[0];
    for (int64_t i = 0; i < n; i++) {
        memcpy(own_in, x + (size_t)i * in, in);
        memcpy(own_dout, dy + (size_t)i * out, out);
        one.buffers.accumulate[0] = i > 0;
        large_run(&one);
        assert_close((const uint16_t *)(const void *)(y + (size_t)i * out), one.buffers.out,
                     out / sizeof(uint16_t));
        assert_close((const uint16_t *)(const void *)(dx + (size_t)i * in), one.buffers.din[0],
                     in / sizeof(uint16_t));
    }
    double most = 0.0;
    for (int i = 0; i < CHANNELS * CHANNELS * 9; i++)
        most = fmax(most, fabs((double)one.buffers.dparam[0][i]));
    assert_true(most > 1.0);
    for (int i = 0; i < CHANNELS * CHANNELS * 9; i++) {
        const double a = (double)all.buffers.dparam[0][i], b = (double)one.buffers.dparam[0][i];
        if (!(fabs(a - b) <= 1e-5 * most))
            fail_msg("weight %d has %g, sample by sample %g", i, a, b);
    }
    large_close(&all);
    large_close(&one);
}

static void a_large_batch_is_its_samples(void **state)
{
    (void)state;
    struct large probe;
    large_open(&probe, 1, 1);
    const bool tiles = strstr(probe.info.implementation, "own_amx") != NULL;
    large_close(&probe);
    if (!tiles)
        skip(); /* the float32 kernels have neither */
    check_large(20, 1);
    check_large(20, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_is_its_definition),
        cmocka_unit_test(convolution_takes_shapes_that_tiles_do_not),
        cmocka_unit_test(convolution_reads_plain_images),
        cmocka_unit_test(a_large_batch_is_its_samples),
        cmocka_unit_test(batch_norm_is_its_definition),
        cmocka_unit_test(pools_are_their_definition),
        cmocka_unit_test(relu_flatten_and_sequence_are_their_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
