/*
 * relu, float32 or bfloat16, in and out of one dtype. Any format: padding stays zero.
 */
#include <stdlib.h>

#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/loops/half.h"

static bool relu_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count < 1 || spec->out_dtype != in->dtype)
        return false;
    if (in->dtype == DTYPE_F32)
        return cpu_input_is_valid(spec, in->ndim);
    return in->dtype == DTYPE_BF16 && in->format != FORMAT_BLOCKED && tensor_elements(in) > 0;
}

enum status cpu_relu_prepare(struct backend *backend, const struct op_spec *spec,
                             struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    if (!relu_is_valid(spec))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    *out_info = (struct kernel_info){
        .out = spec->in[0],
        .backward_needs_out = true,
        .sums_douts = true,
        .din = { spec->in[0] },
        .flops_forward = (double)tensor_elements(&spec->in[0]),
        .flops_backward = (double)tensor_elements(&spec->in[0]),
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cpu_relu_forward(struct backend *backend, struct kernel *kernel,
                             const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    cpu_enter(backend);
    if (in->dtype == DTYPE_BF16) {
        backend->loops.half->relu(buffers->out, buffers->in[0], in->bytes / sizeof(uint16_t));
        return ST_OK;
    }
    backend->loops.flat->relu(buffers->out, buffers->in[0],
                              kernel->spec.in[0].bytes / sizeof(float));
    return ST_OK;
}

enum status cpu_relu_backward(struct backend *backend, struct kernel *kernel,
                              const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    if (buffers->din[0] == NULL)
        return ST_OK;
    const struct tensor *in = &kernel->spec.in[0];
    cpu_enter(backend);
    if (in->dtype == DTYPE_BF16) {
        backend->loops.half->relu_backward(buffers->din[0], buffers->dout[0], buffers->dout[1],
                                           buffers->out, in->bytes / sizeof(uint16_t));
        return ST_OK;
    }
    backend->loops.flat->relu_backward(buffers->din[0], buffers->dout[0], buffers->dout[1],
                                       buffers->out, kernel->spec.in[0].bytes / sizeof(float));
    return ST_OK;
}
