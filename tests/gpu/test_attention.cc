/*
 * The attention kernels against a float64 computation: thread by thread on the emulator, and on a
 * device.
 */
#include <cmath>
#include <cstring>
#include <vector>

extern "C" {
#include "tests/test.h"
}

#include "kernels/cuda/attention/attention.h"
#include "tests/gpu/device.h"
#if defined(CAIRN_EMULATE)
#include "tests/gpu/emulator/emulated_mma.h"
#else
#include "tests/gpu/emulator/types.h"
#endif

/* One row after the other of an [N, T, ..] tensor of one type, as doubles. */
typedef std::vector<double> values;

/* What a call leaves, bytes as they are, and the doubles that they are. */
struct outcome {
    std::vector<unsigned char> out, lse, dqkv;
};

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Roughly normal. */
static double normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (double)next(state) / (double)(1u << 31) - 0.5;
    return sum * 1.414;
}

static void element_put(enum dtype dtype, unsigned char *to, double value)
{
    const float x = (float)value;
    uint16_t half = 0;
    switch (dtype) {
    case DTYPE_BF16:
        half = __float2bfloat16_rn(x).bits;
        break;
    case DTYPE_F16:
        half = __float2half_rn(x).bits;
        break;
    default:
        memcpy(to, &x, sizeof(x));
        return;
    }
    memcpy(to, &half, sizeof(half));
}

static double element_get(enum dtype dtype, const unsigned char *from)
{
    uint16_t half;
    float x;
    memcpy(&half, from, sizeof(half));
    switch (dtype) {
    case DTYPE_BF16:
        return __bfloat162float({ half });
    case DTYPE_F16:
        return __half2float({ half });
    default:
        memcpy(&x, from, sizeof(x));
        return x;
    }
}

static size_t size_of(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

static values values_of(enum dtype dtype, const std::vector<unsigned char> &bytes)
{
    values all(bytes.size() / size_of(dtype));
    for (size_t i = 0; i < all.size(); i++)
        all[i] = element_get(dtype, &bytes[i * size_of(dtype)]);
    return all;
}

static std::vector<unsigned char> random_bytes(enum dtype dtype, size_t count, double size,
                                               uint64_t seed)
{
    std::vector<unsigned char> bytes(count * size_of(dtype));
    for (size_t i = 0; i < count; i++)
        element_put(dtype, &bytes[i * size_of(dtype)], normal(&seed) * size);
    return bytes;
}

/* Causal, of all keys. */
static struct cuda_attention shape_of(int64_t samples, int64_t tokens, int heads, int dim,
                                      enum dtype dtype)
{
    struct cuda_attention shape = {};
    shape.samples = samples;
    shape.tokens = tokens;
    shape.heads = heads;
    shape.dim = dim;
    shape.dtype = dtype;
    return shape;
}

struct inputs {
    std::vector<unsigned char> qkv, dout;
};

static struct inputs inputs_of(const struct cuda_attention *shape, double size)
{
    const size_t rows = (size_t)(shape->samples * shape->tokens);
    const size_t width = (size_t)(shape->heads * shape->dim);
    return { random_bytes(shape->dtype, rows * 3 * width, size, 7),
             random_bytes(shape->dtype, rows * width, 1, 11) };
}

/* Device memory that holds a copy of some bytes. */
static void *device_copy(const std::vector<unsigned char> &bytes)
{
    void *memory = device_alloc(bytes.size(), 16);
    device_put(memory, bytes.data(), bytes.size());
    return memory;
}

static std::vector<unsigned char> host_copy(const void *memory, size_t bytes)
{
    std::vector<unsigned char> all(bytes);
    device_get(all.data(), memory, bytes);
    return all;
}

/* On the emulator every other seed copies early instead of late. */
static void run_begin(uint64_t seed)
{
    device_seed(seed);
#if defined(CAIRN_EMULATE)
    emulated_copies_early(seed % 2 == 0);
#endif
}

static void run_end(void)
{
#if defined(CAIRN_EMULATE)
    assert_int_equal(emulated_copies_left(), 0);
    assert_int_equal(emulated_bank_conflicts(), 0);
#endif
}

/* keys: in host memory, or NULL. */
static int32_t *device_keys(const int32_t *keys, int64_t samples)
{
    if (keys == nullptr)
        return nullptr;
    void *memory = device_alloc((size_t)samples * sizeof(*keys), 16);
    device_put(memory, keys, (size_t)samples * sizeof(*keys));
    return (int32_t *)memory;
}

/* host: a shape whose keys are in host memory. */
static struct outcome run(const struct cuda_attention *host, const struct inputs &inputs,
                          uint64_t seed)
{
    run_begin(seed);
    struct cuda_attention device = *host;
    int32_t *const keys = device_keys(host->keys, host->samples);
    device.keys = keys;
    const struct cuda_attention *const shape = &device;
    const size_t lse_bytes = cuda_attention_lse_bytes(shape);
    void *qkv = device_copy(inputs.qkv), *dout = device_copy(inputs.dout);
    void *out = device_alloc(inputs.dout.size(), 16), *dqkv = device_alloc(inputs.qkv.size(), 16);
    float *lse = (float *)device_alloc(lse_bytes, 16);
    void *scratch = device_alloc(cuda_attention_scratch_bytes(shape), 16);
    assert_int_equal(cuda_attention_forward(shape, qkv, out, lse, nullptr), ST_OK);
    assert_int_equal(cuda_attention_backward(shape, qkv, out, lse, dout, dqkv, scratch, nullptr),
                     ST_OK);
    struct outcome outcome = { host_copy(out, inputs.dout.size()), host_copy(lse, lse_bytes),
                               host_copy(dqkv, inputs.qkv.size()) };
    assert_true(host_copy(qkv, inputs.qkv.size()) == inputs.qkv);
    assert_true(host_copy(dout, inputs.dout.size()) == inputs.dout);
    for (void *memory : { qkv, dout, out, dqkv, (void *)lse, scratch, (void *)keys }) {
        if (memory != nullptr)
            device_free(memory);
    }
    run_end();
    return outcome;
}

/* The reference. */

struct reference {
    values out, lse, dqkv;
};

/* One head: pointers to its first element, rows 3·C and C apart. */
struct reference_head {
    const double *q, *k, *v, *dout;
    double *out, *lse, *dq, *dk, *dv;
    size_t tokens, dim, wide, narrow;
    size_t keys; /* that anybody sees */
    bool bidirectional;
};

static double dot(const double *x, const double *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void add_scaled(double *to, const double *x, double factor, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] += factor * x[i];
}

static void reference_row(const struct reference_head *h, size_t row)
{
    const double scale = 1 / sqrt((double)h->dim);
    const double *q = h->q + row * h->wide, *dout = h->dout + row * h->narrow;
    double *out = h->out + row * h->narrow, max = -INFINITY, sum = 0, delta = 0;
    const size_t seen = h->bidirectional || row >= h->keys ? h->keys : row + 1;
    values p(seen);
    for (size_t key = 0; key < seen; key++) {
        p[key] = scale * dot(q, h->k + key * h->wide, h->dim);
        max = fmax(max, p[key]);
    }
    for (size_t key = 0; key < seen; key++)
        sum += exp(p[key] - max);
    h->lse[row] = max + log(sum);
    for (size_t key = 0; key < seen; key++) {
        p[key] = exp(p[key] - h->lse[row]);
        add_scaled(out, h->v + key * h->wide, p[key], h->dim);
    }
    delta = dot(out, dout, h->dim);
    for (size_t key = 0; key < seen; key++) {
        const double ds = p[key] * (dot(dout, h->v + key * h->wide, h->dim) - delta);
        add_scaled(h->dv + key * h->wide, dout, p[key], h->dim);
        add_scaled(h->dk + key * h->wide, q, ds * scale, h->dim);
        add_scaled(h->dq + row * h->wide, h->k + key * h->wide, ds * scale, h->dim);
    }
}

static struct reference reference_of(const struct cuda_attention *shape,
                                     const struct inputs &inputs)
{
    const values qkv = values_of(shape->dtype, inputs.qkv);
    const values dout = values_of(shape->dtype, inputs.dout);
    const size_t tokens = (size_t)shape->tokens, heads = (size_t)shape->heads;
    const size_t dim = (size_t)shape->dim, width = heads * dim;
    struct reference r = { values(dout.size()), values(dout.size() / dim), values(qkv.size()) };
    for (size_t sample = 0; sample < (size_t)shape->samples; sample++) {
        const size_t keys = shape->keys == nullptr ? tokens : (size_t)shape->keys[sample];
        for (size_t head = 0; head < heads; head++) {
            const size_t wide = sample * tokens * 3 * width + head * dim;
            const size_t narrow = sample * tokens * width + head * dim;
            const struct reference_head h = { &qkv[wide],
                                              &qkv[wide + width],
                                              &qkv[wide + 2 * width],
                                              &dout[narrow],
                                              &r.out[narrow],
                                              &r.lse[(sample * heads + head) * tokens],
                                              &r.dqkv[wide],
                                              &r.dqkv[wide + width],
                                              &r.dqkv[wide + 2 * width],
                                              tokens,
                                              dim,
                                              3 * width,
                                              width,
                                              keys,
                                              shape->bidirectional };
            for (size_t row = 0; row < tokens; row++)
                reference_row(&h, row);
        }
    }
    return r;
}

/* Comparing. */

/* For each row of a head: the distance, against its length and a quarter of the longest row's,
 * since dq and dk of some rows are small differences of large terms. */
static double distance_max(const values &have, const values &want, size_t dim)
{
    double longest = 0, worst = 0;
    for (size_t at = 0; at < want.size(); at += dim)
        longest = fmax(longest, sqrt(dot(&want[at], &want[at], dim)));
    for (size_t at = 0; at < want.size(); at += dim) {
        values error(have.begin() + (long)at, have.begin() + (long)(at + dim));
        add_scaled(error.data(), &want[at], -1, dim);
        const double length = sqrt(dot(&want[at], &want[at], dim)) + 0.25 * longest + 1e-30;
        const double distance = sqrt(dot(error.data(), error.data(), dim)) / length;
        worst = std::isfinite(distance) ? fmax(worst, distance) : INFINITY;
    }
    return worst;
}

static double error_max(const values &have, const values &want)
{
    double worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double error = fabs(have[i] - want[i]) / (1 + fabs(want[i]));
        worst = std::isfinite(error) ? fmax(worst, error) : INFINITY;
    }
    return worst;
}

/* About 4 units of the type's rounding. */
static double tolerance(enum dtype dtype)
{
    if (dtype == DTYPE_F32)
        return 4e-6;
    return dtype == DTYPE_BF16 ? 0x1p-7 : 0x1p-10;
}

/* `size` multiplies qkv; rounded results of that size let delta's errors through to dq and dk. */
static void check(const struct cuda_attention *shape, double size)
{
    const double limit = tolerance(shape->dtype) * (size > 1 ? 4 : 1);
    const struct inputs inputs = inputs_of(shape, size);
    const struct reference want = reference_of(shape, inputs);
    const struct outcome have = run(shape, inputs, 1);
    const size_t dim = (size_t)shape->dim;
    const double out = distance_max(values_of(shape->dtype, have.out), want.out, dim);
    const double dqkv = distance_max(values_of(shape->dtype, have.dqkv), want.dqkv, dim);
    const double lse = error_max(values_of(DTYPE_F32, have.lse), want.lse);
    if (!(out < limit) || !(dqkv < limit) || !(lse < 2e-6)) {
        fail_msg("%s N %d T %d H %d D %d %s: out %g, dqkv %g, lse %g",
                 cuda_attention_implementation(shape), (int)shape->samples, (int)shape->tokens,
                 shape->heads, shape->dim, shape->dtype == DTYPE_BF16 ? "bf16" : "other", out, dqkv,
                 lse);
    }
    const struct outcome again = run(shape, inputs, 2);
    assert_memory_equal(have.out.data(), again.out.data(), have.out.size());
    assert_memory_equal(have.lse.data(), again.lse.data(), have.lse.size());
    assert_memory_equal(have.dqkv.data(), again.dqkv.data(), have.dqkv.size());
}

static void check_lengths(int dim, enum dtype dtype, int64_t samples, int heads)
{
    for (int64_t tokens : { 1, 17, 64, 65, 130 }) {
        const struct cuda_attention shape = shape_of(samples, tokens, heads, dim, dtype);
        check(&shape, 1);
    }
}

/* Three samples, of which one has all keys, one half of them and one a single one; in both
 * directions, then causal. */
static void check_keys(int dim, enum dtype dtype, int64_t tokens)
{
    const int32_t keys[] = { (int32_t)tokens, (int32_t)(tokens + 1) / 2, 1 };
    struct cuda_attention shape = shape_of(3, tokens, 1, dim, dtype);
    shape.bidirectional = true;
    check(&shape, 1);
    shape.keys = keys;
    check(&shape, 1);
    shape.bidirectional = false;
    check(&shape, 1);
}

static void keys_that_are_not_seen_are_left_out(void **state)
{
    (void)state;
    for (int dim : { 32, 64, 128 })
        check_keys(dim, DTYPE_BF16, dim == 64 ? 150 : 67);
    check_keys(96, DTYPE_F16, 33);
    check_keys(8, DTYPE_F32, 130);
    check_keys(80, DTYPE_F32, 17);
}

static void tokens_say_how_many_keys_are_seen(void **state)
{
    (void)state;
    int32_t tokens[4][70] = { { 0 }, { 0, 5 }, { 1, 0, -3 }, { 0 } };
    const int32_t want[4] = { 1, 2, 3, 70 };
    int32_t have[4] = { 0 };
    tokens[3][69] = 7;
    const struct cuda_attention shape = shape_of(4, 70, 1, 64, DTYPE_BF16);
    void *from = device_alloc(sizeof(tokens), 16), *to = device_alloc(sizeof(have), 16);
    run_begin(1);
    device_put(from, tokens, sizeof(tokens));
    assert_int_equal(cuda_attention_keys(&shape, (const int32_t *)from, (int32_t *)to, nullptr),
                     ST_OK);
    device_get(have, to, sizeof(have));
    run_end();
    assert_memory_equal(have, want, sizeof(want));
    device_free(from);
    device_free(to);
}

static void width_32_agrees_with_float64_for_all_lengths(void **state)
{
    (void)state;
    check_lengths(32, DTYPE_BF16, 2, 3);
    check_lengths(32, DTYPE_F16, 1, 2);
}

static void width_64_agrees_with_float64_for_all_lengths(void **state)
{
    (void)state;
    check_lengths(64, DTYPE_BF16, 1, 2);
    check_lengths(64, DTYPE_F16, 2, 1);
}

static void width_96_agrees_with_float64_for_all_lengths(void **state)
{
    (void)state;
    check_lengths(96, DTYPE_BF16, 1, 2);
    check_lengths(96, DTYPE_F16, 1, 1);
}

static void width_128_agrees_with_float64_for_all_lengths(void **state)
{
    (void)state;
    check_lengths(128, DTYPE_BF16, 1, 1);
    check_lengths(128, DTYPE_F16, 1, 1);
}

static void many_tiles_agree_with_float64(void **state)
{
    (void)state;
    const struct cuda_attention shapes[] = {
        shape_of(1, 421, 1, 64, DTYPE_BF16),
        shape_of(1, 257, 1, 128, DTYPE_F16),
        shape_of(1, 384, 2, 32, DTYPE_BF16),
#if !defined(CAIRN_EMULATE)
        shape_of(2, 1024, 3, 64, DTYPE_BF16),
        shape_of(1, 2011, 2, 128, DTYPE_BF16),
        shape_of(1, 1024, 2, 64, DTYPE_F32),
#endif
    };
    for (const struct cuda_attention &shape : shapes)
        check(&shape, 1);
}

static void large_scores_agree_with_float64(void **state)
{
    (void)state;
    const struct cuda_attention shapes[] = {
        shape_of(1, 150, 1, 64, DTYPE_F16),
        shape_of(1, 150, 1, 48, DTYPE_F32),
    };
    for (const struct cuda_attention &shape : shapes)
        check(&shape, 6); /* scores to about 300: exp would overflow without the maximum */
}

static void the_plain_kernel_agrees_with_float64(void **state)
{
    (void)state;
    for (int dim : { 8, 64, 80, 128 })
        check_lengths(dim, DTYPE_F32, 1, dim == 8 ? 6 : 1);
    check_lengths(200, DTYPE_F32, 1, 1);
    check_lengths(5, DTYPE_BF16, 2, 2);
    check_lengths(72, DTYPE_F16, 1, 1);
}

static void shapes_beyond_the_limits_are_refused(void **state)
{
    (void)state;
    const struct cuda_attention good = shape_of(1, 8, 1, 64, DTYPE_BF16);
    assert_true(cuda_attention_supported(&good));
    assert_string_equal(cuda_attention_implementation(&good), "flash-mma-64");
    struct cuda_attention bad[] = { good, good, good, good, good, good, good };
    bad[0].dim = 257;
    bad[1].dim = 0;
    bad[2].tokens = 0;
    bad[3].samples = 65536;
    bad[4].heads = 0;
    bad[5].dtype = DTYPE_I32;
    bad[6].tokens = (int64_t)1 << 32;
    for (const struct cuda_attention &shape : bad) {
        assert_false(cuda_attention_supported(&shape));
        assert_int_equal(cuda_attention_forward(&shape, nullptr, nullptr, nullptr, nullptr),
                         ST_INVALID);
        assert_int_equal(cuda_attention_keys(&shape, nullptr, nullptr, nullptr), ST_INVALID);
        assert_int_equal(cuda_attention_backward(&shape, nullptr, nullptr, nullptr, nullptr,
                                                 nullptr, nullptr, nullptr),
                         ST_INVALID);
    }
}

int main(void)
{
    device_seed(0); /* ends here where there is no device */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(width_32_agrees_with_float64_for_all_lengths),
        cmocka_unit_test(width_64_agrees_with_float64_for_all_lengths),
        cmocka_unit_test(width_96_agrees_with_float64_for_all_lengths),
        cmocka_unit_test(width_128_agrees_with_float64_for_all_lengths),
        cmocka_unit_test(many_tiles_agree_with_float64),
        cmocka_unit_test(large_scores_agree_with_float64),
        cmocka_unit_test(the_plain_kernel_agrees_with_float64),
        cmocka_unit_test(keys_that_are_not_seen_are_left_out),
        cmocka_unit_test(tokens_say_how_many_keys_are_seen),
        cmocka_unit_test(shapes_beyond_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
