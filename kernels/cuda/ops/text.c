/*
 * The ops of text models but linear: gelu, dropout, layer_norm, embedding and the loss.
 * Each is a call of own kernels (k.h); this file says what they keep and need.
 */
#include <stdlib.h>

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

struct text {
    struct kernel base;
    int64_t rows, c; /* of in[0] */
    size_t first_at; /* scratch: what comes before it is the loss's lse */
};

static bool is_plain(const struct tensor *t, enum dtype dtype, int ndim_min)
{
    return t->dtype == dtype && t->format == FORMAT_PLAIN && t->ndim >= ndim_min &&
           tensor_elements(t) >= 1;
}

static enum status text_new(const struct op_spec *spec, struct text **out)
{
    struct text *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    const struct tensor *in = &spec->in[0];
    self->base.spec = *spec;
    self->c = in->dims[in->ndim - 1];
    self->rows = tensor_elements(in) / self->c;
    *out = self;
    return ST_OK;
}

/* The output has the input's dims and format, and a type of its own. */
static struct tensor like_input(const struct op_spec *spec)
{
    struct tensor out = spec->in[0];
    out.dtype = spec->out_dtype;
    out.bytes = (size_t)tensor_elements(&out) * dtype_size(out.dtype);
    return out;
}

static bool same_shape(const struct tensor *a, const struct tensor *b)
{
    return a->format == b->format && tensor_elements(a) == tensor_elements(b);
}

/* --- gelu ---------------------------------------------------------------------------------- */

enum status cuda_op_gelu_prepare(struct backend *backend, const struct op_spec *spec,
                                 struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) || tensor_elements(in) < 1 ||
        !cuda_dtype_is_floating(spec->out_dtype) ||
        (spec->attr.activation != ACTIVATION_GELU_TANH &&
         spec->attr.activation != ACTIVATION_GELU_ERF))
        return cuda_refuse(backend, ST_INVALID, "gelu");
    struct text *self = NULL;
    enum status st = text_new(spec, &self);
    if (st != ST_OK)
        return st;
    *out_info = (struct kernel_info){
        .out = like_input(spec),
        .backward_needs_in = { true },
        .sums_douts = true,
        .din_adds = { true },
        .din_overwrites_in = { true },
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cuda_op_gelu_forward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct text *self = (const struct text *)kernel;
    const struct k_activation args = {
        .rows = self->rows,
        .c = self->c,
        .activation = kernel->spec.attr.activation,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .x = buffers->in[0],
        .y = buffers->out,
    };
    return cuda_launched(backend, k_activation_forward(&args, stream), "gelu");
}

enum status cuda_op_gelu_backward(struct backend *backend, struct kernel *kernel,
                                  const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct text *self = (const struct text *)kernel;
    if (buffers->din[0] == NULL)
        return ST_OK;
    const struct k_activation_grad args = {
        .rows = self->rows,
        .c = self->c,
        .activation = kernel->spec.attr.activation,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .dy = buffers->dout[0],
        .dy2 = buffers->dout[1],
        .from = buffers->in[0],
        .dx_add = buffers->din_add[0],
        .dx = buffers->din[0],
    };
    return cuda_launched(backend, k_activation_backward(&args, stream), "gelu gradient");
}

/* --- dropout ------------------------------------------------------------------------------- */

enum status cuda_op_dropout_prepare(struct backend *backend, const struct op_spec *spec,
                                    struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    const bool residual = spec->attr.residual;
    if (spec->in_count != (residual ? 2 : 1) || !cuda_dtype_is_floating(in->dtype) ||
        !cuda_dtype_is_floating(spec->out_dtype) || tensor_elements(in) < 1 ||
        !(spec->attr.drop >= 0.0f) || !(spec->attr.drop < 1.0f))
        return cuda_refuse(backend, ST_INVALID, "dropout");
    if (residual && (spec->in[1].dtype != spec->out_dtype || !same_shape(in, &spec->in[1])))
        return cuda_refuse(backend, ST_INVALID, "dropout: the residual differs from the output");
    struct text *self = NULL;
    enum status st = text_new(spec, &self);
    if (st != ST_OK)
        return st;
    *out_info = (struct kernel_info){
        .out = like_input(spec),
        .din_aliases_dout = { false, residual },
        .din_alias = { 0, -1 },
        .din_adds = { true },
        .din = { *in, like_input(spec) },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

static enum status inference_dropout(struct backend *backend, const struct text *self,
                                     const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct k_activation args = {
        .rows = self->rows,
        .c = self->c,
        .activation = ACTIVATION_NONE,
        .x_dtype = self->base.spec.in[0].dtype,
        .y_dtype = self->base.spec.out_dtype,
        .x = buffers->in[0],
        .residual = self->base.spec.attr.residual ? buffers->in[1] : NULL,
        .y = buffers->out,
    };
    return cuda_launched(backend, k_activation_forward(&args, stream), "dropout");
}

static struct k_dropout dropout_args(const struct kernel *kernel, const struct op_buffers *buffers)
{
    const struct tensor *in = &kernel->spec.in[0];
    return (struct k_dropout){
        .samples = in->dims[0],
        .elements = tensor_elements(in) / in->dims[0],
        .p = kernel->spec.attr.drop,
        .layer = kernel->spec.attr.layer,
        .draw = buffers->draw,
    };
}

enum status cuda_op_dropout_forward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, cudaStream_t stream)
{
    if (!kernel->spec.training)
        return inference_dropout(backend, (const struct text *)kernel, buffers, stream);
    struct k_dropout args = dropout_args(kernel, buffers);
    args.x_dtype = kernel->spec.in[0].dtype;
    args.y_dtype = kernel->spec.out_dtype;
    args.x = buffers->in[0];
    args.add = kernel->spec.attr.residual ? buffers->in[1] : NULL;
    args.y = buffers->out;
    return cuda_launched(backend, k_dropout(&args, stream), "dropout");
}

enum status cuda_op_dropout_backward(struct backend *backend, struct kernel *kernel,
                                     const struct op_buffers *buffers, cudaStream_t stream)
{
    if (buffers->din[0] == NULL)
        return ST_OK;
    struct k_dropout args = dropout_args(kernel, buffers);
    args.x_dtype = kernel->spec.out_dtype;
    args.y_dtype = kernel->spec.in[0].dtype;
    args.x = buffers->dout[0];
    args.add = buffers->din_add[0];
    args.y = buffers->din[0];
    return cuda_launched(backend, k_dropout(&args, stream), "dropout gradient");
}

/* --- layer_norm ---------------------------------------------------------------------------- */

enum status cuda_op_layer_norm_prepare(struct backend *backend, const struct op_spec *spec,
                                       struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) || in->format != FORMAT_PLAIN ||
        tensor_elements(in) < 1 || !cuda_dtype_is_floating(spec->out_dtype) ||
        (spec->out_dtype != in->dtype && in->dtype != DTYPE_F32))
        return cuda_refuse(backend, ST_INVALID, "layer_norm");
    struct text *self = NULL;
    enum status st = text_new(spec, &self);
    if (st != ST_OK)
        return st;
    *out_info = (struct kernel_info){
        .out = like_input(spec),
        .saved_bytes = spec->training ? (size_t)self->rows * 2 * sizeof(float) : 0,
        .scratch_bytes =
            spec->training ? k_layer_norm_scratch(self->rows, self->c) + CUDA_ALIGN : 0,
        .backward_needs_in = { true },
        .din_adds = { true },
        .din_overwrites_in = { true },
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cuda_op_layer_norm_forward(struct backend *backend, struct kernel *kernel,
                                       const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct text *self = (const struct text *)kernel;
    float *mean = kernel->spec.training ? buffers->saved : NULL;
    const struct k_layer_norm args = {
        .rows = self->rows,
        .c = self->c,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .eps = kernel->spec.attr.eps,
        .x = buffers->in[0],
        .gamma = buffers->param[0],
        .beta = buffers->param[1],
        .y = buffers->out,
        .mean = mean,
        .rstd = mean == NULL ? NULL : mean + self->rows,
    };
    return cuda_launched(backend, k_layer_norm_forward(&args, stream), "layer_norm");
}

enum status cuda_op_layer_norm_backward(struct backend *backend, struct kernel *kernel,
                                        const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct text *self = (const struct text *)kernel;
    const float *mean = buffers->saved;
    const struct k_layer_norm_grad args = {
        .rows = self->rows,
        .c = self->c,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .x = buffers->in[0],
        .gamma = buffers->param[0],
        .mean = mean,
        .rstd = mean + self->rows,
        .dy = buffers->dout[0],
        .dx_add = buffers->din_add[0],
        .dx = buffers->din[0],
        .dgamma = buffers->dparam[0],
        .dbeta = buffers->dparam[1],
        .accumulate_gamma = buffers->accumulate[0],
        .accumulate_beta = buffers->accumulate[1],
        .scratch = cuda_scratch(buffers->scratch),
    };
    return cuda_launched(backend, k_layer_norm_backward(&args, stream), "layer_norm gradient");
}

/* --- embedding ----------------------------------------------------------------------------- */

enum status cuda_op_embedding_prepare(struct backend *backend, const struct op_spec *spec,
                                      struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    const struct op_attr *attr = &spec->attr;
    if (spec->in_count != 1 || !is_plain(in, DTYPE_I32, 2) || in->ndim != 2 || attr->out < 1 ||
        attr->rows < 1 || !cuda_dtype_is_floating(spec->out_dtype) ||
        (attr->positions > 0 && attr->positions < in->dims[1]))
        return cuda_refuse(backend, ST_INVALID, "embedding");
    struct text *self = NULL;
    enum status st = text_new(spec, &self);
    if (st != ST_OK)
        return st;
    const int64_t tokens = tensor_elements(in);
    const int64_t dims[3] = { in->dims[0], in->dims[1], attr->out };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 3, dims),
        .scratch_bytes =
            spec->training ? k_embedding_scratch(tokens, attr->out, attr->rows) + CUDA_ALIGN : 0,
        .backward_needs_in = { true },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cuda_op_embedding_forward(struct backend *backend, struct kernel *kernel,
                                      const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct op_spec *spec = &kernel->spec;
    const struct k_embedding args = {
        .n = spec->in[0].dims[0],
        .t = spec->in[0].dims[1],
        .c = spec->attr.out,
        .vocab = spec->attr.rows,
        .dtype = spec->out_dtype,
        .tokens = buffers->in[0],
        .weight = buffers->param[0],
        .position = spec->attr.positions > 0 ? buffers->param[1] : NULL,
        .out = buffers->out,
        .fault = backend->fault,
    };
    enum status st = cuda_launched(backend, k_embedding_forward(&args, stream), "embedding");
    return st == ST_OK ? cuda_faults_fetch(backend, stream) : st;
}

enum status cuda_op_embedding_backward(struct backend *backend, struct kernel *kernel,
                                       const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct op_spec *spec = &kernel->spec;
    const struct k_embedding_grad args = {
        .n = spec->in[0].dims[0],
        .t = spec->in[0].dims[1],
        .c = spec->attr.out,
        .vocab = spec->attr.rows,
        .positions = spec->attr.positions,
        .dtype = spec->out_dtype,
        .tokens = buffers->in[0],
        .dout = buffers->dout[0],
        .dweight = buffers->dparam[0],
        .dposition = spec->attr.positions > 0 ? buffers->dparam[1] : NULL,
        .accumulate_weight = buffers->accumulate[0],
        .accumulate_position = buffers->accumulate[1],
        .scratch = cuda_scratch(buffers->scratch),
    };
    return cuda_launched(backend, k_embedding_backward(&args, stream), "embedding gradient");
}

/* --- softmax_cross_entropy ----------------------------------------------------------------- */

enum status cuda_op_softmax_cross_entropy_prepare(struct backend *backend,
                                                  const struct op_spec *spec,
                                                  struct kernel **out_kernel,
                                                  struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0], *labels = &spec->in[1];
    if (spec->in_count != 2 || !cuda_dtype_is_floating(in->dtype) || in->ndim < 2 ||
        in->format != FORMAT_PLAIN || tensor_elements(in) < 1 || !is_plain(labels, DTYPE_I32, 1) ||
        tensor_elements(labels) != tensor_elements(in) / in->dims[in->ndim - 1] ||
        !(spec->attr.label_smoothing >= 0.0f) || !(spec->attr.label_smoothing < 1.0f))
        return cuda_refuse(backend, ST_INVALID, "softmax_cross_entropy");
    struct text *self = NULL;
    enum status st = text_new(spec, &self);
    if (st != ST_OK)
        return st;
    const int64_t dims[1] = { 3 };
    const size_t lse = (size_t)self->rows * sizeof(float);
    self->first_at = spec->training ? 0 : cuda_align(lse);
    *out_info = (struct kernel_info){
        .out = tensor_plain(DTYPE_F32, 1, dims),
        .saved_bytes = spec->training ? lse : 0,
        .scratch_bytes = self->first_at + k_loss_scratch(self->rows) + CUDA_ALIGN,
        .backward_needs_in = { true, true },
        .din_overwrites_in = { true },
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cuda_op_softmax_cross_entropy_forward(struct backend *backend, struct kernel *kernel,
                                                  const struct op_buffers *buffers,
                                                  cudaStream_t stream)
{
    const struct text *self = (const struct text *)kernel;
    char *scratch = cuda_scratch(buffers->scratch);
    const struct k_loss args = {
        .rows = self->rows,
        .vocab = self->c,
        .stride = self->c,
        .dtype = kernel->spec.in[0].dtype,
        .smoothing = kernel->spec.attr.label_smoothing,
        .logits = buffers->in[0],
        .labels = buffers->in[1],
        .lse = kernel->spec.training ? buffers->saved : (float *)(void *)scratch,
        .out = buffers->out,
        .scratch = scratch + self->first_at,
        .fault = backend->fault,
    };
    enum status st = cuda_launched(backend, k_loss_forward(&args, stream), "loss");
    return st == ST_OK ? cuda_faults_fetch(backend, stream) : st;
}

enum status cuda_op_softmax_cross_entropy_backward(struct backend *backend, struct kernel *kernel,
                                                   const struct op_buffers *buffers,
                                                   cudaStream_t stream)
{
    const struct text *self = (const struct text *)kernel;
    if (buffers->din[0] == NULL)
        return ST_OK;
    const struct k_loss_grad args = {
        .rows = self->rows,
        .vocab = self->c,
        .stride = self->c,
        .dtype = kernel->spec.in[0].dtype,
        .smoothing = kernel->spec.attr.label_smoothing,
        .logits = buffers->in[0],
        .labels = buffers->in[1],
        .lse = buffers->saved,
        .scale = buffers->loss_scale,
        .dlogits = buffers->din[0],
    };
    return cuda_launched(backend, k_loss_backward(&args, stream), "loss gradient");
}
