/*
 * embedding: rows of a table (+ rows of positions, or a residual).
 *
 *   y[n][t] = table[token[n][t]] (+ positions[t], or residual[n][t])
 *
 * Backward adds the rows of dy one after the other, n by n and t by t: each row of the table has
 * one fixed order of additions.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/ops/rows.h"

static bool embedding_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0], *residual = &spec->in[1];
    const struct op_attr *attr = &spec->attr;
    if (spec->in_count != (attr->residual ? 2 : 1) || in->dtype != DTYPE_I32 ||
        in->format != FORMAT_PLAIN || in->ndim != 2 || in->dims[0] < 1 || in->dims[1] < 1 ||
        !cpu_is_float(spec->out_dtype) || attr->out < 1 || attr->rows < 1 ||
        attr->rows > INT32_MAX || attr->positions < 0 ||
        (attr->positions > 0 && attr->positions < in->dims[1]))
        return false;
    const int64_t dims[3] = { in->dims[0], in->dims[1], attr->out };
    const struct tensor out = tensor_plain(spec->out_dtype, 3, dims);
    return !attr->residual || (attr->positions == 0 && rows_is_valid(residual, 3) &&
                               residual->dtype == out.dtype && rows_same_dims(residual, &out));
}

enum status cpu_embedding_prepare(struct backend *backend, const struct op_spec *spec,
                                  struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    const struct op_attr *attr = &spec->attr;
    if (!embedding_is_valid(spec))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    const int64_t dims[3] = { in->dims[0], in->dims[1], attr->out };
    const struct tensor out = tensor_plain(spec->out_dtype, 3, dims);
    *out_info = (struct kernel_info){
        .out = out,
        .backward_needs_in = { true },
        .din_aliases_dout = { false, attr->residual },
        .din_alias = { 0, -1 },
        .din = { { 0 }, out },
        .flops_forward = (double)tensor_elements(&out),
        .flops_backward = 2.0 * (double)tensor_elements(&out),
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cpu_embedding_forward(struct backend *backend, struct kernel *kernel,
                                  const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    const int64_t t = spec->in[0].dims[1], columns = spec->attr.out;
    const int64_t rows = spec->in[0].dims[0] * t;
    const int32_t *tokens = buffers->in[0];
    const struct text_source table = rows_source(buffers->param[0], DTYPE_F32);
    const struct text_source positions = rows_source(buffers->param[1], DTYPE_F32);
    const struct text_source residual = rows_source(buffers->in[1], spec->out_dtype);
    const struct text_target out = rows_target(buffers->out, spec->out_dtype);
    for (int64_t r = 0; r < rows; r++) {
        if (tokens[r] < 0 || tokens[r] >= spec->attr.rows)
            return ST_INVALID;
    }
    cpu_enter(backend);
    for (int64_t r = 0; r < rows; r++) {
        struct text_source other = { 0 };
        if (spec->attr.positions > 0) {
            other = rows_at(positions, r % t, columns);
        } else if (spec->attr.residual) {
            other = rows_at(residual, r, columns);
        }
        backend->loops.text->add(rows_at_out(out, r, columns), rows_at(table, tokens[r], columns),
                                 other, (size_t)columns);
    }
    return ST_OK;
}

/* Row `at` of to (float32) += g, one row. */
static void embedding_add_row(const struct backend *backend, struct text_target to, int64_t at,
                              struct text_source g, int64_t columns)
{
    const struct text_target out = rows_at_out(to, at, columns);
    backend->loops.text->add(out, g, (struct text_source){ .data = out.data }, (size_t)columns);
}

enum status cpu_embedding_backward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_attr *attr = &kernel->spec.attr;
    const int64_t t = kernel->spec.in[0].dims[1], columns = attr->out;
    const int64_t rows = kernel->spec.in[0].dims[0] * t;
    const int32_t *tokens = buffers->in[0];
    const struct text_source g = rows_source(buffers->dout[0], kernel->spec.out_dtype);
    float *table = buffers->dparam[0], *positions = buffers->dparam[1];
    cpu_enter(backend);
    if (table != NULL && !buffers->accumulate[0])
        backend->loops.flat->fill(table, 0.0f, (size_t)(attr->rows * columns));
    const struct text_target to = { .data = table }, to_position = { .data = positions };
    for (int64_t r = 0; table != NULL && r < rows; r++)
        embedding_add_row(backend, to, tokens[r], rows_at(g, r, columns), columns);
    if (attr->positions == 0 || positions == NULL)
        return ST_OK;
    if (!buffers->accumulate[1])
        backend->loops.flat->fill(positions, 0.0f, (size_t)(attr->positions * columns));
    for (int64_t r = 0; r < rows; r++)
        embedding_add_row(backend, to_position, r % t, rows_at(g, r, columns), columns);
    return ST_OK;
}
