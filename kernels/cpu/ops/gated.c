/*
 * gated: silu(a)·b of rows that are a, then b.
 */
#include <stdlib.h>

#include "common/check.h"
#include "kernels/cpu/ops/rows.h"

enum status cpu_gated_prepare(struct backend *backend, const struct op_spec *spec,
                              struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !rows_is_valid(in, 2) || spec->out_dtype != in->dtype ||
        rows_columns(in) % 2 != 0)
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    struct tensor out = *in;
    out.dims[out.ndim - 1] /= 2;
    *out_info = (struct kernel_info){
        .out = tensor_plain(out.dtype, out.ndim, out.dims),
        .backward_needs_in = { true },
        .din_overwrites_in = { true },
        .din = { *in },
        .flops_forward = 15.0 * (double)tensor_elements(in),
        .flops_backward = 20.0 * (double)tensor_elements(in),
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cpu_gated_forward(struct backend *backend, struct kernel *kernel,
                              const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    const struct text_source x = rows_source(buffers->in[0], in->dtype);
    const struct text_target out = rows_target(buffers->out, in->dtype);
    const int64_t columns = rows_columns(in) / 2;
    cpu_enter(backend);
    for (int64_t r = 0; r < rows_count(in); r++) {
        backend->loops.text->gated(rows_at_out(out, r, columns), rows_at(x, 2 * r, columns),
                                   rows_at(x, 2 * r + 1, columns), (size_t)columns);
    }
    return ST_OK;
}

enum status cpu_gated_backward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    const struct text_source x = rows_source(buffers->in[0], in->dtype);
    const struct text_source dout = rows_source(buffers->dout[0], in->dtype);
    const struct text_target din = rows_target(buffers->din[0], in->dtype);
    const int64_t columns = rows_columns(in) / 2;
    CHECK(kernel->spec.training);
    if (din.data == NULL)
        return ST_OK;
    cpu_enter(backend);
    for (int64_t r = 0; r < rows_count(in); r++) {
        backend->loops.text->gated_backward(rows_at_out(din, 2 * r, columns),
                                            rows_at_out(din, 2 * r + 1, columns),
                                            rows_at(dout, r, columns), rows_at(x, 2 * r, columns),
                                            rows_at(x, 2 * r + 1, columns), (size_t)columns);
    }
    return ST_OK;
}
