/*
 * layer_norm by own kernels.
 */
#include "kernels/cuda/ops/rows.h"

enum status cuda_op_layer_norm_prepare(struct backend *backend, const struct op_spec *spec,
                                       struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) || in->format != FORMAT_PLAIN ||
        tensor_elements(in) < 1 || !cuda_dtype_is_floating(spec->out_dtype) ||
        (spec->out_dtype != in->dtype && in->dtype != DTYPE_F32))
        return cuda_refuse(backend, ST_INVALID, "layer_norm");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    *out_info = (struct kernel_info){
        .out = rows_like_input(spec),
        .saved_bytes = spec->training ? (size_t)rows_count(in) * 2 * sizeof(float) : 0,
        .scratch_bytes = spec->training
                             ? k_layer_norm_scratch(rows_count(in), rows_columns(in)) + CUDA_ALIGN
                             : 0,
        .backward_needs_in = { true },
        .din_adds = { true },
        .din_overwrites_in = { true },
        .din = { *in },
        .implementation = spec->attr.rms ? "own, rms" : "own",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cuda_op_layer_norm_forward(struct backend *backend, struct kernel *kernel,
                                       const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct tensor *in = &kernel->spec.in[0];
    float *mean = kernel->spec.training ? buffers->saved : NULL;
    const struct k_layer_norm args = {
        .rows = rows_count(in),
        .c = rows_columns(in),
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .eps = kernel->spec.attr.eps,
        .rms = kernel->spec.attr.rms,
        .x = buffers->in[0],
        .gamma = buffers->param[0],
        .beta = buffers->param[1],
        .y = buffers->out,
        .mean = mean,
        .rstd = mean == NULL ? NULL : mean + rows_count(in),
    };
    return CUDA_LAUNCHED(backend, k_layer_norm_forward(&args, stream), "layer_norm");
}

enum status cuda_op_layer_norm_backward(struct backend *backend, struct kernel *kernel,
                                        const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct tensor *in = &kernel->spec.in[0];
    const float *mean = buffers->saved;
    const struct k_layer_norm_grad args = {
        .rows = rows_count(in),
        .c = rows_columns(in),
        .x_dtype = kernel->spec.in[0].dtype,
        .y_dtype = kernel->spec.out_dtype,
        .rms = kernel->spec.attr.rms,
        .x = buffers->in[0],
        .gamma = buffers->param[0],
        .mean = mean,
        .rstd = mean + rows_count(in),
        .dy = buffers->dout[0],
        .dx_add = buffers->din_add[0],
        .dx = buffers->din[0],
        .dgamma = buffers->dparam[0],
        .dbeta = buffers->dparam[1],
        .accumulate_gamma = buffers->accumulate[0],
        .accumulate_beta = buffers->accumulate[1],
        .scratch = cuda_scratch(buffers->scratch),
    };
    return CUDA_LAUNCHED(backend, k_layer_norm_backward(&args, stream), "layer_norm gradient");
}
