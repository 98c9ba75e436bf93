/*
 * GPT-2's products in all three directions and ResNet-50's convolutions on a device:
 *
 *   right      a sample of each result against float64 over the same rounded operands
 *   repeated   twenty times, alone and beside a process that keeps the device busy: the same bits
 *   pinned     a backend that is opened with the pins of the first has the same pins and bits
 *
 *   test_shapes_cuda [--small | --busy]
 *
 * --small: the same with small numbers, on whatever CAIRN_CUDA_MODULE is (the emulator in each run
 * of the tests). --busy: multiplies until it is killed; the test starts that of itself.
 * Skipped (77), with the reason, where there is no device.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/check.h"
#include "kernels/module.h"
#include "tests/gpu/shapes/shape.h"
#include "tests/test.h"

#define SKIPPED 77
#define REPEATS 20

static struct {
    const struct module *module;
    const char *program;
    bool small;
} test;

/* rows, in and out of products; images, channels and edges of convolutions. */
static const struct shape shapes[] = {
    { "gpt2 qkv", OP_LINEAR, { 8192, 768 }, { .out = 2304, .bias = true } },
    { "gpt2 projection", OP_LINEAR, { 8192, 768 }, { .out = 768, .bias = true } },
    { "gpt2 up", OP_LINEAR, { 8192, 768 }, { .out = 3072, .bias = true } },
    { "gpt2 down", OP_LINEAR, { 8192, 3072 }, { .out = 768, .bias = true } },
    { "gpt2 head", OP_LINEAR, { 8192, 768 }, { .out = 50257 } },
    { "resnet50 7x7/2",
      OP_CONV2D,
      { 64, 3, 224, 224 },
      { .out = 64, .kernel = 7, .stride = 2, .pad = 3 } },
    { "resnet50 1x1", OP_CONV2D, { 64, 64, 56, 56 }, { .out = 256, .kernel = 1, .stride = 1 } },
    { "resnet50 3x3",
      OP_CONV2D,
      { 64, 64, 56, 56 },
      { .out = 64, .kernel = 3, .stride = 1, .pad = 1 } },
    { "resnet50 3x3/2",
      OP_CONV2D,
      { 64, 128, 56, 56 },
      { .out = 128, .kernel = 3, .stride = 2, .pad = 1 } },
    { "resnet50 1x1/2", OP_CONV2D, { 64, 256, 56, 56 }, { .out = 512, .kernel = 1, .stride = 2 } },
    { "resnet50 3x3, 14",
      OP_CONV2D,
      { 64, 256, 14, 14 },
      { .out = 256, .kernel = 3, .stride = 1, .pad = 1 } },
    { "resnet50 3x3, 7",
      OP_CONV2D,
      { 64, 512, 7, 7 },
      { .out = 512, .kernel = 3, .stride = 1, .pad = 1 } },
};

#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* The emulator's loops take a millionth of a device's numbers in the same time. */
static struct shape sized(size_t i)
{
    struct shape shape = shapes[i];
    for (int d = 0; test.small && d < TENSOR_DIMS_MAX; d++)
        shape.dims[d] = shape.dims[d] > 9 ? 9 + shape.dims[d] % 3 : shape.dims[d];
    if (test.small)
        shape.attr.out = 8 + shape.attr.out % 5;
    return shape;
}

static struct backend *open_backend(const char *pins)
{
    struct backend *backend = NULL;
    const struct backend_options options = { .threads = 1, .choices = pins };
    assert_int_equal(test.module->backend->open(&options, &backend), ST_OK);
    return backend;
}

static void each_result_is_that_of_float64(void **state)
{
    (void)state;
    struct backend *backend = open_backend(NULL);
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape shape = sized(i);
        struct shape_run *run = shape_open(test.module->backend, backend, &shape);
        shape_run_once(run);
        shape_compare(run);
        shape_close(run);
    }
    test.module->backend->close(backend);
}

static void repeat_all(void)
{
    struct backend *backend = open_backend(NULL);
    for (size_t i = 0; i < SHAPES; i++) {
        const struct shape shape = sized(i);
        struct shape_run *run = shape_open(test.module->backend, backend, &shape);
        shape_run_once(run);
        const uint64_t first = shape_checksum(run);
        for (int k = 1; k < REPEATS; k++) {
            shape_run_once(run);
            if (shape_checksum(run) != first)
                fail_msg("%s: other bits the %dth time", shape.name, k + 1);
        }
        shape_close(run);
    }
    test.module->backend->close(backend);
}

static void twenty_runs_have_the_same_bits(void **state)
{
    (void)state;
    repeat_all();
}

static void twenty_runs_beside_another_process_have_the_same_bits(void **state)
{
    (void)state;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execl(test.program, test.program, "--busy", test.small ? "--small" : (char *)NULL,
                    (char *)NULL);
        _exit(127);
    }
    repeat_all();
    int status = 0;
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0); /* it was there all the time */
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void pins_of(struct backend *backend, struct buf *out)
{
    buf_init(out, (size_t)1 << 20);
    assert_int_equal(test.module->backend->pins(backend, out), ST_OK);
    assert_int_equal(buf_append_text(out, ""), ST_OK);
}

static void pins_bring_the_same_algorithms_and_bits(void **state)
{
    (void)state;
    uint64_t first[SHAPES];
    auto_buf struct buf pins, again;
    for (int pass = 0; pass < 2; pass++) {
        struct backend *backend = open_backend(pass == 0 ? NULL : pins.data);
        for (size_t k = 0; k < SHAPES; k++) {
            /* The second time from the last one on. */
            const size_t i = pass == 0 ? k : SHAPES - 1 - k;
            const struct shape shape = sized(i);
            struct shape_run *run = shape_open(test.module->backend, backend, &shape);
            shape_run_once(run);
            if (pass == 0)
                first[i] = shape_checksum(run);
            else if (shape_checksum(run) != first[i])
                fail_msg("%s: other bits with the same pins", shape.name);
            if (pass == 1)
                shape_is_pinned(run, pins.data);
            shape_close(run);
        }
        pins_of(backend, pass == 0 ? &pins : &again);
        test.module->backend->close(backend);
    }
    assert_int_equal(strlen(pins.data), strlen(again.data));
}

/* Until it is killed. */
static _Noreturn void keep_busy(void)
{
    const struct shape shape = sized(2);
    struct backend *backend = open_backend(NULL);
    struct shape_run *run = shape_open(test.module->backend, backend, &shape);
    for (;;) {
        shape_run_once(run);
        (void)shape_checksum(run);
    }
}

int main(int argc, char **argv)
{
    struct reason reason;
    bool busy = false;
    test.program = argv[0];
    for (int i = 1; i < argc; i++) {
        test.small = test.small || strcmp(argv[i], "--small") == 0;
        busy = busy || strcmp(argv[i], "--busy") == 0;
    }
    if (module_load("cuda", 0, &test.module, &reason) != ST_OK) {
        (void)printf("skipped: %s\n", reason.text);
        return SKIPPED;
    }
    if (busy)
        keep_busy();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_result_is_that_of_float64),
        cmocka_unit_test(twenty_runs_have_the_same_bits),
        cmocka_unit_test(twenty_runs_beside_another_process_have_the_same_bits),
        cmocka_unit_test(pins_bring_the_same_algorithms_and_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
