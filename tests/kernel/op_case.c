#include "tests/kernel/op_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "tests/kernel/halves.h"
#include "tests/kernel/reference.h"
#include "tests/test.h"

#define SAMPLES      12
#define STEP         1e-5
#define BUFFERS_MAX  96
#define CHANNELS_MAX 64
#define SAMPLES_MAX  64
#define LOSS_SCALE   8.0f

/* What is different in one run. */
struct variant {
    bool two;        /* gradients of the output */
    bool accumulate; /* parameter gradients and statistics */
    bool add;        /* a gradient to din[i] … */
    bool add_inside; /* … that is there */
    bool overwrite;  /* din[i] over in[i] */
    bool scaled;     /* the loss */
    bool halves;     /* din and dparam by a call each */
};

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
    float *add[OP_IN_MAX]; /* a gradient of in[i], plain */
    int32_t *labels;       /* or tokens */
    uint32_t draw[OP_DRAW_SAMPLES + SAMPLES_MAX];
    float loss_scale;
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

/* Every number is a function of (array, element), in about [-1, 1); of a half it is one. */
static float *random_array(struct bench *b, uint32_t array, int64_t count, enum dtype dtype)
{
    float *x = own(b, (size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        struct rng_counter w = rng_words(rng_key(5, RNG_SYNTHETIC), (uint32_t)i, array, 0, 0);
        x[i] = 2.0f * rng_uniform(w.word[0]) - 1.0f;
        if (is_half(dtype))
            x[i] = from_half(dtype, to_half(dtype, x[i]));
    }
    return x;
}

/* Tokens, or labels of which some do not count. Of padded samples each has fewer, down to none. */
static void fill_labels(struct bench *b)
{
    const int64_t samples = b->spec.in[0].dims[0], t = b->spec.in[0].dims[1];
    for (int64_t i = 0; b->c->padded && i < samples * t; i++) {
        const int64_t left = samples - 1 - i / t;
        b->labels = (int32_t *)(void *)b->in[1];
        b->labels[i] = i % t < t * left / samples + left ? (int32_t)(i * 5 % 4) : 0;
    }
    if (b->c->padded)
        return;
    const bool loss = b->spec.op == OP_SOFTMAX_CROSS_ENTROPY;
    const struct tensor *in = &b->spec.in[loss ? 1 : 0];
    const int64_t classes =
        loss ? b->spec.in[0].dims[b->spec.in[0].ndim - 1] + 1 : b->spec.attr.rows;
    b->labels = (int32_t *)(void *)b->in[loss ? 1 : 0];
    for (int64_t r = 0; r < tensor_elements(in); r++)
        b->labels[r] = (int32_t)(r * 7 % classes) - (loss ? 1 : 0);
}

static void fill_inputs(struct bench *b)
{
    const int64_t samples = b->spec.in[0].dims[0];
    for (int i = 0; i < b->spec.in_count; i++) {
        const struct tensor *in = &b->spec.in[i];
        b->in[i] = random_array(b, (uint32_t)i, tensor_elements(in), in->dtype);
        b->add[i] = random_array(b, 40u + (uint32_t)i, tensor_elements(in), in->dtype);
    }
    if (b->spec.op == OP_SOFTMAX_CROSS_ENTROPY || b->spec.op == OP_EMBEDDING || b->c->padded)
        fill_labels(b);
    for (int i = 0; i < OP_PARAM_MAX; i++)
        if (b->param_count[i] > 0)
            b->param[i] = random_array(b, 10u + (uint32_t)i, b->param_count[i], DTYPE_F32);
    for (int i = 0; i < OP_STAT_MAX && b->stat_count > 0; i++)
        b->stat[i] = random_array(b, 20u + (uint32_t)i, b->stat_count, DTYPE_F32);
    for (int64_t i = 0; i < b->stat_count; i++)
        b->stat[1][i] = 1.5f + b->stat[1][i]; /* a variance */
    for (int i = 0; i < 2; i++)
        b->dout[i] =
            random_array(b, 30u + (uint32_t)i, tensor_elements(&b->out), b->spec.out_dtype);
    assert_true(b->spec.op != OP_DROPOUT || samples <= SAMPLES_MAX);
    b->draw[OP_DRAW_KEY] = 0x1234567u;
    b->draw[OP_DRAW_KEY + 1] = 0x89abcdefu;
    b->draw[OP_DRAW_STEP] = 77;
    for (int64_t i = 0; i < samples && i < SAMPLES_MAX; i++)
        b->draw[OP_DRAW_SAMPLES + i] = (uint32_t)(1000 - 3 * i);
    b->loss_scale = LOSS_SCALE;
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
                                .out_dtype = c->out_dtype,
                                .math = c->math,
                                .training = !c->inference,
                                .need_din0 = !c->no_din,
                                .dying_in0 = c->dying,
                                .pitched_out = c->pitched };
    struct tensor in = tensor_plain(c->dtype, c->ndim, c->dims);
    if (c->format == FORMAT_BLOCKED)
        in = blocked_like(b, &in);
    else if (c->format == FORMAT_PITCHED)
        in = tensor_pitched(c->dtype, c->ndim, c->dims);
    in.format = c->format;
    b->spec.in[0] = in;
    if (c->op == OP_EMBEDDING)
        b->spec.in[0] = tensor_plain(DTYPE_I32, c->ndim, c->dims);
    if (c->attr.residual) {
        b->spec.in[1] = in;
        if (c->op == OP_LINEAR || c->op == OP_DROPOUT || c->op == OP_EMBEDDING) {
            const struct tensor out = reference_out(&b->spec);
            b->spec.in[1] = tensor_plain(c->out_dtype, out.ndim, out.dims);
        }
        b->spec.in_count = 2;
    }
    if (c->op == OP_SOFTMAX_CROSS_ENTROPY || c->padded) {
        b->spec.in[1] = tensor_plain(DTYPE_I32, c->ndim - 1, c->dims);
        b->spec.in_count = 2;
    }
    b->out = reference_out(&b->spec);
    reference_params(&b->spec, b->param_count);
    b->stat_count = c->op == OP_BATCH_NORM ? c->dims[1] : 0;
    fill_inputs(b);
    assert_int_equal(table->op[c->op].prepare(backend, &b->spec, &b->kernel, &b->info), ST_OK);
    assert_int_equal(tensor_elements(&b->info.out), tensor_elements(&b->out));
    assert_int_equal(b->info.out.format == FORMAT_PITCHED, c->pitched);
    assert_non_null(b->info.implementation);
    if (c->wants != NULL && has_avx512(b))
        assert_non_null(strstr(b->info.implementation, c->wants));
    /* oneDNN's reference takes a thousand times as long as any other convolution, which a few
     * hundred products may. (With AVX-512 not looked at.) */
    if (c->op == OP_CONV2D && b->info.flops_forward > 1000 && !has_avx512(b))
        assert_null(strstr(b->info.implementation, "ref:"));
}

static void bench_close(struct bench *b)
{
    b->table->kernel_free(b->backend, b->kernel);
    for (int i = 0; i < b->owned_count; i++)
        b->table->free(b->backend, b->owned[i]);
}

/* NaN in every float. */
static void poison(void *memory, size_t bytes)
{
    memset(memory, 0xff, bytes);
}

static bool is_in_rows(const struct tensor *as)
{
    return as->format == FORMAT_PLAIN || as->format == FORMAT_PITCHED;
}

/* Where its element i lies. */
static int64_t place_of(const struct tensor *as, int64_t i)
{
    const int64_t columns = as->dims[as->ndim - 1];
    return i / columns * tensor_pitch(as) + i % columns;
}

/* From plain float32 to the kernel's format and dtype. Between rows lie NaN, or a gradient's 0. */
static void *to_format(struct bench *b, const struct tensor *as, const float *plain, bool gradient)
{
    struct tensor from = tensor_plain(DTYPE_F32, as->ndim, as->dims);
    void *memory = own(b, as->bytes);
    memset(memory, gradient ? 0 : 0xff, as->bytes);
    if (!is_in_rows(as))
        assert_int_equal(b->table->reformat(b->backend, &from, plain, as, memory, NULL), ST_OK);
    for (int64_t i = 0; is_in_rows(as) && i < tensor_elements(as); i++)
        store_float(as->dtype, memory, place_of(as, i), plain[i]); /* or labels */
    return memory;
}

static double size_of_all(const void *x, size_t bytes, enum dtype dtype)
{
    double all = 0.0;
    for (size_t i = 0; i < bytes / dtype_size(dtype); i++)
        all += fabs((double)load_as_float(dtype, x, (int64_t)i));
    return all;
}

static float *to_plain(struct bench *b, const struct tensor *as, const void *from, bool gradient)
{
    struct tensor to = tensor_plain(DTYPE_F32, as->ndim, as->dims);
    float *plain = own(b, to.bytes);
    for (int64_t i = 0; is_in_rows(as) && i < tensor_elements(as); i++)
        plain[i] = load_as_float(as->dtype, from, place_of(as, i));
    if (!is_in_rows(as))
        assert_int_equal(b->table->reformat(b->backend, as, from, &to, plain, NULL), ST_OK);
    else if (!gradient)
        return plain;
    const double all = size_of_all(from, as->bytes, as->dtype);
    const double real = size_of_all(plain, to.bytes, DTYPE_F32);
    assert_true(fabs(all - real) <= 1e-9 * all); /* padding adds nothing */
    return plain;
}

static void *poisoned(struct bench *b, size_t bytes)
{
    return memset(own(b, bytes), 0xff, bytes);
}

static void set_inputs(struct bench *b, struct op_buffers *buffers, bool two)
{
    for (int i = 0; i < b->spec.in_count; i++)
        buffers->in[i] = to_format(b, &b->spec.in[i], b->in[i], false);
    for (int i = 0; i < OP_PARAM_MAX; i++)
        buffers->param[i] = b->param[i];
    for (int i = 0; i < OP_STAT_MAX; i++)
        buffers->stat[i] = b->stat[i];
    for (int i = 0; i < (two ? 2 : 1); i++)
        buffers->dout[i] = to_format(b, &b->info.out, b->dout[i], true);
    buffers->draw = b->draw;
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

static bool is_differentiable(const struct bench *b, int i)
{
    return b->spec.in[i].dtype != DTYPE_I32 && (i > 0 || b->spec.need_din0);
}

/* Where the gradients of the inputs go, and what is added to them. */
static void set_gradients(struct bench *b, struct op_buffers *buffers, const struct variant *v)
{
    for (int i = 0; i < b->spec.in_count; i++) {
        if (!is_differentiable(b, i))
            continue;
        if (b->info.din_aliases_dout[i] && b->info.din_alias[i] < 0) {
            buffers->din[i] = (void *)buffers->dout[0];
            continue;
        }
        const bool overwrites = v->overwrite && b->info.din_overwrites_in[i];
        buffers->din[i] = overwrites ? (void *)buffers->in[i] : poisoned(b, b->info.din[i].bytes);
        if (!v->add || !b->info.din_adds[i])
            continue;
        buffers->din_add[i] = to_format(b, &b->info.din[i], b->add[i], true);
        if (v->add_inside)
            buffers->din[i] = (void *)buffers->din_add[i];
    }
    if (v->scaled)
        buffers->loss_scale = &b->loss_scale;
}

/* halves: what isn't wanted is NULL, once all of dparam, then all of din. */
static void backward(const struct bench *b, const struct op_buffers *buffers, bool halves)
{
    const struct op_table *op = &b->table->op[b->spec.op];
    struct op_buffers inputs = *buffers, params = *buffers;
    if (!halves) {
        assert_int_equal(op->backward(b->backend, b->kernel, buffers, NULL), ST_OK);
        return;
    }
    memset(inputs.dparam, 0, sizeof(inputs.dparam));
    memset(params.din, 0, sizeof(params.din));
    memset(params.din_add, 0, sizeof(params.din_add));
    if (buffers->din[0] != NULL || buffers->din[1] != NULL)
        assert_int_equal(op->backward(b->backend, b->kernel, &inputs, NULL), ST_OK);
    if (b->info.scratch_bytes > 0)
        poison(buffers->scratch, b->info.scratch_bytes);
    if (buffers->dparam[0] != NULL)
        assert_int_equal(op->backward(b->backend, b->kernel, &params, NULL), ST_OK);
}

static struct result run(struct bench *b, const struct variant *v)
{
    const struct op_table *op = &b->table->op[b->spec.op];
    struct op_buffers buffers = { 0 };
    struct result result = { 0 };
    set_inputs(b, &buffers, v->two);
    set_outputs(b, &buffers, &result, v->accumulate);
    const float *const param[OP_PARAM_MAX] = { b->param[0], b->param[1] };
    assert_int_equal(b->table->refresh(b->backend, b->kernel, param, buffers.cache, NULL), ST_OK);
    if (!b->c->inference)
        set_gradients(b, &buffers, v); /* which only the loss's forward looks at */
    assert_int_equal(op->forward(b->backend, b->kernel, &buffers, NULL), ST_OK);
    result.out = to_plain(b, &b->info.out, buffers.out, false);
    if (b->c->inference)
        return result;
    if (b->info.scratch_bytes > 0)
        poison(buffers.scratch, b->info.scratch_bytes);
    backward(b, &buffers, v->halves);
    for (int i = 0; i < OP_IN_MAX; i++)
        if (buffers.din[i] != NULL)
            result.din[i] = to_plain(b, &b->info.din[i], buffers.din[i], true);
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

static void gradient_open(struct gradient *g, const struct bench *b, const struct variant *v)
{
    *g = (struct gradient){ .ref = { .spec = b->spec, .labels = b->labels, .draw = b->draw } };
    g->out_count = tensor_elements(&b->out);
    for (int i = 0; i < OP_IN_MAX; i++)
        g->ref.in[i] = i < b->spec.in_count && b->spec.in[i].dtype != DTYPE_I32
                           ? widened(b->in[i], tensor_elements(&b->spec.in[i]))
                           : NULL;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        g->ref.param[i] = widened(b->param[i], b->param_count[i]);
    for (int i = 0; i < OP_STAT_MAX; i++)
        g->ref.stat[i] = widened(b->stat[i], b->stat_count);
    g->weight = widened(b->dout[0], g->out_count);
    for (int64_t i = 0; i < g->out_count; i++) {
        if (v->two)
            g->weight[i] += (double)b->dout[1][i];
        if (b->spec.op == OP_SOFTMAX_CROSS_ENTROPY)
            g->weight[i] = i > 0 ? 0.0 : v->scaled ? (double)b->loss_scale : 1.0;
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

static double tolerance_of(const struct bench *b)
{
    const bool half =
        b->c->dtype == DTYPE_BF16 || b->c->out_dtype == DTYPE_BF16 || b->c->math == MATH_BF16;
    const bool finer =
        b->c->dtype == DTYPE_F16 || b->c->out_dtype == DTYPE_F16 || b->c->math == MATH_F16;
    if (finer && b->c->tolerance <= 0.0)
        return 2e-3;
    return b->c->tolerance > 0.0 ? b->c->tolerance : half ? 1.5e-2 : 2e-5;
}

/* Where a gradient was found, and what it was added to: `plus` of each, or `start`. */
struct found {
    const char *what;
    const float *values, *plus;
    double start;
};

/* Compares with the derivatives at up to SAMPLES places. */
static void compare_gradient(struct gradient *g, const struct bench *b, double *variable,
                             int64_t count, const struct found *f)
{
    const double tolerance = tolerance_of(b);
    const int64_t samples = count < SAMPLES ? count : SAMPLES;
    double most = 1e-3;
    for (int64_t i = 0; i < count; i++) {
        assert_true(isfinite(f->values[i]));
        most = fmax(most, fabs((double)f->values[i] - f->start));
    }
    for (int64_t s = 0; s < samples; s++) {
        const int64_t i = samples == count ? s : s * (count - 1) / (samples - 1);
        const double wanted =
            f->start + (f->plus != NULL ? (double)f->plus[i] : 0.0) + derivative(g, &variable[i]);
        if (fabs(wanted - (double)f->values[i]) > tolerance * most)
            fail_msg("%s: %s[%lld] is %.9g, should be %.9g", b->c->name, f->what, (long long)i,
                     (double)f->values[i], wanted);
    }
}

static void compare_values(const struct bench *b, const char *what, const double *wanted,
                           const float *found, int64_t count, double start)
{
    const double tolerance = tolerance_of(b);
    double most = 1e-3;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs(wanted[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(wanted[i] + start - (double)found[i]) <= tolerance * most))
            fail_msg("%s: %s[%lld] is %.9g, should be %.9g", b->c->name, what, (long long)i,
                     (double)found[i], wanted[i] + start);
}

static void compare(struct bench *b, const struct result *result, const struct variant *v)
{
    const double start = v->accumulate ? 0.5 : 0.0;
    struct gradient g;
    gradient_open(&g, b, v);
    reference_forward(&g.ref, g.out);
    compare_values(b, "out", g.out, result->out, g.out_count, 0.0);
    for (int i = 0; i < OP_IN_MAX; i++) {
        const struct found f = { .what = i == 0 ? "din0" : "din1",
                                 .values = result->din[i],
                                 .plus = v->add && b->info.din_adds[i] ? b->add[i] : NULL };
        if (result->din[i] != NULL)
            compare_gradient(&g, b, g.ref.in[i], tensor_elements(&b->spec.in[i]), &f);
    }
    for (int i = 0; i < OP_PARAM_MAX && !b->c->inference; i++) {
        const struct found f = { .what = i == 0 ? "dparam0" : "dparam1",
                                 .values = result->dparam[i],
                                 .start = start };
        if (result->dparam[i] != NULL)
            compare_gradient(&g, b, g.ref.param[i], b->param_count[i], &f);
    }
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

static void check_variant(const struct backend_table *table, struct backend *backend,
                          const struct op_case *c, const struct variant *v)
{
    struct bench b;
    bench_open(&b, table, backend, c);
    bool adds = false;
    for (int i = 0; i < OP_IN_MAX; i++)
        adds = adds || b.info.din_adds[i];
    if ((!v->two || b.info.sums_douts) && (!v->add || adds) &&
        (!v->scaled || c->op == OP_SOFTMAX_CROSS_ENTROPY)) {
        struct variant halves = *v;
        halves.halves = true;
        struct result result = run(&b, v), again = run(&b, &halves);
        compare(&b, &result, v);
        compare_bits(&b, &result, &again);
    }
    bench_close(&b);
}

void op_case_check(const struct backend_table *table, struct backend *backend,
                   const struct op_case *c)
{
    static const struct variant variants[] = {
        { 0 },
        { .two = true },
        { .accumulate = true },
        { .two = true, .accumulate = true },
        { .add = true },
        { .add = true, .add_inside = true },
        { .scaled = true },
    };
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
        check_variant(table, backend, c, &variants[i]);
    struct bench b;
    bench_open(&b, table, backend, c);
    const struct variant plain = { 0 }, overwrite = { .overwrite = true };
    struct result first = run(&b, &plain), second = run(&b, &overwrite);
    compare_bits(&b, &first, &second);
    bench_close(&b);
}
