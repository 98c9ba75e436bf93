/*
 * relu, in any format.
 */
#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

enum status cuda_op_relu_prepare(struct backend *backend, const struct op_spec *spec,
                                 struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) || tensor_elements(in) < 1 ||
        in->format == FORMAT_BLOCKED || spec->out_dtype != in->dtype)
        return cuda_refuse(backend, ST_INVALID, "relu");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    *out_info = (struct kernel_info){
        .out = *in,
        .backward_needs_out = true,
        .sums_douts = true,
        .din_adds = { true },
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = kernel;
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
    return CUDA_LAUNCHED(backend, k_activation_forward(&args, stream), "relu");
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
    return CUDA_LAUNCHED(backend, k_activation_backward(&args, stream), "relu gradient");
}
