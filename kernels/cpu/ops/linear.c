/*
 * linear: y = act(x·Wᵀ + b) (+ residual). The rows are all dims but the last.
 *
 *   forward    y  [N, O]   =   x·Wᵀ + b, then act or residual, by our own loops (oneDNN's relu
 *                              drops NaN)
 *   backward   g  [N, O]   =   (dy (+ second dy)) ∘ act'
 *              dx [N, I]   =   g·W
 *              dW [O, I] (+)=  gᵀ·x
 *              db [O]    (+)=  column sums of g
 *
 * Operands of the products are bfloat16 where the math is and the processor has AVX-512, else
 * float32; what is of the other dtype is converted in scratch. Products go by
 * kernels/cpu/gemm/half_gemm.h where there is AMX (and a single thread), else by oneDNN.
 *
 * The cache holds W in bfloat16, row by row: where a batch has some hundred rows, blocked copies
 * would cost more to refresh than they save.
 *
 * Saved: x·Wᵀ + b, in out_dtype, where the activation's derivative needs it.
 */
#include <stdlib.h>

#include "kernels/cpu/gemm/half_gemm.h"
#include "kernels/cpu/gemm/product.h"
#include "kernels/cpu/ops/rows.h"

struct linear_kernel {
    struct kernel base;
    int64_t n, i, o;
    bool half;                    /* the products' operands are bfloat16 */
    bool tiles;                   /* the products are our own: half, with AMX */
    bool keeps_pre;               /* x·Wᵀ + b, for the backward pass */
    struct product data, weights; /* dx = g·W, dW = gᵀ·x */
    /* Primitives for use without tiles: forward always, the others if half. */
    struct dnn_op forward, backward_data, backward_weights, backward_weights_add;
    /* Regions of scratch; 0: not needed. */
    size_t x_bytes, y_bytes, g_bytes, operand_bytes, dx_bytes, library_bytes;
};

static void linear_release(struct kernel *kernel)
{
    struct linear_kernel *self = (struct linear_kernel *)kernel;
    dnn_op_release(&self->forward);
    dnn_op_release(&self->backward_data);
    dnn_op_release(&self->backward_weights);
    dnn_op_release(&self->backward_weights_add);
}

static enum status linear_refresh(struct backend *backend, struct kernel *kernel,
                                  const float *const param[OP_PARAM_MAX], void *cache)
{
    const struct linear_kernel *self = (const struct linear_kernel *)kernel;
    const struct text_target to = { .data = cache, .half = true };
    backend->loops.text->convert(to, (struct text_source){ .data = param[0] },
                                 (size_t)(self->o * self->i));
    return ST_OK;
}

static enum status linear_products_init(struct backend *backend, struct linear_kernel *self)
{
    const int64_t n = self->n, i = self->i, o = self->o;
    const struct op_spec *spec = &self->base.spec;
    struct dnn *dnn = backend->dnn;
    const struct product forward = { .m = n,
                                     .n = o,
                                     .k = i,
                                     .b_transposed = true,
                                     .half = self->half,
                                     .bias = spec->attr.bias,
                                     .half_out = self->half && spec->out_dtype == DTYPE_BF16 };
    self->data = (struct product){ .m = n,
                                   .n = i,
                                   .k = o,
                                   .half = self->half,
                                   .half_out = self->half && spec->in[0].dtype == DTYPE_BF16 };
    self->weights =
        (struct product){ .m = o, .n = i, .k = n, .a_transposed = true, .half = self->half };
    self->tiles = self->half && backend->amx && backend->threads == 1;
    if (self->tiles)
        return ST_OK;
    enum status st = product_init(dnn, &self->forward, &forward);
    if (st != ST_OK || !spec->training || !self->half)
        return st;
    struct product add = self->weights;
    add.sum = true;
    if (spec->need_din0)
        st = product_init(dnn, &self->backward_data, &self->data);
    if (st == ST_OK)
        st = product_init(dnn, &self->backward_weights, &self->weights);
    if (st == ST_OK)
        st = product_init(dnn, &self->backward_weights_add, &add);
    return st;
}

/* The most scratch that one of the three products needs. */
static size_t tiles_bytes(const struct linear_kernel *self)
{
    const int64_t n = self->n, i = self->i, o = self->o;
    const size_t bytes[] = { half_gemm_scratch_bytes(n, o, i), half_gemm_scratch_bytes(n, i, o),
                             half_gemm_scratch_bytes(o, i, n) };
    size_t most = 0;
    for (size_t k = 0; k < sizeof(bytes) / sizeof(bytes[0]); k++)
        most = bytes[k] > most ? bytes[k] : most;
    return most;
}

/*
 * Lays scratch out; returns its size.
 *
 *   forward    x as an operand · y in float32 · the product's own
 *   backward   x as an operand · g · g as an operand · dx in float32 · the product's own
 */
static size_t find_sizes(struct linear_kernel *self)
{
    const struct op_spec *spec = &self->base.spec;
    const enum dtype operand = self->half ? DTYPE_BF16 : DTYPE_F32;
    const size_t x = (size_t)(self->n * self->i), y = (size_t)(self->n * self->o);
    if (spec->in[0].dtype != operand)
        self->x_bytes = cpu_align(x * dtype_size(operand));
    if (!self->half && spec->out_dtype != DTYPE_F32)
        self->y_bytes = cpu_align(y * sizeof(float));
    if (spec->training) {
        self->g_bytes = cpu_align(y * dtype_size(spec->out_dtype));
        if (spec->out_dtype != operand)
            self->operand_bytes = cpu_align(y * dtype_size(operand));
        if (!self->half && spec->in[0].dtype != DTYPE_F32)
            self->dx_bytes = cpu_align(x * sizeof(float));
    }
    const struct dnn_op *ops[] = { &self->forward, &self->backward_data, &self->backward_weights,
                                   &self->backward_weights_add };
    for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
        if (ops[k]->scratch_bytes > self->library_bytes)
            self->library_bytes = ops[k]->scratch_bytes;
    }
    if (self->tiles)
        self->library_bytes = tiles_bytes(self);
    const size_t backward = self->g_bytes + self->operand_bytes + self->dx_bytes;
    return self->x_bytes + (backward > self->y_bytes ? backward : self->y_bytes) +
           self->library_bytes;
}

static bool linear_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    if (!rows_is_valid(in, 2) || spec->attr.out < 1 || !cpu_is_float(spec->out_dtype) ||
        (spec->math != MATH_F32 && spec->math != MATH_BF16) ||
        (spec->math == MATH_F32 && (in->dtype != DTYPE_F32 || spec->out_dtype != DTYPE_F32)))
        return false;
    if (!spec->attr.residual)
        return spec->in_count == 1;
    const struct tensor *residual = &spec->in[1];
    struct tensor out = *in;
    out.dims[out.ndim - 1] = spec->attr.out;
    return spec->in_count == 2 && spec->attr.activation == ACTIVATION_NONE &&
           rows_is_valid(residual, 2) && residual->dtype == spec->out_dtype &&
           rows_same_dims(&out, residual);
}

static void linear_describe(struct linear_kernel *self, struct kernel_info *out_info)
{
    const struct op_spec *spec = &self->base.spec;
    const struct tensor *in = &spec->in[0];
    struct tensor out = *in;
    out.dims[out.ndim - 1] = self->o;
    out = tensor_plain(spec->out_dtype, out.ndim, out.dims);
    const double product = 2.0 * (double)self->n * (double)self->i * (double)self->o;
    const size_t scratch = find_sizes(self);
    *out_info = (struct kernel_info){
        .out = out,
        .saved_bytes = spec->training && self->keeps_pre ? out.bytes : 0,
        .scratch_bytes = scratch,
        .cache_bytes = self->half ? (size_t)(self->o * self->i) * sizeof(uint16_t) : 0,
        .backward_needs_in = { true },
        .backward_needs_out = activation_reads(spec->attr.activation) == ACTIVATION_READS_OUTPUT,
        .sums_douts = !spec->attr.residual,
        .din = { *in, spec->attr.residual ? out : (struct tensor){ 0 } },
        .flops_forward = product,
        .flops_backward = spec->need_din0 ? 2.0 * product : product,
        .implementation = self->tiles ? "own_amx" : self->forward.implementation,
    };
    if (spec->attr.residual) {
        out_info->din_aliases_dout[1] = true;
        out_info->din_alias[1] = -1;
    }
}

enum status cpu_linear_prepare(struct backend *backend, const struct op_spec *spec,
                               struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!linear_is_valid(spec))
        return ST_INVALID;
    struct linear_kernel *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->base.release = linear_release;
    self->n = rows_count(&spec->in[0]);
    self->i = rows_columns(&spec->in[0]);
    self->o = spec->attr.out;
    self->half = spec->math == MATH_BF16 && product_has_half();
    self->keeps_pre = activation_reads(spec->attr.activation) == ACTIVATION_READS_INPUT;
    self->base.refresh = self->half ? linear_refresh : NULL;
    cpu_enter(backend);
    enum status st = linear_products_init(backend, self);
    if (st != ST_OK) {
        linear_release(&self->base);
        free(self);
        return st;
    }
    linear_describe(self, out_info);
    *out_kernel = &self->base;
    return ST_OK;
}

/* x as an operand: itself, or converted into `scratch`. */
static const void *operand_of(const struct backend *backend, const struct linear_kernel *self,
                              struct text_source x, size_t count, void *scratch)
{
    if (x.half == self->half)
        return x.data;
    backend->loops.text->convert((struct text_target){ scratch, self->half }, x, count);
    return scratch;
}

/* y = x·Wᵀ + b. */
static enum status linear_values(struct backend *backend, struct linear_kernel *self,
                                 const struct op_buffers *buffers, const void *x, void *y)
{
    char *scratch = (char *)buffers->scratch + self->x_bytes + self->y_bytes;
    const float *bias = self->base.spec.attr.bias ? buffers->param[1] : NULL;
    if (!self->tiles) {
        return product_run(backend->dnn, &self->forward, x,
                           self->half ? buffers->cache : buffers->param[0], bias, y, scratch);
    }
    const struct half_gemm g = { .m = self->n,
                                 .n = self->o,
                                 .k = self->i,
                                 .a = x,
                                 .b = buffers->cache,
                                 .b_transposed = true,
                                 .bias = bias,
                                 .c = y,
                                 .c_half = self->base.spec.out_dtype == DTYPE_BF16 };
    half_gemm_amx(&g, scratch);
    return ST_OK;
}

enum status cpu_linear_forward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    struct linear_kernel *self = (struct linear_kernel *)kernel;
    const struct op_spec *spec = &kernel->spec;
    const struct text_loops *text = backend->loops.text;
    const size_t count = (size_t)(self->n * self->o);
    char *scratch = buffers->scratch;
    const bool saves = self->keeps_pre && spec->training;
    void *before = saves ? buffers->saved : buffers->out; /* the activation */
    void *y = self->y_bytes > 0 ? scratch + self->x_bytes : before;
    cpu_enter(backend);
    const void *x = operand_of(backend, self, rows_source(buffers->in[0], spec->in[0].dtype),
                               (size_t)(self->n * self->i), scratch);
    enum status st = linear_values(backend, self, buffers, x, y);
    if (st != ST_OK)
        return st;
    const struct text_target out = rows_target(buffers->out, spec->out_dtype);
    if (y != before) {
        text->convert(rows_target(before, spec->out_dtype), (struct text_source){ .data = y },
                      count);
    }
    if (spec->attr.activation != ACTIVATION_NONE)
        text->activate(spec->attr.activation, out, rows_source(before, spec->out_dtype), count);
    if (spec->attr.residual) {
        text->add(out, rows_source(out.data, spec->out_dtype),
                  rows_source(buffers->in[1], spec->out_dtype), count);
    }
    return ST_OK;
}

/* g: dout itself, or computed in `scratch`. */
static struct text_source inner_gradient(const struct backend *backend,
                                         const struct linear_kernel *self,
                                         const struct op_buffers *buffers, void *scratch)
{
    const struct op_spec *spec = &self->base.spec;
    const struct text_loops *text = backend->loops.text;
    const enum activation kind = spec->attr.activation;
    const size_t count = (size_t)(self->n * self->o);
    const struct text_target to = rows_target(scratch, spec->out_dtype);
    struct text_source g = rows_source(buffers->dout[0], spec->out_dtype);
    if (buffers->dout[1] != NULL) {
        text->add(to, g, rows_source(buffers->dout[1], spec->out_dtype), count);
        g.data = scratch;
    }
    const void *by = NULL;
    switch (activation_reads(kind)) {
    case ACTIVATION_READS_NOTHING:
        return g;
    case ACTIVATION_READS_OUTPUT:
        by = buffers->out;
        break;
    case ACTIVATION_READS_INPUT:
        by = buffers->saved;
        break;
    }
    text->activate_backward(kind, to, g, rows_source(by, spec->out_dtype), count);
    g.data = scratch;
    return g;
}

/* dW (+)= gᵀ · x. */
static enum status linear_weight_gradient(struct backend *backend, struct linear_kernel *self,
                                          const struct op_buffers *buffers, const void *g,
                                          const void *x, void *scratch)
{
    const bool accumulate = buffers->accumulate[0];
    if (self->tiles) {
        const struct half_gemm tiles = { .m = self->o,
                                         .n = self->i,
                                         .k = self->n,
                                         .a = g,
                                         .a_transposed = true,
                                         .b = x,
                                         .c = buffers->dparam[0],
                                         .accumulate = accumulate };
        half_gemm_amx(&tiles, scratch);
        return ST_OK;
    }
    if (self->half) {
        return product_run(backend->dnn,
                           accumulate ? &self->backward_weights_add : &self->backward_weights, g, x,
                           NULL, buffers->dparam[0], scratch);
    }
    struct product weights = self->weights;
    weights.sum = accumulate;
    return product_f32(&weights, g, x, buffers->dparam[0]);
}

/* dx = g · W. */
static enum status linear_data_gradient(struct backend *backend, struct linear_kernel *self,
                                        const struct op_buffers *buffers, const void *g,
                                        char *scratch)
{
    const struct op_spec *spec = &self->base.spec;
    void *dx = self->dx_bytes > 0 ? scratch : buffers->din[0];
    enum status st = ST_OK;
    if (self->tiles) {
        const struct half_gemm tiles = { .m = self->n,
                                         .n = self->i,
                                         .k = self->o,
                                         .a = g,
                                         .b = buffers->cache,
                                         .c = dx,
                                         .c_half = spec->in[0].dtype == DTYPE_BF16 };
        half_gemm_amx(&tiles, scratch);
    } else if (self->half) {
        st = product_run(backend->dnn, &self->backward_data, g, buffers->cache, NULL, dx, scratch);
    } else {
        st = product_f32(&self->data, g, buffers->param[0], dx);
    }
    if (st == ST_OK && dx != buffers->din[0]) {
        backend->loops.text->convert(rows_target(buffers->din[0], spec->in[0].dtype),
                                     (struct text_source){ .data = dx },
                                     (size_t)(self->n * self->i));
    }
    return st;
}

enum status cpu_linear_backward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    struct linear_kernel *self = (struct linear_kernel *)kernel;
    const struct op_spec *spec = &kernel->spec;
    char *x_scratch = buffers->scratch;
    char *g_scratch = x_scratch + self->x_bytes;
    char *operand = g_scratch + self->g_bytes;
    char *scratch = operand + self->operand_bytes;
    cpu_enter(backend);
    const struct text_source g = inner_gradient(backend, self, buffers, g_scratch);
    if (spec->attr.bias && buffers->dparam[1] != NULL) {
        backend->loops.text->column_sums(buffers->dparam[1], g, (size_t)self->n, (size_t)self->o,
                                         buffers->accumulate[1]);
    }
    const void *a = operand_of(backend, self, g, (size_t)(self->n * self->o), operand);
    enum status st = ST_OK;
    if (buffers->dparam[0] != NULL) {
        const void *x = operand_of(backend, self, rows_source(buffers->in[0], spec->in[0].dtype),
                                   (size_t)(self->n * self->i), x_scratch);
        st = linear_weight_gradient(backend, self, buffers, a, x, scratch);
    }
    if (st == ST_OK && buffers->din[0] != NULL)
        st = linear_data_gradient(backend, self, buffers, a, scratch);
    if (st == ST_OK && spec->attr.residual && buffers->din[1] != NULL &&
        buffers->din[1] != buffers->dout[0]) {
        backend->loops.text->convert(rows_target(buffers->din[1], spec->out_dtype),
                                     rows_source(buffers->dout[0], spec->out_dtype),
                                     (size_t)(self->n * self->o));
    }
    return st;
}
