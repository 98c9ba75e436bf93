/*
 * linear: y = relu?(x·Wᵀ + b), three matrix products on canonical weights.
 *
 *   forward   y  [N, O] = x [N, I] · Wᵀ, then bias and relu by our loop (oneDNN's relu drops NaN)
 *   backward  g  [N, O] = dy (+ second dy), masked by y > 0
 *             dx [N, I] = g · W
 *             dW [O, I] (+)= gᵀ · x;  db [O] (+)= column sums of g
 *
 * Scratch: g where it differs from dy, then the scratchpad of the product.
 */
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnn.h"

struct linear_kernel {
    struct kernel base;
    int64_t n, i, o;
    size_t g_bytes; /* 0: dy itself is g, unless there are two */
    struct dnn_op forward, backward_data, backward_weights, backward_weights_add;
};

/* c [m, n] = a · b, with a [m, k] and b [k, n] given by their strides. */
struct product {
    int64_t m, n, k;
    bool a_transposed, b_transposed, sum;
};

static enum status matrix(dnnl_memory_desc_t *desc, int64_t rows, int64_t columns, bool transposed)
{
    const dnnl_dims_t dims = { rows, columns };
    return dnn_status(
        dnnl_memory_desc_init_by_tag(desc, 2, dims, dnnl_f32, transposed ? dnnl_ba : dnnl_ab));
}

static enum status product_init(struct dnn *dnn, struct dnn_op *op, const struct product *p)
{
    dnnl_memory_desc_t a, b, c;
    enum status st = matrix(&a, p->m, p->k, p->a_transposed);
    if (st == ST_OK)
        st = matrix(&b, p->k, p->n, p->b_transposed);
    if (st == ST_OK)
        st = matrix(&c, p->m, p->n, false);
    if (st != ST_OK)
        return st;
    dnnl_matmul_desc_t matmul;
    st = dnn_status(dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c));
    if (st != ST_OK)
        return st;
    dnnl_primitive_attr_t attr = NULL;
    st = dnn_attr_new(p->sum, &attr);
    if (st != ST_OK)
        return st;
    dnnl_primitive_desc_t desc = NULL;
    st = dnn_status(dnnl_primitive_desc_create(&desc, &matmul, attr, dnn->engine, NULL));
    (void)dnnl_primitive_attr_destroy(attr);
    if (st == ST_OK)
        st = dnn_op_init(dnn, op, desc);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, op, DNNL_ARG_SRC, &a);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, op, DNNL_ARG_WEIGHTS, &b);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, op, DNNL_ARG_DST, &c);
    return st;
}

static enum status product_run(struct dnn *dnn, struct dnn_op *op, const void *a, const void *b,
                               void *c, void *scratch)
{
    enum status st = dnn_op_set(op, DNNL_ARG_SRC, a);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_WEIGHTS, b);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_DST, c);
    if (st == ST_OK)
        st = dnn_op_run(dnn, op, scratch);
    return st;
}

static void linear_release(struct kernel *kernel)
{
    struct linear_kernel *self = (struct linear_kernel *)kernel;
    dnn_op_release(&self->forward);
    dnn_op_release(&self->backward_data);
    dnn_op_release(&self->backward_weights);
    dnn_op_release(&self->backward_weights_add);
}

static enum status products_init(struct backend *backend, struct linear_kernel *self)
{
    const int64_t n = self->n, i = self->i, o = self->o;
    struct dnn *dnn = backend->dnn;
    const struct product forward = { .m = n, .n = o, .k = i, .b_transposed = true };
    const struct product data = { .m = n, .n = i, .k = o };
    const struct product weights = { .m = o, .n = i, .k = n, .a_transposed = true };
    struct product add = weights;
    add.sum = true;
    enum status st = product_init(dnn, &self->forward, &forward);
    if (st != ST_OK || !self->base.spec.training)
        return st;
    if (self->base.spec.need_din0)
        st = product_init(dnn, &self->backward_data, &data);
    if (st == ST_OK)
        st = product_init(dnn, &self->backward_weights, &weights);
    if (st == ST_OK)
        st = product_init(dnn, &self->backward_weights_add, &add);
    return st;
}

static size_t scratch_bytes(const struct linear_kernel *self)
{
    const struct dnn_op *ops[] = { &self->backward_data, &self->backward_weights,
                                   &self->backward_weights_add };
    size_t most = 0;
    for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
        if (ops[k]->scratch_bytes > most)
            most = ops[k]->scratch_bytes;
    }
    if (self->base.spec.training)
        most += self->g_bytes;
    return self->forward.scratch_bytes > most ? self->forward.scratch_bytes : most;
}

enum status cpu_linear_prepare(struct backend *backend, const struct op_spec *spec,
                               struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (!cpu_input_is_valid(spec, 2) || spec->in_count != 1 || spec->attr.out < 1 ||
        (spec->attr.activation != ACTIVATION_NONE && spec->attr.activation != ACTIVATION_RELU))
        return ST_INVALID;
    struct linear_kernel *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->base.release = linear_release;
    self->n = in->dims[0];
    self->i = in->dims[1];
    self->o = spec->attr.out;
    self->g_bytes = cpu_align((size_t)(self->n * self->o) * sizeof(float));
    cpu_enter(backend);
    enum status st = products_init(backend, self);
    if (st != ST_OK) {
        linear_release(&self->base);
        free(self);
        return st;
    }
    const int64_t dims[2] = { self->n, self->o };
    const double product = 2.0 * (double)self->n * (double)self->i * (double)self->o;
    *out_info = (struct kernel_info){
        .out = tensor_plain(DTYPE_F32, 2, dims),
        .scratch_bytes = scratch_bytes(self),
        .backward_needs_in = { true },
        .backward_needs_out = spec->attr.activation == ACTIVATION_RELU,
        .sums_douts = true,
        .din = { *in },
        .flops_forward = product,
        .flops_backward = spec->need_din0 ? 2.0 * product : product,
        .implementation = self->forward.implementation,
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cpu_linear_forward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    struct linear_kernel *self = (struct linear_kernel *)kernel;
    const struct op_attr *attr = &kernel->spec.attr;
    cpu_enter(backend);
    enum status st = product_run(backend->dnn, &self->forward, buffers->in[0], buffers->param[0],
                                 buffers->out, buffers->scratch);
    if (st != ST_OK)
        return st;
    backend->loops.flat->bias_relu(buffers->out, attr->bias ? buffers->param[1] : NULL,
                                   (size_t)self->n, (size_t)self->o,
                                   attr->activation == ACTIVATION_RELU);
    return ST_OK;
}

enum status cpu_linear_backward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    struct linear_kernel *self = (struct linear_kernel *)kernel;
    const struct op_attr *attr = &kernel->spec.attr;
    const struct flat_loops *flat = backend->loops.flat;
    const float *g = buffers->dout[0];
    char *scratch = (char *)buffers->scratch + self->g_bytes;
    cpu_enter(backend);
    const bool relu = attr->activation == ACTIVATION_RELU;
    if (relu || buffers->dout[1] != NULL) {
        flat->relu_backward(buffers->scratch, g, buffers->dout[1], relu ? buffers->out : NULL,
                            (size_t)(self->n * self->o));
        g = buffers->scratch;
    }
    if (attr->bias && buffers->dparam[1] != NULL) {
        flat->column_sums(buffers->dparam[1], g, (size_t)self->n, (size_t)self->o,
                          buffers->accumulate[1]);
    }
    enum status st = ST_OK;
    if (buffers->dparam[0] != NULL) {
        st = product_run(backend->dnn,
                         buffers->accumulate[0] ? &self->backward_weights_add
                                                : &self->backward_weights,
                         g, buffers->in[0], buffers->dparam[0], scratch);
    }
    if (st == ST_OK && buffers->din[0] != NULL) {
        st = product_run(backend->dnn, &self->backward_data, g, buffers->param[0], buffers->din[0],
                         scratch);
    }
    return st;
}
