/*
 * What own kernels ask of the device's memory, counted by the emulator: whoever is to be as fast as
 * a copy touches each sector of 32 bytes once.
 */
#include <string.h>

#include "kernels/backend.h"
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

#define ELEMENTS 5000

/* Parameters, moments and gradients go by once a step; the copies are read soon. */
static void an_update_streams_all_but_the_copies(void **state)
{
    (void)state;
    float *buffers[4];
    struct param_copy *copies = device_alloc(sizeof(*copies), 16);
    const struct param_copy copy = { 0, ELEMENTS, device_alloc(ELEMENTS * 2, 16), DTYPE_BF16 };
    const struct copy_map map = { copies, 1 };
    device_put(copies, &copy, sizeof(copy));
    for (int i = 0; i < 4; i++)
        buffers[i] = device_alloc(ELEMENTS * sizeof(float), 16);
    const struct adamw_args adamw = { .lr = 0.1f, .copies = &map, .t = 1 };
    const struct sgd_args sgd = { .lr = 0.1f, .momentum = 0.9f, .copies = &map };
    const struct k_adamw_buffers b = { buffers[0], buffers[1], buffers[2], buffers[3] };
    traffic_begin();
    assert_int_equal(k_vector_adamw(&b, ELEMENTS, &adamw, NULL), ST_OK);
    struct traffic t = traffic_end();
    expect_bytes(&t, ELEMENTS * 16, ELEMENTS * 14);
    assert_int_equal(t.streamed_bytes, ELEMENTS * 28);
    assert_int_equal(t.touched_again, 0);
    traffic_begin();
    assert_int_equal(k_vector_sgd(b.param, b.m, b.grad, ELEMENTS, &sgd, NULL), ST_OK);
    t = traffic_end();
    expect_bytes(&t, ELEMENTS * 12, ELEMENTS * 10);
    assert_int_equal(t.streamed_bytes, ELEMENTS * 20);
    assert_int_equal(t.touched_again, 0);
    const struct lion_args lion = { .lr = 0.1f, .copies = &map };
    const struct k_lamb_buffers lamb = { buffers[0], buffers[1], buffers[2], buffers[3] };
    traffic_begin();
    assert_int_equal(k_vector_lion(b.param, b.m, b.grad, ELEMENTS, &lion, NULL), ST_OK);
    t = traffic_end();
    expect_bytes(&t, ELEMENTS * 12, ELEMENTS * 10);
    assert_int_equal(t.touched_again, 0);
    traffic_begin();
    assert_int_equal(k_vector_lamb(&lamb, ELEMENTS, &adamw, NULL), ST_OK);
    t = traffic_end();
    expect_bytes(&t, ELEMENTS * 16, ELEMENTS * 12);
    assert_int_equal(t.touched_again, 0);
    for (int i = 0; i < 4; i++)
        device_free(buffers[i]);
    device_free(copy.out);
    device_free(copies);
}

#define ROWS    4
#define LABELS  5001
#define PITCH   5056
#define LOGITS  ((size_t)ROWS * LABELS * 2)
#define PITCHED ((size_t)ROWS * PITCH * 2)

static void logits_are_read_once_for_the_loss_and_its_gradient(void **state)
{
    (void)state;
    const int32_t labels[ROWS] = { 1, 7, -1, 5000 };
    const uint32_t none = 0;
    struct k_loss args = { .rows = ROWS,
                           .vocab = LABELS,
                           .stride = PITCH,
                           .dtype = DTYPE_BF16,
                           .logits = device_alloc(PITCHED, 16),
                           .labels = device_alloc(sizeof(labels), 16),
                           .lse = device_alloc(ROWS * sizeof(float), 16),
                           .out = device_alloc(3 * sizeof(float), 16),
                           .scratch = device_alloc(k_loss_scratch(ROWS), 16),
                           .fault = device_alloc(sizeof(none), 16) };
    const struct k_loss_grad grad = { .rows = ROWS,
                                      .vocab = LABELS,
                                      .stride = PITCH,
                                      .dtype = DTYPE_BF16,
                                      .logits = args.logits,
                                      .labels = args.labels,
                                      .lse = args.lse,
                                      .dlogits = (void *)(uintptr_t)args.logits };
    device_put((void *)(uintptr_t)args.labels, labels, sizeof(labels));
    device_put(args.fault, &none, sizeof(none));
    traffic_begin();
    assert_int_equal(k_loss_forward(&args, NULL), ST_OK);
    assert_int_equal(k_loss_backward(&grad, NULL), ST_OK);
    struct traffic t = traffic_end();
    expect_bytes(&t, 2 * LOGITS, PITCHED);
    traffic_begin();
    assert_int_equal(k_loss_both(&args, &grad, 48 * 1024, NULL), ST_OK);
    t = traffic_end();
    expect_bytes(&t, LOGITS, PITCHED);
    const void *const all[] = { args.logits, args.labels,  args.lse,
                                args.out,    args.scratch, args.fault };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        device_free((void *)(uintptr_t)all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_weights_move_each_sector_once),
        cmocka_unit_test(gradients_of_weights_move_each_sector_once),
        cmocka_unit_test(an_update_streams_all_but_the_copies),
        cmocka_unit_test(logits_are_read_once_for_the_loss_and_its_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
