/*
 * From images to rows. flatten: to [N, C·H·W] in PyTorch's order, a transpose, or a copy where the
 * input is plain. sequence and select by own kernels, which take images with the channels
 * innermost.
 */
#include "kernels/cuda/ops/image.h"
#include "kernels/cuda/ops/rows.h"

enum status cuda_op_flatten_prepare(struct backend *backend, const struct op_spec *spec,
                                    struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!image_is_valid(spec) || spec->in_count != 1)
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
static enum status flatten_run(struct backend *backend, const struct image *self,
                               const struct k_transpose *args, cudaStream_t stream)
{
    const struct tensor *in = &self->base.spec.in[0];
    if (in->format == FORMAT_NHWC)
        return CUDA_LAUNCHED(backend, k_transpose(args, stream), "flatten");
    return CUDA_STATUS(
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
    return flatten_run(backend, self, &args, stream);
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
    return flatten_run(backend, self, &args, stream);
}

enum status cuda_op_sequence_prepare(struct backend *backend, const struct op_spec *spec,
                                     struct kernel **out_kernel, struct kernel_info *out_info)
{
    struct op_spec alike = *spec;
    alike.out_dtype = spec->in[0].dtype;
    if (spec->in_count != 1 || !image_is_valid(&alike) || !cuda_dtype_is_floating(spec->out_dtype))
        return cuda_refuse(backend, ST_INVALID, "sequence");
    struct image *self = NULL;
    enum status st = image_new(spec, &self);
    if (st != ST_OK)
        return st;
    const int64_t dims[3] = { self->n, 1 + self->h * self->w, self->c };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 3, dims),
        .scratch_bytes = self->turned_bytes + CUDA_ALIGN,
        .din = { cuda_nhwc(spec->in[0].dtype, spec->in[0].dims) },
        .implementation = "own",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

enum status cuda_op_sequence_forward(struct backend *backend, struct kernel *kernel,
                                     const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    struct k_sequence args = {
        .n = self->n,
        .pixels = self->h * self->w,
        .c = self->c,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .first = buffers->param[0],
        .position = buffers->param[1],
        .y = buffers->out,
    };
    enum status st = image_channels_last(backend, self, buffers->in[0],
                                         cuda_scratch(buffers->scratch), &args.x, stream);
    return st == ST_OK ? CUDA_LAUNCHED(backend, k_sequence_forward(&args, stream), "sequence") : st;
}

enum status cuda_op_sequence_backward(struct backend *backend, struct kernel *kernel,
                                      const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct image *self = (const struct image *)kernel;
    const struct k_sequence_grad args = {
        .n = self->n,
        .pixels = self->h * self->w,
        .c = self->c,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .dy = buffers->dout[0],
        .dx = buffers->din[0],
        .dfirst = buffers->dparam[0],
        .dposition = buffers->dparam[1],
        .accumulate_first = buffers->accumulate[0],
        .accumulate_position = buffers->accumulate[1],
    };
    return CUDA_LAUNCHED(backend, k_sequence_backward(&args, stream), "sequence gradient");
}

enum status cuda_op_select_prepare(struct backend *backend, const struct op_spec *spec,
                                   struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) ||
        !rows_is_plain(in, in->dtype, 3) || in->ndim != 3 || spec->out_dtype != in->dtype ||
        spec->attr.row < 0 || spec->attr.row >= in->dims[1])
        return cuda_refuse(backend, ST_INVALID, "select");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    const int64_t dims[2] = { in->dims[0], in->dims[2] };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 2, dims),
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = kernel;
    return ST_OK;
}

static enum status select_run(struct backend *backend, const struct kernel *kernel, const void *in,
                              void *out, bool is_backward, cudaStream_t stream)
{
    const struct tensor *x = &kernel->spec.in[0];
    const struct k_select args = {
        .n = x->dims[0],
        .t = x->dims[1],
        .c = x->dims[2],
        .row = kernel->spec.attr.row,
        .dtype = x->dtype,
        .backward = is_backward,
        .in = in,
        .out = out,
    };
    return CUDA_LAUNCHED(backend, k_select(&args, stream), "select");
}

enum status cuda_op_select_forward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, cudaStream_t stream)
{
    return select_run(backend, kernel, buffers->in[0], buffers->out, false, stream);
}

enum status cuda_op_select_backward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, cudaStream_t stream)
{
    if (buffers->din[0] == NULL)
        return ST_OK;
    return select_run(backend, kernel, buffers->dout[0], buffers->din[0], true, stream);
}
