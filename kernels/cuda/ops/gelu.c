/*
 * gelu as an op of its own, in its two forms (tanh, erf).
 */
#include "kernels/cuda/ops/rows.h"

enum status cuda_op_gelu_prepare(struct backend *backend, const struct op_spec *spec,
                                 struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) || tensor_elements(in) < 1 ||
        !cuda_dtype_is_floating(spec->out_dtype) ||
        activation_reads(spec->attr.activation) != ACTIVATION_READS_INPUT)
        return cuda_refuse(backend, ST_INVALID, "gelu");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    *out_info = (struct kernel_info){
        .out = rows_like_input(spec),
        .backward_needs_in = { true },
        .sums_douts = true,
        .din_adds = { true },
        .din_overwrites_in = { true },
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cuda_op_gelu_forward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct tensor *in = &kernel->spec.in[0];
    const struct k_activation args = {
        .rows = rows_count(in),
        .c = rows_columns(in),
        .activation = kernel->spec.attr.activation,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .x = buffers->in[0],
        .y = buffers->out,
    };
    return CUDA_LAUNCHED(backend, k_activation_forward(&args, stream), "gelu");
}

enum status cuda_op_gelu_backward(struct backend *backend, struct kernel *kernel,
                                  const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct tensor *in = &kernel->spec.in[0];
    if (buffers->din[0] == NULL)
        return ST_OK;
    const struct k_activation_grad args = {
        .rows = rows_count(in),
        .c = rows_columns(in),
        .activation = kernel->spec.attr.activation,
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .dy = buffers->dout[0],
        .dy2 = buffers->dout[1],
        .from = buffers->in[0],
        .dx_add = buffers->din_add[0],
        .dx = buffers->din[0],
    };
    return CUDA_LAUNCHED(backend, k_activation_backward(&args, stream), "gelu gradient");
}
