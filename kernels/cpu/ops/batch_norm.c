/*
 * batch_norm: y = relu?((x - mean)·scale + β (+ residual)), scale = γ·r, r = 1 / √(variance + eps).
 *
 * One strip of channels (kernels/cpu/loops/loops.h) after the other, so that its second pass finds
 * it in the cache.
 * In training mean and biased variance are this batch's. With
 *
 *   g = dy (+ second dy), 0 where y <= 0 under a relu
 *   c = x - mean
 *   M = N·H·W
 *
 * backward is
 *
 *   dβ = Σ g       dγ = r·Σ g·c       dresidual = g
 *   dx = γ·r·g  -  (γ·r³/M · Σ g·c)·c  -  γ·r/M · Σ g
 *
 * Without a residual the mask is computed again from x, by the forward's own operations, so that
 * backward needs x only; with one it needs y, too. Padding channels have γ = β = 0 and stay zero.
 *
 * Saved (floats, channels rounded up to blocks): mean, r.
 *
 * bfloat16 with the channels innermost: batch_norm_half.h.
 */
#include <math.h>
#include <stdlib.h>

#include "common/check.h"
#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/ops/batch_norm_half.h"

#define WIDTH      LOOPS_WIDTH_MAX
#define STREAM_MIN (4u << 20) /* bytes; what is larger has left the caches before it is read */

struct norm_kernel {
    struct kernel base;
    int64_t channels, padded;
    struct strip strip;
    int64_t block_floats; /* from one block of channels to the next, in a sample */
    int64_t block;
};

/* The parameters of a strip, zero beyond the last channel. */
struct strip_params {
    float gamma[WIDTH], beta[WIDTH];
};

static bool residual_is_valid(const struct op_spec *spec)
{
    const struct tensor *x = &spec->in[0], *r = &spec->in[1];
    if (!spec->attr.residual)
        return spec->in_count == 1;
    if (spec->in_count != 2 || r->dtype != x->dtype || r->ndim != 4 || r->format != x->format)
        return false;
    for (int i = 0; i < 4; i++) {
        if (r->dims[i] != x->dims[i])
            return false;
    }
    return true;
}

enum status cpu_batch_norm_prepare(struct backend *backend, const struct op_spec *spec,
                                   struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    if (!cpu_image_is_valid(spec) || !residual_is_valid(spec) || !(spec->attr.eps > 0.0f) ||
        spec->out_dtype != in->dtype)
        return ST_INVALID;
    const int64_t hw = in->dims[2] * in->dims[3];
    if (spec->training && in->dims[0] * hw < 2)
        return ST_INVALID; /* no unbiased variance of one value */
    struct norm_kernel *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->channels = in->dims[1];
    self->block = cpu_block(backend, in);
    self->padded = (self->channels + self->block - 1) / self->block * self->block;
    self->block_floats = self->block * hw;
    self->strip =
        (struct strip){ .n = in->dims[0],
                        .hw = hw,
                        .plane = self->padded * hw,
                        .pitch = self->block,
                        .stream = in->format == FORMAT_BLOCKED && in->bytes >= STREAM_MIN };
    *out_info = (struct kernel_info){
        .out = *in,
        .saved_bytes = spec->training ? 2 * (size_t)self->padded * sizeof(float) : 0,
        .backward_needs_in = { true },
        .backward_needs_out = spec->attr.relu && spec->attr.residual,
        .sums_douts = true,
        .din = { *in, spec->attr.residual ? *in : (struct tensor){ 0 } },
        .flops_forward = 6.0 * (double)tensor_elements(in),
        .flops_backward = 10.0 * (double)tensor_elements(in),
        .implementation = "loop",
    };
    if (in->format == FORMAT_NHWC)
        batch_norm_half_info(spec, out_info);
    *out_kernel = &self->base;
    return ST_OK;
}

static struct strip_params params_of(const struct norm_kernel *self,
                                     const struct op_buffers *buffers, int64_t channel, int width)
{
    struct strip_params p = { 0 };
    for (int64_t c = 0; c < cpu_real_channels(self->channels, channel, width); c++) {
        p.gamma[c] = buffers->param[0][channel + c];
        p.beta[c] = buffers->param[1][channel + c];
    }
    return p;
}

/* Mean and r of a strip go to saved; mean and unbiased variance to what the running ones are made
 * of. */
static void strip_statistics(const struct norm_kernel *self, const struct norm_loops *loops,
                             const struct op_buffers *buffers, const float *x, int64_t channel)
{
    double mean[WIDTH], variance[WIDTH];
    float *saved_mean = (float *)buffers->saved + channel;
    float *saved_r = saved_mean + self->padded;
    loops->stats(&self->strip, x, mean, variance);
    for (int c = 0; c < loops->width; c++) {
        saved_mean[c] = (float)mean[c];
        saved_r[c] = (float)(1.0 / sqrt(variance[c] + (double)self->base.spec.attr.eps));
    }
    const double count = (double)self->strip.n * (double)self->strip.hw;
    for (int64_t c = 0; c < cpu_real_channels(self->channels, channel, loops->width); c++) {
        if (buffers->stat_sum[0] != NULL)
            cpu_put_sum(&buffers->stat_sum[0][channel + c], mean[c], buffers->accumulate_stats);
        if (buffers->stat_sum[1] != NULL) {
            cpu_put_sum(&buffers->stat_sum[1][channel + c], variance[c] * (count / (count - 1.0)),
                        buffers->accumulate_stats);
        }
    }
}

/* Mean and r by the running statistics. */
static void running_statistics(const struct norm_kernel *self, const struct norm_loops *loops,
                               const struct op_buffers *buffers, int64_t channel, float *mean,
                               float *r)
{
    for (int64_t c = 0; c < cpu_real_channels(self->channels, channel, loops->width); c++) {
        mean[c] = buffers->stat[0][channel + c];
        r[c] = (float)(1.0 / sqrt((double)buffers->stat[1][channel + c] +
                                  (double)self->base.spec.attr.eps));
    }
}

static void forward_strip(const struct norm_kernel *self, const struct norm_loops *loops,
                          const struct op_buffers *buffers, int64_t at, int64_t channel)
{
    const struct op_attr *attr = &self->base.spec.attr;
    const float *x = (const float *)buffers->in[0] + at;
    const float *residual = attr->residual ? (const float *)buffers->in[1] + at : NULL;
    const struct strip_params p = params_of(self, buffers, channel, loops->width);
    float mean[WIDTH] = { 0 }, r[WIDTH] = { 0 }, scale[WIDTH] = { 0 };
    if (self->base.spec.training) {
        strip_statistics(self, loops, buffers, x, channel);
        const float *saved = (const float *)buffers->saved + channel;
        for (int c = 0; c < loops->width; c++) {
            mean[c] = saved[c];
            r[c] = saved[self->padded + c];
        }
    } else {
        running_statistics(self, loops, buffers, channel, mean, r);
    }
    for (int c = 0; c < loops->width; c++)
        scale[c] = p.gamma[c] * r[c];
    const struct norm_affine affine = { .mean = mean, .scale = scale, .shift = p.beta };
    loops->apply(&self->strip, x, residual, (float *)buffers->out + at, &affine, attr->relu);
}

enum status cpu_batch_norm_forward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct norm_kernel *self = (const struct norm_kernel *)kernel;
    const struct norm_loops *loops = cpu_norm_loops(backend, &kernel->spec.in[0]);
    cpu_enter(backend);
    if (kernel->spec.in[0].format == FORMAT_NHWC) {
        batch_norm_half_forward(backend, &kernel->spec, buffers);
        return ST_OK;
    }
    for (int64_t b = 0; b < self->padded / self->block; b++) {
        for (int64_t l = 0; l < self->block; l += loops->width)
            forward_strip(self, loops, buffers, b * self->block_floats + l, b * self->block + l);
    }
    return ST_OK;
}

static void strip_gradient(const struct norm_kernel *self, const struct op_buffers *buffers,
                           int64_t at, struct norm_gradient *g)
{
    const struct op_attr *attr = &self->base.spec.attr;
    g->x = (const float *)buffers->in[0] + at;
    g->dout[0] = (const float *)buffers->dout[0] + at;
    if (buffers->dout[1] != NULL)
        g->dout[1] = (const float *)buffers->dout[1] + at;
    if (attr->relu && attr->residual) {
        g->mask = NORM_MASK_OUTPUT;
        g->out = (const float *)buffers->out + at;
    } else if (attr->relu) {
        g->mask = NORM_MASK_INPUT;
    }
}

static void backward_strip(const struct norm_kernel *self, const struct norm_loops *loops,
                           const struct op_buffers *buffers, int64_t at, int64_t channel)
{
    const struct strip_params p = params_of(self, buffers, channel, loops->width);
    const float *mean = (const float *)buffers->saved + channel, *r = mean + self->padded;
    float scale[WIDTH];
    for (int c = 0; c < loops->width; c++)
        scale[c] = p.gamma[c] * r[c];
    struct norm_gradient g = { .affine = { .mean = mean, .scale = scale, .shift = p.beta } };
    strip_gradient(self, buffers, at, &g);
    float *store = self->base.spec.attr.residual && buffers->din[1] != NULL
                       ? (float *)buffers->din[1] + at
                       : NULL;
    double sum[WIDTH], dot[WIDTH];
    loops->gradient_sums(&self->strip, &g, store, sum, dot);
    for (int64_t c = 0; c < cpu_real_channels(self->channels, channel, loops->width); c++) {
        if (buffers->dparam[0] != NULL) {
            cpu_put_sum(&buffers->dparam[0][channel + c], dot[c] * (double)r[c],
                        buffers->accumulate[0]);
        }
        if (buffers->dparam[1] != NULL)
            cpu_put_sum(&buffers->dparam[1][channel + c], sum[c], buffers->accumulate[1]);
    }
    if (buffers->din[0] == NULL)
        return;
    if (store != NULL) /* the masked sum is there already */
        g = (struct norm_gradient){ .x = g.x, .dout = { store }, .affine = g.affine };
    const double count = (double)self->strip.n * (double)self->strip.hw;
    float by_x[WIDTH], constant[WIDTH];
    for (int c = 0; c < loops->width; c++) {
        const double rr = (double)r[c];
        by_x[c] = (float)((double)scale[c] * rr * rr * dot[c] / count);
        constant[c] = (float)((double)scale[c] * sum[c] / count);
    }
    const float *const by[3] = { scale, by_x, constant };
    loops->gradient_apply(&self->strip, &g, by, (float *)buffers->din[0] + at);
}

enum status cpu_batch_norm_backward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct norm_kernel *self = (const struct norm_kernel *)kernel;
    const struct norm_loops *loops = cpu_norm_loops(backend, &kernel->spec.in[0]);
    CHECK(kernel->spec.training); /* saved is this batch's */
    cpu_enter(backend);
    if (kernel->spec.in[0].format == FORMAT_NHWC) {
        batch_norm_half_backward(backend, &kernel->spec, buffers);
        return ST_OK;
    }
    for (int64_t b = 0; b < self->padded / self->block; b++) {
        for (int64_t l = 0; l < self->block; l += loops->width)
            backward_strip(self, loops, buffers, b * self->block_floats + l, b * self->block + l);
    }
    return ST_OK;
}
