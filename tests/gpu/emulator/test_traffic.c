/*
 * What own kernels ask of the device's memory, counted by the emulator: whoever is to be as fast as
 * a copy touches each sector of 32 bytes once.
 */
#include <string.h>

#include "kernels/cuda/own/k.h"
#include "tests/gpu/device.h"
#include "tests/gpu/emulator/traffic.h"
#include "tests/test.h"

#define SECTOR_BYTES 32

/* Weights of a convolution [K, C, R, S], whose copy is [K, R, S, C]. */
#define FEATURES 8
#define CHANNELS 256
#define WINDOW   9
#define WEIGHTS  ((size_t)FEATURES * CHANNELS * WINDOW)

struct weights {
    float *flat;
    void *copy;
};

static struct weights weights_new(void)
{
    device_seed(1);
    return (struct weights){ device_alloc(WEIGHTS * sizeof(float), 16),
                             device_alloc(WEIGHTS * dtype_size(DTYPE_BF16), 16) };
}

static void weights_free(const struct weights *w)
{
    device_free(w->flat);
    device_free(w->copy);
}

static struct k_pad between(enum dtype from, const void *in, enum dtype to, void *out)
{
    return (struct k_pad){ .batch = FEATURES,
                           .a = CHANNELS,
                           .padded = CHANNELS,
                           .b = WINDOW,
                           .from = from,
                           .to = to,
                           .in = in,
                           .out = out };
}

/* A tenth more for rows that begin within a sector. */
static void expect_bytes(const struct traffic *t, size_t loaded, size_t stored)
{
    assert_int_equal(t->loaded_bytes, loaded);
    assert_int_equal(t->stored_bytes, stored);
    if (t->loaded_sectors * SECTOR_BYTES > loaded + loaded / 10 ||
        t->stored_sectors * SECTOR_BYTES > stored + stored / 10)
        fail_msg("%zu bytes take %llu sectors, %zu take %llu", loaded,
                 (unsigned long long)t->loaded_sectors, stored,
                 (unsigned long long)t->stored_sectors);
}

static void copies_of_weights_move_each_sector_once(void **state)
{
    (void)state;
    const struct weights w = weights_new();
    const struct k_pad refresh = between(DTYPE_F32, w.flat, DTYPE_BF16, w.copy);
    traffic_begin();
    assert_int_equal(k_pad_transpose(&refresh, NULL), ST_OK);
    const struct traffic t = traffic_end();
    expect_bytes(&t, WEIGHTS * 4, WEIGHTS * 2);
    weights_free(&w);
}

static void gradients_of_weights_move_each_sector_once(void **state)
{
    (void)state;
    const struct weights w = weights_new();
    struct k_pad gradient = between(DTYPE_BF16, w.copy, DTYPE_F32, w.flat);
    for (int adds = 0; adds < 2; adds++) {
        gradient.accumulate = adds != 0;
        traffic_begin();
        assert_int_equal(k_unpad_transpose(&gradient, NULL), ST_OK);
        const struct traffic t = traffic_end();
        expect_bytes(&t, WEIGHTS * (adds != 0 ? 6 : 2), WEIGHTS * 4);
    }
    weights_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_weights_move_each_sector_once),
        cmocka_unit_test(gradients_of_weights_move_each_sector_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
