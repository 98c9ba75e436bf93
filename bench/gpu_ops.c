#include "bench/gpu_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/gpu_check.h"
#include "common/clock.h"
#include "tests/kernel/numbers.h"

#define WARM_UP 5
#define SAMPLES 24 /* elements of a result that are looked at */

/* The seed of the numbers that each buffer was filled with. */
enum seed { SEED_IN, SEED_PARAM, SEED_PARAM_2, SEED_DOUT };

struct ops {
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
    struct gpu_check check;
    bool small;
    int repeats;
    struct rows *rows;
};

static void must(enum status st, const char *what)
{
    if (st == ST_OK)
        return;
    (void)fprintf(stderr, "gpu: %s: %s\n", what, status_string(st));
    exit(1);
}

/* Zeroed memory of the device; NULL for none. */
static void *take(const struct ops *ops, size_t bytes)
{
    void *memory = NULL;
    if (bytes > 0)
        must(ops->table->alloc(ops->backend, bytes, &memory), "memory");
    return memory;
}

static void drop(const struct ops *ops, void *memory)
{
    if (memory != NULL)
        ops->table->free(ops->backend, memory);
}

/* Seconds of one call of many, after some. */
static double time_of(const struct ops *ops, enum status (*call)(void *arg), void *arg)
{
    int64_t start = 0;
    for (int i = -WARM_UP; i < ops->repeats; i++) {
        if (i == 0) {
            must(ops->table->stream_sync(ops->backend, ops->stream), "wait");
            start = clock_mono_ns();
        }
        must(call(arg), "kernel");
    }
    must(ops->table->stream_sync(ops->backend, ops->stream), "wait");
    return 1e-9 * (double)(clock_mono_ns() - start) / ops->repeats;
}

/* ---- flat loops ---- */

struct flat {
    const struct ops *ops;
    float *a, *b, *c, *d;
    size_t count;
};

static enum status copy_once(void *arg)
{
    const struct flat *f = arg;
    return f->ops->table->vector.copy(f->ops->backend, f->a, f->b, f->count * sizeof(float),
                                      f->ops->stream);
}

static const struct adamw_args adamw_args = { .lr = 1e-4f,
                                              .beta1 = 0.9f,
                                              .beta2 = 0.999f,
                                              .eps = 1e-8f,
                                              .weight_decay = 0.01f,
                                              .grad_scale = 1,
                                              .t = 1 };

static enum status adamw_once(void *arg)
{
    const struct flat *f = arg;
    return f->ops->table->vector.adamw(f->ops->backend, f->a, f->b, f->c, f->d, f->count,
                                       &adamw_args, f->ops->stream);
}

/* Moments from zero, as many updates as were timed, each as the first one. */
static double adamw_of(const struct ops *ops, int64_t i)
{
    const struct adamw_args *a = &adamw_args;
    const double lr = (double)a->lr, beta1 = (double)a->beta1, beta2 = (double)a->beta2;
    const double grad = (double)number_at(SEED_DOUT, i);
    double param = (double)number_at(SEED_PARAM, i), m = 0, v = 0;
    for (int update = 0; update < WARM_UP + ops->repeats; update++) {
        param *= 1 - lr * (double)a->weight_decay;
        m = beta1 * m + (1 - beta1) * grad;
        v = beta2 * v + (1 - beta2) * grad * grad;
        param -= lr * m / (1 - beta1) / (sqrt(v / (1 - beta2)) + (double)a->eps);
    }
    return param;
}

static void run_flat(const struct ops *ops)
{
    struct flat f = { .ops = ops, .count = ops->small ? 1u << 16 : 124u * 1000 * 1000 };
    const size_t size = f.count * sizeof(float);
    f.a = take(ops, size);
    f.b = take(ops, size);
    f.c = take(ops, size);
    f.d = take(ops, size);
    gpu_fill(&ops->check, f.b, (int64_t)f.count, DTYPE_F32, SEED_IN);
    rows_add(ops->rows, "copy", 2 * (double)size / time_of(ops, copy_once, &f) / 1e9, "GB/s");
    for (int i = 0; i < SAMPLES; i++) {
        const int64_t at = sample_at((int64_t)f.count, i);
        gpu_expect(&ops->check, "copy", f.a, DTYPE_F32, at, (double)number_at(SEED_IN, at), 0);
    }
    gpu_fill(&ops->check, f.a, (int64_t)f.count, DTYPE_F32, SEED_PARAM);
    must(ops->table->vector.fill(ops->backend, f.b, 0, f.count, ops->stream), "fill");
    gpu_fill(&ops->check, f.d, (int64_t)f.count, DTYPE_F32, SEED_DOUT);
    rows_add(ops->rows, "adamw", 7 * (double)size / time_of(ops, adamw_once, &f) / 1e9, "GB/s");
    for (int i = 0; i < SAMPLES; i++) {
        const int64_t at = sample_at((int64_t)f.count, i);
        gpu_expect(&ops->check, "adamw", f.a, DTYPE_F32, at, adamw_of(ops, at), 1e-5);
    }
    drop(ops, f.a);
    drop(ops, f.b);
    drop(ops, f.c);
    drop(ops, f.d);
}

/* ---- one op ---- */

struct probe {
    const struct ops *ops;
    struct op_spec spec;
    struct kernel *kernel;
    struct kernel_info info;
    struct op_buffers buffers;
    void *in, *out, *dout, *din, *dparam[OP_PARAM_MAX], *param[OP_PARAM_MAX], *saved, *scratch,
        *cache;
};

static void probe_open(struct probe *p, const struct ops *ops, size_t params)
{
    p->ops = ops;
    must(ops->table->op[p->spec.op].prepare(ops->backend, &p->spec, &p->kernel, &p->info),
         "prepare");
    p->in = take(ops, p->spec.in[0].bytes);
    p->out = take(ops, p->info.out.bytes);
    p->saved = take(ops, p->info.saved_bytes);
    p->scratch = take(ops, p->info.scratch_bytes);
    p->cache = take(ops, p->info.cache_bytes);
    gpu_fill(&ops->check, p->in, tensor_elements(&p->spec.in[0]), DTYPE_BF16, SEED_IN);
    for (int i = 0; i < OP_PARAM_MAX && params > 0; i++) {
        p->param[i] = take(ops, params * sizeof(float));
        gpu_fill(&ops->check, p->param[i], (int64_t)params, DTYPE_F32,
                 i == 0 ? SEED_PARAM : SEED_PARAM_2);
    }
    p->buffers = (struct op_buffers){
        .in = { p->in }, .out = p->out, .saved = p->saved, .scratch = p->scratch, .cache = p->cache
    };
    for (int i = 0; i < OP_PARAM_MAX; i++)
        p->buffers.param[i] = p->param[i];
    const float *const param[OP_PARAM_MAX] = { p->param[0], p->param[1] };
    if (p->cache != NULL)
        must(ops->table->refresh(ops->backend, p->kernel, param, p->cache, ops->stream), "cache");
    if (!p->spec.training)
        return;
    p->dout = take(ops, p->info.out.bytes);
    gpu_fill(&ops->check, p->dout, tensor_elements(&p->info.out), DTYPE_BF16, SEED_DOUT);
    p->din = take(ops, p->info.din[0].bytes);
    p->buffers.dout[0] = p->dout;
    p->buffers.din[0] = p->din;
    for (int i = 0; i < OP_PARAM_MAX && params > 0; i++)
        p->buffers.dparam[i] = p->dparam[i] = take(ops, params * sizeof(float));
}

static void probe_close(struct probe *p)
{
    const struct ops *ops = p->ops;
    void *const all[] = { p->in,  p->out,       p->saved,     p->scratch,  p->cache,   p->dout,
                          p->din, p->dparam[0], p->dparam[1], p->param[0], p->param[1] };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        drop(ops, all[i]);
    ops->table->kernel_free(ops->backend, p->kernel);
}

static enum status forward_once(void *arg)
{
    struct probe *p = arg;
    return p->ops->table->op[p->spec.op].forward(p->ops->backend, p->kernel, &p->buffers,
                                                 p->ops->stream);
}

static enum status backward_once(void *arg)
{
    struct probe *p = arg;
    return p->ops->table->op[p->spec.op].backward(p->ops->backend, p->kernel, &p->buffers,
                                                  p->ops->stream);
}

static void check_matmul(const struct ops *ops, const struct probe *p, int64_t side)
{
    for (int i = 0; i < SAMPLES; i++) {
        const int64_t at = sample_at(side * side, i), row = at / side, column = at % side;
        double sum = 0;
        for (int64_t k = 0; k < side; k++) {
            sum += (double)number_at(SEED_IN, row * side + k) *
                   (double)number_at(SEED_PARAM, column * side + k);
        }
        gpu_expect(&ops->check, "matmul", p->out, DTYPE_BF16, at, sum, 1e-5 * (double)side);
    }
}

static void run_matmul(const struct ops *ops)
{
    const int64_t side = ops->small ? 64 : 8192;
    const int64_t dims[2] = { side, side };
    struct probe p = { .spec = { .op = OP_LINEAR,
                                 .in = { tensor_plain(DTYPE_BF16, 2, dims) },
                                 .in_count = 1,
                                 .out_dtype = DTYPE_BF16,
                                 .math = MATH_BF16,
                                 .attr = { .out = side } } };
    probe_open(&p, ops, (size_t)(side * side));
    rows_add(ops->rows, "matmul", p.info.flops_forward / time_of(ops, forward_once, &p) / 1e12,
             "TFLOP/s");
    check_matmul(ops, &p, side);
    probe_close(&p);
}

#define CHANNELS 768

/* A row of x: what its norm needs, and of its gradient g = dout·gamma what its own does. */
struct norm_row {
    double mean, rstd, mean_g, mean_gx;
};

static struct norm_row norm_of(int64_t row)
{
    struct norm_row norm = { 0 };
    double square = 0;
    for (int64_t c = 0; c < CHANNELS; c++)
        norm.mean += (double)number_at(SEED_IN, row * CHANNELS + c) / CHANNELS;
    for (int64_t c = 0; c < CHANNELS; c++)
        square += pow((double)number_at(SEED_IN, row * CHANNELS + c) - norm.mean, 2) / CHANNELS;
    norm.rstd = 1 / sqrt(square + 1e-5);
    for (int64_t c = 0; c < CHANNELS; c++) {
        const int64_t at = row * CHANNELS + c;
        const double g = (double)number_at(SEED_DOUT, at) * (double)number_at(SEED_PARAM, c);
        norm.mean_g += g / CHANNELS;
        norm.mean_gx += g * ((double)number_at(SEED_IN, at) - norm.mean) * norm.rstd / CHANNELS;
    }
    return norm;
}

static void check_layer_norm(const struct ops *ops, const struct probe *p, int64_t rows)
{
    for (int i = 0; i < SAMPLES; i++) {
        const int64_t at = sample_at(rows * CHANNELS, i), c = at % CHANNELS;
        const struct norm_row norm = norm_of(at / CHANNELS);
        const double x = ((double)number_at(SEED_IN, at) - norm.mean) * norm.rstd;
        const double gamma = (double)number_at(SEED_PARAM, c),
                     g = (double)number_at(SEED_DOUT, at) * gamma;
        gpu_expect(&ops->check, "layer_norm", p->out, DTYPE_BF16, at,
                   x * gamma + (double)number_at(SEED_PARAM_2, c), 1e-4);
        gpu_expect(&ops->check, "layer_norm gradient", p->din, DTYPE_BF16, at,
                   norm.rstd * (g - norm.mean_g - x * norm.mean_gx), 1e-4);
    }
    for (int64_t c = 0; c < 2; c++) {
        double sum = 0;
        for (int64_t row = 0; row < rows; row++)
            sum += (double)number_at(SEED_DOUT, row * CHANNELS + c);
        gpu_expect(&ops->check, "layer_norm shift", p->dparam[1], DTYPE_F32, c, sum,
                   1e-6 * (double)rows);
    }
}

static void run_layer_norm(const struct ops *ops)
{
    const int64_t dims[2] = { ops->small ? 8 : 32768, CHANNELS };
    struct probe p = { .spec = { .op = OP_LAYER_NORM,
                                 .in = { tensor_plain(DTYPE_BF16, 2, dims) },
                                 .in_count = 1,
                                 .out_dtype = DTYPE_BF16,
                                 .math = MATH_BF16,
                                 .training = true,
                                 .need_din0 = true,
                                 .attr = { .eps = 1e-5f } } };
    probe_open(&p, ops, CHANNELS);
    const double bytes = (double)p.spec.in[0].bytes;
    rows_add(ops->rows, "layer_norm_forward", 2 * bytes / time_of(ops, forward_once, &p) / 1e9,
             "GB/s");
    rows_add(ops->rows, "layer_norm_backward", 3 * bytes / time_of(ops, backward_once, &p) / 1e9,
             "GB/s");
    check_layer_norm(ops, &p, dims[0]);
    probe_close(&p);
}

#define HEADS 12
#define DEPTH (CHANNELS / HEADS)

/* Weights of keys are rounded to half on their way: a fiftieth of a row's greatest element. */
static double slack_of(const double row[DEPTH])
{
    double most = 0;
    for (int d = 0; d < DEPTH; d++)
        most = fmax(most, fabs(row[d]));
    return most / 50;
}

/* Checks two rows of the last sample's last head: the second one and the last one. */
static void check_attention(const struct ops *ops, const struct probe *p, const int64_t dims[3])
{
    const int64_t length = dims[1], first = (dims[0] - 1) * length;
    for (int last = 0; last < 2; last++) {
        const struct attention_row at = { .length = length,
                                          .width = CHANNELS,
                                          .head = HEADS - 1,
                                          .depth = DEPTH,
                                          .row = last ? length - 1 : 1,
                                          .qkv_seed = SEED_IN,
                                          .dout_seed = SEED_DOUT,
                                          .qkv_first = first * 3 * CHANNELS,
                                          .dout_first = first * CHANNELS };
        double out[DEPTH], dq[DEPTH], dk[DEPTH], dv[DEPTH];
        attention_row_reference(&at, out, dq, dk, dv);
        const int64_t row = first + at.row, column = at.head * DEPTH;
        const char *dx = "attention gradient";
        for (int64_t d = 0; d < DEPTH; d++) {
            const int64_t q = row * 3 * CHANNELS + column + d;
            gpu_expect(&ops->check, "attention", p->out, DTYPE_BF16, row * CHANNELS + column + d,
                       out[d], slack_of(out));
            gpu_expect(&ops->check, dx, p->din, DTYPE_BF16, q, dq[d], slack_of(dq));
            if (!last)
                continue;
            gpu_expect(&ops->check, dx, p->din, DTYPE_BF16, q + CHANNELS, dk[d], slack_of(dk));
            gpu_expect(&ops->check, dx, p->din, DTYPE_BF16, q + INT64_C(2) * CHANNELS, dv[d],
                       slack_of(dv));
        }
    }
}

static void run_attention(const struct ops *ops)
{
    const int64_t batch = ops->small ? 1 : 32, length = ops->small ? 16 : 1024;
    const int64_t dims[3] = { batch, length, INT64_C(3) * CHANNELS };
    struct probe p = { .spec = { .op = OP_ATTENTION,
                                 .in = { tensor_plain(DTYPE_BF16, 3, dims) },
                                 .in_count = 1,
                                 .out_dtype = DTYPE_BF16,
                                 .math = MATH_BF16,
                                 .training = true,
                                 .need_din0 = true,
                                 .attr = { .heads = HEADS } } };
    const double flops = 4.0 * (double)batch * (double)length * (double)length * CHANNELS / 2;
    probe_open(&p, ops, 0);
    rows_add(ops->rows, "attention_forward", flops / time_of(ops, forward_once, &p) / 1e12,
             "TFLOP/s");
    rows_add(ops->rows, "attention_backward", 2.5 * flops / time_of(ops, backward_once, &p) / 1e12,
             "TFLOP/s");
    check_attention(ops, &p, dims);
    probe_close(&p);
}

static void add_fraction(struct rows *rows, const char *name, const char *of)
{
    char label[48];
    const double value = rows_value(rows, name);
    const double against = rows_value(rows, of);
    (void)snprintf(label, sizeof(label), "%s/of_%s", name, of);
    if (against > 0)
        rows_add(rows, label, value / against, "");
}

void gpu_ops_run(const struct gpu_ops_options *options, struct rows *rows)
{
    struct ops ops = { .table = options->table,
                       .small = options->small,
                       .repeats = options->small ? 2 : 50,
                       .rows = rows };
    const struct backend_options one = { .threads = 1 };
    must(ops.table->open(&one, &ops.backend), "device");
    must(ops.table->stream_new(ops.backend, &ops.stream), "stream");
    ops.check = (struct gpu_check){ ops.table, ops.backend, ops.stream };
    run_flat(&ops);
    run_matmul(&ops);
    run_layer_norm(&ops);
    run_attention(&ops);
    add_fraction(rows, "adamw", "copy");
    add_fraction(rows, "layer_norm_forward", "copy");
    add_fraction(rows, "layer_norm_backward", "copy");
    add_fraction(rows, "attention_forward", "matmul");
    add_fraction(rows, "attention_backward", "matmul");
    ops.table->stream_free(ops.backend, ops.stream);
    ops.table->close(ops.backend);
}
