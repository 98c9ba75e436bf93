/*
 * layer_norm: y = (x - mean)·rstd·γ + β over the last dim.
 *
 * Saved: mean and rstd of each row (2 floats). Scratch: dγ and dβ of a chunk of rows in float32,
 * and of all rows in double, so that their error does not grow with the rows.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/ops/rows.h"

#define ROW_CHUNK 64

enum status cpu_layer_norm_prepare(struct backend *backend, const struct op_spec *spec,
                                   struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !text_tensor_is_valid(in, 2) || !text_is_float(spec->out_dtype) ||
        !(spec->attr.eps >= 0.0f))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    const size_t columns = (size_t)text_columns(in);
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, in->ndim, in->dims),
        .saved_bytes = spec->training ? (size_t)text_rows(in) * 2 * sizeof(float) : 0,
        .scratch_bytes = spec->training ? 2 * columns * (sizeof(float) + sizeof(double)) : 0,
        .backward_needs_in = { true },
        .din_adds = { true },
        .din = { *in },
        .flops_forward = 8.0 * (double)tensor_elements(in),
        .flops_backward = 14.0 * (double)tensor_elements(in),
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cpu_layer_norm_forward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    const int64_t rows = text_rows(&spec->in[0]), columns = text_columns(&spec->in[0]);
    const struct source x = text_source(buffers->in[0], spec->in[0].dtype);
    const struct target out = text_target(buffers->out, spec->out_dtype);
    float *saved = buffers->saved;
    cpu_enter(backend);
    for (int64_t r = 0; r < rows; r++) {
        struct layer_row row = { .x = text_row(x, r, columns),
                                 .gamma = buffers->param[0],
                                 .beta = buffers->param[1],
                                 .count = columns,
                                 .eps = spec->attr.eps };
        backend->loops.text->layer_norm(&row, text_row_out(out, r, columns));
        if (spec->training) {
            saved[2 * r] = row.mean;
            saved[2 * r + 1] = row.rstd;
        }
    }
    return ST_OK;
}

/* The chunk's sums go into those of all rows. */
static void add_chunk(double *total, float *part, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        total[i] += (double)part[i];
        part[i] = 0.0f;
    }
}

static void store(float *out, const double *total, size_t count, bool accumulate)
{
    for (size_t i = 0; out != NULL && i < count; i++)
        out[i] = accumulate ? out[i] + (float)total[i] : (float)total[i];
}

enum status cpu_layer_norm_backward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    const int64_t rows = text_rows(&spec->in[0]), columns = text_columns(&spec->in[0]);
    const size_t count = (size_t)columns;
    const enum dtype dtype = spec->in[0].dtype;
    const struct source x = text_source(buffers->in[0], dtype);
    const struct source dout = text_source(buffers->dout[0], spec->out_dtype);
    const float *saved = buffers->saved;
    double *total = buffers->scratch;
    float *part = (float *)(total + 2 * count);
    cpu_enter(backend);
    memset(buffers->scratch, 0, 2 * count * (sizeof(float) + sizeof(double)));
    for (int64_t r = 0; r < rows; r++) {
        const struct layer_row row = { .x = text_row(x, r, columns),
                                       .gamma = buffers->param[0],
                                       .count = columns,
                                       .mean = saved[2 * r],
                                       .rstd = saved[2 * r + 1] };
        struct source add = text_source(buffers->din_add[0], dtype);
        struct target din = text_target(buffers->din[0], dtype);
        if (add.data != NULL)
            add = text_row(add, r, columns);
        if (din.data != NULL)
            din = text_row_out(din, r, columns);
        backend->loops.text->layer_norm_backward(&row, text_row(dout, r, columns), add, din, part,
                                                 part + count);
        if ((r + 1) % ROW_CHUNK == 0 || r + 1 == rows)
            add_chunk(total, part, 2 * count);
    }
    store(buffers->dparam[0], total, count, buffers->accumulate[0]);
    store(buffers->dparam[1], total + count, count, buffers->accumulate[1]);
    return ST_OK;
}
