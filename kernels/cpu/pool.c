/*
 * max_pool and global_avg_pool: plane by plane.
 */
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

#define WINDOW_MAX 15 /* its square is an index of 8 bits */

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
                                         .step = kernel->block,
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
    const int64_t pads = 2 * (int64_t)attr->pad;
    if (!cpu_input_is_valid(spec, 4) || attr->kernel < 1 || attr->kernel > WINDOW_MAX ||
        attr->stride < 1 || attr->pad < 0 || attr->pad > attr->kernel / 2 ||
        in->dims[2] + pads < attr->kernel || in->dims[3] + pads < attr->kernel)
        return ST_INVALID;
    struct pool_kernel *kernel = NULL;
    enum status st = pool_new(backend, spec, &kernel);
    if (st != ST_OK)
        return st;
    struct pool_shape *s = &kernel->shape;
    s->p = (s->h + pads - s->kernel) / s->stride + 1;
    s->q = (s->w + pads - s->kernel) / s->stride + 1;
    const int64_t dims[4] = { in->dims[0], in->dims[1], s->p, s->q };
    *out_info = (struct kernel_info){
        .out = cpu_tensor(backend, in->format, dims),
        .din = { *in },
        .implementation = "loop",
    };
    if (spec->training)
        out_info->saved_bytes = out_info->out.bytes / sizeof(float);
    out_info->flops_forward = (double)(tensor_elements(&out_info->out) * s->kernel * s->kernel);
    out_info->flops_backward = out_info->flops_forward;
    *out_kernel = &kernel->base;
    return ST_OK;
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
    if (!cpu_input_is_valid(spec, 4))
        return ST_INVALID;
    struct pool_kernel *kernel = NULL;
    enum status st = pool_new(backend, spec, &kernel);
    if (st != ST_OK)
        return st;
    const int64_t dims[2] = { in->dims[0], in->dims[1] };
    *out_info = (struct kernel_info){
        .out = tensor_plain(DTYPE_F32, 2, dims),
        .din = { *in },
        .flops_forward = (double)tensor_elements(in),
        .flops_backward = (double)tensor_elements(in),
        .implementation = "loop",
    };
    *out_kernel = &kernel->base;
    return ST_OK;
}

/* How many of `width` channels from `channel` on are not padding. */
static int64_t real_channels(const struct pool_kernel *self, int64_t channel, int64_t width)
{
    int64_t left = self->channels - channel;
    if (left < 0)
        return 0;
    return left < width ? left : width;
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
    for (int64_t i = 0; i < self->strips; i++) {
        for (int64_t l = 0; l < self->block; l += loops->width) {
            float mean[LOOPS_WIDTH_MAX];
            const int64_t channel = i % blocks * self->block + l;
            loops->average(&self->shape, x + i * plane + l, mean);
            for (int64_t c = 0; c < real_channels(self, channel, loops->width); c++)
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
    for (int64_t i = 0; i < self->strips; i++) {
        for (int64_t l = 0; l < self->block; l += loops->width) {
            float g[LOOPS_WIDTH_MAX] = { 0 };
            const int64_t channel = i % blocks * self->block + l;
            for (int64_t c = 0; c < real_channels(self, channel, loops->width); c++)
                g[c] = dy[i / blocks * self->channels + channel + c];
            loops->average_backward(&self->shape, g, dx + i * plane + l);
        }
    }
    return ST_OK;
}
