/*
 * The CUDA backend's device, memory, streams, graphs, on fakes of the libraries.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"
#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/small.h"
#include "tests/test.h"

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

static void a_captured_graph_computes_with_what_is_there_when_it_runs(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct small s;
    float first[ROWS * OUT], second[ROWS * OUT], replayed[ROWS * OUT];
    int graph = -1;
    small_open(&s, NULL);
    assert_int_equal(small_forward(&s), ST_OK);
    small_download(&s, first);
    assert_int_equal(cuda()->capture_begin(s.b, s.stream), ST_OK);
    assert_int_equal(small_forward(&s), ST_OK);
    assert_int_equal(cuda()->capture_end(s.b, s.stream, &graph), ST_OK);
    small_upload(&s, s.in, ROWS * IN, 2.0f);
    small_download(&s, second);
    assert_memory_equal(first, second, sizeof(first)); /* captured, not run */
    assert_int_equal(cuda()->replay(s.b, graph, s.stream), ST_OK);
    small_download(&s, replayed);
    assert_int_equal(small_forward(&s), ST_OK);
    small_download(&s, second);
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
    small_download(&s, out);
    small_close(&s);
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
    void *tokens = small_memory(&s, sizeof(right)), *out = small_memory(&s, info.out.bytes);
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

/* The engine that copies to the host may be at a snapshot for long. */
static void few_words_for_the_host_do_not_wait_behind_copies(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct backend *b = open_cuda(NULL);
    struct stream *stream = NULL;
    void *device = NULL, *pinned = NULL;
    assert_int_equal(cuda()->stream_new(b, &stream), ST_OK);
    assert_int_equal(cuda()->alloc(b, 8192, &device), ST_OK);
    assert_int_equal(cuda()->alloc_host(b, 8192, &pinned), ST_OK);
    assert_int_equal(cuda()->vector.fill(b, device, 3.0f, 2048, stream), ST_OK);
    const size_t few[] = { 4, 20, 4096 }, many[] = { 6, 4100, 8192 };
    for (size_t i = 0; i < sizeof(few) / sizeof(few[0]); i++) {
        assert_int_equal(cuda()->vector.copy(b, pinned, device, few[i], stream), ST_OK);
        assert_int_equal(fake_cuda_calls("cudaMemcpyAsync"), 0);
    }
    assert_int_equal(cuda()->stream_sync(b, stream), ST_OK);
    assert_true(((float *)pinned)[1023] == 3.0f && ((float *)pinned)[1024] == 0.0f);
    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
        assert_int_equal(cuda()->vector.copy(b, pinned, device, many[i], stream), ST_OK);
        assert_int_equal(fake_cuda_calls("cudaMemcpyAsync"), (int)i + 1);
    }
    float pageable = 0.0f; /* no kernel reaches this */
    assert_int_equal(cuda()->vector.copy(b, &pageable, device, sizeof(pageable), stream), ST_OK);
    assert_int_equal(fake_cuda_calls("cudaMemcpyAsync"), 4);
    assert_int_equal(cuda()->vector.copy(b, device, pinned, 4, stream), ST_OK);
    assert_int_equal(fake_cuda_calls("cudaMemcpyAsync"), 5);
    cuda()->free_host(b, pinned);
    cuda()->free(b, device);
    cuda()->stream_free(b, stream);
    cuda()->close(b);
    nothing_is_left();
}

/* Where a side is odd cuBLASLt names kernels that take six times as long. */
static void products_with_an_odd_vocabulary_have_even_sides(void **state)
{
    (void)state;
    fake_cuda_describe("");
    struct backend *b = open_cuda(NULL);
    const int64_t dims[2] = { 24, 16 };
    const struct op_spec spec = { .op = OP_LINEAR,
                                  .attr = { .out = 69 },
                                  .in = { tensor_plain(DTYPE_BF16, 2, dims) },
                                  .in_count = 1,
                                  .out_dtype = DTYPE_BF16,
                                  .math = MATH_BF16,
                                  .training = true,
                                  .need_din0 = true,
                                  .pitched_out = true };
    struct kernel *kernel = NULL;
    struct kernel_info info;
    assert_int_equal(cuda()->op[OP_LINEAR].prepare(b, &spec, &kernel, &info), ST_OK);
    assert_int_equal(info.out.format, FORMAT_PITCHED);
    assert_int_equal(info.cache_bytes, (size_t)128 * 16 * 2);
    auto_buf struct buf pins;
    buf_init(&pins, 8000);
    assert_int_equal(cuda()->pins(b, &pins), ST_OK);
    assert_non_null(strstr(pins.data, "\"product 24.128.16 nt bf16 bf16\""));
    assert_non_null(strstr(pins.data, "\"product 24.16.128 nn bf16 bf16\""));
    assert_non_null(strstr(pins.data, "\"product 64.16.24 tn bf16 f32 pitch 128\""));
    assert_non_null(strstr(pins.data, "\"product 5.16.24 tn bf16 f32 pitch 128\""));
    assert_null(strstr(pins.data, "\"product 69"));
    void *cache = NULL, *weight = NULL;
    assert_int_equal(cuda()->alloc(b, info.cache_bytes, &cache), ST_OK);
    assert_int_equal(cuda()->alloc(b, sizeof(float) * 69 * 16, &weight), ST_OK);
    const float *const param[OP_PARAM_MAX] = { weight };
    fake_cuda_change("fail=cudaMemsetAsync:1:2");
    assert_int_equal(cuda()->refresh(b, kernel, param, cache, NULL), ST_NO_MEMORY);
    assert_int_equal(cuda()->refresh(b, kernel, param, cache, NULL), ST_OK);
    assert_int_equal(cuda()->stream_sync(b, NULL), ST_OK);
    cuda()->free(b, weight);
    cuda()->free(b, cache);
    cuda()->kernel_free(b, kernel);
    cuda()->close(b);
    nothing_is_left();
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
        cmocka_unit_test(a_token_outside_of_the_vocabulary_is_seen_by_who_waits),
        cmocka_unit_test(few_words_for_the_host_do_not_wait_behind_copies),
        cmocka_unit_test(products_with_an_odd_vocabulary_have_even_sides),
        cmocka_unit_test(the_table_has_every_op_and_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
