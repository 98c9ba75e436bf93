#include "tests/gpu/kernel_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "tests/gpu/device.h"
#include "tests/test.h"

#define RUN_ARRAYS 40
#define RUN_HOST   80
#define RUN_SEEDS  2

__extension__ typedef _Float16 half_float;

enum array_kind { ARRAY_IN, ARRAY_OUT, ARRAY_SCRATCH };

struct array {
    void *device;
    size_t bytes;
    enum array_kind kind;
    unsigned char *put; /* what went in */
};

struct run {
    int seed;
    uint32_t draws;
    size_t array_count, host_count;
    struct array array[RUN_ARRAYS];
    void *host[RUN_HOST];
};

/* What the first seed left. */
struct left {
    size_t count;
    unsigned char *bytes[RUN_ARRAYS];
};

void *run_host(struct run *run, size_t bytes)
{
    assert_true(run->host_count < RUN_HOST);
    void *memory = calloc(1, bytes + 1);
    assert_non_null(memory);
    run->host[run->host_count++] = memory;
    return memory;
}

static uint32_t word(struct run *run, int64_t i)
{
    return rng_words(run->draws, (uint32_t)i, 0, 0, 0).word[0];
}

double *run_random(struct run *run, enum dtype dtype, int64_t n, double low, double high)
{
    double *values = run_host(run, (size_t)n * sizeof(*values));
    run->draws++;
    for (int64_t i = 0; i < n; i++) {
        const double uniform = (double)rng_uniform(word(run, i));
        values[i] = run_round(dtype, low + (high - low) * uniform);
    }
    return values;
}

int32_t *run_integers(struct run *run, int64_t n, int32_t below)
{
    int32_t *values = run_host(run, (size_t)n * sizeof(*values));
    run->draws++;
    for (int64_t i = 0; i < n; i++)
        values[i] = (int32_t)rng_below(word(run, i), (uint32_t)below);
    return values;
}

static uint16_t bf16_bits(double x)
{
    const float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void encode(enum dtype dtype, double x, unsigned char *to)
{
    if (dtype == DTYPE_F32) {
        const float value = (float)x;
        memcpy(to, &value, sizeof(value));
    } else if (dtype == DTYPE_BF16) {
        const uint16_t bits = bf16_bits(x);
        memcpy(to, &bits, sizeof(bits));
    } else {
        const half_float value = (half_float)(float)x;
        memcpy(to, &value, sizeof(value));
    }
}

static double decode(enum dtype dtype, const unsigned char *from)
{
    float value;
    if (dtype == DTYPE_F32) {
        memcpy(&value, from, sizeof(value));
    } else if (dtype == DTYPE_BF16) {
        uint16_t bits;
        memcpy(&bits, from, sizeof(bits));
        const uint32_t wide = (uint32_t)bits << 16;
        memcpy(&value, &wide, sizeof(value));
    } else {
        half_float half;
        memcpy(&half, from, sizeof(half));
        value = (float)half;
    }
    return (double)value;
}

double run_round(enum dtype dtype, double x)
{
    unsigned char bytes[4];
    encode(dtype, x, bytes);
    return decode(dtype, bytes);
}

static struct array *new_array(struct run *run, enum array_kind kind, size_t bytes, size_t align)
{
    assert_true(run->array_count < RUN_ARRAYS);
    struct array *a = &run->array[run->array_count++];
    *a = (struct array){ device_alloc(bytes, align), bytes, kind, NULL };
    return a;
}

static size_t flat_align(const struct run *run)
{
    return run->seed % 2 == 0 ? 16 : 4;
}

static void *put(struct run *run, size_t align, const unsigned char *bytes, size_t size)
{
    struct array *a = new_array(run, ARRAY_IN, size, align);
    a->put = run_host(run, size);
    memcpy(a->put, bytes, size);
    device_put(a->device, bytes, size);
    return a->device;
}

static void *put_values(struct run *run, enum dtype dtype, const double *values, int64_t n,
                        size_t align)
{
    const size_t each = dtype_size(dtype);
    unsigned char *bytes = run_host(run, (size_t)n * each);
    for (int64_t i = 0; i < n; i++)
        encode(dtype, values[i], bytes + (size_t)i * each);
    return put(run, align, bytes, (size_t)n * each);
}

void *run_in(struct run *run, enum dtype dtype, const double *values, int64_t n)
{
    return put_values(run, dtype, values, n, 16);
}

float *run_in_flat(struct run *run, const double *values, int64_t n)
{
    return put_values(run, DTYPE_F32, values, n, flat_align(run));
}

void *run_in_bytes(struct run *run, const void *bytes, size_t size)
{
    return put(run, 8, bytes, size);
}

void *run_out(struct run *run, enum dtype dtype, int64_t n)
{
    return new_array(run, ARRAY_OUT, (size_t)n * dtype_size(dtype), 16)->device;
}

float *run_out_flat(struct run *run, int64_t n)
{
    return new_array(run, ARRAY_OUT, (size_t)n * sizeof(float), flat_align(run))->device;
}

void *run_scratch(struct run *run, size_t bytes)
{
    return new_array(run, ARRAY_SCRATCH, bytes, 16)->device;
}

static struct array *array_of(struct run *run, const void *device)
{
    for (size_t i = 0; i < run->array_count; i++) {
        if (run->array[i].device == device)
            return &run->array[i];
    }
    fail_msg("not an array of this run");
    return NULL;
}

void run_changes(struct run *run, const void *array)
{
    array_of(run, array)->kind = ARRAY_OUT;
}

void run_get(struct run *run, const void *array, void *to, size_t bytes)
{
    assert_true(bytes <= array_of(run, array)->bytes);
    device_get(to, array, bytes);
}

/* Half a unit in the last place of the type, relative; and of its smallest numbers. */
static double rounding(enum dtype dtype, double x)
{
    if (dtype == DTYPE_BF16)
        return fabs(x) * 0x1.02p-8;
    if (dtype == DTYPE_F16)
        return fabs(x) * 0x1.02p-11 + 0x1p-25;
    return 0.0;
}

void run_values(struct run *run, const void *array, enum dtype dtype, double *out, int64_t n)
{
    const size_t each = dtype_size(dtype);
    unsigned char *got = run_host(run, (size_t)n * each);
    run_get(run, array, got, (size_t)n * each);
    for (int64_t i = 0; i < n; i++)
        out[i] = decode(dtype, got + (size_t)i * each);
}

void run_expect_values(struct run *run, enum dtype dtype, const double *got, const double *want,
                       int64_t n, double tolerance)
{
    (void)run;
    double greatest = 0.0;
    for (int64_t i = 0; i < n; i++)
        greatest = fmax(greatest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        const double limit = rounding(dtype, want[i]) + tolerance * greatest;
        if (!(fabs(got[i] - want[i]) <= limit))
            fail_msg("%s element %lld of %lld is %.9g, not %.9g (within %.3g)", dtype_name(dtype),
                     (long long)i, (long long)n, got[i], want[i], limit);
    }
}

void run_expect(struct run *run, const void *array, enum dtype dtype, const double *want, int64_t n,
                double tolerance)
{
    double *got = run_host(run, (size_t)n * sizeof(*got));
    run_values(run, array, dtype, got, n);
    run_expect_values(run, dtype, got, want, n, tolerance);
}

/* Inputs are as they were; all but scratch has the bits of the first seed. */
static void look(struct run *run, struct left *left)
{
    for (size_t i = 0; i < run->array_count; i++) {
        const struct array *a = &run->array[i];
        unsigned char *now = calloc(1, a->bytes + 1);
        assert_non_null(now);
        device_get(now, a->device, a->bytes);
        if (a->kind == ARRAY_IN)
            assert_memory_equal(now, a->put, a->bytes);
        if (run->seed == 0) {
            left->bytes[i] = now;
            continue;
        }
        if (a->kind != ARRAY_SCRATCH && memcmp(now, left->bytes[i], a->bytes) != 0)
            fail_msg("array %zu differs under another seed", i);
        free(now);
    }
    if (run->seed == 0)
        left->count = run->array_count;
    assert_int_equal(left->count, run->array_count);
}

void run_seeds(void (*body)(struct run *run, const void *arg), const void *arg)
{
    struct left left = { 0, { NULL } };
    for (int seed = 0; seed < RUN_SEEDS; seed++) {
        struct run run = { .seed = seed };
        device_seed((uint64_t)seed + 1);
        body(&run, arg);
        look(&run, &left);
        for (size_t i = 0; i < run.array_count; i++)
            device_free(run.array[i].device);
        for (size_t i = 0; i < run.host_count; i++)
            free(run.host[i]);
    }
    for (size_t i = 0; i < left.count; i++)
        free(left.bytes[i]);
}
