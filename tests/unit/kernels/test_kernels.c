/*
 * The CPU backend beside its ops: memory, formats, vectors, pins, and what it refuses.
 */
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/loops/loops.h"
#include "kernels/mix.h"
#include "tests/test.h"

static const struct backend_table *cpu;
static struct backend *backend;

static int open_backend(void **state)
{
    (void)state;
    const struct backend_options options = { .threads = 1 };
    cpu = backend_cpu();
    return cpu->open(&options, &backend) == ST_OK ? 0 : -1;
}

static int close_backend(void **state)
{
    (void)state;
    cpu->close(backend);
    return 0;
}

static float *numbers(size_t n, float scale)
{
    void *memory = NULL;
    assert_int_equal(cpu->alloc(backend, n * sizeof(float), &memory), ST_OK);
    float *x = memory;
    for (size_t i = 0; i < n; i++)
        x[i] = scale * ((float)((i * 2654435761u) % 2003u) / 1001.0f - 1.0f);
    return x;
}

static void memory_is_aligned_and_zeroed(void **state)
{
    (void)state;
    const size_t sizes[] = { 0, 1, 4097, 3u << 20 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *memory = NULL;
        assert_int_equal(cpu->alloc(backend, sizes[i], &memory), ST_OK);
        assert_int_equal((uintptr_t)memory % 4096, 0);
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(((char *)memory)[k], 0);
        cpu->free(backend, memory);
    }
    void *memory = NULL;
    assert_int_equal(cpu->alloc(backend, SIZE_MAX - 5, &memory), ST_NO_MEMORY);
    assert_null(memory);
}

static void vectors_do_the_same_at_every_length(void **state)
{
    (void)state;
    enum { N = 70 };
    float *x = numbers(N, 1.0f), *y = numbers(N, 3.0f), *out = numbers(N, 0.0f);
    for (size_t n = 0; n <= N; n++) {
        assert_int_equal(cpu->vector.fill(backend, out, 7.0f, N, NULL), ST_OK);
        assert_int_equal(cpu->vector.add(backend, out, x, y, n, NULL), ST_OK);
        for (size_t i = 0; i < N; i++)
            assert_true(out[i] == (i < n ? x[i] + y[i] : 7.0f));
    }
    assert_int_equal(cpu->vector.copy(backend, out, x, N * sizeof(float), NULL), ST_OK);
    assert_int_equal(cpu->vector.add(backend, out, out, y, N, NULL), ST_OK); /* in place */
    for (size_t i = 0; i < N; i++)
        assert_true(out[i] == x[i] + y[i]);
    cpu->free(backend, x);
    cpu->free(backend, y);
    cpu->free(backend, out);
}

static void square_sums_are_of_ranges(void **state)
{
    (void)state;
    const uint64_t begin[] = { 0, 1, 78, PIECE_ELEMENTS + 78, PIECE_ELEMENTS + 4000 };
    const size_t ranges = 4;
    float *x = numbers(begin[ranges], 1.0f);
    double found[4] = { 0 };
    assert_int_equal(cpu->vector.square_sums(backend, found, x, begin, ranges, NULL), ST_OK);
    for (size_t r = 0; r < ranges; r++) {
        double sum = 0.0;
        for (size_t i = begin[r]; i < begin[r + 1]; i++)
            sum += (double)x[i] * (double)x[i];
        assert_true(fabs(sum - found[r]) <= 1e-12 * sum);
    }
    /* A range's sum does not depend on where it lies. */
    const uint64_t only[] = { 0, PIECE_ELEMENTS };
    double alone = 0.0;
    assert_int_equal(cpu->vector.square_sums(backend, &alone, x + 78, only, 1, NULL), ST_OK);
    assert_memory_equal(&alone, &found[2], sizeof(alone));
    cpu->free(backend, x);
}

static void a_checksum_sees_every_word(void **state)
{
    (void)state;
    const size_t n = PIECE_ELEMENTS + 77;
    float *x = numbers(n, 1.0f);
    uint64_t before[2] = { 0 }, after[2], want[2] = { 0 };
    assert_int_equal(cpu->vector.checksums(backend, before, x, n, NULL), ST_OK);
    for (size_t i = 0; i < n; i++)
        want[i / PIECE_ELEMENTS] += mix_word(x[i], (uint32_t)(i % PIECE_ELEMENTS));
    assert_memory_equal(before, want, sizeof(want));
    for (size_t i = 0; i < n; i += 997) {
        uint32_t word;
        memcpy(&word, &x[i], sizeof(word));
        word ^= UINT32_C(1) << i % 32;
        memcpy(&x[i], &word, sizeof(word));
        assert_int_equal(cpu->vector.checksums(backend, after, x, n, NULL), ST_OK);
        assert_true(after[i / PIECE_ELEMENTS] != before[i / PIECE_ELEMENTS]);
        assert_true(after[1 - i / PIECE_ELEMENTS] == before[1 - i / PIECE_ELEMENTS]);
        word ^= UINT32_C(1) << i % 32;
        memcpy(&x[i], &word, sizeof(word));
    }
    const float kept = x[5]; /* two that change places */
    x[5] = x[6];
    x[6] = kept;
    assert_int_equal(cpu->vector.checksums(backend, after, x, n, NULL), ST_OK);
    assert_true(after[0] != before[0]);
    cpu->free(backend, x);
}

/* torch.optim.SGD's formulas in float64 over some steps. */
static void check_sgd(bool nesterov, float momentum)
{
    enum { N = 37, STEPS = 4 };
    float *param = numbers(N, 1.0f), *grad = numbers(N, 0.3f), *buffer = numbers(N, 0.0f);
    double p[N], m[N] = { 0 };
    for (size_t i = 0; i < N; i++)
        p[i] = (double)param[i];
    for (int step = 0; step < STEPS; step++) {
        const struct sgd_args args = { .lr = 0.1f,
                                       .momentum = momentum,
                                       .weight_decay = 0.01f,
                                       .grad_scale = 0.5f,
                                       .nesterov = nesterov,
                                       .first = step == 0 };
        assert_int_equal(cpu->vector.sgd(backend, param, buffer, grad, N, &args, NULL), ST_OK);
        for (size_t i = 0; i < N; i++) {
            double g = 0.5 * (double)grad[i] + (double)args.weight_decay * p[i];
            m[i] = step == 0 ? g : (double)momentum * m[i] + g;
            g = nesterov ? g + (double)momentum * m[i] : m[i];
            p[i] -= (double)args.lr * g;
            assert_true(fabs(p[i] - (double)param[i]) < 1e-6);
        }
    }
    cpu->free(backend, param);
    cpu->free(backend, grad);
    cpu->free(backend, buffer);
}

static void sgd_is_that_of_pytorch(void **state)
{
    (void)state;
    check_sgd(false, 0.9f);
    check_sgd(true, 0.9f);
    check_sgd(false, 0.0f);
}

static void adamw_is_that_of_pytorch(void **state)
{
    (void)state;
    enum { N = 37, STEPS = 5 };
    float *param = numbers(N, 1.0f), *grad = numbers(N, 0.3f);
    float *m = numbers(N, 0.0f), *v = numbers(N, 0.0f);
    double p[N], first[N] = { 0 }, second[N] = { 0 };
    for (size_t i = 0; i < N; i++)
        p[i] = (double)param[i];
    for (uint64_t t = 1; t <= STEPS; t++) {
        const struct adamw_args args = { .lr = 0.01f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.999f,
                                         .eps = 1e-8f,
                                         .weight_decay = 0.1f,
                                         .grad_scale = 2.0f,
                                         .t = t };
        const double b1 = (double)args.beta1, b2 = (double)args.beta2, lr = (double)args.lr;
        assert_int_equal(cpu->vector.adamw(backend, param, m, v, grad, N, &args, NULL), ST_OK);
        for (size_t i = 0; i < N; i++) {
            const double g = 2.0 * (double)grad[i];
            p[i] *= 1.0 - lr * (double)args.weight_decay;
            first[i] = b1 * first[i] + (1.0 - b1) * g;
            second[i] = b2 * second[i] + (1.0 - b2) * g * g;
            p[i] -= lr / (1.0 - pow(b1, (double)t)) * first[i] /
                    (sqrt(second[i]) / sqrt(1.0 - pow(b2, (double)t)) + (double)args.eps);
            assert_true(fabs(p[i] - (double)param[i]) < 1e-5);
        }
    }
    cpu->free(backend, param);
    cpu->free(backend, grad);
    cpu->free(backend, m);
    cpu->free(backend, v);
}

static void lion_is_that_of_its_algorithm(void **state)
{
    (void)state;
    enum { N = 37, STEPS = 5 };
    float *param = numbers(N, 1.0f), *grad = numbers(N, 0.3f), *m = numbers(N, 0.0f);
    double p[N], moment[N] = { 0 };
    for (size_t i = 0; i < N; i++)
        p[i] = (double)param[i];
    grad[0] = 0; /* whose sign is 0 */
    for (int t = 0; t < STEPS; t++) {
        const struct lion_args args = {
            .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f, .grad_scale = 2.0f
        };
        assert_int_equal(cpu->vector.lion(backend, param, m, grad, N, &args, NULL), ST_OK);
        for (size_t i = 0; i < N; i++) {
            const double g = 2.0 * (double)grad[i], c = 0.9 * moment[i] + 0.1 * g;
            p[i] -= 0.01 * ((double)((c > 0) - (c < 0)) + 0.1 * p[i]);
            moment[i] = 0.99 * moment[i] + 0.01 * g;
            assert_true(fabs(p[i] - (double)param[i]) < 1e-6);
            assert_true(fabs(moment[i] - (double)m[i]) < 1e-6);
            grad[i] = -grad[i];
        }
    }
    cpu->free(backend, param);
    cpu->free(backend, grad);
    cpu->free(backend, m);
}

static void lamb_gives_the_direction_of_its_algorithm(void **state)
{
    (void)state;
    enum { N = 37, STEPS = 4 };
    float *param = numbers(N, 1.0f), *grad = numbers(N, 0.3f);
    float *m = numbers(N, 0.0f), *v = numbers(N, 0.0f), *out = numbers(N, 0.0f);
    double first[N] = { 0 }, second[N] = { 0 };
    for (uint64_t t = 1; t <= STEPS; t++) {
        const struct adamw_args args = { .beta1 = 0.9f,
                                         .beta2 = 0.999f,
                                         .eps = 1e-6f,
                                         .weight_decay = 0.1f,
                                         .grad_scale = 2.0f,
                                         .t = t };
        memcpy(out, grad, N * sizeof(*out));
        assert_int_equal(cpu->vector.lamb(backend, param, m, v, out, N, &args, NULL), ST_OK);
        for (size_t i = 0; i < N; i++) {
            const double g = 2.0 * (double)grad[i], b2 = (double)args.beta2;
            first[i] = 0.9 * first[i] + 0.1 * g;
            second[i] = b2 * second[i] + (1.0 - b2) * g * g;
            const double u = first[i] / (1.0 - pow(0.9, (double)t)) /
                                 (sqrt(second[i] / (1.0 - pow(b2, (double)t))) + 1e-6) +
                             0.1 * (double)param[i];
            assert_true(fabs(u - (double)out[i]) < 1e-5);
        }
    }
    cpu->free(backend, param);
    cpu->free(backend, grad);
    cpu->free(backend, m);
    cpu->free(backend, v);
    cpu->free(backend, out);
}

static void formats_hold_the_same_elements(void **state)
{
    (void)state;
    const int64_t dims[4] = { 2, 19, 3, 2 };
    const struct tensor plain = tensor_plain(DTYPE_F32, 4, dims);
    struct tensor nhwc = plain, blocked = plain;
    nhwc.format = FORMAT_NHWC;
    blocked.format = FORMAT_BLOCKED;
    blocked.bytes = 4u * 2 * 32 * 6; /* enough for blocks of 8 and of 16 */
    const size_t n = plain.bytes / sizeof(float);
    float *x = numbers(n, 1.0f), *a = numbers(n, 0.0f), *y = numbers(n, 0.0f);
    float *b = numbers(blocked.bytes / sizeof(float), 9.0f);
    assert_int_equal(cpu->reformat(backend, &plain, x, &nhwc, a, NULL), ST_OK);
    assert_true(a[19] == x[1]); /* channels are innermost */
    assert_int_equal(cpu->reformat(backend, &nhwc, a, &blocked, b, NULL), ST_OK);
    assert_int_equal(cpu->reformat(backend, &blocked, b, &plain, y, NULL), ST_OK);
    assert_memory_equal(x, y, plain.bytes);
    struct tensor other = plain;
    other.dims[1] = 18;
    assert_int_equal(cpu->reformat(backend, &plain, x, &other, y, NULL), ST_INVALID);
    cpu->free(backend, x);
    cpu->free(backend, y);
    cpu->free(backend, a);
    cpu->free(backend, b);
}

static void every_row_for_vectors_has_a_function(void **state)
{
    (void)state;
    const char *const rows = (const char *)&cpu->vector;
    for (size_t at = 0; at < sizeof(struct vector_table); at += sizeof(void *)) {
        void *row;
        memcpy(&row, rows + at, sizeof(row));
        assert_non_null(row);
    }
}

static void pins_are_members_of_an_object(void **state)
{
    (void)state;
    auto_buf struct buf pins;
    buf_init(&pins, 4096);
    assert_int_equal(buf_append_text(&pins, "{"), ST_OK);
    assert_int_equal(cpu->pins(backend, &pins), ST_OK);
    assert_int_equal(buf_append_text(&pins, "}"), ST_OK);
    json_t *root = json_loads(pins.data, 0, NULL);
    assert_non_null(root);
    const json_t *own = json_object_get(root, "cpu");
    const char *const texts[] = { "vendor", "isa", "loops", "glibc", "onednn", "denormals" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_true(json_is_string(json_object_get(own, texts[i])));
    const char *const counts[] = { "family", "model", "l1d", "l2", "l3", "threads" };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        assert_true(json_is_integer(json_object_get(own, counts[i])));
    assert_int_equal(json_integer_value(json_object_get(own, "threads")), 1);
    json_decref(root);
}

static enum status prepare(const struct op_spec *spec)
{
    struct kernel *kernel = NULL;
    struct kernel_info info;
    enum status st = cpu->op[spec->op].prepare(backend, spec, &kernel, &info);
    cpu->kernel_free(backend, kernel);
    return st;
}

static void impossible_shapes_are_refused(void **state)
{
    (void)state;
    const struct tensor image = tensor_plain(DTYPE_F32, 4, (const int64_t[]){ 1, 3, 4, 4 });
    const struct tensor pixel = tensor_plain(DTYPE_F32, 4, (const int64_t[]){ 1, 3, 1, 1 });
    const struct tensor bytes = tensor_plain(DTYPE_U8, 4, (const int64_t[]){ 1, 3, 4, 4 });
    const struct tensor rows = tensor_plain(DTYPE_F32, 2, (const int64_t[]){ 3, 4 });
    const struct tensor labels = tensor_plain(DTYPE_I32, 1, (const int64_t[]){ 4 });
    const struct op_spec specs[] = {
        { .op = OP_CONV2D,
          .in = { image },
          .in_count = 1,
          .attr = { .kernel = 5, .stride = 1, .out = 1 } },
        { .op = OP_CONV2D,
          .in = { image },
          .in_count = 1,
          .attr = { .kernel = 1, .stride = 0, .out = 1 } },
        { .op = OP_CONV2D, .in = { image }, .in_count = 1, .attr = { .kernel = 1, .stride = 1 } },
        { .op = OP_CONV2D,
          .in = { bytes },
          .in_count = 1,
          .attr = { .kernel = 1, .stride = 1, .out = 1 } },
        { .op = OP_CONV2D,
          .in = { rows },
          .in_count = 1,
          .attr = { .kernel = 1, .stride = 1, .out = 1 } },
        { .op = OP_BATCH_NORM,
          .in = { pixel },
          .in_count = 1,
          .training = true,
          .attr = { .eps = 1e-5f } },
        { .op = OP_BATCH_NORM, .in = { image }, .in_count = 1 },
        { .op = OP_BATCH_NORM,
          .in = { image, pixel },
          .in_count = 2,
          .attr = { .eps = 1e-5f, .residual = true } },
        { .op = OP_MAX_POOL,
          .in = { image },
          .in_count = 1,
          .attr = { .kernel = 16, .stride = 1, .pad = 8 } },
        { .op = OP_MAX_POOL,
          .in = { image },
          .in_count = 1,
          .attr = { .kernel = 2, .stride = 2, .pad = 2 } },
        { .op = OP_LINEAR, .in = { bytes }, .in_count = 1, .attr = { .out = 3 } },
        { .op = OP_LINEAR, .in = { rows }, .in_count = 1 },
        { .op = OP_SOFTMAX_CROSS_ENTROPY, .in = { rows, labels }, .in_count = 2 },
        { .op = OP_SOFTMAX_CROSS_ENTROPY, .in = { rows }, .in_count = 1 },
    };
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
        assert_int_equal(prepare(&specs[i]), ST_INVALID);
    const struct backend_options none = { .threads = 0 };
    struct backend *other = NULL;
    assert_int_equal(cpu->open(&none, &other), ST_INVALID);
}

static void a_label_out_of_range_is_an_error(void **state)
{
    (void)state;
    const struct op_spec spec = {
        .op = OP_SOFTMAX_CROSS_ENTROPY,
        .in = { tensor_plain(DTYPE_F32, 2, (const int64_t[]){ 2, 3 }),
                tensor_plain(DTYPE_I32, 1, (const int64_t[]){ 2 }) },
        .in_count = 2,
    };
    const float logits[6] = { 0.5f, 2.0f, 1.0f, 3.0f, 1.0f, 2.0f };
    const int32_t bad[2] = { 0, 3 }, worse[2] = { -2, 0 }, good[2] = { 1, -1 };
    struct kernel *kernel = NULL;
    struct kernel_info info;
    float out[3] = { -1.0f, -1.0f, -1.0f };
    struct op_buffers buffers = { .in = { logits, bad }, .out = out };
    const struct op_table *op = &cpu->op[spec.op];
    assert_int_equal(op->prepare(backend, &spec, &kernel, &info), ST_OK);
    assert_int_equal(op->forward(backend, kernel, &buffers, NULL), ST_INVALID);
    buffers.in[1] = worse;
    assert_int_equal(op->forward(backend, kernel, &buffers, NULL), ST_INVALID);
    assert_true(out[0] == -1.0f && out[1] == -1.0f);
    buffers.in[1] = good;
    assert_int_equal(op->forward(backend, kernel, &buffers, NULL), ST_OK);
    assert_true(out[1] == 1.0f && out[2] == 1.0f);
    cpu->kernel_free(backend, kernel);
}

/* A NaN must reach the loss: relu and pooling may not swallow it. */
static void not_a_number_is_passed_on(void **state)
{
    (void)state;
    enum { N = 2 * 3 * 4 * 4 };
    const struct tensor in = tensor_plain(DTYPE_F32, 4, (const int64_t[]){ 2, 3, 4, 4 });
    const struct op_spec specs[] = {
        { .op = OP_RELU, .in = { in }, .in_count = 1 },
        { .op = OP_MAX_POOL, .in = { in }, .in_count = 1, .attr = { .kernel = 2, .stride = 2 } },
        { .op = OP_GLOBAL_AVG_POOL, .in = { in }, .in_count = 1 },
    };
    float *x = numbers(N, 1.0f), *y = numbers(N, 0.0f);
    for (size_t s = 0; s < sizeof(specs) / sizeof(specs[0]); s++) {
        for (size_t at = 0; at < 4; at++) {
            struct kernel *kernel = NULL;
            struct kernel_info info;
            const struct op_buffers buffers = { .in = { x }, .out = y };
            const float before = x[at];
            x[at] = NAN;
            assert_int_equal(cpu->op[specs[s].op].prepare(backend, &specs[s], &kernel, &info),
                             ST_OK);
            assert_int_equal(cpu->op[specs[s].op].forward(backend, kernel, &buffers, NULL), ST_OK);
            int found = 0;
            for (size_t i = 0; i < info.out.bytes / sizeof(float); i++)
                found += isnan(y[i]) != 0;
            assert_int_equal(found, 1);
            x[at] = before;
            cpu->kernel_free(backend, kernel);
        }
    }
    cpu->free(backend, x);
    cpu->free(backend, y);
}

static void *add_denormals(void *arg)
{
    float *x = arg;
    enum status st = cpu->vector.add(backend, x, x, x + 16, 16, NULL);
    return st == ST_OK ? x : NULL;
}

static void denormals_are_flushed_on_every_thread(void **state)
{
    (void)state;
    float *x = numbers(32, 0.0f);
    for (int i = 0; i < 32; i++)
        x[i] = 1e-40f;
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, add_denormals, x), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, x);
    const float zero[16] = { 0 };
    assert_memory_equal(x, zero, sizeof(zero)); /* bits: a comparison might flush, too */
    cpu->free(backend, x);
}

/* Results for one strip of 16 channels, by loops of some width. */
struct norm_result {
    float y[16 * 40], dx[16 * 40], masked[16 * 40];
    double mean[16], variance[16], sum[16], dot[16];
};

static void run_norm(const struct norm_loops *loops, const float *x, struct norm_result *r)
{
    enum { HW = 20, SAMPLES = 2 };
    const struct strip strip = { .n = SAMPLES, .hw = HW, .plane = 16 * HW, .pitch = 16 };
    float scale[16], shift[16], mean[16];
    for (int l = 0; l < 16; l++) {
        scale[l] = 0.3f + (float)l;
        shift[l] = 0.1f * (float)l;
    }
    for (int l = 0; l < 16; l += loops->width) {
        loops->stats(&strip, x + l, r->mean + l, r->variance + l);
        for (int k = l; k < l + loops->width; k++)
            mean[k] = (float)r->mean[k];
        const struct norm_affine affine = { mean + l, scale + l, shift + l };
        const struct norm_gradient g = { .x = x + l,
                                         .dout = { x + 640 + l, x + 1280 + l },
                                         .mask = NORM_MASK_INPUT,
                                         .affine = affine };
        const float *const by[3] = { scale + l, shift + l, mean + l };
        loops->apply(&strip, x + l, x + 640 + l, r->y + l, &affine, true);
        loops->gradient_sums(&strip, &g, r->masked + l, r->sum + l, r->dot + l);
        loops->gradient_apply(&strip, &g, by, r->dx + l);
    }
}

static void loops_give_the_same_bits_at_every_width(void **state)
{
    (void)state;
    static struct norm_result base, avx2, avx512, scalar;
    float *x = numbers(3 * 640, 2.0f);
    run_norm(&norm_loops_scalar, x, &scalar);
    run_norm(&norm_loops_base, x, &base);
    assert_memory_equal(&scalar, &base, sizeof(base));
    assert_true(base.variance[0] > 0.1);
    if (__builtin_cpu_supports("avx2")) {
        run_norm(&norm_loops_avx2, x, &avx2);
        assert_memory_equal(&avx2, &base, sizeof(base));
        assert_true(flat_loops_avx2.checksum(x, 1003) == flat_loops_base.checksum(x, 1003));
        const double a = flat_loops_avx2.square_sum(x, 1000);
        const double b = flat_loops_base.square_sum(x, 1000);
        assert_memory_equal(&a, &b, sizeof(a));
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        run_norm(&norm_loops_avx512, x, &avx512);
        assert_memory_equal(&avx512, &base, sizeof(base));
        assert_true(flat_loops_avx512.checksum(x, 1003) == flat_loops_base.checksum(x, 1003));
        const double a = flat_loops_avx512.square_sum(x, 1000);
        const double b = flat_loops_base.square_sum(x, 1000);
        assert_memory_equal(&a, &b, sizeof(a));
    }
    cpu->free(backend, x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_zeroed),
        cmocka_unit_test(vectors_do_the_same_at_every_length),
        cmocka_unit_test(square_sums_are_of_ranges),
        cmocka_unit_test(a_checksum_sees_every_word),
        cmocka_unit_test(sgd_is_that_of_pytorch),
        cmocka_unit_test(adamw_is_that_of_pytorch),
        cmocka_unit_test(lion_is_that_of_its_algorithm),
        cmocka_unit_test(lamb_gives_the_direction_of_its_algorithm),
        cmocka_unit_test(formats_hold_the_same_elements),
        cmocka_unit_test(every_row_for_vectors_has_a_function),
        cmocka_unit_test(pins_are_members_of_an_object),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(a_label_out_of_range_is_an_error),
        cmocka_unit_test(not_a_number_is_passed_on),
        cmocka_unit_test(denormals_are_flushed_on_every_thread),
        cmocka_unit_test(loops_give_the_same_bits_at_every_width),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
