/*
 * layer_norm: y = (x - mean)·rstd·γ + β over the last dim, rstd = 1 / √(variance + eps). With rms
 * the mean counts as 0, and there is no β.
 *
 * Saved: mean and rstd of each row (2 floats).
 * Scratch: dγ and dβ of all rows in double, then those of a chunk of rows in float32: so their
 * error does not grow with the number of rows.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "kernels/cpu/ops/rows.h"

#define ROW_CHUNK 64

enum status cpu_layer_norm_prepare(struct backend *backend, const struct op_spec *spec,
                                   struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !rows_is_valid(in, 2) || !cpu_is_float(spec->out_dtype) ||
        !(spec->attr.eps >= 0.0f))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    const size_t columns = (size_t)rows_columns(in);
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, in->ndim, in->dims),
        .saved_bytes = spec->training ? (size_t)rows_count(in) * 2 * sizeof(float) : 0,
        .scratch_bytes = spec->training ? 2 * columns * (sizeof(float) + sizeof(double)) : 0,
        .backward_needs_in = { true },
        .din_adds = { true },
        .din = { *in },
        .flops_forward = 8.0 * (double)tensor_elements(in),
        .flops_backward = 14.0 * (double)tensor_elements(in),
        .implementation = spec->attr.rms ? "loop, rms" : "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cpu_layer_norm_forward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    const int64_t rows = rows_count(&spec->in[0]), columns = rows_columns(&spec->in[0]);
    const struct text_source x = rows_source(buffers->in[0], spec->in[0].dtype);
    const struct text_target out = rows_target(buffers->out, spec->out_dtype);
    float *saved = buffers->saved;
    cpu_enter(backend);
    for (int64_t r = 0; r < rows; r++) {
        struct layer_row row = { .x = rows_at(x, r, columns),
                                 .gamma = buffers->param[0],
                                 .beta = buffers->param[1],
                                 .count = columns,
                                 .eps = spec->attr.eps,
                                 .rms = spec->attr.rms };
        backend->loops.text->layer_norm(&row, rows_at_out(out, r, columns));
        if (spec->training) {
            saved[2 * r] = row.mean;
            saved[2 * r + 1] = row.rstd;
        }
    }
    return ST_OK;
}

/* Adds a chunk's sums to those of all rows, and clears them. */
static void add_chunk(double *total, float *part, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        total[i] += (double)part[i];
        part[i] = 0.0f;
    }
}

static void layer_norm_store(float *out, const double *total, size_t count, bool accumulate)
{
    for (size_t i = 0; out != NULL && i < count; i++)
        cpu_put_sum(&out[i], total[i], accumulate);
}

enum status cpu_layer_norm_backward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    const int64_t rows = rows_count(&spec->in[0]), columns = rows_columns(&spec->in[0]);
    const size_t count = (size_t)columns;
    const enum dtype dtype = spec->in[0].dtype;
    const struct text_source x = rows_source(buffers->in[0], dtype);
    const struct text_source dout = rows_source(buffers->dout[0], spec->out_dtype);
    const float *saved = buffers->saved;
    double *total = buffers->scratch;
    float *part = (float *)(total + 2 * count);
    CHECK(spec->training);
    cpu_enter(backend);
    memset(buffers->scratch, 0, 2 * count * (sizeof(float) + sizeof(double)));
    for (int64_t r = 0; r < rows; r++) {
        const struct layer_row row = { .x = rows_at(x, r, columns),
                                       .gamma = buffers->param[0],
                                       .count = columns,
                                       .mean = saved[2 * r],
                                       .rstd = saved[2 * r + 1],
                                       .rms = spec->attr.rms };
        struct text_source add = rows_source(buffers->din_add[0], dtype);
        struct text_target din = rows_target(buffers->din[0], dtype);
        if (add.data != NULL)
            add = rows_at(add, r, columns);
        if (din.data != NULL)
            din = rows_at_out(din, r, columns);
        backend->loops.text->layer_norm_backward(&row, rows_at(dout, r, columns), add, din, part,
                                                 part + count);
        if ((r + 1) % ROW_CHUNK == 0 || r + 1 == rows)
            add_chunk(total, part, 2 * count);
    }
    layer_norm_store(buffers->dparam[0], total, count, buffers->accumulate[0]);
    layer_norm_store(buffers->dparam[1], total + count, count, buffers->accumulate[1]);
    return ST_OK;
}
