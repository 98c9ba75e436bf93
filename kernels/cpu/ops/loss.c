/*
 * softmax_cross_entropy. Of a row x of n logits, with its label and smoothing s:
 *
 *   loss = lse - Σ t·x        lse = log Σ exp(x),  t = (1 - s)·(one-hot of the label) + s/n
 *   dx   = scale·(softmax(x) - t)
 *
 * A label of -1 counts nothing: no loss, and a gradient of 0.
 *
 * Saved, per row: the greatest logit m, and 1 / Σ exp(x - m); so backward needs one exp per logit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/halves.h"
#include "kernels/cpu/ops/rows.h"

enum status cpu_softmax_cross_entropy_prepare(struct backend *backend, const struct op_spec *spec,
                                              struct kernel **out_kernel,
                                              struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *x = &spec->in[0], *labels = &spec->in[1];
    if (spec->in_count != 2 || !rows_is_valid(x, 2) || labels->dtype != DTYPE_I32 ||
        labels->format != FORMAT_PLAIN || tensor_elements(labels) != rows_count(x) ||
        rows_columns(x) > INT32_MAX || spec->out_dtype != DTYPE_F32 ||
        !(spec->attr.label_smoothing >= 0.0f) || !(spec->attr.label_smoothing < 1.0f))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    const int64_t three[1] = { 3 };
    *out_info = (struct kernel_info){
        .out = tensor_plain(DTYPE_F32, 1, three),
        .saved_bytes = spec->training ? (size_t)rows_count(x) * 2 * sizeof(float) : 0,
        .backward_needs_in = { true, true },
        .din_overwrites_in = { true },
        .din = { *x },
        .flops_forward = 20.0 * (double)tensor_elements(x),
        .flops_backward = 20.0 * (double)tensor_elements(x),
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

static float logit(struct text_source x, int64_t i)
{
    return x.half ? bf16_widen(((const uint16_t *)x.data)[i]) : ((const float *)x.data)[i];
}

static double row_loss(const struct softmax_row *row, int32_t label, double smoothing)
{
    const double lse = (double)row->most + log(row->sum);
    double loss = (1.0 - smoothing) * (lse - (double)logit(row->x, label));
    if (smoothing > 0.0)
        loss += smoothing * (lse - row->all / (double)row->count);
    return loss;
}

enum status cpu_softmax_cross_entropy_forward(struct backend *backend, struct kernel *kernel,
                                              const struct op_buffers *buffers,
                                              struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    const int64_t rows = rows_count(in), n = rows_columns(in);
    const double smoothing = (double)kernel->spec.attr.label_smoothing;
    const struct text_source x = rows_source(buffers->in[0], in->dtype);
    const int32_t *labels = buffers->in[1];
    float *saved = buffers->saved;
    double total = 0.0;
    int64_t correct = 0, counted = 0;
    cpu_enter(backend);
    for (int64_t r = 0; r < rows; r++) {
        if (labels[r] < -1 || labels[r] >= n)
            return ST_INVALID;
        if (labels[r] < 0)
            continue;
        struct softmax_row row = { .x = rows_at(x, r, n), .count = n };
        backend->loops.text->softmax(&row, smoothing > 0.0);
        if (kernel->spec.training) {
            saved[2 * r] = row.most;
            saved[2 * r + 1] = (float)(1.0 / row.sum);
        }
        total += row_loss(&row, labels[r], smoothing);
        correct += row.best == labels[r];
        counted++;
    }
    float *out = buffers->out;
    out[0] = (float)total;
    out[1] = (float)counted;
    out[2] = (float)correct;
    return ST_OK;
}

/*
 * dx of one row, which may be its logits: by[0]·exp(x - m) - by[1], and at the label - by[2], too.
 *
 *   by    scale / Σ exp(x - m) · scale·s/n · scale·(1 - s)
 */
static void row_gradient(const struct backend *backend, const struct softmax_row *row,
                         int32_t label, const float by[3], struct text_target dx)
{
    const struct text_loops *text = backend->loops.text;
    const float value = logit(row->x, label);
    const struct softmax_row one = { .x = { .data = &value }, .count = 1, .most = row->most };
    float at_label = 0.0f;
    text->softmax_backward(&one, by[0], by[1] + by[2], (struct text_target){ .data = &at_label });
    text->softmax_backward(row, by[0], by[1], dx);
    text->convert(rows_at_out(dx, label, 1), (struct text_source){ .data = &at_label }, 1);
}

enum status cpu_softmax_cross_entropy_backward(struct backend *backend, struct kernel *kernel,
                                               const struct op_buffers *buffers,
                                               struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    const int64_t rows = rows_count(in), n = rows_columns(in);
    const float smoothing = kernel->spec.attr.label_smoothing;
    const float scale = buffers->loss_scale != NULL ? *buffers->loss_scale : 1.0f;
    const struct text_source x = rows_source(buffers->in[0], in->dtype);
    const struct text_target dx = rows_target(buffers->din[0], in->dtype);
    const int32_t *labels = buffers->in[1];
    const float *saved = buffers->saved;
    CHECK(kernel->spec.training);
    if (dx.data == NULL)
        return ST_OK;
    cpu_enter(backend);
    for (int64_t r = 0; r < rows; r++) {
        const struct text_target to = rows_at_out(dx, r, n);
        if (labels[r] < 0) {
            memset(to.data, 0, (size_t)n * dtype_size(in->dtype));
            continue;
        }
        const struct softmax_row row = { .x = rows_at(x, r, n), .count = n, .most = saved[2 * r] };
        const float by[3] = { scale * saved[2 * r + 1], scale * smoothing / (float)n,
                              scale * (1.0f - smoothing) };
        row_gradient(backend, &row, labels[r], by, to);
    }
    return ST_OK;
}
