#include "tests/gpu/shapes/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/limits.h"
#include "tests/kernel/halves.h"
#include "tests/kernel/numbers.h"
#include "tests/test.h"

#define SAMPLES 200
#define RESULTS 4 /* out, the gradients of the weights, of the bias and of the input */

/* What has numbers of its own. */
enum given { GIVEN_IN, GIVEN_WEIGHTS, GIVEN_BIAS, GIVEN_DOUT };

struct result {
    void *memory; /* NULL: there is none */
    size_t bytes;
};

struct shape_run {
    struct shape shape;
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
    struct kernel *kernel;
    struct op_spec spec;
    struct kernel_info info;
    struct op_buffers buffers;
    struct result results[RESULTS];
    uint64_t *sums; /* of the greatest result */
    /* Sizes of the shape as a convolution: a linear is one of 1×1 images. */
    int64_t n, c, h, w, k, p, q;
    int window, stride, pad;
};

/* ---- numbers ---- */

static int64_t place(enum format format, const int64_t dims[4], const int64_t at[4])
{
    if (format == FORMAT_NHWC)
        return ((at[0] * dims[2] + at[2]) * dims[3] + at[3]) * dims[1] + at[1];
    return ((at[0] * dims[1] + at[1]) * dims[2] + at[2]) * dims[3] + at[3];
}

static int64_t place_in(const struct shape_run *run, const struct tensor *as, const int64_t dims[4],
                        const int64_t at[4])
{
    return run->shape.op == OP_LINEAR ? at[0] * tensor_pitch(as) + at[1]
                                      : place(as->format, dims, at);
}

static int64_t in_place(const struct shape_run *run, const int64_t at[4])
{
    return place_in(run, &run->spec.in[0], (const int64_t[]){ run->n, run->c, run->h, run->w }, at);
}

static int64_t din_place(const struct shape_run *run, const int64_t at[4])
{
    return place_in(run, &run->info.din[0], (const int64_t[]){ run->n, run->c, run->h, run->w },
                    at);
}

static int64_t out_place(const struct shape_run *run, const int64_t at[4])
{
    return place_in(run, &run->info.out, (const int64_t[]){ run->n, run->k, run->p, run->q }, at);
}

static double in_at(const struct shape_run *run, const int64_t at[4])
{
    if (at[2] < 0 || at[2] >= run->h || at[3] < 0 || at[3] >= run->w)
        return 0;
    return (double)number_at(GIVEN_IN, in_place(run, at));
}

static double dout_at(const struct shape_run *run, const int64_t at[4])
{
    return (double)number_at(GIVEN_DOUT, out_place(run, at));
}

static int64_t weight_place(const struct shape_run *run, int64_t k, int64_t c, int r, int s)
{
    return ((k * run->c + c) * run->window + r) * run->window + s;
}

/* ---- device ---- */

#define DO(run, call)                                                                              \
    do {                                                                                           \
        const enum status did = (call);                                                            \
        if (did != ST_OK)                                                                          \
            fail_msg("%s: %s: %s (%s)", (run)->shape.name, #call, status_string(did),              \
                     (run)->table->why((run)->backend));                                           \
    } while (0)

static void *take(struct shape_run *run, size_t bytes)
{
    void *memory = NULL;
    DO(run, run->table->alloc(run->backend, bytes + sizeof(float), &memory));
    return memory;
}

static void *given(struct shape_run *run, enum given given, enum dtype dtype, int64_t count)
{
    const size_t bytes = (size_t)count * dtype_size(dtype);
    void *host = malloc(bytes), *memory = take(run, bytes);
    CHECK(host != NULL);
    for (int64_t i = 0; i < count; i++) {
        if (dtype == DTYPE_F32)
            ((float *)host)[i] = number_at(given, i);
        else
            ((uint16_t *)host)[i] = to_half(dtype, number_at(given, i));
    }
    DO(run, run->table->vector.copy(run->backend, memory, host, bytes, run->stream));
    DO(run, run->table->stream_sync(run->backend, run->stream));
    free(host);
    return memory;
}

static void *result(struct shape_run *run, int i, size_t bytes)
{
    run->results[i] = (struct result){ take(run, bytes), bytes };
    return run->results[i].memory;
}

/* Images of three channels are data: float32, plain, without a gradient. */
static void describe(struct shape_run *run)
{
    const struct shape *shape = &run->shape;
    const bool linear = shape->op == OP_LINEAR, data = !linear && shape->dims[1] == 3;
    struct tensor in = tensor_plain(data ? DTYPE_F32 : DTYPE_BF16, linear ? 2 : 4, shape->dims);
    if (!linear && !data)
        in.format = FORMAT_NHWC;
    run->spec = (struct op_spec){ .op = shape->op,
                                  .attr = shape->attr,
                                  .in = { in },
                                  .in_count = 1,
                                  .out_dtype = DTYPE_BF16,
                                  .math = MATH_BF16,
                                  .training = true,
                                  .need_din0 = !data,
                                  .pitched_out = linear };
    run->n = shape->dims[0];
    run->c = shape->dims[1];
    run->h = linear ? 1 : shape->dims[2];
    run->w = linear ? 1 : shape->dims[3];
    run->k = shape->attr.out;
    run->window = linear ? 1 : shape->attr.kernel;
    run->stride = linear ? 1 : shape->attr.stride;
    run->pad = linear ? 0 : shape->attr.pad;
    run->p = (run->h + 2 * run->pad - run->window) / run->stride + 1;
    run->q = (run->w + 2 * run->pad - run->window) / run->stride + 1;
}

struct shape_run *shape_open(const struct backend_table *table, struct backend *backend,
                             const struct shape *shape)
{
    struct shape_run *run = calloc(1, sizeof(*run));
    CHECK(run != NULL);
    run->shape = *shape;
    run->table = table;
    run->backend = backend;
    describe(run);
    DO(run, table->stream_new(backend, &run->stream));
    DO(run, table->op[shape->op].prepare(backend, &run->spec, &run->kernel, &run->info));
    const struct tensor *in = &run->spec.in[0], *out = &run->info.out;
    const int64_t weights = run->k * run->c * run->window * run->window;
    struct op_buffers *b = &run->buffers;
    b->in[0] = given(run, GIVEN_IN, in->dtype, tensor_elements(in));
    b->dout[0] = given(run, GIVEN_DOUT, out->dtype, (int64_t)(out->bytes / dtype_size(out->dtype)));
    b->param[0] = given(run, GIVEN_WEIGHTS, DTYPE_F32, weights);
    b->out = result(run, 0, out->bytes);
    b->dparam[0] = result(run, 1, (size_t)weights * sizeof(float));
    if (shape->attr.bias) {
        b->param[1] = given(run, GIVEN_BIAS, DTYPE_F32, run->k);
        b->dparam[1] = result(run, 2, (size_t)run->k * sizeof(float));
    }
    if (run->spec.need_din0)
        b->din[0] = result(run, 3, run->info.din[0].bytes);
    b->saved = take(run, run->info.saved_bytes);
    b->scratch = take(run, run->info.scratch_bytes);
    b->cache = take(run, run->info.cache_bytes);
    size_t most = 0;
    for (int i = 0; i < RESULTS; i++)
        most = run->results[i].bytes > most ? run->results[i].bytes : most;
    run->sums = take(run, (most / sizeof(float) / PIECE_ELEMENTS + 2) * sizeof(*run->sums));
    DO(run, table->refresh(backend, run->kernel, b->param, b->cache, run->stream));
    return run;
}

void shape_close(struct shape_run *run)
{
    struct op_buffers *b = &run->buffers;
    void *const all[] = { (void *)b->in[0],
                          (void *)b->dout[0],
                          (void *)b->param[0],
                          (void *)b->param[1],
                          b->saved,
                          b->scratch,
                          b->cache,
                          run->sums };
    DO(run, run->table->stream_sync(run->backend, run->stream));
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        run->table->free(run->backend, all[i]);
    for (int i = 0; i < RESULTS; i++)
        run->table->free(run->backend, run->results[i].memory);
    run->table->kernel_free(run->backend, run->kernel);
    run->table->stream_free(run->backend, run->stream);
    free(run);
}

static size_t words_of(const struct result *result)
{
    return (result->bytes + sizeof(float) - 1) / sizeof(float);
}

void shape_run_once(struct shape_run *run)
{
    const struct op_table *op = &run->table->op[run->shape.op];
    for (int i = 0; i < RESULTS; i++) {
        const struct result *result = &run->results[i];
        if (result->memory != NULL) {
            DO(run, run->table->vector.fill(run->backend, result->memory, NAN, words_of(result),
                                            run->stream));
        }
    }
    DO(run, op->forward(run->backend, run->kernel, &run->buffers, run->stream));
    DO(run, op->backward(run->backend, run->kernel, &run->buffers, run->stream));
}

uint64_t shape_checksum(struct shape_run *run)
{
    uint64_t hash = 0;
    for (int i = 0; i < RESULTS; i++) {
        const size_t words = words_of(&run->results[i]);
        const size_t pieces = (words + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
        uint64_t *host = malloc((pieces + 1) * sizeof(*host));
        CHECK(host != NULL);
        DO(run, run->table->vector.checksums(run->backend, run->sums, run->results[i].memory, words,
                                             run->stream));
        DO(run, run->table->vector.copy(run->backend, host, run->sums, pieces * sizeof(*host),
                                        run->stream));
        DO(run, run->table->stream_sync(run->backend, run->stream));
        for (size_t k = 0; k < pieces; k++)
            hash = (hash ^ host[k]) * 0x100000001b3u;
        free(host);
    }
    return hash;
}

/* ---- float64 ---- */

/* A sum of products, and of their magnitudes: rounding is measured by that. */
struct sum {
    double value, size;
};

static void add(struct sum *sum, double product)
{
    sum->value += product;
    sum->size += fabs(product);
}

static struct sum out_of(const struct shape_run *run, const int64_t at[4])
{
    struct sum sum = { 0 };
    if (run->shape.attr.bias)
        add(&sum, (double)number_at(GIVEN_BIAS, at[1]));
    for (int64_t c = 0; c < run->c; c++) {
        for (int r = 0; r < run->window; r++) {
            for (int s = 0; s < run->window; s++) {
                const int64_t in[4] = { at[0], c, at[2] * run->stride - run->pad + r,
                                        at[3] * run->stride - run->pad + s };
                add(&sum, in_at(run, in) *
                              (double)number_at(GIVEN_WEIGHTS, weight_place(run, at[1], c, r, s)));
            }
        }
    }
    return sum;
}

static struct sum weight_gradient_of(const struct shape_run *run, int64_t k, int64_t c, int r,
                                     int s)
{
    struct sum sum = { 0 };
    for (int64_t n = 0; n < run->n; n++) {
        for (int64_t p = 0; p < run->p; p++) {
            for (int64_t q = 0; q < run->q; q++) {
                const int64_t in[4] = { n, c, p * run->stride - run->pad + r,
                                        q * run->stride - run->pad + s };
                const int64_t out[4] = { n, k, p, q };
                add(&sum, in_at(run, in) * dout_at(run, out));
            }
        }
    }
    return sum;
}

static struct sum bias_gradient_of(const struct shape_run *run, int64_t k)
{
    struct sum sum = { 0 };
    for (int64_t n = 0; n < run->n; n++) {
        const int64_t out[4] = { n, k, 0, 0 };
        add(&sum, dout_at(run, out));
    }
    return sum;
}

static struct sum in_gradient_of(const struct shape_run *run, const int64_t at[4])
{
    struct sum sum = { 0 };
    for (int64_t k = 0; k < run->k; k++) {
        for (int r = 0; r < run->window; r++) {
            for (int s = 0; s < run->window; s++) {
                const int64_t h = at[2] + run->pad - r, w = at[3] + run->pad - s;
                const int64_t out[4] = { at[0], k, h / run->stride, w / run->stride };
                if (h < 0 || w < 0 || h % run->stride != 0 || w % run->stride != 0 ||
                    out[2] >= run->p || out[3] >= run->q)
                    continue;
                add(&sum, dout_at(run, out) *
                              (double)number_at(GIVEN_WEIGHTS, weight_place(run, k, at[1], r, s)));
            }
        }
    }
    return sum;
}

/* ---- comparing ---- */

static double fetch(struct shape_run *run, int i, enum dtype dtype, int64_t at)
{
    float value = 0;
    uint16_t half = 0;
    const size_t size = dtype_size(dtype);
    const char *from = (const char *)run->results[i].memory + (size_t)at * size;
    DO(run, run->table->vector.copy(run->backend, size == 2 ? (void *)&half : (void *)&value, from,
                                    size, run->stream));
    DO(run, run->table->stream_sync(run->backend, run->stream));
    return (double)(size == 2 ? from_half(dtype, half) : value);
}

/* A product, and no convolution of cuDNN's. */
static bool is_product(const struct shape_run *run)
{
    return run->window == 1 && run->stride == 1;
}

/* dtype: what it was rounded to. */
static void compare(const struct shape_run *run, const char *what, int64_t at, double got,
                    struct sum sum, enum dtype dtype)
{
    const double last = dtype == DTYPE_F32 ? 0x1p-23 : 0x1p-8;
    const double most = last * fabs(sum.value) + 1e-5 * sum.size;
    if (!(fabs(got - sum.value) <= most)) {
        fail_msg("%s: %s %lld: %.9g, by float64 %.9g (at most %.3g apart)", run->shape.name, what,
                 (long long)at, got, sum.value, most);
    }
}

static void split(int64_t place, const int64_t dims[4], int64_t at[4])
{
    for (int d = 3; d >= 0; d--) {
        at[d] = place % dims[d];
        place /= dims[d];
    }
}

static void compare_tensor(struct shape_run *run, int i, const char *what, const int64_t dims[4],
                           int64_t (*place_of)(const struct shape_run *run, const int64_t at[4]),
                           struct sum (*sum_of)(const struct shape_run *run, const int64_t at[4]))
{
    for (int s = 0; s < SAMPLES; s++) {
        int64_t at[4];
        split(sample_at(dims[0] * dims[1] * dims[2] * dims[3], s), dims, at);
        const int64_t there = place_of(run, at);
        compare(run, what, there, fetch(run, i, DTYPE_BF16, there), sum_of(run, at), DTYPE_BF16);
    }
}

void shape_compare(struct shape_run *run)
{
    const int64_t in[4] = { run->n, run->c, run->h, run->w };
    const int64_t out[4] = { run->n, run->k, run->p, run->q };
    compare_tensor(run, 0, "output", out, out_place, out_of);
    if (run->spec.need_din0)
        compare_tensor(run, 3, "gradient of the input", in, din_place, in_gradient_of);
    const int64_t weights[4] = { run->k, run->c, run->window, run->window };
    for (int s = 0; s < SAMPLES; s++) {
        int64_t at[4];
        split(sample_at(run->k * run->c * run->window * run->window, s), weights, at);
        const int64_t there = weight_place(run, at[0], at[1], (int)at[2], (int)at[3]);
        compare(run, "gradient of weight", there, fetch(run, 1, DTYPE_F32, there),
                weight_gradient_of(run, at[0], at[1], (int)at[2], (int)at[3]),
                is_product(run) ? DTYPE_F32 : DTYPE_BF16);
    }
    for (int s = 0; s < SAMPLES && run->shape.attr.bias; s++) {
        const int64_t k = sample_at(run->k, s);
        compare(run, "gradient of bias", k, fetch(run, 2, DTYPE_F32, k), bias_gradient_of(run, k),
                DTYPE_F32);
    }
}

void shape_is_pinned(const struct shape_run *run, const char *pins)
{
    char key[96];
    if (!is_product(run)) /* cuDNN's: the implementation's name says all */
        return;
    (void)snprintf(key, sizeof(key), "\"product %lld.%lld.%lld nt ",
                   (long long)(run->n * run->h * run->w), (long long)run->k, (long long)run->c);
    if (strstr(pins, key) == NULL)
        fail_msg("%s: %s…\" is no pin", run->shape.name, key);
}
