/*
 * The CUDA backend's device, memory, streams, graphs, errors and pins, on fakes of the libraries.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"
#include "tests/gpu/fake/fake.h"
#include "tests/test.h"

static const struct backend_table *cuda(void)
{
    return cairn_cuda_module()->backend;
}

static struct backend *open_cuda(const char *stored)
{
    struct backend *backend = NULL;
    const struct backend_options options = { .threads = 1, .choices = stored };
    assert_int_equal(cuda()->open(&options, &backend), ST_OK);
    return backend;
}

static void nothing_is_left(void)
{
    assert_int_equal(fake_cuda_memory_left(), 0);
    assert_int_equal(fake_cuda_objects_left(), 0);
}

static void count_says(const char *words, const char *part)
{
    struct reason reason;
    int count = 0;
    fake_cuda_describe(words);
    assert_int_equal(cairn_cuda_module()->device_count(&count, &reason), ST_NOT_FOUND);
    if (strstr(reason.text, part) == NULL || strstr(reason.text, "device: cpu") == NULL)
        fail_msg("\"%s\" is not in: %s", part, reason.text);
}

static void a_machine_without_a_gpu_is_described(void **state)
{
    (void)state;
    count_says("no-driver", "there is no NVIDIA driver here");
    count_says("old-driver", "is for CUDA 11.4, 13.0 or later is needed");
    count_says("no-device", "sees no GPU");
    count_says("devices=0", "sees no GPU");
    count_says("fail=cudaGetDeviceCount:1:999", "can't be used");
    fake_cuda_describe("capability=75");
    struct backend *backend = NULL;
    const struct backend_options options = { .threads = 1 };
    assert_int_equal(cuda()->open(&options, &backend), ST_REFUSED);
    nothing_is_left();
}

static void a_device_is_described_by_its_driver(void **state)
{
    (void)state;
    fake_cuda_describe("devices=3,capability=80,memory=1000000");
    struct reason reason;
    struct module_device device;
    int count = 0;
    assert_int_equal(cairn_cuda_module()->device_count(&count, &reason), ST_OK);
    assert_int_equal(count, 3);
    assert_int_equal(cairn_cuda_module()->device(2, &device, &reason), ST_OK);
    assert_int_equal(device.capability, 80);
    assert_int_equal(device.processors, 132);
    assert_int_equal(device.driver, 13000);
    assert_int_equal(device.memory_bytes, 1000000);
    assert_string_equal(device.name, "Fake \"GPU\"");
}

static void memory_is_aligned_zeroed_and_bounded(void **state)
{
    (void)state;
    fake_cuda_describe("memory=1000000");
    struct backend *b = open_cuda(NULL);
    unsigned char host[300];
    void *memory[2] = { NULL, NULL }, *more = NULL, *pinned = NULL;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cuda()->alloc(b, sizeof(host), &memory[i]), ST_OK);
        assert_int_equal((uintptr_t)memory[i] % 4096, 0);
        memset(host, 1, sizeof(host));
        assert_int_equal(cuda()->vector.copy(b, host, memory[i], sizeof(host), NULL), ST_OK);
        for (size_t k = 0; k < sizeof(host); k++)
            assert_int_equal(host[k], 0);
    }
    assert_int_equal(cuda()->alloc(b, 990000, &more), ST_NO_MEMORY);
    assert_non_null(strstr(cuda()->why(b), "out of memory"));
    assert_null(more);
    assert_int_equal(cuda()->alloc(b, SIZE_MAX, &more), ST_NO_MEMORY);
    assert_int_equal(cuda()->alloc(b, 900000, &more), ST_OK); /* nothing was lost */
    assert_int_equal(cuda()->alloc_host(b, 100, &pinned), ST_OK);
    assert_int_equal(((char *)pinned)[99], 0);
    cuda()->free(b, memory[0]);
    cuda()->free(b, NULL);
    cuda()->free_host(b, pinned);
    cuda()->close(b); /* takes the rest with it */
    nothing_is_left();
}

static void time_between_two_timed_events_is_told_once_both_have_passed(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct backend *b = open_cuda(NULL);
    struct stream *stream = NULL;
    struct event *began = NULL, *ended = NULL, *untimed = NULL;
    float *device = NULL;
    int64_t us = -1;
    assert_int_equal(cuda()->stream_new(b, &stream), ST_OK);
    assert_int_equal(cuda()->event_new(b, true, &began), ST_OK);
    assert_int_equal(cuda()->event_new(b, true, &ended), ST_OK);
    assert_int_equal(cuda()->event_new(b, false, &untimed), ST_OK);
    assert_int_equal(cuda()->alloc(b, 1 << 20, (void **)&device), ST_OK);
    assert_int_equal(cuda()->event_record(b, began, stream), ST_OK);
    assert_int_equal(cuda()->vector.fill(b, device, 5.0f, (1 << 20) / sizeof(float), stream),
                     ST_OK);
    assert_int_equal(cuda()->event_record(b, ended, stream), ST_OK);
    assert_int_equal(cuda()->event_record(b, untimed, stream), ST_OK);
    assert_int_equal(cuda()->event_elapsed(b, began, ended, &us), ST_AGAIN);
    assert_int_equal(us, -1);
    assert_int_equal(cuda()->stream_sync(b, stream), ST_OK);
    assert_int_equal(cuda()->event_elapsed(b, began, ended, &us), ST_OK);
    assert_true(us >= 0);
    assert_int_equal(cuda()->event_elapsed(b, began, untimed, &us), ST_DEVICE);
    cuda()->event_free(b, untimed);
    cuda()->event_free(b, ended);
    cuda()->event_free(b, began);
    cuda()->free(b, device);
    cuda()->stream_free(b, stream);
    cuda()->close(b);
    nothing_is_left();
}

static void copies_are_done_when_their_event_was_waited_for(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct backend *b = open_cuda(NULL);
    struct stream *compute = NULL, *other = NULL;
    struct event *event = NULL;
    void *device = NULL, *pinned = NULL;
    assert_int_equal(cuda()->stream_new(b, &compute), ST_OK);
    assert_int_equal(cuda()->stream_new(b, &other), ST_OK);
    assert_int_equal(cuda()->event_new(b, false, &event), ST_OK);
    assert_int_equal(cuda()->alloc(b, 4 * sizeof(float), &device), ST_OK);
    assert_int_equal(cuda()->alloc_host(b, 4 * sizeof(float), &pinned), ST_OK);
    assert_int_equal(cuda()->event_query(b, event), ST_OK); /* never recorded */
    assert_int_equal(cuda()->vector.fill(b, device, 5.0f, 4, compute), ST_OK);
    assert_int_equal(cuda()->event_record(b, event, compute), ST_OK);
    assert_int_equal(cuda()->event_wait(b, event, other), ST_OK);
    assert_int_equal(cuda()->vector.copy(b, pinned, device, 4 * sizeof(float), other), ST_OK);
    assert_int_equal(cuda()->event_record(b, event, other), ST_OK);
    assert_true(((float *)pinned)[3] == 0.0f);
    enum status st = cuda()->event_query(b, event);
    assert_int_equal(st, ST_AGAIN);
    while (st == ST_AGAIN)
        st = cuda()->event_query(b, event);
    assert_int_equal(st, ST_OK);
    assert_true(((float *)pinned)[3] == 5.0f);
    assert_ptr_not_equal(cuda()->stream_native(compute), cuda()->stream_native(other));
    cuda()->event_free(b, event);
    cuda()->stream_free(b, other);
    cuda()->stream_free(b, compute);
    cuda()->close(b);
    nothing_is_left();
}

/* --- a small linear ------------------------------------------------------------------------- */

struct small {
    struct backend *b;
    struct stream *stream;
    struct kernel *kernel;
    struct kernel_info info;
    float *in, *out, *param;
    void *saved, *scratch, *cache;
    struct op_buffers buffers;
};

#define ROWS 3
#define IN   64
#define OUT  8

static struct op_spec small_spec(void)
{
    const int64_t dims[2] = { ROWS, IN };
    return (struct op_spec){ .op = OP_LINEAR,
                             .attr = { .out = OUT, .bias = true },
                             .in = { tensor_plain(DTYPE_F32, 2, dims) },
                             .in_count = 1,
                             .training = true,
                             .need_din0 = true };
}

static void *device_of(struct small *s, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(cuda()->alloc(s->b, bytes, &memory), ST_OK);
    return memory;
}

/* Numbers whose sum depends on its order. */
static void upload(struct small *s, float *to, size_t count, float from)
{
    float x[OUT * IN + OUT];
    for (size_t i = 0; i < count; i++)
        x[i] = from / (float)(1 + i % 17) * (i % 3 == 0 ? -1.01f : 1.0f);
    assert_int_equal(cuda()->vector.copy(s->b, to, x, count * sizeof(float), s->stream), ST_OK);
}

static void small_open(struct small *s, const char *stored)
{
    *s = (struct small){ .b = open_cuda(stored) };
    const struct op_spec spec = small_spec();
    assert_int_equal(cuda()->stream_new(s->b, &s->stream), ST_OK);
    assert_int_equal(cuda()->op[OP_LINEAR].prepare(s->b, &spec, &s->kernel, &s->info), ST_OK);
    s->in = device_of(s, ROWS * IN * sizeof(float));
    s->out = device_of(s, ROWS * OUT * sizeof(float));
    s->param = device_of(s, (OUT * IN + OUT) * sizeof(float));
    s->scratch = device_of(s, s->info.scratch_bytes);
    s->cache = device_of(s, s->info.cache_bytes);
    upload(s, s->in, ROWS * IN, 1.0f);
    upload(s, s->param, OUT * IN + OUT, 3.0f);
    const float *const param[OP_PARAM_MAX] = { s->param, s->param + OUT * IN };
    assert_int_equal(cuda()->refresh(s->b, s->kernel, param, s->cache, s->stream), ST_OK);
    s->buffers = (struct op_buffers){ .in = { s->in },
                                      .out = s->out,
                                      .param = { param[0], param[1] },
                                      .scratch = s->scratch,
                                      .cache = s->cache };
}

static void small_close(struct small *s)
{
    cuda()->kernel_free(s->b, s->kernel);
    cuda()->stream_free(s->b, s->stream);
    cuda()->close(s->b);
    nothing_is_left();
}

static enum status small_forward(struct small *s)
{
    return cuda()->op[OP_LINEAR].forward(s->b, s->kernel, &s->buffers, s->stream);
}

static void download(struct small *s, float out[ROWS * OUT])
{
    assert_int_equal(cuda()->vector.copy(s->b, out, s->out, ROWS * OUT * sizeof(float), s->stream),
                     ST_OK);
    assert_int_equal(cuda()->stream_sync(s->b, s->stream), ST_OK);
}

static void a_captured_graph_computes_with_what_is_there_when_it_runs(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct small s;
    float first[ROWS * OUT], second[ROWS * OUT], replayed[ROWS * OUT];
    int graph = -1;
    small_open(&s, NULL);
    assert_int_equal(small_forward(&s), ST_OK);
    download(&s, first);
    assert_int_equal(cuda()->capture_begin(s.b, s.stream), ST_OK);
    assert_int_equal(small_forward(&s), ST_OK);
    assert_int_equal(cuda()->capture_end(s.b, s.stream, &graph), ST_OK);
    upload(&s, s.in, ROWS * IN, 2.0f);
    download(&s, second);
    assert_memory_equal(first, second, sizeof(first)); /* captured, not run */
    assert_int_equal(cuda()->replay(s.b, graph, s.stream), ST_OK);
    download(&s, replayed);
    assert_int_equal(small_forward(&s), ST_OK);
    download(&s, second);
    assert_memory_equal(second, replayed, sizeof(second));
    assert_memory_not_equal(first, replayed, sizeof(first));
    assert_int_equal(cuda()->replay(s.b, graph + 1, s.stream), ST_INVALID);
    assert_int_equal(cuda()->replay(s.b, -1, s.stream), ST_INVALID);
    small_close(&s);
}

static void a_broken_capture_is_no_lasting_error(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct small s;
    int graph = -1;
    float out[ROWS * OUT];
    small_open(&s, NULL);
    assert_int_equal(cuda()->capture_begin(s.b, s.stream), ST_OK);
    assert_int_equal(cuda()->stream_sync(s.b, s.stream), ST_INVALID);
    assert_int_equal(cuda()->capture_end(s.b, s.stream, &graph), ST_INVALID);
    assert_int_equal(graph, -1);
    assert_int_equal(cuda()->capture_begin(s.b, NULL), ST_INVALID);
    assert_int_equal(cuda()->capture_begin(s.b, s.stream), ST_OK);
    assert_int_equal(small_forward(&s), ST_OK);
    assert_int_equal(cuda()->capture_end(s.b, s.stream, &graph), ST_OK);
    assert_int_equal(graph, 0);
    assert_int_equal(cuda()->replay(s.b, graph, s.stream), ST_OK);
    download(&s, out);
    small_close(&s);
}

static void after_a_sticky_error_all_fails_and_the_first_cause_is_kept(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct small s;
    small_open(&s, NULL);
    assert_int_equal(cuda()->stream_sync(s.b, s.stream), ST_OK);
    fake_cuda_change("fail=cudaStreamSynchronize:1:700");
    assert_int_equal(cuda()->stream_sync(s.b, s.stream), ST_DEVICE);
    assert_non_null(strstr(cuda()->why(s.b), "illegal memory access"));
    assert_int_equal(small_forward(&s), ST_DEVICE);
    void *memory = NULL;
    assert_int_equal(cuda()->alloc(s.b, 1, &memory), ST_DEVICE);
    assert_non_null(strstr(cuda()->why(s.b), "cudaStreamSynchronize"));
    assert_int_equal(status_scope(ST_DEVICE), SCOPE_WORKER);
    cuda()->kernel_free(s.b, s.kernel);
    cuda()->stream_free(s.b, s.stream);
    cuda()->close(s.b);
    fake_cuda_describe(""); /* what a dead device keeps is given back */
}

/* --- choices -------------------------------------------------------------------------------- */

static void pins_of(struct backend *b, char out[8192])
{
    auto_buf struct buf pins;
    buf_init(&pins, 8000);
    assert_int_equal(buf_append_text(&pins, "{"), ST_OK);
    assert_int_equal(cuda()->pins(b, &pins), ST_OK);
    assert_int_equal(buf_append_text(&pins, "}"), ST_OK);
    (void)snprintf(out, 8192, "%s", pins.data);
}

static void computed_with(const char *words, const char *stored, float out[ROWS * OUT],
                          char pins[8192])
{
    struct small s;
    fake_cuda_describe(words);
    small_open(&s, stored);
    assert_int_equal(small_forward(&s), ST_OK);
    download(&s, out);
    pins_of(s.b, pins);
    small_close(&s);
}

static void pins_are_json_that_names_device_libraries_and_algorithms(void **state)
{
    (void)state;
    float out[ROWS * OUT];
    char pins[8192];
    computed_with("", NULL, out, pins);
    json_error_t error;
    json_t *root = json_loads(pins, JSON_REJECT_DUPLICATES, &error);
    assert_non_null(root);
    json_t *device = json_object_get(root, "cuda");
    assert_string_equal(json_string_value(json_object_get(device, "gpu")), "Fake ?GPU?");
    assert_int_equal(json_integer_value(json_object_get(device, "capability")), 90);
    assert_int_equal(json_integer_value(json_object_get(device, "processors")), 132);
    assert_true(json_integer_value(json_object_get(device, "cublaslt")) > 0);
    assert_true(json_integer_value(json_object_get(device, "cudnn")) > 0);
    /* Three products, each for both alignments. */
    assert_int_equal(json_object_size(json_object_get(device, "algorithms")), 6);
    json_decref(root);
}

static void stored_choices_bring_the_bits_of_the_run_that_stored_them(void **state)
{
    (void)state;
    float first[ROWS * OUT], other[ROWS * OUT], again[ROWS * OUT];
    char pins[8192], pins_other[8192], pins_again[8192];
    computed_with("favours=7", NULL, first, pins);
    computed_with("favours=11", NULL, other, pins_other);
    assert_memory_not_equal(first, other, sizeof(first));
    assert_string_not_equal(pins, pins_other);
    computed_with("favours=11", pins, again, pins_again);
    assert_memory_equal(first, again, sizeof(first));
    assert_string_equal(pins, pins_again);
    /* What is damaged, or not possible here, is chosen anew. */
    static const char *const damaged[] = { "", "{}", "\"product 3.8.64 nt f32 f32 bias\":\"7.x\"",
                                           "\"product 3.8.64 nt f32 f32 bias\":\"7" };
    for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
        computed_with("favours=11", damaged[i], again, pins_again);
        assert_memory_equal(other, again, sizeof(other));
    }
}

static void one_shape_is_chosen_once(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct small s;
    struct kernel *second = NULL;
    struct kernel_info info;
    const struct op_spec spec = small_spec();
    small_open(&s, NULL);
    const int asked = fake_cuda_calls("cublasLtMatmulAlgoGetHeuristic");
    assert_int_equal(cuda()->op[OP_LINEAR].prepare(s.b, &spec, &second, &info), ST_OK);
    assert_int_equal(fake_cuda_calls("cublasLtMatmulAlgoGetHeuristic"), asked);
    cuda()->kernel_free(s.b, second);
    small_close(&s);
}

/* --- failures ------------------------------------------------------------------------------- */

static struct op_spec conv_spec(void)
{
    const int64_t dims[4] = { 1, 2, 4, 4 };
    return (struct op_spec){ .op = OP_CONV2D,
                             .attr = { .out = 3, .kernel = 3, .stride = 1, .pad = 1 },
                             .in = { tensor_plain(DTYPE_F32, 4, dims) },
                             .in_count = 1,
                             .training = true,
                             .need_din0 = true };
}

/* Fails call after call of one function until prepare no longer makes one. */
static void fail_each(const struct op_spec *spec, const char *function, int error)
{
    for (int nth = 1; nth < 100; nth++) {
        fake_cuda_describe("");
        struct backend *b = open_cuda(NULL);
        char words[128];
        (void)snprintf(words, sizeof(words), "fail=%s:%d:%d", function, nth, error);
        const int calls = fake_cuda_calls(function), objects = fake_cuda_objects_left();
        fake_cuda_change(words);
        struct kernel *kernel = NULL;
        struct kernel_info info;
        enum status st = cuda()->op[spec->op].prepare(b, spec, &kernel, &info);
        const bool failed = fake_cuda_calls(function) >= calls + nth;
        assert_true((st != ST_OK) == (kernel == NULL));
        assert_true(st == ST_OK || failed);
        if (st != ST_OK)
            assert_int_equal(fake_cuda_objects_left(), objects);
        cuda()->kernel_free(b, kernel);
        cuda()->close(b);
        nothing_is_left();
        if (!failed) {
            assert_true(nth > 1); /* it was called at all */
            return;
        }
    }
    fail_msg("%s is called without end", function);
}

static void a_prepare_that_fails_leaves_nothing_behind(void **state)
{
    (void)state;
    const struct op_spec linear = small_spec(), conv = conv_spec();
    fail_each(&linear, "cublasLtMatmulDescCreate", 3);
    fail_each(&linear, "cublasLtMatrixLayoutCreate", 3);
    fail_each(&linear, "cublasLtMatmulPreferenceCreate", 3);
    fail_each(&linear, "cublasLtMatmulAlgoGetHeuristic", 14);
    fail_each(&conv, "cudnnCreateTensorDescriptor", 4003);
    fail_each(&conv, "cudnnCreateFilterDescriptor", 4003);
    fail_each(&conv, "cudnnCreateConvolutionDescriptor", 4003);
    fail_each(&conv, "cudnnGetConvolutionBackwardFilterWorkspaceSize", 3000);
    fail_each(&conv, "cudnnGetConvolutionForwardWorkspaceSize", 3000);
}

static void an_open_that_fails_leaves_nothing_behind(void **state)
{
    (void)state;
    static const char *const words[] = {
        "fail=cublasLtCreate:1:3", "fail=cudnnCreate:1:1001", "fail=cudaMalloc:1:2",
        "fail=cudaHostAlloc:1:2",  "fail=cudaMemset:1:1",     "fail=cudaSetDevice:2:999",
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct backend *b = NULL;
        const struct backend_options options = { .threads = 1 };
        fake_cuda_describe(words[i]);
        assert_int_not_equal(cuda()->open(&options, &b), ST_OK);
        assert_null(b);
        nothing_is_left();
    }
}

static void specs_outside_of_an_op_are_refused(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct backend *b = open_cuda(NULL);
    struct kernel *kernel = NULL;
    struct kernel_info info;
    struct op_spec specs[6];
    for (int i = 0; i < 6; i++)
        specs[i] = i < 3 ? small_spec() : conv_spec();
    specs[0].attr.out = 0;
    specs[1].out_dtype = DTYPE_BF16; /* of products in float32 */
    specs[2].attr.residual = true;   /* of which there is none */
    specs[3].in[0].format = FORMAT_BLOCKED;
    specs[4].attr.kernel = 7;
    specs[5].in[0].dtype = DTYPE_U8;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(cuda()->op[specs[i].op].prepare(b, &specs[i], &kernel, &info), ST_INVALID);
        assert_null(kernel);
    }
    cuda()->close(b);
    nothing_is_left();
}

static void a_token_outside_of_the_vocabulary_is_seen_by_who_waits(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct small s;
    small_open(&s, NULL);
    const int64_t dims[2] = { 1, 4 };
    const struct op_spec spec = { .op = OP_EMBEDDING,
                                  .attr = { .out = 8, .rows = 5 },
                                  .in = { tensor_plain(DTYPE_I32, 2, dims) },
                                  .in_count = 1 };
    struct kernel *kernel = NULL;
    struct kernel_info info;
    assert_int_equal(cuda()->op[OP_EMBEDDING].prepare(s.b, &spec, &kernel, &info), ST_OK);
    const int32_t right[4] = { 0, 4, 2, 1 }, wrong[4] = { 0, 5, 2, 1 };
    void *tokens = device_of(&s, sizeof(right)), *out = device_of(&s, info.out.bytes);
    const struct op_buffers buffers = { .in = { tokens }, .out = out, .param = { s.param } };
    assert_int_equal(cuda()->vector.copy(s.b, tokens, right, sizeof(right), s.stream), ST_OK);
    assert_int_equal(cuda()->op[OP_EMBEDDING].forward(s.b, kernel, &buffers, s.stream), ST_OK);
    assert_int_equal(cuda()->stream_sync(s.b, s.stream), ST_OK);
    assert_int_equal(cuda()->vector.copy(s.b, tokens, wrong, sizeof(wrong), s.stream), ST_OK);
    assert_int_equal(cuda()->op[OP_EMBEDDING].forward(s.b, kernel, &buffers, s.stream), ST_OK);
    assert_int_equal(cuda()->stream_sync(s.b, s.stream), ST_INVALID);
    assert_non_null(strstr(cuda()->why(s.b), "token"));
    cuda()->kernel_free(s.b, kernel);
    small_close(&s);
}

static void the_table_has_every_op_and_ranges(void **state)
{
    (void)state;
    const struct backend_table *table = cuda();
    assert_false(table->host_memory);
    for (int op = 0; op < OP_COUNT; op++) {
        assert_non_null(table->op[op].prepare);
        assert_non_null(table->op[op].forward);
        assert_non_null(table->op[op].backward);
    }
    backend_range_push(table, "step"); /* nobody listens */
    backend_range_pop(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_without_a_gpu_is_described),
        cmocka_unit_test(a_device_is_described_by_its_driver),
        cmocka_unit_test(memory_is_aligned_zeroed_and_bounded),
        cmocka_unit_test(time_between_two_timed_events_is_told_once_both_have_passed),
        cmocka_unit_test(copies_are_done_when_their_event_was_waited_for),
        cmocka_unit_test(a_captured_graph_computes_with_what_is_there_when_it_runs),
        cmocka_unit_test(a_broken_capture_is_no_lasting_error),
        cmocka_unit_test(after_a_sticky_error_all_fails_and_the_first_cause_is_kept),
        cmocka_unit_test(pins_are_json_that_names_device_libraries_and_algorithms),
        cmocka_unit_test(stored_choices_bring_the_bits_of_the_run_that_stored_them),
        cmocka_unit_test(one_shape_is_chosen_once),
        cmocka_unit_test(a_prepare_that_fails_leaves_nothing_behind),
        cmocka_unit_test(an_open_that_fails_leaves_nothing_behind),
        cmocka_unit_test(specs_outside_of_an_op_are_refused),
        cmocka_unit_test(a_token_outside_of_the_vocabulary_is_seen_by_who_waits),
        cmocka_unit_test(the_table_has_every_op_and_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
