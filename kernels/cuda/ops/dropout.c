/*
 * dropout. Without training it is a copy, or the sum with the residual.
 */
#include "kernels/cuda/ops/rows.h"

enum status cuda_op_dropout_prepare(struct backend *backend, const struct op_spec *spec,
                                    struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    const bool residual = spec->attr.residual;
    if (spec->in_count != (residual ? 2 : 1) || !cuda_dtype_is_floating(in->dtype) ||
        !cuda_dtype_is_floating(spec->out_dtype) || tensor_elements(in) < 1 ||
        !(spec->attr.drop >= 0.0f) || !(spec->attr.drop < 1.0f))
        return cuda_refuse(backend, ST_INVALID, "dropout");
    if (residual && (spec->in[1].dtype != spec->out_dtype || spec->in[1].format != in->format ||
                     tensor_elements(&spec->in[1]) != tensor_elements(in)))
        return cuda_refuse(backend, ST_INVALID, "dropout: the residual differs from the output");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    *out_info = (struct kernel_info){
        .out = rows_like_input(spec),
        .din_aliases_dout = { false, residual },
        .din_alias = { 0, -1 },
        .din_adds = { true },
        .din = { *in, rows_like_input(spec) },
        .implementation = "own",
    };
    *out_kernel = kernel;
    return ST_OK;
}

static enum status dropout_inference(struct backend *backend, const struct op_spec *spec,
                                     const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct tensor *in = &spec->in[0];
    const struct k_activation args = {
        .rows = rows_count(in),
        .c = rows_columns(in),
        .activation = ACTIVATION_NONE,
        .x_dtype = spec->in[0].dtype,
        .y_dtype = spec->out_dtype,
        .x = buffers->in[0],
        .residual = spec->attr.residual ? buffers->in[1] : NULL,
        .y = buffers->out,
    };
    return CUDA_LAUNCHED(backend, k_activation_forward(&args, stream), "dropout");
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
        return dropout_inference(backend, &kernel->spec, buffers, stream);
    struct k_dropout args = dropout_args(kernel, buffers);
    args.x_dtype = kernel->spec.in[0].dtype;
    args.y_dtype = kernel->spec.out_dtype;
    args.x = buffers->in[0];
    args.add = kernel->spec.attr.residual ? buffers->in[1] : NULL;
    args.y = buffers->out;
    return CUDA_LAUNCHED(backend, k_dropout(&args, stream), "dropout");
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
    return CUDA_LAUNCHED(backend, k_dropout(&args, stream), "dropout gradient");
}
