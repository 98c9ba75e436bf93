/*
 * batch_norm by own kernels.
 */
#include "kernels/cuda/ops/image.h"

static bool batch_norm_is_valid(const struct op_spec *spec)
{
    const bool residual = spec->attr.residual;
    if (!image_is_valid(spec) || spec->in_count != (residual ? 2 : 1))
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
    if (!batch_norm_is_valid(spec))
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
                         k_batch_norm_scratch(image_rows(self), self->c) + CUDA_ALIGN,
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
    enum status st = image_channels_last(backend, self, buffers->in[0], scratch, &x, stream);
    scratch += self->turned_bytes;
    if (st == ST_OK && attr->residual) {
        st = image_channels_last(backend, self, buffers->in[1], scratch, &residual, stream);
        scratch += self->turned_bytes;
    }
    if (st != ST_OK)
        return st;
    float *mean = buffers->saved;
    const struct k_batch_norm args = {
        .rows = image_rows(self),
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
    return CUDA_LAUNCHED(backend, st, "batch_norm");
}

enum status cuda_op_batch_norm_backward(struct backend *backend, struct kernel *kernel,
                                        const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    const struct op_attr *attr = &kernel->spec.attr;
    char *scratch = cuda_scratch(buffers->scratch);
    const void *x = NULL;
    enum status st = image_channels_last(backend, self, buffers->in[0], scratch, &x, stream);
    if (st != ST_OK)
        return st;
    const float *mean = buffers->saved;
    const struct k_batch_norm_grad args = {
        .rows = image_rows(self),
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
    return CUDA_LAUNCHED(backend, k_batch_norm_backward(&args, stream), "batch_norm gradient");
}
