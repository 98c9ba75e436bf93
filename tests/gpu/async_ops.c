#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "tests/gpu/async_impl.h"

/* ---- ops ---- */

struct op_work {
    struct kernel *kernel;
    struct op_buffers buffers;
    bool backward;
};

static enum status run_op(struct stream *s, void *arg)
{
    struct op_work *w = arg;
    const struct backend *b = s->backend;
    struct op_buffers *o = &w->buffers;
    for (int i = 0; i < OP_IN_MAX; i++) {
        o->in[i] = async_memory_of(b, o->in[i]);
        o->din[i] = async_memory_of(b, o->din[i]);
        o->din_add[i] = async_memory_of(b, o->din_add[i]);
    }
    for (int i = 0; i < OP_PARAM_MAX; i++) {
        o->param[i] = async_memory_of(b, o->param[i]);
        o->dparam[i] = async_memory_of(b, o->dparam[i]);
    }
    for (int i = 0; i < OP_STAT_MAX; i++) {
        o->stat[i] = async_memory_of(b, o->stat[i]);
        o->stat_sum[i] = async_memory_of(b, o->stat_sum[i]);
    }
    for (int i = 0; i < 2; i++)
        o->dout[i] = async_memory_of(b, o->dout[i]);
    o->out = async_memory_of(b, o->out);
    o->saved = async_memory_of(b, o->saved);
    o->scratch = async_memory_of(b, o->scratch);
    o->cache = async_memory_of(b, o->cache);
    o->draw = async_memory_of(b, o->draw);
    o->loss_scale = async_memory_of(b, o->loss_scale);
    const struct op_table *table = &backend_cpu()->op[w->kernel->op];
    return w->backward ? table->backward(b->cpu, w->kernel->cpu, o, s->cpu)
                       : table->forward(b->cpu, w->kernel->cpu, o, s->cpu);
}

static void check_op(const struct backend *b, const struct op_buffers *o)
{
    for (int i = 0; i < OP_IN_MAX; i++)
        CHECK(o->in[i] == NULL || async_is_device(b, o->in[i]));
    CHECK(o->draw == NULL || async_is_device(b, o->draw));
    CHECK(o->loss_scale == NULL || async_is_device(b, o->loss_scale));
}

static enum status async_forward(struct backend *b, struct kernel *kernel,
                                 const struct op_buffers *buffers, struct stream *stream)
{
    const struct op_work w = { kernel, *buffers, false };
    check_op(b, buffers);
    async_device_enqueue(stream, run_op, &w, sizeof(w));
    return ST_OK;
}

static enum status async_backward(struct backend *b, struct kernel *kernel,
                                  const struct op_buffers *buffers, struct stream *stream)
{
    const struct op_work w = { kernel, *buffers, true };
    check_op(b, buffers);
    async_device_enqueue(stream, run_op, &w, sizeof(w));
    return ST_OK;
}

static enum status async_prepare(struct backend *b, const struct op_spec *spec,
                                 struct kernel **out_kernel, struct kernel_info *out_info)
{
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    CHECK(kernel != NULL);
    kernel->op = spec->op;
    enum status st = backend_cpu()->op[spec->op].prepare(b->cpu, spec, &kernel->cpu, out_info);
    if (st != ST_OK) {
        free(kernel);
        return st;
    }
    *out_kernel = kernel;
    return ST_OK;
}

void async_kernel_free(struct backend *b, struct kernel *kernel)
{
    backend_cpu()->kernel_free(b->cpu, kernel->cpu);
    free(kernel);
}

/* ---- between and beside ops ---- */

struct table_work {
    struct kernel *kernel; /* refresh */
    const float *param[OP_PARAM_MAX];
    struct tensor from, to;
    const void *x, *y;
    void *out;
};

static enum status run_refresh(struct stream *s, void *arg)
{
    struct table_work *w = arg;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        w->param[i] = async_memory_of(s->backend, w->param[i]);
    return backend_cpu()->refresh(s->backend->cpu, w->kernel->cpu, w->param,
                                  async_memory_of(s->backend, w->out), s->cpu);
}

enum status async_refresh(struct backend *b, struct kernel *kernel,
                          const float *const param[OP_PARAM_MAX], void *cache,
                          struct stream *stream)
{
    (void)b;
    struct table_work w = { .kernel = kernel, .out = cache };
    memcpy(w.param, param, sizeof(w.param));
    async_device_enqueue(stream, run_refresh, &w, sizeof(w));
    return ST_OK;
}

static enum status run_reformat(struct stream *s, void *arg)
{
    const struct table_work *w = arg;
    return backend_cpu()->reformat(s->backend->cpu, &w->from, async_memory_of(s->backend, w->x),
                                   &w->to, async_memory_of(s->backend, w->out), s->cpu);
}

enum status async_reformat(struct backend *b, const struct tensor *from, const void *in,
                           const struct tensor *to, void *out, struct stream *stream)
{
    (void)b;
    const struct table_work w = { .from = *from, .to = *to, .x = in, .out = out };
    async_device_enqueue(stream, run_reformat, &w, sizeof(w));
    return ST_OK;
}

static enum status run_sum(struct stream *s, void *arg)
{
    const struct table_work *w = arg;
    return backend_cpu()->sum(s->backend->cpu, &w->from, async_memory_of(s->backend, w->x),
                              async_memory_of(s->backend, w->y),
                              async_memory_of(s->backend, w->out), s->cpu);
}

enum status async_sum(struct backend *b, const struct tensor *tensor, const void *x, const void *y,
                      void *out, struct stream *stream)
{
    (void)b;
    const struct table_work w = { .from = *tensor, .x = x, .y = y, .out = out };
    async_device_enqueue(stream, run_sum, &w, sizeof(w));
    return ST_OK;
}

/* ---- flat vectors ---- */

struct vector_work {
    void *out, *a, *b;
    const void *x, *y;
    size_t n;
    float value;
    struct sgd_args sgd;
    struct adamw_args adamw;
    struct lion_args lion;
    struct decay_map decay;
    bool has_decay;
};

static void translate(const struct stream *s, struct vector_work *w)
{
    w->out = async_memory_of(s->backend, w->out);
    w->a = async_memory_of(s->backend, w->a);
    w->b = async_memory_of(s->backend, w->b);
    w->x = async_memory_of(s->backend, w->x);
    w->y = async_memory_of(s->backend, w->y);
    w->decay.borders = async_memory_of(s->backend, w->decay.borders);
    w->sgd.decay = w->adamw.decay = w->lion.decay = w->has_decay ? &w->decay : NULL;
}

static enum status run_add(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    return backend_cpu()->vector.add(s->backend->cpu, w->out, w->x, w->y, w->n, s->cpu);
}

static enum status async_add(struct backend *b, float *out, const float *x, const float *y,
                             size_t n, struct stream *s)
{
    CHECK(async_is_device(b, out));
    const struct vector_work w = { .out = out, .x = x, .y = y, .n = n };
    async_device_enqueue(s, run_add, &w, sizeof(w));
    return ST_OK;
}

static enum status run_copy(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    if (w->n > 0)
        memmove(w->out, w->x, w->n);
    return ST_OK;
}

static enum status async_copy(struct backend *b, void *to, const void *from, size_t bytes,
                              struct stream *s)
{
    const struct vector_work w = { .out = to, .x = from, .n = bytes };
    async_device_enqueue(s, run_copy, &w, sizeof(w));
    return async_is_stable(b, to) && async_is_stable(b, from) ? ST_OK : async_stream_sync(b, s);
}

static enum status run_fill(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    return backend_cpu()->vector.fill(s->backend->cpu, w->out, w->value, w->n, s->cpu);
}

static enum status async_fill(struct backend *b, float *out, float value, size_t n,
                              struct stream *s)
{
    CHECK(async_is_device(b, out));
    const struct vector_work w = { .out = out, .n = n, .value = value };
    async_device_enqueue(s, run_fill, &w, sizeof(w));
    return ST_OK;
}

static enum status run_square_sums(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    return backend_cpu()->vector.square_sums(s->backend->cpu, w->out, w->x, w->y, w->n, s->cpu);
}

static enum status async_square_sums(struct backend *b, double *out, const float *x,
                                     const uint64_t *begin, size_t n, struct stream *s)
{
    CHECK(async_is_device(b, out));
    CHECK(async_is_device(b, begin));
    const struct vector_work w = { .out = out, .x = x, .y = begin, .n = n };
    async_device_enqueue(s, run_square_sums, &w, sizeof(w));
    return ST_OK;
}

static enum status run_checksums(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    return backend_cpu()->vector.checksums(s->backend->cpu, w->out, w->x, w->n, s->cpu);
}

static enum status async_checksums(struct backend *b, uint64_t *out, const float *x, size_t n,
                                   struct stream *s)
{
    CHECK(async_is_device(b, out));
    const struct vector_work w = { .out = out, .x = x, .n = n };
    async_device_enqueue(s, run_checksums, &w, sizeof(w));
    return ST_OK;
}

static enum status run_sgd(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    return backend_cpu()->vector.sgd(s->backend->cpu, w->out, w->a, w->x, w->n, &w->sgd, s->cpu);
}

static enum status async_sgd(struct backend *b, float *param, float *momentum, const float *grad,
                             size_t n, const struct sgd_args *args, struct stream *s)
{
    CHECK(async_is_device(b, param));
    struct vector_work w = { .out = param, .a = momentum, .x = grad, .n = n, .sgd = *args };
    w.has_decay = args->decay != NULL;
    if (w.has_decay)
        w.decay = *args->decay;
    CHECK(w.decay.borders == NULL || async_is_device(b, w.decay.borders));
    async_device_enqueue(s, run_sgd, &w, sizeof(w));
    return ST_OK;
}

static enum status run_adamw(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    return backend_cpu()->vector.adamw(s->backend->cpu, w->out, w->a, w->b, w->x, w->n, &w->adamw,
                                       s->cpu);
}

static enum status async_adamw(struct backend *b, float *param, float *m, float *v,
                               const float *grad, size_t n, const struct adamw_args *args,
                               struct stream *s)
{
    CHECK(async_is_device(b, param));
    struct vector_work w = { .out = param, .a = m, .b = v, .x = grad, .n = n, .adamw = *args };
    w.has_decay = args->decay != NULL;
    if (w.has_decay)
        w.decay = *args->decay;
    CHECK(w.decay.borders == NULL || async_is_device(b, w.decay.borders));
    async_device_enqueue(s, run_adamw, &w, sizeof(w));
    return ST_OK;
}

static enum status run_lion(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    return backend_cpu()->vector.lion(s->backend->cpu, w->out, w->a, w->x, w->n, &w->lion, s->cpu);
}

static enum status async_lion(struct backend *b, float *param, float *m, const float *grad,
                              size_t n, const struct lion_args *args, struct stream *s)
{
    CHECK(async_is_device(b, param));
    struct vector_work w = { .out = param, .a = m, .x = grad, .n = n, .lion = *args };
    w.has_decay = args->decay != NULL;
    if (w.has_decay)
        w.decay = *args->decay;
    async_device_enqueue(s, run_lion, &w, sizeof(w));
    return ST_OK;
}

static enum status run_lamb(struct stream *s, void *arg)
{
    struct vector_work *w = arg;
    translate(s, w);
    return backend_cpu()->vector.lamb(s->backend->cpu, w->x, w->a, w->b, w->out, w->n, &w->adamw,
                                      s->cpu);
}

static enum status async_lamb(struct backend *b, const float *param, float *m, float *v,
                              float *grad, size_t n, const struct adamw_args *args,
                              struct stream *s)
{
    CHECK(async_is_device(b, param));
    struct vector_work w = { .out = grad, .a = m, .b = v, .x = param, .n = n, .adamw = *args };
    w.has_decay = args->decay != NULL;
    if (w.has_decay)
        w.decay = *args->decay;
    async_device_enqueue(s, run_lamb, &w, sizeof(w));
    return ST_OK;
}

const struct op_table async_ops = { async_prepare, async_forward, async_backward };

const struct vector_table async_vector = { .add = async_add,
                                           .copy = async_copy,
                                           .fill = async_fill,
                                           .square_sums = async_square_sums,
                                           .checksums = async_checksums,
                                           .sgd = async_sgd,
                                           .adamw = async_adamw,
                                           .lion = async_lion,
                                           .lamb = async_lamb };
