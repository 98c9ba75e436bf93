/*
 * dropout: y = keep ? x / (1 - p) : 0, + the residual if there is one. Nothing is saved: backward
 * draws the same words again, from `draw` of op_buffers.
 */
#include <stdlib.h>

#include "common/check.h"
#include "kernels/cpu/ops/rows.h"

#define WORDS 4 /* random words of one counter; a counter has 32 bits */

enum status cpu_dropout_prepare(struct backend *backend, const struct op_spec *spec,
                                struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    const bool residual = spec->attr.residual;
    if (spec->in_count != (residual ? 2 : 1) || !rows_is_valid(in, 1) ||
        !cpu_is_float(spec->out_dtype) || !(spec->attr.drop >= 0.0f) || !(spec->attr.drop < 1.0f) ||
        tensor_elements(in) / in->dims[0] / WORDS > (int64_t)UINT32_MAX)
        return ST_INVALID;
    if (residual && (!rows_is_valid(&spec->in[1], 1) || !rows_same_dims(in, &spec->in[1]) ||
                     spec->in[1].dtype != spec->out_dtype))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, in->ndim, in->dims),
        .din = { *in, residual ? spec->in[1] : (struct tensor){ 0 } },
        .flops_forward = 16.0 * (double)tensor_elements(in),
        .flops_backward = 16.0 * (double)tensor_elements(in),
        .implementation = "loop",
    };
    if (residual) {
        out_info->din_aliases_dout[1] = true;
        out_info->din_alias[1] = -1;
    }
    *out_kernel = kernel;
    return ST_OK;
}

/* from: x or dy, and the residual or none. draw: as enum op_draw says. */
static void dropout_run(const struct backend *backend, const struct op_spec *spec,
                        const uint32_t *draw, const struct text_source from[2],
                        struct text_target out)
{
    const int64_t samples = spec->in[0].dims[0];
    const int64_t count = tensor_elements(&spec->in[0]) / samples;
    CHECK(draw != NULL);
    for (int64_t i = 0; i < samples; i++) {
        const struct dropout_draw one = {
            .key = { draw[OP_DRAW_KEY], draw[OP_DRAW_KEY + 1] },
            .layer = (uint32_t)spec->attr.layer,
            .sample = draw[OP_DRAW_SAMPLES + i],
            .step = draw[OP_DRAW_STEP],
            .drop = spec->attr.drop,
        };
        struct text_source residual = from[1];
        if (residual.data != NULL)
            residual = rows_at(residual, i, count);
        backend->loops.text->dropout(rows_at_out(out, i, count), rows_at(from[0], i, count),
                                     residual, (size_t)count, &one);
    }
}

enum status cpu_dropout_forward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    const struct text_target out = rows_target(buffers->out, spec->out_dtype);
    const struct text_source from[2] = {
        rows_source(buffers->in[0], spec->in[0].dtype),
        rows_source(spec->attr.residual ? buffers->in[1] : NULL, spec->out_dtype),
    };
    cpu_enter(backend);
    if (spec->training) {
        dropout_run(backend, spec, buffers->draw, from, out);
    } else {
        backend->loops.text->add(out, from[0], from[1], (size_t)tensor_elements(&spec->in[0]));
    }
    return ST_OK;
}

enum status cpu_dropout_backward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    cpu_enter(backend);
    if (buffers->din[0] != NULL) {
        const struct text_source from[2] = { rows_source(buffers->dout[0], spec->out_dtype) };
        dropout_run(backend, spec, buffers->draw, from,
                    rows_target(buffers->din[0], spec->in[0].dtype));
    }
    if (spec->attr.residual && buffers->din[1] != NULL && buffers->din[1] != buffers->dout[0]) {
        backend->loops.text->convert(rows_target(buffers->din[1], spec->out_dtype),
                                     rows_source(buffers->dout[0], spec->out_dtype),
                                     (size_t)tensor_elements(&spec->in[0]));
    }
    return ST_OK;
}
