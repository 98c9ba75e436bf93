/*
 * linear: y = act(x·Wᵀ + b) (+ residual), by three products of row-major matrices.
 *
 *   forward    y  [N, O]   =   act(x·Wᵀ + b) (+ residual)
 *   backward   g  [N, O]   =   (dy (+ second dy)) ∘ act'           in the products' type
 *              db [O]    (+)=  column sums of g
 *              dW [O, I] (+)=  gᵀ·x
 *              dx [N, I]   =   g·W (+ another gradient)
 *
 * Bias, residual and relu are epilogues of the product. GELU in its tanh form is one, too, in half
 * precision; otherwise a kernel of our own follows.
 *
 *   cache     W in the products' type where that is not float32, or y is pitched · b in the forward
 *             product's type
 *   saved     for gelu x·Wᵀ + b
 *   scratch   x and g in the products' type where they come in another · column sums · workspace
 *
 * Rows of y and g that are no multiple of 16 bytes (GPT-2's vocabulary of 50257) are pitched where
 * the reader of y takes that. W in the cache gets as many rows of zeros: with odd sides cuBLASLt's
 * algorithms take eight times as long, however the rows are aligned. g is zero there, too. dW has
 * no such rows: those beyond a multiple of EVEN_ROWS are a product of their own.
 *
 * Flat parameters are aligned to 4 bytes only: products with them exist twice, for both alignments.
 */
#include <stdlib.h>

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/library/product.h"
#include "kernels/cuda/own/k.h"

#define EVEN_ROWS 8 /* of dW: as many columns of g are 16 bytes */

struct linear {
    struct kernel base;
    int64_t n, i, o;
    enum dtype type;     /* of the products' operands */
    enum dtype result;   /* of the forward product */
    bool fused_gelu;     /* gelu is the product's epilogue */
    bool cast_in, own_g; /* x, g are made in scratch */
    int64_t wide;        /* columns of y and g as they lie: their pitch, or o */
    size_t cached_bias;  /* where b is in the cache */
    int64_t even;        /* rows of dW that `weights` gives; `rest` gives the others */
    /* [0]: W, dW aligned to 16 bytes; [1]: to 4. */
    struct cuda_product forward[2], data[2], weights[2], rest[2];
    /* Places in scratch, from its first byte that is aligned to CUDA_ALIGN. */
    size_t g_at, pre_at, sums_at, workspace_at;
};

/* Returns whether x·Wᵀ + b is kept for the backward pass. */
static bool keeps_pre(const struct op_spec *spec)
{
    return activation_reads(spec->attr.activation) == ACTIVATION_READS_INPUT;
}

static bool caches_weight(const struct linear *self)
{
    return self->type != DTYPE_F32 || self->wide != self->o;
}

static void linear_release(struct kernel *kernel)
{
    struct linear *self = (struct linear *)kernel;
    for (int i = 0; i < 2; i++) {
        cuda_product_release(&self->forward[i]);
        cuda_product_release(&self->data[i]);
        cuda_product_release(&self->weights[i]);
        cuda_product_release(&self->rest[i]);
    }
}

static bool linear_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    const struct op_attr *attr = &spec->attr;
    const enum dtype type = cuda_math_dtype(spec->math);
    if (spec->in_count != (attr->residual ? 2 : 1) || in->ndim < 2 || attr->out < 1 ||
        in->format != FORMAT_PLAIN || tensor_elements(in) < 1)
        return false;
    if ((in->dtype != type && in->dtype != DTYPE_F32) ||
        (spec->out_dtype != type && spec->out_dtype != DTYPE_F32))
        return false;
    if (!attr->residual)
        return true;
    const struct tensor *residual = &spec->in[1];
    return attr->activation == ACTIVATION_NONE && residual->dtype == spec->out_dtype &&
           residual->format == FORMAT_PLAIN &&
           tensor_elements(residual) == tensor_elements(in) / in->dims[in->ndim - 1] * attr->out;
}

/* Prepares both alignments of one product. A W that comes from the cache is aligned. */
static enum status linear_products_init(struct backend *backend, const struct linear *self,
                                        struct cuda_product_spec spec, bool b_is_weight,
                                        struct cuda_product out[2])
{
    enum status st = cuda_product_init(backend, &spec, &out[0]);
    if (st != ST_OK || (b_is_weight && caches_weight(self)))
        return st;
    spec.weak_b = b_is_weight;
    spec.weak_d = !b_is_weight;
    return cuda_product_init(backend, &spec, &out[1]);
}

/* Straight products only: then y and its gradient are theirs alone, as they come. */
static bool is_pitched(const struct linear *self)
{
    const struct op_spec *spec = &self->base.spec;
    return spec->pitched_out && (size_t)self->o * dtype_size(self->type) % 16 != 0 &&
           spec->out_dtype == self->type && spec->attr.activation == ACTIVATION_NONE &&
           !spec->attr.bias && !spec->attr.residual;
}

static struct tensor linear_out(const struct linear *self)
{
    const struct op_spec *spec = &self->base.spec;
    struct tensor out = spec->in[0];
    out.dims[out.ndim - 1] = spec->attr.out;
    return is_pitched(self) ? tensor_pitched(spec->out_dtype, out.ndim, out.dims)
                            : tensor_plain(spec->out_dtype, out.ndim, out.dims);
}

/* Returns the epilogue that computes the activation; PRODUCT_PLAIN: none does. */
static enum product_epilogue epilogue_of(const struct linear *self)
{
    const struct op_spec *spec = &self->base.spec;
    switch (spec->attr.activation) {
    case ACTIVATION_RELU:
        return PRODUCT_RELU;
    case ACTIVATION_GELU_TANH:
        return self->type != DTYPE_F32 && spec->out_dtype == self->type && self->o % 8 == 0
                   ? PRODUCT_GELU
                   : PRODUCT_PLAIN;
    case ACTIVATION_NONE:
    case ACTIVATION_GELU_ERF:
        break;
    }
    return PRODUCT_PLAIN;
}

static enum status forward_init(struct backend *backend, struct linear *self)
{
    const struct op_spec *spec = &self->base.spec;
    struct cuda_product_spec product = {
        .rows = self->n,
        .columns = self->wide,
        .depth = self->i,
        .b_transposed = true,
        .math = spec->math,
        .out = spec->out_dtype,
        .epilogue = epilogue_of(self),
        .bias = spec->attr.bias,
    };
    self->result = spec->out_dtype;
    switch (activation_reads(spec->attr.activation)) {
    case ACTIVATION_READS_OUTPUT:
        if (product.epilogue == PRODUCT_PLAIN)
            return ST_INVALID; /* nothing else computes it */
        return linear_products_init(backend, self, product, true, self->forward);
    case ACTIVATION_READS_NOTHING:
        return linear_products_init(backend, self, product, true, self->forward);
    case ACTIVATION_READS_INPUT:
        break;
    }
    self->result = self->type;
    product.out = self->type;
    if (product.epilogue != PRODUCT_PLAIN) {
        enum status st = linear_products_init(backend, self, product, true, self->forward);
        self->fused_gelu = st == ST_OK;
        if (st != ST_NOT_FOUND)
            return st;
        product.epilogue = PRODUCT_PLAIN;
    }
    return linear_products_init(backend, self, product, true, self->forward);
}

static enum status backward_init(struct backend *backend, struct linear *self)
{
    const struct op_spec *spec = &self->base.spec;
    self->even =
        self->wide == self->o || self->o < EVEN_ROWS ? self->o : self->o / EVEN_ROWS * EVEN_ROWS;
    struct cuda_product_spec weights = {
        .rows = self->even,
        .columns = self->i,
        .depth = self->n,
        .pitch_a = self->wide == self->o ? 0 : self->wide,
        .a_transposed = true,
        .math = spec->math,
        .out = DTYPE_F32,
    };
    const struct cuda_product_spec data = {
        .rows = self->n,
        .columns = self->i,
        .depth = self->wide,
        .math = spec->math,
        .out = spec->in[0].dtype,
    };
    enum status st = linear_products_init(backend, self, weights, false, self->weights);
    weights.rows = self->o - self->even;
    if (st == ST_OK && weights.rows > 0)
        st = linear_products_init(backend, self, weights, false, self->rest);
    if (st == ST_OK && spec->need_din0)
        st = linear_products_init(backend, self, data, true, self->data);
    return st;
}

static size_t workspace_bytes(const struct linear *self)
{
    size_t most = 0;
    for (int i = 0; i < 2; i++) {
        const size_t bytes[] = { self->forward[i].workspace_bytes, self->data[i].workspace_bytes,
                                 self->weights[i].workspace_bytes, self->rest[i].workspace_bytes };
        for (int k = 0; k < 4; k++)
            most = bytes[k] > most ? bytes[k] : most;
    }
    return most;
}

/* Lays out scratch; returns its size. */
static size_t linear_lay_out(struct linear *self)
{
    const struct op_spec *spec = &self->base.spec;
    const size_t type = dtype_size(self->type);
    const size_t x = (size_t)(self->n * self->i) * type, y = (size_t)(self->n * self->o) * type;
    self->g_at = self->cast_in ? cuda_align(x) : 0;
    self->pre_at = self->g_at; /* x·Wᵀ + b, where it isn't saved: then there is no g */
    const bool pre = keeps_pre(spec) && !spec->training;
    self->sums_at = self->g_at + (self->own_g || pre ? cuda_align(y) : 0);
    self->workspace_at = self->sums_at;
    if (spec->training)
        self->workspace_at += cuda_align(k_activation_scratch(self->n, self->o));
    return self->workspace_at + workspace_bytes(self) + CUDA_ALIGN;
}

static size_t cache_layout(struct linear *self)
{
    const size_t weight =
        caches_weight(self) ? (size_t)(self->wide * self->i) * dtype_size(self->type) : 0;
    const size_t bias = self->base.spec.attr.bias ? (size_t)self->o * dtype_size(self->result) : 0;
    self->cached_bias = cuda_align(weight);
    return bias == 0 ? weight : self->cached_bias + bias;
}

/* The rows of W in the cache that aren't there. */
static enum status clear_below(struct backend *backend, const struct linear *self, void *cache,
                               cudaStream_t stream)
{
    const size_t row = (size_t)self->i * dtype_size(self->type);
    return CUDA_STATUS(backend,
                       cudaMemsetAsync((char *)cache + (size_t)self->o * row, 0,
                                       (size_t)(self->wide - self->o) * row, stream),
                       "cudaMemsetAsync");
}

static enum status linear_refresh(struct backend *backend, struct kernel *kernel,
                                  const float *const param[OP_PARAM_MAX], void *cache,
                                  cudaStream_t stream)
{
    const struct linear *self = (const struct linear *)kernel;
    enum status st = ST_OK;
    if (caches_weight(self))
        st = k_cast(DTYPE_F32, param[0], self->type, cache, self->o * self->i, stream);
    if (st == ST_OK && self->wide != self->o)
        st = clear_below(backend, self, cache, stream);
    if (st == ST_OK && kernel->spec.attr.bias) {
        st = k_cast(DTYPE_F32, param[1], self->result, (char *)cache + self->cached_bias, self->o,
                    stream);
    }
    return CUDA_LAUNCHED(backend, st, "linear refresh");
}

static const char *linear_implementation(const struct linear *self)
{
    if (self->fused_gelu)
        return "cublaslt gelu";
    return keeps_pre(&self->base.spec) ? "cublaslt, gelu" : "cublaslt";
}

static struct kernel_info linear_describe(struct linear *self)
{
    const struct op_spec *spec = &self->base.spec;
    const struct op_attr *attr = &spec->attr;
    const double product = 2.0 * (double)self->n * (double)self->i * (double)self->o;
    const struct tensor out = linear_out(self);
    const bool keeps = keeps_pre(spec) && spec->training;
    const size_t cache_bytes = cache_layout(self);
    return (struct kernel_info){
        .out = out,
        .saved_bytes = keeps ? (size_t)(self->n * self->o) * dtype_size(self->result) : 0,
        .scratch_bytes = linear_lay_out(self),
        .cache_bytes = cache_bytes,
        .caches_copies = cache_bytes > 0,
        .cached = { { caches_weight(self), self->type, 0 },
                    { attr->bias, self->result, self->cached_bias } },
        .backward_needs_in = { true },
        .backward_needs_out = activation_reads(attr->activation) == ACTIVATION_READS_OUTPUT,
        .din_aliases_dout = { false, attr->residual },
        .din_alias = { 0, -1 },
        .sums_douts = !attr->residual && self->wide == self->o,
        .din_adds = { true },
        .din_overwrites_in = { true },
        .din = { spec->in[0], out },
        .flops_forward = product,
        .flops_backward = spec->need_din0 ? 2.0 * product : product,
        .implementation = linear_implementation(self),
    };
}

enum status cuda_op_linear_prepare(struct backend *backend, const struct op_spec *spec,
                                   struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!linear_is_valid(spec))
        return cuda_refuse(backend, ST_INVALID, "linear");
    struct linear *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    const struct tensor *in = &spec->in[0];
    self->base.spec = *spec;
    self->base.release = linear_release;
    self->i = in->dims[in->ndim - 1];
    self->n = tensor_elements(in) / self->i;
    self->o = spec->attr.out;
    self->type = cuda_math_dtype(spec->math);
    self->cast_in = in->dtype != self->type;
    const struct tensor out = linear_out(self);
    self->wide = tensor_pitch(&out);
    /* Whether a second gradient comes is known later only; then g is made. */
    self->own_g = spec->training && self->wide == self->o;
    enum status st = forward_init(backend, self);
    if (st == ST_OK && spec->training)
        st = backward_init(backend, self);
    if (st != ST_OK) {
        linear_release(&self->base);
        free(self);
        return st == ST_NOT_FOUND ? cuda_refuse(backend, ST_INVALID, "linear: no algorithm") : st;
    }
    *out_info = linear_describe(self);
    if (out_info->cache_bytes > 0)
        self->base.refresh = linear_refresh;
    *out_kernel = &self->base;
    return ST_OK;
}

static const void *linear_weight(const struct linear *self, const struct op_buffers *buffers)
{
    return caches_weight(self) ? buffers->cache : buffers->param[0];
}

static int alignment_of(const void *memory)
{
    return (uintptr_t)memory % 16 == 0 ? 0 : 1;
}

/* x in the products' type. */
static enum status linear_input(struct backend *backend, const struct linear *self, const void *x,
                                char *scratch, const void **out, cudaStream_t stream)
{
    *out = x;
    if (!self->cast_in)
        return ST_OK;
    *out = scratch;
    return CUDA_LAUNCHED(
        backend,
        k_cast(self->base.spec.in[0].dtype, x, self->type, scratch, self->n * self->i, stream),
        "linear cast");
}

enum status cuda_op_linear_forward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct linear *self = (const struct linear *)kernel;
    const struct op_spec *spec = &kernel->spec;
    char *scratch = cuda_scratch(buffers->scratch);
    const void *x = NULL;
    enum status st = linear_input(backend, self, buffers->in[0], scratch, &x, stream);
    if (st != ST_OK)
        return st;
    const bool gelu = keeps_pre(spec);
    void *pre = spec->training ? buffers->saved : scratch + self->pre_at;
    const void *weight = linear_weight(self, buffers);
    const struct cuda_product_operands operands = {
        .a = x,
        .b = weight,
        .c = spec->attr.residual ? buffers->in[1] : NULL,
        .d = gelu && !self->fused_gelu ? pre : buffers->out,
        .bias = spec->attr.bias ? (const char *)buffers->cache + self->cached_bias : NULL,
        .aux = self->fused_gelu ? pre : NULL,
        .workspace = scratch + self->workspace_at,
    };
    st = cuda_product_run(backend, &self->forward[alignment_of(weight)], &operands, stream);
    if (st != ST_OK || !gelu || self->fused_gelu)
        return st;
    const struct k_activation activation = {
        .rows = self->n,
        .c = self->o,
        .activation = spec->attr.activation,
        .x_dtype = self->result,
        .y_dtype = spec->out_dtype,
        .x = pre,
        .y = buffers->out,
    };
    return CUDA_LAUNCHED(backend, k_activation_forward(&activation, stream), "gelu");
}

/* g, and db. */
static enum status linear_gradient(struct backend *backend, const struct linear *self,
                                   const struct op_buffers *buffers, char *scratch,
                                   const void **out, cudaStream_t stream)
{
    const struct op_spec *spec = &self->base.spec;
    const bool straight = spec->attr.activation == ACTIVATION_NONE;
    const bool plain = straight && buffers->dout[1] == NULL && spec->out_dtype == self->type;
    const void *from = keeps_pre(spec) ? buffers->saved : buffers->out;
    float *dbias = spec->attr.bias ? buffers->dparam[1] : NULL;
    void *g = plain ? NULL : scratch + self->g_at;
    *out = plain ? buffers->dout[0] : g;
    if (plain && dbias == NULL)
        return ST_OK;
    const struct k_activation_grad args = {
        .rows = self->n,
        .c = self->o,
        .activation = spec->attr.activation,
        .x_dtype = self->type,
        .y_dtype = spec->out_dtype,
        .dy = buffers->dout[0],
        .dy2 = buffers->dout[1],
        .from = straight ? NULL : from,
        .dx = g,
        .dbias = dbias,
        .as_with_dbias = spec->attr.bias,
        .accumulate = buffers->accumulate[1],
        .scratch = scratch + self->sums_at,
    };
    return CUDA_LAUNCHED(backend, k_activation_backward(&args, stream), "linear gradient");
}

static enum status linear_weights(struct backend *backend, const struct linear *self,
                                  const struct op_buffers *buffers, const void *g, const void *x,
                                  cudaStream_t stream)
{
    float *const dw = buffers->dparam[0];
    struct cuda_product_operands operands = { .a = g,
                                              .b = x,
                                              .c = buffers->accumulate[0] ? dw : NULL,
                                              .d = dw,
                                              .workspace = cuda_scratch(buffers->scratch) +
                                                           self->workspace_at };
    enum status st = cuda_product_run(backend, &self->weights[alignment_of(dw)], &operands, stream);
    if (st != ST_OK || self->even == self->o)
        return st;
    float *const below = dw + self->even * self->i;
    operands.a = (const char *)g + (size_t)self->even * dtype_size(self->type);
    operands.c = buffers->accumulate[0] ? below : NULL;
    operands.d = below;
    return cuda_product_run(backend, &self->rest[alignment_of(below)], &operands, stream);
}

enum status cuda_op_linear_backward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct linear *self = (const struct linear *)kernel;
    char *scratch = cuda_scratch(buffers->scratch);
    const void *g = NULL, *x = NULL;
    enum status st = linear_gradient(backend, self, buffers, scratch, &g, stream);
    if (st == ST_OK && buffers->dparam[0] != NULL) {
        st = linear_input(backend, self, buffers->in[0], scratch, &x, stream);
        if (st == ST_OK)
            st = linear_weights(backend, self, buffers, g, x, stream);
    }
    if (st == ST_OK && buffers->din[0] != NULL) {
        const void *weight = linear_weight(self, buffers);
        const struct cuda_product_operands operands = {
            .a = g,
            .b = weight,
            .c = buffers->din_add[0],
            .d = buffers->din[0],
            .workspace = scratch + self->workspace_at,
        };
        st = cuda_product_run(backend, &self->data[alignment_of(weight)], &operands, stream);
    }
    return st;
}
