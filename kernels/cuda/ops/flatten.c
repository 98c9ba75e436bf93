/*
 * flatten: to [N, C·H·W] in PyTorch's order. A transpose, or a copy where the input is plain.
 */
#include "kernels/cuda/ops/image.h"

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
