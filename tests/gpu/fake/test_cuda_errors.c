/*
 * The CUDA backend's errors, pins and refusals, on fakes of the libraries.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/small.h"
#include "tests/test.h"

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

static void every_row_for_vectors_has_a_function(void **state)
{
    (void)state;
    const char *const rows = (const char *)&cuda()->vector;
    for (size_t at = 0; at < sizeof(struct vector_table); at += sizeof(void *)) {
        void *row;
        memcpy(&row, rows + at, sizeof(row));
        assert_non_null(row);
    }
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
    small_download(&s, out);
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

/* `text` with its first `from` as `to`. */
static void edited(const char *text, const char *from, const char *to, char *out, size_t size)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    const int length =
        snprintf(out, size, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_true(length > 0 && (size_t)length < size);
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
    assert_non_null(strstr(pins, "\"product 3.8.64 nt f32 f32 bias\":\"7.20."));
    /* What is damaged, or not possible here, is chosen anew. */
    static const char *const edits[][2] = {
        { "bias\":\"7.20.", "bias\":\"7.x." },
        { "bias\":\"7.20.", "bias\":\"7\",\"" },
        { "bias\":\"7.20.", "bias\":\"7.21." },
        { "bias\":\"7.20.", "bias\":\"8.20." },
        { "\"cublaslt\":130000", "\"cublaslt\":130001" },
        { "\"cudnn\":", "\"cudnn\":1" },
        { "\"product ", "\"produce " },
    };
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        char damaged[8192 + 64];
        edited(pins, edits[i][0], edits[i][1], damaged, sizeof(damaged));
        computed_with("favours=11", damaged, again, pins_again);
        assert_memory_equal(other, again, sizeof(other));
    }
}

/* A library may keep of an algorithm what none of its attributes shows. */
static void all_words_of_an_algorithm_are_kept(void **state)
{
    (void)state;
    float first[ROWS * OUT], again[ROWS * OUT];
    char pins[8192], pins_again[8192], without[8192 + 64];
    computed_with("", NULL, first, pins);
    assert_non_null(strstr(pins, ".6840123409045651457\"")); /* IN_PAIRS of cublaslt.cc */
    edited(pins, ".6840123409045651457\"", ".0\"", without, sizeof(without));
    computed_with("", without, again, pins_again);
    assert_memory_not_equal(first, again, sizeof(first)); /* it is computed with that word */
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
    for (int nth = 1; nth < 1000; nth++) {
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
    fail_each(&conv, "cudnnBackendCreateDescriptor", 4003); /* or another engine, or no graph */
    fail_each(&conv, "cudnnBackendSetAttribute", 4003);
    fail_each(&conv, "cudnnBackendGetAttribute", 3000);
    fail_each(&conv, "cudnnBackendFinalize", 3000);
    assert_int_equal(setenv("CAIRN_CUDNN_LEGACY", "1", 1), 0);
    fail_each(&conv, "cudnnCreateTensorDescriptor", 4003);
    fail_each(&conv, "cudnnCreateFilterDescriptor", 4003);
    fail_each(&conv, "cudnnCreateConvolutionDescriptor", 4003);
    fail_each(&conv, "cudnnGetConvolutionBackwardFilterWorkspaceSize", 3000);
    fail_each(&conv, "cudnnGetConvolutionForwardWorkspaceSize", 3000);
    assert_int_equal(unsetenv("CAIRN_CUDNN_LEGACY"), 0);
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

/* --- captures and launches that fail -------------------------------------------------------- */

/* `words` come true between the begin and the end of a capture; then the same runs without one. */
static void broken_in_a_capture(const char *words)
{
    struct small s;
    float quiet[ROWS * OUT], after[ROWS * OUT];
    int graph = -1;
    fake_cuda_describe("");
    small_open(&s, NULL);
    assert_int_equal(small_forward(&s), ST_OK);
    small_download(&s, quiet);
    assert_int_equal(cuda()->capture_begin(s.b, s.stream), ST_OK);
    fake_cuda_change(words);
    assert_int_equal(small_step(&s), ST_INVALID);
    (void)!cuda()->capture_end(s.b, s.stream, &graph);
    assert_int_equal(small_step(&s), ST_OK);
    small_download(&s, after);
    assert_memory_equal(quiet, after, sizeof(quiet));
    small_close(&s);
}

static void what_a_capture_does_not_allow_can_be_run_without(void **state)
{
    (void)state;
    broken_in_a_capture("fail=launch:1:900");        /* the runtime's own word for it */
    broken_in_a_capture("fail=cublasLtMatmul:1:13"); /* a library that says: execution failed */
    broken_in_a_capture("fail=cublasLtMatmul:1:14"); /* … or: internal error */
}

static void a_launch_that_fails_keeps_its_text_and_its_line(void **state)
{
    (void)state;
    struct small s;
    fake_cuda_describe("");
    small_open(&s, NULL);
    fake_cuda_change("fail=launch:1:98");
    assert_int_equal(cuda()->vector.fill(s.b, s.in, 0.0f, 4, s.stream), ST_DEVICE);
    assert_non_null(strstr(cuda()->why(s.b), "fill: invalid device function (vector.c:"));
    assert_int_equal(cuda()->vector.fill(s.b, s.in, 0.0f, 4, s.stream), ST_OK);
    assert_non_null(strstr(cuda()->why(s.b), "invalid device function")); /* the first stays */
    small_close(&s);
}

static void each_launch_is_waited_for_where_that_is_asked_for(void **state)
{
    (void)state;
    struct small s;
    int graph = -1;
    fake_cuda_describe("");
    assert_int_equal(setenv("CAIRN_CUDA_SYNC", "1", 1), 0);
    small_open(&s, NULL);
    const int waits = fake_cuda_calls("cudaDeviceSynchronize");
    assert_int_equal(small_step(&s), ST_OK); /* a fill, and a product */
    assert_int_equal(fake_cuda_calls("cudaDeviceSynchronize"), waits + 2);
    assert_int_equal(cuda()->capture_begin(s.b, s.stream), ST_INVALID);
    fake_cuda_change("fail=cudaDeviceSynchronize:2:700");
    assert_int_equal(small_step(&s), ST_DEVICE);
    assert_non_null(strstr(cuda()->why(s.b), "cublasLtMatmul: an illegal memory access"));
    assert_int_equal(unsetenv("CAIRN_CUDA_SYNC"), 0);
    cuda()->kernel_free(s.b, s.kernel);
    cuda()->stream_free(s.b, s.stream);
    cuda()->close(s.b);
    fake_cuda_describe("");
    assert_int_equal(setenv("CAIRN_CUDA_EAGER", "1", 1), 0);
    small_open(&s, NULL);
    assert_int_equal(small_step(&s), ST_OK);
    assert_int_equal(fake_cuda_calls("cudaDeviceSynchronize"), 0);
    assert_int_equal(cuda()->capture_begin(s.b, s.stream), ST_INVALID);
    assert_int_equal(setenv("CAIRN_CUDA_EAGER", "0", 1), 0);
    small_close(&s);
    small_open(&s, NULL);
    assert_int_equal(cuda()->capture_begin(s.b, s.stream), ST_OK);
    assert_int_equal(cuda()->capture_end(s.b, s.stream, &graph), ST_OK);
    assert_int_equal(unsetenv("CAIRN_CUDA_EAGER"), 0);
    small_close(&s);
}

/* --- what is slow, what doesn't fit ---------------------------------------------------------- */

static void channels_innermost_that_cudnn_refuses_are_told(void **state)
{
    (void)state;
    const struct op_spec spec = conv_spec();
    for (int refused = 0; refused < 2; refused++) {
        struct kernel *kernel = NULL;
        struct kernel_info info;
        fake_cuda_describe(refused ? "only-nchw" : "");
        struct backend *b = open_cuda(NULL);
        assert_int_equal(cuda()->op[OP_CONV2D].prepare(b, &spec, &kernel, &info), ST_OK);
        assert_int_equal(info.slow != NULL, refused);
        if (refused)
            assert_non_null(strstr(info.slow, "half the speed"));
        cuda()->kernel_free(b, kernel);
        cuda()->close(b);
        nothing_is_left();
    }
}

static enum status attention_on(const char *device, int heads, bool training, char why[512])
{
    const int64_t dims[3] = { 1, 4, 3 * 256 };
    const struct op_spec spec = { .op = OP_ATTENTION,
                                  .attr = { .heads = heads },
                                  .in = { tensor_plain(DTYPE_F32, 3, dims) },
                                  .in_count = 1,
                                  .training = training };
    struct kernel *kernel = NULL;
    struct kernel_info info;
    fake_cuda_describe(device);
    struct backend *b = open_cuda(NULL);
    const enum status st = cuda()->op[OP_ATTENTION].prepare(b, &spec, &kernel, &info);
    (void)snprintf(why, 512, "%s", cuda()->why(b));
    cuda()->kernel_free(b, kernel);
    cuda()->close(b);
    nothing_is_left();
    return st;
}

static void attention_that_a_block_has_no_room_for_is_refused_with_a_way_out(void **state)
{
    (void)state;
    char why[512];
    static const char *const small[] = { "capability=86", "capability=89" };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(attention_on(small[i], 2, true, why), ST_INVALID);
        assert_non_null(strstr(why, "heads of 128 in float32 needs 149 KiB of shared memory, of "
                                    "which this GPU has 99: set train.precision: bf16"));
        assert_int_equal(attention_on(small[i], 1, true, why), ST_INVALID);
        assert_int_equal(attention_on(small[i], 4, true, why), ST_OK); /* 64 */
        assert_int_equal(attention_on(small[i], 2, false, why), ST_OK);
    }
    assert_int_equal(attention_on("capability=80", 2, true, why), ST_OK);
    assert_int_equal(attention_on("capability=90", 1, true, why), ST_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_sticky_error_all_fails_and_the_first_cause_is_kept),
        cmocka_unit_test(every_row_for_vectors_has_a_function),
        cmocka_unit_test(pins_are_json_that_names_device_libraries_and_algorithms),
        cmocka_unit_test(stored_choices_bring_the_bits_of_the_run_that_stored_them),
        cmocka_unit_test(all_words_of_an_algorithm_are_kept),
        cmocka_unit_test(one_shape_is_chosen_once),
        cmocka_unit_test(a_prepare_that_fails_leaves_nothing_behind),
        cmocka_unit_test(an_open_that_fails_leaves_nothing_behind),
        cmocka_unit_test(specs_outside_of_an_op_are_refused),
        cmocka_unit_test(what_a_capture_does_not_allow_can_be_run_without),
        cmocka_unit_test(a_launch_that_fails_keeps_its_text_and_its_line),
        cmocka_unit_test(each_launch_is_waited_for_where_that_is_asked_for),
        cmocka_unit_test(channels_innermost_that_cudnn_refuses_are_told),
        cmocka_unit_test(attention_that_a_block_has_no_room_for_is_refused_with_a_way_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
