/*
 * gelu as an op of its own, in its two forms (tanh, erf). linear has the same loops fused.
 */
#include <stdlib.h>

#include "kernels/cpu/ops/rows.h"

enum status cpu_gelu_prepare(struct backend *backend, const struct op_spec *spec,
                             struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !rows_is_valid(in, 1) || spec->out_dtype != in->dtype ||
        activation_reads(spec->attr.activation) != ACTIVATION_READS_INPUT)
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    *out_info = (struct kernel_info){
        .out = *in,
        .backward_needs_in = { true },
        .din_overwrites_in = { true },
        .din = { *in },
        .flops_forward = 30.0 * (double)tensor_elements(in),
        .flops_backward = 40.0 * (double)tensor_elements(in),
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cpu_gelu_forward(struct backend *backend, struct kernel *kernel,
                             const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    cpu_enter(backend);
    backend->loops.text->activate(
        kernel->spec.attr.activation, rows_target(buffers->out, in->dtype),
        rows_source(buffers->in[0], in->dtype), (size_t)tensor_elements(in));
    return ST_OK;
}

enum status cpu_gelu_backward(struct backend *backend, struct kernel *kernel,
                              const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    if (buffers->din[0] == NULL)
        return ST_OK;
    cpu_enter(backend);
    backend->loops.text->activate_backward(
        kernel->spec.attr.activation, rows_target(buffers->din[0], in->dtype),
        rows_source(buffers->dout[0], in->dtype), rows_source(buffers->in[0], in->dtype),
        (size_t)tensor_elements(in));
    return ST_OK;
}
