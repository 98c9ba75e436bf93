/*
 * max_pool and global_avg_pool by own kernels.
 */
#include "kernels/cuda/ops/image.h"

enum status cuda_op_max_pool_prepare(struct backend *backend, const struct op_spec *spec,
                                     struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct op_attr *attr = &spec->attr;
    const struct tensor *in = &spec->in[0];
    if (!image_is_valid(spec) || spec->in_count != 1 || attr->kernel < 1 || attr->kernel > 15 ||
        attr->stride < 1 || attr->pad < 0 || attr->pad >= attr->kernel ||
        op_windows(in->dims[2], attr) < 1 || op_windows(in->dims[3], attr) < 1)
        return cuda_refuse(backend, ST_INVALID, "max_pool");
    struct image *self = NULL;
    enum status st = image_new(spec, &self);
    if (st != ST_OK)
        return st;
    self->p = op_windows(self->h, attr);
    self->q = op_windows(self->w, attr);
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

static struct k_max_pool max_pool_args(const struct image *self, const struct op_buffers *buffers)
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
    struct k_max_pool args = max_pool_args(self, buffers);
    enum status st = image_channels_last(backend, self, buffers->in[0],
                                         cuda_scratch(buffers->scratch), &args.x, stream);
    if (st != ST_OK)
        return st;
    args.y = buffers->out;
    return CUDA_LAUNCHED(backend, k_max_pool_forward(&args, stream), "max_pool");
}

enum status cuda_op_max_pool_backward(struct backend *backend, struct kernel *kernel,
                                      const struct op_buffers *buffers, cudaStream_t stream)
{
    if (buffers->din[0] == NULL)
        return ST_OK;
    struct k_max_pool args = max_pool_args((const struct image *)kernel, buffers);
    args.dy = buffers->dout[0];
    args.dx_add = buffers->din_add[0];
    args.dx = buffers->din[0];
    return CUDA_LAUNCHED(backend, k_max_pool_backward(&args, stream), "max_pool gradient");
}

/* --- global_avg_pool ----------------------------------------------------------------------- */

enum status cuda_op_global_avg_pool_prepare(struct backend *backend, const struct op_spec *spec,
                                            struct kernel **out_kernel,
                                            struct kernel_info *out_info)
{
    if (!image_is_valid(spec) || spec->in_count != 1)
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
    enum status st = image_channels_last(backend, self, buffers->in[0],
                                         cuda_scratch(buffers->scratch), &args.in, stream);
    if (st != ST_OK)
        return st;
    return CUDA_LAUNCHED(backend, k_avg_pool_forward(&args, stream), "global_avg_pool");
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
    return CUDA_LAUNCHED(backend, k_avg_pool_backward(&args, stream), "global_avg_pool gradient");
}
