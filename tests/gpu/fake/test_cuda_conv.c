/*
 * The implementations of a convolution: the engines of cuDNN's graph interface, which of them are
 * refused, and that the chosen one is kept; the legacy functions where there is none.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/small.h"
#include "tests/test.h"

#define CHANNELS 4
#define SIDE     5
#define FEATURES 8
#define WINDOW   3
#define WEIGHTS  (FEATURES * CHANNELS * WINDOW * WINDOW)
#define RESULTS  (FEATURES * SIDE * SIDE)

struct run {
    float out[RESULTS];
    char pins[8192], implementation[64];
    struct kernel_info info;
};

static struct op_spec conv_spec(void)
{
    const int64_t dims[4] = { 1, CHANNELS, SIDE, SIDE };
    struct tensor in = tensor_plain(DTYPE_F32, 4, dims);
    in.format = FORMAT_NHWC;
    return (struct op_spec){ .op = OP_CONV2D,
                             .attr = { .out = FEATURES, .kernel = WINDOW, .stride = 1, .pad = 1 },
                             .in = { in },
                             .in_count = 1,
                             .training = true,
                             .need_din0 = true };
}

static void *filled(struct backend *b, struct stream *stream, size_t count)
{
    float host[WEIGHTS + RESULTS];
    void *memory = NULL;
    for (size_t i = 0; i < count; i++)
        host[i] = 3.0f / (float)(1 + i % 17) * (i % 3 == 0 ? -1.01f : 1.0f);
    assert_int_equal(cuda()->alloc(b, count * sizeof(float), &memory), ST_OK);
    assert_int_equal(cuda()->vector.copy(b, memory, host, count * sizeof(float), stream), ST_OK);
    return memory;
}

static void pins_of(struct backend *b, char out[8192])
{
    auto_buf struct buf pins;
    buf_init(&pins, 8000);
    assert_int_equal(cuda()->pins(b, &pins), ST_OK);
    (void)snprintf(out, 8192, "%s", pins.data);
}

/* One convolution on a fresh fake, with memory for all that it reads and writes. */
struct conv {
    struct backend *b;
    struct stream *stream;
    struct kernel *kernel;
    struct kernel_info info;
    float *in, *weights, *out;
    void *cache, *scratch;
    struct op_buffers buffers;
};

/* stored: pins, or NULL. */
static void conv_open(struct conv *c, const char *words, const char *stored)
{
    const struct op_spec spec = conv_spec();
    fake_cuda_describe(words);
    *c = (struct conv){ .b = open_cuda(stored) };
    assert_int_equal(cuda()->stream_new(c->b, &c->stream), ST_OK);
    assert_int_equal(cuda()->op[OP_CONV2D].prepare(c->b, &spec, &c->kernel, &c->info), ST_OK);
    c->in = filled(c->b, c->stream, CHANNELS * SIDE * SIDE);
    c->weights = filled(c->b, c->stream, WEIGHTS);
    c->out = filled(c->b, c->stream, RESULTS);
    assert_int_equal(cuda()->alloc(c->b, c->info.cache_bytes, &c->cache), ST_OK);
    assert_int_equal(cuda()->alloc(c->b, c->info.scratch_bytes, &c->scratch), ST_OK);
    const float *const param[OP_PARAM_MAX] = { c->weights };
    assert_int_equal(cuda()->refresh(c->b, c->kernel, param, c->cache, c->stream), ST_OK);
    c->buffers = (struct op_buffers){ .in = { c->in },
                                      .out = c->out,
                                      .param = { c->weights },
                                      .cache = c->cache,
                                      .scratch = c->scratch };
}

static void conv_close(struct conv *c)
{
    void *const all[] = { c->in, c->weights, c->out, c->cache, c->scratch };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        cuda()->free(c->b, all[i]);
    cuda()->kernel_free(c->b, c->kernel);
    cuda()->stream_free(c->b, c->stream);
    cuda()->close(c->b);
    nothing_is_left();
}

/* Runs the forward pass of a convolution. */
static struct run computed(const char *words, const char *stored)
{
    struct run run = { .implementation = "" };
    struct conv c;
    conv_open(&c, words, stored);
    run.info = c.info;
    (void)snprintf(run.implementation, sizeof(run.implementation), "%s", c.info.implementation);
    assert_int_equal(cuda()->op[OP_CONV2D].forward(c.b, c.kernel, &c.buffers, c.stream), ST_OK);
    assert_int_equal(cuda()->vector.copy(c.b, run.out, c.out, sizeof(run.out), c.stream), ST_OK);
    assert_int_equal(cuda()->stream_sync(c.b, c.stream), ST_OK);
    pins_of(c.b, run.pins);
    conv_close(&c);
    return run;
}

/* The fake computes nothing with those that add in any order or round, and can't make one more. */
static void the_first_engine_without_a_note_against_it_computes(void **state)
{
    (void)state;
    const struct run run = computed("", NULL);
    assert_string_equal(run.implementation, "cudnn nhwc g.g.g");
    /* Engine 5 with its two knobs, for each direction; 92 would be TF32. */
    assert_non_null(strstr(run.pins, "\"conv forward 1.4.5.5 8.3.1.1 f32\":\"5.2.3.1.7\""));
    assert_non_null(strstr(run.pins, "\"conv data 1.4.5.5 8.3.1.1 f32\":\"5."));
    assert_non_null(strstr(run.pins, "\"conv weights 1.4.5.5 8.3.1.1 f32\":\"5."));
    assert_false(run.info.din_adds[0]); /* the plan adds by itself what else there is */
}

static void the_engine_of_the_run_that_stored_it_is_made_again(void **state)
{
    (void)state;
    const struct run first = computed("favours=7", NULL), other = computed("favours=11", NULL);
    const struct run again = computed("favours=11", first.pins);
    assert_memory_not_equal(first.out, other.out, sizeof(first.out));
    assert_memory_equal(first.out, again.out, sizeof(first.out));
    assert_string_equal(first.pins, again.pins);
    /* What is damaged, or isn't an engine of this library, is chosen anew. */
    static const char *const edits[] = { "4.2.3.1.7", "5.2.3.1", "5.9.3.1.7", "93.2.3.1.7", "x" };
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        char damaged[8192 + 64];
        const char *at = strstr(first.pins, "f32\":\"5.2.3.1.7\"");
        assert_non_null(at);
        (void)snprintf(damaged, sizeof(damaged), "%.*sf32\":\"%s\"%s", (int)(at - first.pins),
                       first.pins, edits[i], at + strlen("f32\":\"5.2.3.1.7\""));
        const struct run anew = computed("favours=11", damaged);
        assert_memory_equal(other.out, anew.out, sizeof(other.out));
    }
}

static void legacy_functions_compute_what_no_engine_does(void **state)
{
    (void)state;
    const struct run graph = computed("", NULL);
    const struct run refused = computed("fail=cudnnBackendFinalize:1:3000", NULL);
    assert_string_equal(refused.implementation, "cudnn nhwc 1.g.g");
    assert_int_equal(setenv("CAIRN_CUDNN_LEGACY", "1", 1), 0);
    const struct run legacy = computed("", NULL);
    assert_int_equal(unsetenv("CAIRN_CUDNN_LEGACY"), 0);
    assert_string_equal(legacy.implementation, "cudnn nhwc 1.1.1");
    assert_null(strstr(legacy.pins, "\"conv "));
    assert_true(legacy.info.din_adds[0]);
    assert_memory_equal(graph.out, legacy.out, sizeof(graph.out)); /* the fake's loops are one */
    assert_memory_equal(graph.out, refused.out, sizeof(graph.out));
}

/* One convolution, prepared on a fresh fake. */
static enum status prepared(const char *words, struct run *run)
{
    const struct op_spec spec = conv_spec();
    struct kernel *kernel = NULL;
    *run = (struct run){ .implementation = "" };
    fake_cuda_describe(words);
    struct backend *b = open_cuda(NULL);
    const enum status st = cuda()->op[OP_CONV2D].prepare(b, &spec, &kernel, &run->info);
    if (st == ST_OK) {
        pins_of(b, run->pins);
        (void)snprintf(run->implementation, sizeof(run->implementation), "%s",
                       run->info.implementation);
    }
    cuda()->kernel_free(b, kernel);
    cuda()->close(b);
    nothing_is_left();
    return st;
}

#define CONV_PLANS 3   /* a direction each */
#define CALLS      250 /* of each function there are fewer in a preparation */

/* Another engine would compute other bits. */
static void an_engine_that_lacks_memory_is_not_passed_over(void **state)
{
    (void)state;
    static const char *const words[] = { "fail=cudnnBackendFinalize:%d:4003",
                                         "fail=cudnnBackendCreateDescriptor:%d:4003",
                                         "fail=cudnnBackendSetAttribute:%d:4004" };
    int refused = 0, taken = 0;
    const struct run first = computed("", NULL);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        for (int nth = 1; nth <= CALLS; nth++) {
            char described[64];
            struct run run;
            (void)snprintf(described, sizeof(described), words[i], nth);
            const enum status st = prepared(described, &run);
            assert_true(st == ST_OK || st == ST_NO_MEMORY);
            if (st == ST_OK)
                assert_string_equal(run.pins, first.pins);
            refused += st == ST_NO_MEMORY;
            taken += st == ST_OK;
        }
    }
    assert_true(refused > 90 && taken > 0);
}

/* An engine's code that the driver doesn't load is no lost device. */
static void an_engine_that_the_driver_refuses_is_passed_over(void **state)
{
    (void)state;
    const struct run first = computed("", NULL);
    int others = 0;
    for (int nth = 1; nth <= CALLS; nth++) {
        char described[96];
        struct run run;
        (void)snprintf(described, sizeof(described), "fail=cudnnBackendFinalize:%d:5001", nth);
        if (prepared(described, &run) != ST_OK ||
            strcmp(run.implementation, first.implementation) == 0)
            continue;
        others++;
        (void)snprintf(described, sizeof(described),
                       "fail=cudnnBackendFinalize:%d:5001,fail=cudaDeviceSynchronize:1:700", nth);
        assert_int_equal(prepared(described, &run), ST_DEVICE);
    }
    assert_true(others >= CONV_PLANS);
}

static int descriptors_of_a_call(struct conv *c)
{
    const int before = fake_cuda_calls("cudnnBackendCreateDescriptor");
    assert_int_equal(cuda()->op[OP_CONV2D].forward(c->b, c->kernel, &c->buffers, c->stream), ST_OK);
    assert_int_equal(cuda()->stream_sync(c->b, c->stream), ST_OK);
    return fake_cuda_calls("cudnnBackendCreateDescriptor") - before;
}

static void operands_that_lie_where_they_did_are_not_described_again(void **state)
{
    (void)state;
    struct conv c;
    conv_open(&c, "", NULL);
    float *other = filled(c.b, c.stream, CHANNELS * SIDE * SIDE);
    assert_int_equal(descriptors_of_a_call(&c), 1);
    assert_int_equal(descriptors_of_a_call(&c), 0);
    c.buffers.in[0] = other;
    assert_int_equal(descriptors_of_a_call(&c), 1);
    cuda()->free(c.b, other);
    conv_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_engine_without_a_note_against_it_computes),
        cmocka_unit_test(the_engine_of_the_run_that_stored_it_is_made_again),
        cmocka_unit_test(legacy_functions_compute_what_no_engine_does),
        cmocka_unit_test(an_engine_that_lacks_memory_is_not_passed_over),
        cmocka_unit_test(an_engine_that_the_driver_refuses_is_passed_over),
        cmocka_unit_test(operands_that_lie_where_they_did_are_not_described_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
