/*
 * The ops of image models but the convolution: batch_norm, relu, pools, flatten; own kernels on
 * NHWC.
 *
 * A plain input of 4 dims is turned into NHWC in scratch, forward and backward; its gradient is
 * NHWC, too.
 */
#include <stdlib.h>

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

struct image {
    struct kernel base;
    int64_t n, c, h, w, p, q; /* of in[0]; of the output of a pool */
    bool turn;                /* in[0] is plain, and that differs from NHWC */
    size_t turned_bytes;      /* in scratch, before everything else */
};

static int64_t rows_of(const struct image *self)
{
    return self->n * self->h * self->w;
}

static bool is_image(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    return in->ndim == 4 && cuda_dtype_is_floating(in->dtype) && tensor_elements(in) >= 1 &&
           in->format != FORMAT_BLOCKED && spec->out_dtype == in->dtype;
}

static enum status image_new(const struct op_spec *spec, struct image **out)
{
    struct image *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    const struct tensor *in = &spec->in[0];
    self->base.spec = *spec;
    self->n = in->dims[0];
    self->c = in->dims[1];
    self->h = in->dims[2];
    self->w = in->dims[3];
    self->turn = in->format == FORMAT_PLAIN && self->c > 1 && self->h * self->w > 1;
    self->turned_bytes =
        self->turn ? cuda_align((size_t)tensor_elements(in) * dtype_size(in->dtype)) : 0;
    *out = self;
    return ST_OK;
}

/* in[i] with its channels innermost; `at` is where it may be made. */
static enum status channels_last(struct backend *backend, const struct image *self, const void *in,
                                 void *at, const void **out, cudaStream_t stream)
{
    *out = in;
    if (!self->turn)
        return ST_OK;
    const enum dtype dtype = self->base.spec.in[0].dtype;
    const struct k_transpose args = { .batch = self->n,
                                      .a = self->c,
                                      .b = self->h * self->w,
                                      .from = dtype,
                                      .to = dtype,
                                      .in = in,
                                      .out = at };
    *out = at;
    return cuda_launched(backend, k_transpose(&args, stream), "reformat");
}

/* --- batch_norm ---------------------------------------------------------------------------- */

static bool norm_is_valid(const struct op_spec *spec)
{
    const bool residual = spec->attr.residual;
    if (!is_image(spec) || spec->in_count != (residual ? 2 : 1))
        return false;
    if (!residual)
        return true;
    const struct tensor *in = &spec->in[0], *other = &spec->in[1];
    return other->dtype == in->dtype && other->format == in->format &&
           tensor_elements(other) == tensor_elements(in);
}

enum status cuda_op_batch_norm_prepare(struct backend *backend, const struct op_spec *spec,
                                       struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!norm_is_valid(spec))
        return cuda_refuse(backend, ST_INVALID, "batch_norm");
    struct image *self = NULL;
    enum status st = image_new(spec, &self);
    if (st != ST_OK)
        return st;
    const bool residual = spec->attr.residual;
    const struct tensor out = cuda_nhwc(spec->out_dtype, spec->in[0].dims);
    *out_info = (struct kernel_info){
        .out = out,
        .saved_bytes = spec->training ? (size_t)self->c * 2 * sizeof(float) : 0,
        .scratch_bytes = self->turned_bytes * (residual ? 2 : 1) +
                         k_batch_norm_scratch(rows_of(self), self->c) + CUDA_ALIGN,
        .backward_needs_in = { true },
        .backward_needs_out = spec->attr.relu && residual,
        .sums_douts = true,
        .din_adds = { true },
        .din_overwrites_in = { !self->turn },
        .din = { out, out },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cuda_op_batch_norm_forward(struct backend *backend, struct kernel *kernel,
                                       const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    const struct op_attr *attr = &kernel->spec.attr;
    char *scratch = cuda_scratch(buffers->scratch);
    const void *x = NULL, *residual = NULL;
    enum status st = channels_last(backend, self, buffers->in[0], scratch, &x, stream);
    scratch += self->turned_bytes;
    if (st == ST_OK && attr->residual) {
        st = channels_last(backend, self, buffers->in[1], scratch, &residual, stream);
        scratch += self->turned_bytes;
    }
    if (st != ST_OK)
        return st;
    float *mean = buffers->saved;
    const struct k_batch_norm args = {
        .rows = rows_of(self),
        .c = self->c,
        .dtype = kernel->spec.in[0].dtype,
        .eps = attr->eps,
        .relu = attr->relu,
        .x = x,
        .residual = residual,
        .gamma = buffers->param[0],
        .beta = buffers->param[1],
        .running_mean = buffers->stat[0],
        .running_var = buffers->stat[1],
        .y = buffers->out,
        .mean = mean,
        .rstd = mean == NULL ? NULL : mean + self->c,
        .mean_sum = buffers->stat_sum[0],
        .var_sum = buffers->stat_sum[1],
        .accumulate_stats = buffers->accumulate_stats,
        .scratch = scratch,
    };
    st = kernel->spec.training ? k_batch_norm_forward(&args, stream)
                               : k_batch_norm_apply(&args, stream);
    return cuda_launched(backend, st, "batch_norm");
}

enum status cuda_op_batch_norm_backward(struct backend *backend, struct kernel *kernel,
                                        const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    const struct op_attr *attr = &kernel->spec.attr;
    char *scratch = cuda_scratch(buffers->scratch);
    const void *x = NULL;
    enum status st = channels_last(backend, self, buffers->in[0], scratch, &x, stream);
    if (st != ST_OK)
        return st;
    const float *mean = buffers->saved;
    const struct k_batch_norm_grad args = {
        .rows = rows_of(self),
        .c = self->c,
        .dtype = kernel->spec.in[0].dtype,
        .relu = attr->relu,
        .x = x,
        .dy = buffers->dout[0],
        .dy2 = buffers->dout[1],
        .y = attr->relu && attr->residual ? buffers->out : NULL,
        .gamma = buffers->param[0],
        .beta = buffers->param[1],
        .mean = mean,
        .rstd = mean + self->c,
        .dx_add = buffers->din_add[0],
        .dx = buffers->din[0],
        .dresidual = attr->residual ? buffers->din[1] : NULL,
        .dgamma = buffers->dparam[0],
        .dbeta = buffers->dparam[1],
        .accumulate_gamma = buffers->accumulate[0],
        .accumulate_beta = buffers->accumulate[1],
        .scratch = scratch + self->turned_bytes,
    };
    return cuda_launched(backend, k_batch_norm_backward(&args, stream), "batch_norm gradient");
}

/* --- relu ---------------------------------------------------------------------------------- */

enum status cuda_op_relu_prepare(struct backend *backend, const struct op_spec *spec,
                                 struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) || tensor_elements(in) < 1 ||
        in->format == FORMAT_BLOCKED || spec->out_dtype != in->dtype)
        return cuda_refuse(backend, ST_INVALID, "relu");
    struct image *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    *out_info = (struct kernel_info){
        .out = *in,
        .backward_needs_out = true,
        .sums_douts = true,
        .din_adds = { true },
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cuda_op_relu_forward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct k_activation args = {
        .rows = 1,
        .c = tensor_elements(&kernel->spec.in[0]),
        .activation = ACTIVATION_RELU,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .x = buffers->in[0],
        .y = buffers->out,
    };
    return cuda_launched(backend, k_activation_forward(&args, stream), "relu");
}

enum status cuda_op_relu_backward(struct backend *backend, struct kernel *kernel,
                                  const struct op_buffers *buffers, cudaStream_t stream)
{
    if (buffers->din[0] == NULL)
        return ST_OK;
    const struct k_activation_grad args = {
        .rows = 1,
        .c = tensor_elements(&kernel->spec.in[0]),
        .activation = ACTIVATION_RELU,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .dy = buffers->dout[0],
        .dy2 = buffers->dout[1],
        .from = buffers->out,
        .dx_add = buffers->din_add[0],
        .dx = buffers->din[0],
    };
    return cuda_launched(backend, k_activation_backward(&args, stream), "relu gradient");
}

/* --- max_pool ------------------------------------------------------------------------------ */

enum status cuda_op_max_pool_prepare(struct backend *backend, const struct op_spec *spec,
                                     struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct op_attr *attr = &spec->attr;
    const struct tensor *in = &spec->in[0];
    if (!is_image(spec) || spec->in_count != 1 || attr->kernel < 1 || attr->kernel > 15 ||
        attr->stride < 1 || attr->pad < 0 || attr->pad >= attr->kernel ||
        cuda_windows(in->dims[2], attr) < 1 || cuda_windows(in->dims[3], attr) < 1)
        return cuda_refuse(backend, ST_INVALID, "max_pool");
    struct image *self = NULL;
    enum status st = image_new(spec, &self);
    if (st != ST_OK)
        return st;
    self->p = cuda_windows(self->h, attr);
    self->q = cuda_windows(self->w, attr);
    const int64_t dims[4] = { self->n, self->c, self->p, self->q };
    *out_info = (struct kernel_info){
        .out = cuda_nhwc(spec->out_dtype, dims),
        .saved_bytes = spec->training ? (size_t)(self->n * self->p * self->q * self->c) : 0,
        .scratch_bytes = self->turn ? self->turned_bytes + CUDA_ALIGN : 0,
        .din_adds = { true },
        .din = { cuda_nhwc(in->dtype, in->dims) },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

static struct k_max_pool pool_args(const struct image *self, const struct op_buffers *buffers)
{
    const struct op_attr *attr = &self->base.spec.attr;
    return (struct k_max_pool){
        .n = self->n,
        .h = self->h,
        .w = self->w,
        .c = self->c,
        .p = self->p,
        .q = self->q,
        .kernel = attr->kernel,
        .stride = attr->stride,
        .pad = attr->pad,
        .dtype = self->base.spec.in[0].dtype,
        .index = buffers->saved,
    };
}

enum status cuda_op_max_pool_forward(struct backend *backend, struct kernel *kernel,
                                     const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    struct k_max_pool args = pool_args(self, buffers);
    enum status st = channels_last(backend, self, buffers->in[0], cuda_scratch(buffers->scratch),
                                   &args.x, stream);
    if (st != ST_OK)
        return st;
    args.y = buffers->out;
    return cuda_launched(backend, k_max_pool_forward(&args, stream), "max_pool");
}

enum status cuda_op_max_pool_backward(struct backend *backend, struct kernel *kernel,
                                      const struct op_buffers *buffers, cudaStream_t stream)
{
    if (buffers->din[0] == NULL)
        return ST_OK;
    struct k_max_pool args = pool_args((const struct image *)kernel, buffers);
    args.dy = buffers->dout[0];
    args.dx_add = buffers->din_add[0];
    args.dx = buffers->din[0];
    return cuda_launched(backend, k_max_pool_backward(&args, stream), "max_pool gradient");
}

/* --- global_avg_pool ----------------------------------------------------------------------- */

enum status cuda_op_global_avg_pool_prepare(struct backend *backend, const struct op_spec *spec,
                                            struct kernel **out_kernel,
                                            struct kernel_info *out_info)
{
    if (!is_image(spec) || spec->in_count != 1)
        return cuda_refuse(backend, ST_INVALID, "global_avg_pool");
    struct image *self = NULL;
    enum status st = image_new(spec, &self);
    if (st != ST_OK)
        return st;
    const int64_t dims[2] = { self->n, self->c };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 2, dims),
        .scratch_bytes = self->turn ? self->turned_bytes + CUDA_ALIGN : 0,
        .din_adds = { true },
        .din = { cuda_nhwc(spec->in[0].dtype, spec->in[0].dims) },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cuda_op_global_avg_pool_forward(struct backend *backend, struct kernel *kernel,
                                            const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    struct k_avg_pool args = { .n = self->n,
                               .positions = self->h * self->w,
                               .c = self->c,
                               .dtype = kernel->spec.in[0].dtype,
                               .out = buffers->out };
    enum status st = channels_last(backend, self, buffers->in[0], cuda_scratch(buffers->scratch),
                                   &args.in, stream);
    if (st != ST_OK)
        return st;
    return cuda_launched(backend, k_avg_pool_forward(&args, stream), "global_avg_pool");
}

enum status cuda_op_global_avg_pool_backward(struct backend *backend, struct kernel *kernel,
                                             const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    if (buffers->din[0] == NULL)
        return ST_OK;
    const struct k_avg_pool args = { .n = self->n,
                                     .positions = self->h * self->w,
                                     .c = self->c,
                                     .dtype = kernel->spec.in[0].dtype,
                                     .in = buffers->dout[0],
                                     .add = buffers->din_add[0],
                                     .out = buffers->din[0] };
    return cuda_launched(backend, k_avg_pool_backward(&args, stream), "global_avg_pool gradient");
}

/* --- flatten ------------------------------------------------------------------------------- */

enum status cuda_op_flatten_prepare(struct backend *backend, const struct op_spec *spec,
                                    struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!is_image(spec) || spec->in_count != 1)
        return cuda_refuse(backend, ST_INVALID, "flatten");
    struct image *self = NULL;
    enum status st = image_new(spec, &self);
    if (st != ST_OK)
        return st;
    const int64_t dims[2] = { self->n, self->c * self->h * self->w };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 2, dims),
        .din = { spec->in[0] },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

/* [N, a, b] → [N, b, a], or a copy where the input is plain. */
static enum status flatten(struct backend *backend, const struct image *self,
                           const struct k_transpose *args, cudaStream_t stream)
{
    const struct tensor *in = &self->base.spec.in[0];
    if (in->format == FORMAT_NHWC)
        return cuda_launched(backend, k_transpose(args, stream), "flatten");
    return cuda_status(
        backend, cudaMemcpyAsync(args->out, args->in, in->bytes, cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpyAsync");
}

enum status cuda_op_flatten_forward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    const struct k_transpose args = { .batch = self->n,
                                      .a = self->h * self->w,
                                      .b = self->c,
                                      .from = kernel->spec.in[0].dtype,
                                      .to = kernel->spec.in[0].dtype,
                                      .in = buffers->in[0],
                                      .out = buffers->out };
    return flatten(backend, self, &args, stream);
}

enum status cuda_op_flatten_backward(struct backend *backend, struct kernel *kernel,
                                     const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    if (buffers->din[0] == NULL)
        return ST_OK;
    const struct k_transpose args = { .batch = self->n,
                                      .a = self->c,
                                      .b = self->h * self->w,
                                      .from = kernel->spec.in[0].dtype,
                                      .to = kernel->spec.in[0].dtype,
                                      .in = buffers->dout[0],
                                      .out = buffers->din[0] };
    return flatten(backend, self, &args, stream);
}
