#include "bench/gpu_ops.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"

#define WARM_UP 5

struct ops {
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
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

static enum status adamw_once(void *arg)
{
    const struct flat *f = arg;
    const struct adamw_args args = { .lr = 1e-4f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.999f,
                                     .eps = 1e-8f,
                                     .weight_decay = 0.01f,
                                     .grad_scale = 1,
                                     .t = 1 };
    return f->ops->table->vector.adamw(f->ops->backend, f->a, f->b, f->c, f->d, f->count, &args,
                                       f->ops->stream);
}

static void run_flat(const struct ops *ops)
{
    struct flat f = { .ops = ops, .count = ops->small ? 1u << 16 : 124u * 1000 * 1000 };
    const double bytes = (double)(f.count * sizeof(float));
    f.a = take(ops, f.count * sizeof(float));
    f.b = take(ops, f.count * sizeof(float));
    f.c = take(ops, f.count * sizeof(float));
    f.d = take(ops, f.count * sizeof(float));
    rows_add(ops->rows, "copy", 2 * bytes / time_of(ops, copy_once, &f) / 1e9, "GB/s");
    rows_add(ops->rows, "adamw", 7 * bytes / time_of(ops, adamw_once, &f) / 1e9, "GB/s");
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
    for (int i = 0; i < OP_PARAM_MAX && params > 0; i++)
        p->param[i] = take(ops, params * sizeof(float));
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
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
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
    probe_close(&p);
}

static void run_layer_norm(const struct ops *ops)
{
    const int64_t dims[2] = { ops->small ? 8 : 32768, 768 };
    struct probe p = { .spec = { .op = OP_LAYER_NORM,
                                 .in = { tensor_plain(DTYPE_BF16, 2, dims) },
                                 .in_count = 1,
                                 .out_dtype = DTYPE_BF16,
                                 .math = MATH_BF16,
                                 .training = true,
                                 .need_din0 = true,
                                 .attr = { .eps = 1e-5f } } };
    probe_open(&p, ops, 768);
    const double bytes = (double)p.spec.in[0].bytes;
    rows_add(ops->rows, "layer_norm_forward", 2 * bytes / time_of(ops, forward_once, &p) / 1e9,
             "GB/s");
    rows_add(ops->rows, "layer_norm_backward", 3 * bytes / time_of(ops, backward_once, &p) / 1e9,
             "GB/s");
    probe_close(&p);
}

static void run_attention(const struct ops *ops)
{
    const int64_t batch = ops->small ? 1 : 32, length = ops->small ? 16 : 1024;
    const int64_t dims[3] = { batch, length, INT64_C(3) * 768 };
    struct probe p = { .spec = { .op = OP_ATTENTION,
                                 .in = { tensor_plain(DTYPE_BF16, 3, dims) },
                                 .in_count = 1,
                                 .out_dtype = DTYPE_BF16,
                                 .math = MATH_BF16,
                                 .training = true,
                                 .need_din0 = true,
                                 .attr = { .heads = 12 } } };
    const double flops = 4.0 * (double)batch * (double)length * (double)length * 768 / 2;
    probe_open(&p, ops, 0);
    rows_add(ops->rows, "attention_forward", flops / time_of(ops, forward_once, &p) / 1e12,
             "TFLOP/s");
    rows_add(ops->rows, "attention_backward", 2.5 * flops / time_of(ops, backward_once, &p) / 1e12,
             "TFLOP/s");
    probe_close(&p);
}

static void add_fraction(struct rows *rows, const char *name, const char *of)
{
    char label[48];
    const double value = rows_value(rows, name);
    const double against = rows_value(rows, of);
    (void)snprintf(label, sizeof label, "%s/of_%s", name, of);
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
