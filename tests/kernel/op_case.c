#include "tests/kernel/op_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "tests/kernel/reference.h"
#include "tests/test.h"

#define SAMPLES      12
#define STEP         1e-5
#define BUFFERS_MAX  64
#define CHANNELS_MAX 64

/* What one run of a kernel left. Plain copies of the results. */
struct result {
    float *out, *din[OP_IN_MAX], *dparam[OP_PARAM_MAX];
    float *stat_sum[OP_STAT_MAX];
};

struct bench {
    const struct backend_table *table;
    struct backend *backend;
    const struct op_case *c;
    struct op_spec spec;
    struct kernel_info info;
    struct kernel *kernel;
    struct tensor out;                                                        /* plain */
    float *in[OP_IN_MAX], *param[OP_PARAM_MAX], *stat[OP_STAT_MAX], *dout[2]; /* plain */
    int32_t *labels;
    int64_t param_count[OP_PARAM_MAX], stat_count;
    void *owned[BUFFERS_MAX];
    int owned_count;
};

static void *keep(struct bench *b, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(b->table->alloc(b->backend, bytes == 0 ? 1 : bytes, &memory), ST_OK);
    return memory;
}

static void *own(struct bench *b, size_t bytes)
{
    assert_true(b->owned_count < BUFFERS_MAX);
    b->owned[b->owned_count] = keep(b, bytes);
    return b->owned[b->owned_count++];
}

/* Every number is a function of (array, element), in about [-1, 1). */
static float *random_array(struct bench *b, uint32_t array, int64_t count)
{
    float *x = own(b, (size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        struct rng_counter w = rng_words(rng_key(5, RNG_SYNTHETIC), (uint32_t)i, array, 0, 0);
        x[i] = 2.0f * rng_uniform(w.word[0]) - 1.0f;
    }
    return x;
}

static void find_counts(struct bench *b)
{
    const struct op_attr *attr = &b->spec.attr;
    const int64_t *in = b->spec.in[0].dims;
    if (b->spec.op == OP_CONV2D)
        b->param_count[0] = attr->out * in[1] * attr->kernel * attr->kernel;
    if (b->spec.op == OP_LINEAR)
        b->param_count[0] = attr->out * in[1];
    if (attr->bias)
        b->param_count[1] = attr->out;
    if (b->spec.op == OP_BATCH_NORM)
        b->param_count[0] = b->param_count[1] = b->stat_count = in[1];
}

static void fill_inputs(struct bench *b)
{
    for (int i = 0; i < b->spec.in_count; i++)
        b->in[i] = random_array(b, (uint32_t)i, tensor_elements(&b->spec.in[i]));
    if (b->spec.op == OP_SOFTMAX_CROSS_ENTROPY) {
        b->labels = (int32_t *)(void *)b->in[1];
        for (int64_t r = 0; r < b->spec.in[0].dims[0]; r++)
            b->labels[r] = (int32_t)(r % (b->spec.in[0].dims[1] + 1)) - 1;
    }
    for (int i = 0; i < OP_PARAM_MAX; i++)
        if (b->param_count[i] > 0)
            b->param[i] = random_array(b, 10u + (uint32_t)i, b->param_count[i]);
    for (int i = 0; i < OP_STAT_MAX && b->stat_count > 0; i++)
        b->stat[i] = random_array(b, 20u + (uint32_t)i, b->stat_count);
    for (int64_t i = 0; i < b->stat_count; i++)
        b->stat[1][i] = 1.5f + b->stat[1][i]; /* a variance */
    for (int i = 0; i < 2; i++)
        b->dout[i] = random_array(b, 30u + (uint32_t)i, tensor_elements(&b->out));
}

static bool has_avx512(const struct bench *b)
{
    auto_buf struct buf pins;
    buf_init(&pins, 4096);
    assert_int_equal(b->table->pins(b->backend, &pins), ST_OK);
    return strstr(pins.data, "\"avx512_core") != NULL;
}

/* The backend's own format of these dims: that of a convolution's output. */
static struct tensor blocked_like(struct bench *b, const struct tensor *plain)
{
    const struct op_spec spec = { .op = OP_CONV2D,
                                  .in = { *plain },
                                  .in_count = 1,
                                  .attr = { .kernel = 1, .stride = 1, .out = plain->dims[1] } };
    struct kernel *kernel = NULL;
    struct kernel_info info;
    assert_int_equal(b->table->op[OP_CONV2D].prepare(b->backend, &spec, &kernel, &info), ST_OK);
    b->table->kernel_free(b->backend, kernel);
    assert_int_equal(info.out.format, FORMAT_BLOCKED);
    return info.out;
}

static void bench_open(struct bench *b, const struct backend_table *table, struct backend *backend,
                       const struct op_case *c)
{
    *b = (struct bench){ .table = table, .backend = backend, .c = c };
    b->spec = (struct op_spec){ .op = c->op,
                                .attr = c->attr,
                                .in_count = 1,
                                .training = !c->inference,
                                .need_din0 = !c->no_din };
    struct tensor in = tensor_plain(DTYPE_F32, c->ndim, c->dims);
    if (c->format == FORMAT_BLOCKED)
        in = blocked_like(b, &in);
    b->spec.in[0] = in;
    if (c->attr.residual) {
        b->spec.in[1] = in;
        b->spec.in_count = 2;
    }
    if (c->op == OP_SOFTMAX_CROSS_ENTROPY) {
        b->spec.in[1] = tensor_plain(DTYPE_I32, 1, c->dims);
        b->spec.in_count = 2;
    }
    b->out = reference_out(&b->spec);
    find_counts(b);
    fill_inputs(b);
    assert_int_equal(table->op[c->op].prepare(backend, &b->spec, &b->kernel, &b->info), ST_OK);
    assert_int_equal(tensor_elements(&b->info.out), tensor_elements(&b->out));
    assert_non_null(b->info.implementation);
    if (c->wants != NULL && has_avx512(b))
        assert_non_null(strstr(b->info.implementation, c->wants));
}

static void bench_close(struct bench *b)
{
    b->table->kernel_free(b->backend, b->kernel);
    for (int i = 0; i < b->owned_count; i++)
        b->table->free(b->backend, b->owned[i]);
}

/* From plain to the kernel's format, and back with the padding checked. */
static void *to_format(struct bench *b, const struct tensor *as, const float *plain)
{
    struct tensor from = tensor_plain(DTYPE_F32, as->ndim, as->dims);
    void *memory = own(b, as->bytes);
    assert_int_equal(b->table->reformat(b->backend, &from, plain, as, memory, NULL), ST_OK);
    return memory;
}

static float *to_plain(struct bench *b, const struct tensor *as, const float *from)
{
    struct tensor to = tensor_plain(DTYPE_F32, as->ndim, as->dims);
    float *plain = own(b, to.bytes);
    assert_int_equal(b->table->reformat(b->backend, as, from, &to, plain, NULL), ST_OK);
    double all = 0.0, real = 0.0;
    for (size_t i = 0; i < as->bytes / sizeof(float); i++)
        all += fabs((double)from[i]);
    for (size_t i = 0; i < to.bytes / sizeof(float); i++)
        real += fabs((double)plain[i]);
    assert_true(fabs(all - real) <= 1e-9 * all); /* padding adds nothing */
    return plain;
}

static void poison(void *memory, size_t bytes)
{
    memset(memory, 0xff, bytes); /* NaN in every float */
}

static void *poisoned(struct bench *b, size_t bytes)
{
    void *memory = own(b, bytes);
    poison(memory, bytes);
    return memory;
}

static void set_inputs(struct bench *b, struct op_buffers *buffers, bool two)
{
    for (int i = 0; i < b->spec.in_count; i++)
        buffers->in[i] = b->spec.in[i].dtype == DTYPE_F32 && b->spec.in[i].ndim == 4
                             ? to_format(b, &b->spec.in[i], b->in[i])
                             : (const void *)b->in[i];
    for (int i = 0; i < OP_PARAM_MAX; i++)
        buffers->param[i] = b->param[i];
    for (int i = 0; i < OP_STAT_MAX; i++)
        buffers->stat[i] = b->stat[i];
    for (int i = 0; i < (two ? 2 : 1); i++)
        buffers->dout[i] =
            b->out.ndim == 4 ? to_format(b, &b->info.out, b->dout[i]) : (void *)b->dout[i];
}

/* Parameter gradients and statistics start at 0.5 when they are added to. */
static float *gradient_start(struct bench *b, int64_t count, bool accumulate)
{
    float *x = poisoned(b, (size_t)count * sizeof(float));
    for (int64_t i = 0; accumulate && i < count; i++)
        x[i] = 0.5f;
    return x;
}

static void set_outputs(struct bench *b, struct op_buffers *buffers, struct result *result,
                        bool accumulate)
{
    buffers->out = poisoned(b, b->info.out.bytes);
    buffers->saved = b->info.saved_bytes > 0 ? poisoned(b, b->info.saved_bytes) : NULL;
    buffers->scratch = b->info.scratch_bytes > 0 ? poisoned(b, b->info.scratch_bytes) : NULL;
    buffers->cache = b->info.cache_bytes > 0 ? poisoned(b, b->info.cache_bytes) : NULL;
    buffers->accumulate_stats = accumulate;
    for (int i = 0; i < OP_PARAM_MAX; i++) {
        buffers->accumulate[i] = accumulate;
        if (b->param_count[i] > 0)
            buffers->dparam[i] = result->dparam[i] =
                gradient_start(b, b->param_count[i], accumulate);
    }
    for (int i = 0; i < OP_STAT_MAX && b->stat_count > 0; i++)
        buffers->stat_sum[i] = result->stat_sum[i] = gradient_start(b, b->stat_count, accumulate);
}

static struct result run(struct bench *b, bool two, bool accumulate)
{
    const struct op_table *op = &b->table->op[b->spec.op];
    struct op_buffers buffers = { 0 };
    struct result result = { 0 };
    set_inputs(b, &buffers, two);
    set_outputs(b, &buffers, &result, accumulate);
    const float *const param[OP_PARAM_MAX] = { b->param[0], b->param[1] };
    assert_int_equal(b->table->refresh(b->backend, b->kernel, param, buffers.cache, NULL), ST_OK);
    assert_int_equal(op->forward(b->backend, b->kernel, &buffers, NULL), ST_OK);
    result.out = b->out.ndim == 4 ? to_plain(b, &b->info.out, buffers.out) : buffers.out;
    if (b->c->inference)
        return result;
    if (b->info.scratch_bytes > 0)
        poison(buffers.scratch, b->info.scratch_bytes);
    for (int i = 0; i < b->spec.in_count; i++)
        if (b->spec.in[i].dtype == DTYPE_F32 && (i > 0 || b->spec.need_din0))
            buffers.din[i] = poisoned(b, b->info.din[i].bytes);
    assert_int_equal(op->backward(b->backend, b->kernel, &buffers, NULL), ST_OK);
    for (int i = 0; i < OP_IN_MAX; i++)
        if (buffers.din[i] != NULL)
            result.din[i] = b->info.din[i].ndim == 4 ? to_plain(b, &b->info.din[i], buffers.din[i])
                                                     : buffers.din[i];
    return result;
}

/* --- the reference ------------------------------------------------------------------------- */

struct gradient {
    struct reference ref;
    double *weight, *out; /* of each output element in the scalar that is differentiated */
    int64_t out_count;
};

static double *widened(const float *x, int64_t count)
{
    double *wide = calloc((size_t)count + 1, sizeof(*wide));
    assert_non_null(wide);
    for (int64_t i = 0; x != NULL && i < count; i++)
        wide[i] = (double)x[i];
    return wide;
}

static void gradient_open(struct gradient *g, const struct bench *b, bool two)
{
    *g = (struct gradient){ .ref = { .spec = b->spec, .labels = b->labels } };
    g->out_count = tensor_elements(&b->out);
    for (int i = 0; i < OP_IN_MAX; i++)
        g->ref.in[i] = i < b->spec.in_count && b->spec.in[i].dtype == DTYPE_F32
                           ? widened(b->in[i], tensor_elements(&b->spec.in[i]))
                           : NULL;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        g->ref.param[i] = widened(b->param[i], b->param_count[i]);
    for (int i = 0; i < OP_STAT_MAX; i++)
        g->ref.stat[i] = widened(b->stat[i], b->stat_count);
    g->weight = widened(b->dout[0], g->out_count);
    for (int64_t i = 0; i < g->out_count; i++) {
        if (two)
            g->weight[i] += (double)b->dout[1][i];
        if (b->spec.op == OP_SOFTMAX_CROSS_ENTROPY)
            g->weight[i] = i == 0 ? 1.0 : 0.0;
    }
    g->out = widened(NULL, g->out_count);
}

static void gradient_close(struct gradient *g)
{
    for (int i = 0; i < 2; i++) {
        free(g->ref.in[i]);
        free(g->ref.param[i]);
        free(g->ref.stat[i]);
    }
    free(g->weight);
    free(g->out);
}

static double scalar(struct gradient *g)
{
    double sum = 0.0;
    reference_forward(&g->ref, g->out);
    for (int64_t i = 0; i < g->out_count; i++)
        sum += g->weight[i] * g->out[i];
    return sum;
}

static double derivative(struct gradient *g, double *at)
{
    const double x = *at;
    *at = x + STEP;
    const double above = scalar(g);
    *at = x - STEP;
    const double below = scalar(g);
    *at = x;
    return (above - below) / (2.0 * STEP);
}

/* Compares with the derivatives at up to SAMPLES places. `start`: what was there before. */
static void compare_gradient(struct gradient *g, const struct bench *b, const char *what,
                             double *variable, int64_t count, const float *found, double start)
{
    const double tolerance = b->c->tolerance > 0.0 ? b->c->tolerance : 2e-5;
    const int64_t samples = count < SAMPLES ? count : SAMPLES;
    double most = 1e-3;
    for (int64_t i = 0; i < count; i++) {
        assert_true(isfinite(found[i]));
        most = fmax(most, fabs((double)found[i] - start));
    }
    for (int64_t s = 0; s < samples; s++) {
        const int64_t i = samples == count ? s : s * (count - 1) / (samples - 1);
        const double wanted = start + derivative(g, &variable[i]);
        if (fabs(wanted - (double)found[i]) > tolerance * most)
            fail_msg("%s: %s[%lld] is %.9g, should be %.9g", b->c->name, what, (long long)i,
                     (double)found[i], wanted);
    }
}

static void compare_values(const struct bench *b, const char *what, const double *wanted,
                           const float *found, int64_t count, double start)
{
    const double tolerance = b->c->tolerance > 0.0 ? b->c->tolerance : 2e-5;
    double most = 1e-3;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs(wanted[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(wanted[i] + start - (double)found[i]) <= tolerance * most))
            fail_msg("%s: %s[%lld] is %.9g, should be %.9g", b->c->name, what, (long long)i,
                     (double)found[i], wanted[i] + start);
}

static void compare(struct bench *b, const struct result *result, bool two, bool accumulate)
{
    const double start = accumulate ? 0.5 : 0.0;
    struct gradient g;
    gradient_open(&g, b, two);
    reference_forward(&g.ref, g.out);
    compare_values(b, "out", g.out, result->out, g.out_count, 0.0);
    for (int i = 0; i < OP_IN_MAX; i++)
        if (result->din[i] != NULL)
            compare_gradient(&g, b, i == 0 ? "din0" : "din1", g.ref.in[i],
                             tensor_elements(&b->spec.in[i]), result->din[i], 0.0);
    for (int i = 0; i < OP_PARAM_MAX && !b->c->inference; i++)
        if (result->dparam[i] != NULL)
            compare_gradient(&g, b, i == 0 ? "dparam0" : "dparam1", g.ref.param[i],
                             b->param_count[i], result->dparam[i], start);
    if (b->stat_count > 0 && !b->c->inference) {
        double mean[CHANNELS_MAX], variance[CHANNELS_MAX];
        assert_true(b->stat_count <= CHANNELS_MAX);
        reference_statistics(&g.ref, mean, variance);
        compare_values(b, "mean", mean, result->stat_sum[0], b->stat_count, start);
        compare_values(b, "variance", variance, result->stat_sum[1], b->stat_count, start);
    }
    gradient_close(&g);
}

static void same_bits(const float *x, const float *y, int64_t count)
{
    if (x != NULL)
        assert_memory_equal(x, y, (size_t)count * sizeof(float));
}

static void compare_bits(const struct bench *b, const struct result *x, const struct result *y)
{
    same_bits(x->out, y->out, tensor_elements(&b->out));
    for (int i = 0; i < b->spec.in_count; i++)
        same_bits(x->din[i], y->din[i], tensor_elements(&b->spec.in[i]));
    for (int i = 0; i < OP_PARAM_MAX && !b->c->inference; i++)
        same_bits(x->dparam[i], y->dparam[i], b->param_count[i]);
}

void op_case_check(const struct backend_table *table, struct backend *backend,
                   const struct op_case *c)
{
    for (int variant = 0; variant < 4; variant++) {
        const bool two = (variant & 1) != 0, accumulate = (variant & 2) != 0;
        struct bench b;
        bench_open(&b, table, backend, c);
        if (!two || b.info.sums_douts) {
            struct result first = run(&b, two, accumulate);
            compare(&b, &first, two, accumulate);
        }
        bench_close(&b);
    }
    struct bench b;
    bench_open(&b, table, backend, c);
    struct result first = run(&b, false, false), second = run(&b, false, false);
    compare_bits(&b, &first, &second);
    bench_close(&b);
}
