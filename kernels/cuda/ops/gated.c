/*
 * gated by own kernels.
 */
#include "kernels/cuda/ops/rows.h"

enum status cuda_op_gated_prepare(struct backend *backend, const struct op_spec *spec,
                                  struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) ||
        !rows_is_plain(in, spec->out_dtype, 2) || rows_columns(in) % 2 != 0)
        return cuda_refuse(backend, ST_INVALID, "gated");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    struct tensor out = *in;
    out.dims[out.ndim - 1] /= 2;
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, out.ndim, out.dims),
        .backward_needs_in = { true },
        .din_overwrites_in = { true },
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = kernel;
    return ST_OK;
}

static struct k_gated gated_args(const struct kernel *kernel, const struct op_buffers *buffers)
{
    const struct tensor *in = &kernel->spec.in[0];
    return (struct k_gated){
        .rows = rows_count(in),
        .c = rows_columns(in) / 2,
        .dtype = in->dtype,
        .x = buffers->in[0],
        .y = buffers->out,
        .dy = buffers->dout[0],
        .dx = buffers->din[0],
    };
}

enum status cuda_op_gated_forward(struct backend *backend, struct kernel *kernel,
                                  const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct k_gated args = gated_args(kernel, buffers);
    return CUDA_LAUNCHED(backend, k_gated_forward(&args, stream), "gated");
}

enum status cuda_op_gated_backward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, cudaStream_t stream)
{
    if (buffers->din[0] == NULL)
        return ST_OK;
    const struct k_gated args = gated_args(kernel, buffers);
    return CUDA_LAUNCHED(backend, k_gated_backward(&args, stream), "gated gradient");
}
