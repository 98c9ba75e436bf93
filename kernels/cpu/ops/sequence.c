/*
 * sequence and select: from an image to a sequence of its pixels behind a first token, and one
 * token out of a sequence.
 *
 * A sample of a sequence is a row `first`, then the image with its channels innermost; so the image
 * is reformatted into its place, and its gradient out of it. Then positions are added. Gradients
 * of first and position sum over the samples in order.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/ops/rows.h"

enum status cpu_sequence_prepare(struct backend *backend, const struct op_spec *spec,
                                 struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !cpu_image_is_valid(spec) || !cpu_is_float(spec->out_dtype))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    const int64_t dims[3] = { in->dims[0], 1 + in->dims[2] * in->dims[3], in->dims[1] };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 3, dims),
        .din = { *in },
        .flops_forward = (double)tensor_elements(in),
        .flops_backward = 2.0 * (double)tensor_elements(in),
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

/* One sample of the image: as it lies in in[0], and with the channels innermost in the sequence. */
static void sample_formats(const struct op_spec *spec, struct tensor *out_image,
                           struct tensor *out_rows)
{
    const struct tensor *in = &spec->in[0];
    const int64_t dims[4] = { 1, in->dims[1], in->dims[2], in->dims[3] };
    *out_image = *in;
    out_image->dims[0] = 1;
    out_image->bytes = in->bytes / (size_t)in->dims[0];
    *out_rows = tensor_plain(spec->out_dtype, 4, dims);
    out_rows->format = FORMAT_NHWC;
}

enum status cpu_sequence_forward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    const int64_t *dims = spec->in[0].dims, columns = dims[1], rows = 1 + dims[2] * dims[3];
    const struct text_source first = rows_source(buffers->param[0], DTYPE_F32);
    const struct text_source positions = rows_source(buffers->param[1], DTYPE_F32);
    struct tensor image, pixels;
    sample_formats(spec, &image, &pixels);
    cpu_enter(backend);
    for (int64_t n = 0; n < dims[0]; n++) {
        const struct text_target out =
            rows_at_out(rows_target(buffers->out, spec->out_dtype), n * rows, columns);
        const struct text_target behind = rows_at_out(out, 1, columns);
        const struct text_source x = { .data = behind.data, .half = behind.half };
        cpu_reformat(backend, &image, (const char *)buffers->in[0] + (size_t)n * image.bytes,
                     &pixels, behind.data);
        backend->loops.text->add(out, first, positions, (size_t)columns);
        backend->loops.text->add(behind, x, rows_at(positions, 1, columns),
                                 (size_t)((rows - 1) * columns));
    }
    return ST_OK;
}

/* to (+)= Σ over n, in order, of the first `count` elements of sample n of a gradient. */
static void sum_samples(const struct backend *backend, float *to, struct text_source g,
                        const int64_t shape[2], int64_t count, bool accumulate)
{
    const int64_t samples = shape[0], elements = shape[1];
    if (!accumulate)
        backend->loops.flat->fill(to, 0.0f, (size_t)count);
    for (int64_t n = 0; n < samples; n++) {
        backend->loops.text->add((struct text_target){ .data = to }, rows_at(g, n, elements),
                                 (struct text_source){ .data = to }, (size_t)count);
    }
}

enum status cpu_sequence_backward(struct backend *backend, struct kernel *kernel,
                                  const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct op_spec *spec = &kernel->spec;
    const int64_t *dims = spec->in[0].dims, columns = dims[1], rows = 1 + dims[2] * dims[3];
    const struct text_source g = rows_source(buffers->dout[0], spec->out_dtype);
    const int64_t shape[2] = { dims[0], rows * columns }, counts[2] = { columns, rows * columns };
    struct tensor image, pixels;
    sample_formats(spec, &image, &pixels);
    cpu_enter(backend);
    for (int i = 0; i < 2; i++) {
        if (buffers->dparam[i] != NULL)
            sum_samples(backend, buffers->dparam[i], g, shape, counts[i], buffers->accumulate[i]);
    }
    for (int64_t n = 0; buffers->din[0] != NULL && n < dims[0]; n++) {
        cpu_reformat(backend, &pixels, rows_at(g, n * rows + 1, columns).data, &image,
                     (char *)buffers->din[0] + (size_t)n * image.bytes);
    }
    return ST_OK;
}

enum status cpu_select_prepare(struct backend *backend, const struct op_spec *spec,
                               struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    if (spec->in_count != 1 || !rows_is_valid(in, 3) || in->ndim != 3 ||
        spec->out_dtype != in->dtype || spec->attr.row < 0 || spec->attr.row >= in->dims[1])
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 2, (const int64_t[]){ in->dims[0], in->dims[2] }),
        .din = { *in },
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cpu_select_forward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    const size_t row = (size_t)in->dims[2] * dtype_size(in->dtype);
    const size_t sample = (size_t)in->dims[1] * row;
    cpu_enter(backend);
    for (size_t n = 0; n < (size_t)in->dims[0]; n++) {
        memcpy((char *)buffers->out + n * row,
               (const char *)buffers->in[0] + n * sample + (size_t)kernel->spec.attr.row * row,
               row);
    }
    return ST_OK;
}

enum status cpu_select_backward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    const size_t row = (size_t)in->dims[2] * dtype_size(in->dtype);
    const size_t sample = (size_t)in->dims[1] * row;
    if (buffers->din[0] == NULL)
        return ST_OK;
    cpu_enter(backend);
    memset(buffers->din[0], 0, in->bytes);
    for (size_t n = 0; n < (size_t)in->dims[0]; n++) {
        memcpy((char *)buffers->din[0] + n * sample + (size_t)kernel->spec.attr.row * row,
               (const char *)buffers->dout[0] + n * row, row);
    }
    return ST_OK;
}
