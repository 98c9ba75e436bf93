/*
 * softmax_cross_entropy: per row, loss = lse - Σ t·x with lse = log Σ exp(x), t the smoothed
 * one-hot.
 *
 * Saved: lse of each row (double), so that backward needs one exp per logit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum status cpu_softmax_cross_entropy_prepare(struct backend *backend, const struct op_spec *spec,
                                              struct kernel **out_kernel,
                                              struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *x = &spec->in[0], *labels = &spec->in[1];
    if (!cpu_input_is_valid(spec, 2) || spec->in_count != 2 || labels->dtype != DTYPE_I32 ||
        tensor_elements(labels) != x->dims[0] || !(spec->attr.label_smoothing >= 0.0f) ||
        !(spec->attr.label_smoothing < 1.0f))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    const int64_t three[1] = { 3 };
    *out_info = (struct kernel_info){
        .out = tensor_plain(DTYPE_F32, 1, three),
        .saved_bytes = spec->training ? (size_t)x->dims[0] * sizeof(double) : 0,
        .backward_needs_in = { true, true },
        .din = { *x },
        .flops_forward = 4.0 * (double)tensor_elements(x),
        .flops_backward = 3.0 * (double)tensor_elements(x),
        .implementation = "loop",
    };
    *out_kernel = kernel;
    return ST_OK;
}

/* log Σ exp(x), and the first place of the greatest. */
static double log_sum_exp(const float *x, int64_t n, int64_t *out_best)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (x[i] > x[best])
            best = i;
    }
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)expf(x[i] - x[best]);
    *out_best = best;
    return (double)x[best] + log(sum);
}

static double row_loss(const float *x, int64_t n, int64_t label, double lse, double smoothing)
{
    double loss = (1.0 - smoothing) * (lse - (double)x[label]);
    if (smoothing > 0.0) {
        double sum = 0.0;
        for (int64_t i = 0; i < n; i++)
            sum += lse - (double)x[i];
        loss += smoothing / (double)n * sum;
    }
    return loss;
}

enum status cpu_softmax_cross_entropy_forward(struct backend *backend, struct kernel *kernel,
                                              const struct op_buffers *buffers,
                                              struct stream *stream)
{
    (void)stream;
    const int64_t rows = kernel->spec.in[0].dims[0], n = kernel->spec.in[0].dims[1];
    const double smoothing = (double)kernel->spec.attr.label_smoothing;
    const float *x = buffers->in[0];
    const int32_t *labels = buffers->in[1];
    double *saved = buffers->saved;
    double total = 0.0;
    int64_t correct = 0, counted = 0;
    cpu_enter(backend);
    for (int64_t r = 0; r < rows; r++) {
        if (labels[r] < -1 || labels[r] >= n)
            return ST_INVALID;
        int64_t best = 0;
        const double lse = log_sum_exp(x + r * n, n, &best);
        if (saved != NULL)
            saved[r] = lse;
        if (labels[r] < 0)
            continue;
        total += row_loss(x + r * n, n, labels[r], lse, smoothing);
        correct += best == labels[r];
        counted++;
    }
    float *out = buffers->out;
    out[0] = (float)total;
    out[1] = (float)counted;
    out[2] = (float)correct;
    return ST_OK;
}

enum status cpu_softmax_cross_entropy_backward(struct backend *backend, struct kernel *kernel,
                                               const struct op_buffers *buffers,
                                               struct stream *stream)
{
    (void)stream;
    const int64_t rows = kernel->spec.in[0].dims[0], n = kernel->spec.in[0].dims[1];
    const float smoothing = kernel->spec.attr.label_smoothing;
    const float *x = buffers->in[0];
    const int32_t *labels = buffers->in[1];
    const double *lse = buffers->saved;
    float *dx = buffers->din[0];
    if (dx == NULL)
        return ST_OK;
    cpu_enter(backend);
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * n;
        float *to = dx + r * n;
        if (labels[r] < 0) {
            memset(to, 0, (size_t)n * sizeof(float));
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            to[i] = expf((float)((double)row[i] - lse[r])) - smoothing / (float)n;
        to[labels[r]] -= 1.0f - smoothing;
    }
    return ST_OK;
}
