/*
 * max_pool and global_avg_pool: strip by strip (kernels/cpu/loops/loops.h) of each sample; in
 * bfloat16, where the channels are innermost, sample by sample.
 *
 * Saved by max_pool: for each element of out the place in its window that won (8 bits).
 * Scratch of global_avg_pool in bfloat16: one row of float32.
 */
#include <stdlib.h>

#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/loops/half.h"

#define WINDOW_MAX 15 /* its square of places fits 8 bits */

struct pool_kernel {
    struct kernel base;
    struct pool_shape shape;
    int64_t strips;   /* of `width` channels, over all samples */
    int64_t block;    /* channels together in memory */
    int64_t channels; /* of one sample, without padding */
};

static enum status pool_new(struct backend *backend, const struct op_spec *spec,
                            struct pool_kernel **out)
{
    const struct tensor *in = &spec->in[0];
    struct pool_kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->base.spec = *spec;
    kernel->block = cpu_block(backend, in);
    kernel->channels = in->dims[1];
    kernel->strips = in->dims[0] * ((in->dims[1] + kernel->block - 1) / kernel->block);
    kernel->shape = (struct pool_shape){ .h = in->dims[2],
                                         .w = in->dims[3],
                                         .pitch = cpu_is_nhwc(in) ? in->dims[1] : kernel->block,
                                         .kernel = spec->attr.kernel,
                                         .stride = spec->attr.stride,
                                         .pad = spec->attr.pad };
    *out = kernel;
    return ST_OK;
}

enum status cpu_max_pool_prepare(struct backend *backend, const struct op_spec *spec,
                                 struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct op_attr *attr = &spec->attr;
    const struct tensor *in = &spec->in[0];
    if (!cpu_image_is_valid(spec) || spec->out_dtype != in->dtype || attr->kernel < 1 ||
        attr->kernel > WINDOW_MAX || attr->stride < 1 || attr->pad < 0 ||
        attr->pad > attr->kernel / 2 || op_windows(in->dims[2], attr) < 1 ||
        op_windows(in->dims[3], attr) < 1)
        return ST_INVALID;
    struct pool_kernel *kernel = NULL;
    enum status st = pool_new(backend, spec, &kernel);
    if (st != ST_OK)
        return st;
    struct pool_shape *s = &kernel->shape;
    s->p = op_windows(s->h, attr);
    s->q = op_windows(s->w, attr);
    const int64_t dims[4] = { in->dims[0], in->dims[1], s->p, s->q };
    *out_info = (struct kernel_info){
        .out = cpu_is_nhwc(in) ? cpu_nhwc(dims) : cpu_tensor(backend, in->format, dims),
        .din = { *in },
        .implementation = "loop",
    };
    if (spec->training)
        out_info->saved_bytes = out_info->out.bytes / dtype_size(in->dtype);
    out_info->flops_forward = (double)(tensor_elements(&out_info->out) * s->kernel * s->kernel);
    out_info->flops_backward = out_info->flops_forward;
    *out_kernel = &kernel->base;
    return ST_OK;
}

static int64_t pool_elements(const struct pool_kernel *self, int64_t h, int64_t w)
{
    return self->channels * h * w;
}

static void max_nhwc(const struct backend *backend, const struct pool_kernel *self,
                     const struct op_buffers *buffers)
{
    const struct pool_shape *s = &self->shape;
    const int64_t from = pool_elements(self, s->h, s->w), to = pool_elements(self, s->p, s->q);
    const uint16_t *x = buffers->in[0];
    uint16_t *y = buffers->out;
    uint8_t *index = buffers->saved;
    for (int64_t n = 0; n < self->base.spec.in[0].dims[0]; n++) {
        backend->loops.half->max(s, x + n * from, y + n * to,
                                 index == NULL ? NULL : index + n * to);
    }
}

static void max_nhwc_backward(const struct backend *backend, const struct pool_kernel *self,
                              const struct op_buffers *buffers)
{
    const struct pool_shape *s = &self->shape;
    const int64_t from = pool_elements(self, s->h, s->w), to = pool_elements(self, s->p, s->q);
    const uint16_t *dy = buffers->dout[0];
    const uint8_t *index = buffers->saved;
    uint16_t *dx = buffers->din[0];
    for (int64_t n = 0; n < self->base.spec.in[0].dims[0]; n++)
        backend->loops.half->max_backward(s, dy + n * to, index + n * to, dx + n * from);
}

enum status cpu_max_pool_forward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct pool_kernel *self = (const struct pool_kernel *)kernel;
    const struct pool_loops *loops = cpu_pool_loops(backend, &kernel->spec.in[0]);
    const int64_t from = self->shape.h * self->shape.w * self->block;
    const int64_t to = self->shape.p * self->shape.q * self->block;
    const float *x = buffers->in[0];
    float *y = buffers->out;
    uint8_t *index = buffers->saved;
    cpu_enter(backend);
    if (cpu_is_nhwc(&kernel->spec.in[0])) {
        max_nhwc(backend, self, buffers);
        return ST_OK;
    }
    for (int64_t i = 0; i < self->strips; i++) {
        for (int64_t l = 0; l < self->block; l += loops->width) {
            loops->max(&self->shape, x + i * from + l, y + i * to + l,
                       index == NULL ? NULL : index + i * to + l);
        }
    }
    return ST_OK;
}

enum status cpu_max_pool_backward(struct backend *backend, struct kernel *kernel,
                                  const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct pool_kernel *self = (const struct pool_kernel *)kernel;
    const struct pool_loops *loops = cpu_pool_loops(backend, &kernel->spec.in[0]);
    const int64_t from = self->shape.h * self->shape.w * self->block;
    const int64_t to = self->shape.p * self->shape.q * self->block;
    const float *dy = buffers->dout[0];
    const uint8_t *index = buffers->saved;
    float *dx = buffers->din[0];
    if (dx == NULL)
        return ST_OK;
    cpu_enter(backend);
    if (cpu_is_nhwc(&kernel->spec.in[0])) {
        max_nhwc_backward(backend, self, buffers);
        return ST_OK;
    }
    for (int64_t i = 0; i < self->strips; i++) {
        for (int64_t l = 0; l < self->block; l += loops->width) {
            loops->max_backward(&self->shape, dy + i * to + l, index + i * to + l,
                                dx + i * from + l);
        }
    }
    return ST_OK;
}

enum status cpu_global_avg_pool_prepare(struct backend *backend, const struct op_spec *spec,
                                        struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    const bool nhwc = cpu_is_nhwc(in), half = spec->out_dtype == DTYPE_BF16;
    if (!cpu_image_is_valid(spec) || (half && !nhwc) || (!half && spec->out_dtype != DTYPE_F32))
        return ST_INVALID;
    struct pool_kernel *kernel = NULL;
    enum status st = pool_new(backend, spec, &kernel);
    if (st != ST_OK)
        return st;
    const int64_t dims[2] = { in->dims[0], in->dims[1] };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 2, dims),
        .scratch_bytes = half ? sizeof(float) * (size_t)in->dims[1] : 0,
        .din = { *in },
        .flops_forward = (double)tensor_elements(in),
        .flops_backward = (double)tensor_elements(in),
        .implementation = "loop",
    };
    *out_kernel = &kernel->base;
    return ST_OK;
}

static void average_nhwc(const struct backend *backend, const struct pool_kernel *self,
                         const struct op_buffers *buffers)
{
    const struct half_loops *loops = backend->loops.half;
    const struct half_shape shape = { .rows = self->shape.h * self->shape.w,
                                      .channels = self->channels };
    const uint16_t *x = buffers->in[0];
    for (int64_t n = 0; n < self->base.spec.in[0].dims[0]; n++) {
        const uint16_t *sample = x + n * shape.rows * shape.channels;
        if (self->base.spec.out_dtype == DTYPE_F32) {
            loops->average(&shape, sample, (float *)buffers->out + n * shape.channels);
            continue;
        }
        loops->average(&shape, sample, buffers->scratch);
        loops->narrow((uint16_t *)buffers->out + n * shape.channels, buffers->scratch,
                      (size_t)shape.channels);
    }
}

static void average_nhwc_backward(const struct backend *backend, const struct pool_kernel *self,
                                  const struct op_buffers *buffers)
{
    const struct half_loops *loops = backend->loops.half;
    const struct half_shape shape = { .rows = self->shape.h * self->shape.w,
                                      .channels = self->channels };
    uint16_t *dx = buffers->din[0];
    for (int64_t n = 0; n < self->base.spec.in[0].dims[0]; n++) {
        uint16_t *sample = dx + n * shape.rows * shape.channels;
        if (self->base.spec.out_dtype == DTYPE_F32) {
            loops->average_backward(&shape, (const float *)buffers->dout[0] + n * shape.channels,
                                    sample);
            continue;
        }
        loops->widen(buffers->scratch, (const uint16_t *)buffers->dout[0] + n * shape.channels,
                     (size_t)shape.channels);
        loops->average_backward(&shape, buffers->scratch, sample);
    }
}

enum status cpu_global_avg_pool_forward(struct backend *backend, struct kernel *kernel,
                                        const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct pool_kernel *self = (const struct pool_kernel *)kernel;
    const struct pool_loops *loops = cpu_pool_loops(backend, &kernel->spec.in[0]);
    const int64_t plane = self->shape.h * self->shape.w * self->block;
    const int64_t blocks = self->strips / kernel->spec.in[0].dims[0];
    const float *x = buffers->in[0];
    float *y = buffers->out;
    cpu_enter(backend);
    if (cpu_is_nhwc(&kernel->spec.in[0])) {
        average_nhwc(backend, self, buffers);
        return ST_OK;
    }
    for (int64_t i = 0; i < self->strips; i++) {
        for (int64_t l = 0; l < self->block; l += loops->width) {
            float mean[LOOPS_WIDTH_MAX];
            const int64_t channel = i % blocks * self->block + l;
            loops->average(&self->shape, x + i * plane + l, mean);
            for (int64_t c = 0; c < cpu_real_channels(self->channels, channel, loops->width); c++)
                y[i / blocks * self->channels + channel + c] = mean[c];
        }
    }
    return ST_OK;
}

enum status cpu_global_avg_pool_backward(struct backend *backend, struct kernel *kernel,
                                         const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct pool_kernel *self = (const struct pool_kernel *)kernel;
    const struct pool_loops *loops = cpu_pool_loops(backend, &kernel->spec.in[0]);
    const int64_t plane = self->shape.h * self->shape.w * self->block;
    const int64_t blocks = self->strips / kernel->spec.in[0].dims[0];
    const float *dy = buffers->dout[0];
    float *dx = buffers->din[0];
    if (dx == NULL)
        return ST_OK;
    cpu_enter(backend);
    if (cpu_is_nhwc(&kernel->spec.in[0])) {
        average_nhwc_backward(backend, self, buffers);
        return ST_OK;
    }
    for (int64_t i = 0; i < self->strips; i++) {
        for (int64_t l = 0; l < self->block; l += loops->width) {
            float g[LOOPS_WIDTH_MAX] = { 0 };
            const int64_t channel = i % blocks * self->block + l;
            for (int64_t c = 0; c < cpu_real_channels(self->channels, channel, loops->width); c++)
                g[c] = dy[i / blocks * self->channels + channel + c];
            loops->average_backward(&self->shape, g, dx + i * plane + l);
        }
    }
    return ST_OK;
}
