/*
 *              with AMX                              by the float32 kernel
 *   cache      forward's weights · backward-data's   that kernel's
 *   scratch    of one direction at a time            x · y or dy · dx · that kernel's own
 *
 * x, y, dy and dx in scratch are in the float32 kernel's formats.
 */
#include "kernels/cpu/conv/conv_half.h"

#include <stdlib.h>

#include "kernels/cpu/conv/amx.h"

struct half_kernel {
    struct kernel base;
    bool amx;
    struct amx_pass forward, data;
    struct amx_dweights dweights;
    bool is_stem;
    struct amx_stem stem; /* if is_stem; `forward` then serves the gradient only */
    struct kernel *inner; /* without AMX: the same op in float32; else NULL */
    struct kernel_info inner_info;
    struct tensor inner_in, out;
    size_t at_out, at_din, at_own; /* in scratch */
};

static void half_release(struct kernel *kernel)
{
    struct half_kernel *self = (struct half_kernel *)kernel;
    if (self->inner == NULL)
        return;
    if (self->inner->release != NULL)
        self->inner->release(self->inner);
    free(self->inner);
}

static enum status half_refresh(struct backend *backend, struct kernel *kernel,
                                const float *const param[OP_PARAM_MAX], void *cache)
{
    struct half_kernel *self = (struct half_kernel *)kernel;
    if (self->is_stem) {
        conv_amx_stem_weights(&self->stem, param[0], cache);
        return ST_OK;
    }
    if (self->amx) {
        const bool data = kernel->spec.training && kernel->spec.need_din0;
        char *data_cache = (char *)cache + cpu_align(conv_amx_cache_bytes(&self->forward));
        conv_amx_weights(&self->forward, param[0], cache, data ? &self->data : NULL,
                         (uint16_t *)(void *)data_cache);
        return ST_OK;
    }
    return self->inner->refresh(backend, self->inner, param, cache);
}

/* Whether in[0] needs no conversion: it is float32, as the float32 kernel takes it. */
static bool takes_as_is(const struct op_spec *spec)
{
    return spec->in[0].dtype == DTYPE_F32 && spec->in[0].format != FORMAT_NHWC;
}

static enum status inner_init(struct backend *backend, struct half_kernel *self)
{
    struct op_spec inner = self->base.spec;
    if (!takes_as_is(&inner)) {
        self->inner_in = cpu_tensor(backend, FORMAT_BLOCKED, inner.in[0].dims);
        inner.in[0] = self->inner_in;
    }
    inner.math = MATH_F32;
    inner.out_dtype = DTYPE_F32;
    enum status st = cpu_conv2d_prepare(backend, &inner, &self->inner, &self->inner_info);
    if (st != ST_OK)
        return st;
    self->out = cpu_nhwc(self->inner_info.out.dims);
    self->at_out = cpu_align(self->inner_in.bytes);
    self->at_din = self->at_out + cpu_align(self->inner_info.out.bytes);
    const bool din = inner.training && inner.need_din0 && !takes_as_is(&self->base.spec);
    self->at_own = self->at_din + (din ? cpu_align(self->inner_in.bytes) : 0);
    return ST_OK;
}

static void stem_init(struct half_kernel *self, struct kernel_info *info)
{
    const struct op_spec *spec = &self->base.spec;
    self->amx = self->is_stem = true;
    conv_amx_stem_geometry(spec, &self->stem, &self->forward, &self->dweights);
    const struct amx_stem *stem = &self->stem;
    const int64_t dims[4] = { stem->n, stem->k, stem->p, stem->q };
    self->out = cpu_nhwc(dims);
    const double flops = 2.0 * (double)tensor_elements(&self->out) * (double)self->dweights.columns;
    *info = (struct kernel_info){
        .out = self->out,
        .scratch_bytes = stem->copy_bytes,
        .cache_bytes = conv_amx_stem_cache_bytes(stem),
        .backward_needs_in = { true },
        .din = { spec->in[0] },
        .flops_forward = flops,
        .flops_backward = flops,
        .implementation = "own_amx_stem",
    };
    if (spec->training) {
        info->scratch_bytes = cpu_most(
            info->scratch_bytes, conv_amx_dweights_scratch_bytes(&self->forward, &self->dweights));
    }
}

static void amx_init(struct half_kernel *self, struct kernel_info *info)
{
    const struct op_spec *spec = &self->base.spec;
    const struct amx_images *out = &self->forward.out;
    const bool data = spec->training && spec->need_din0;
    self->amx = true;
    conv_amx_geometry(spec, false, &self->forward);
    const int64_t dims[4] = { spec->in[0].dims[0], out->channels, out->h, out->w };
    self->out = cpu_nhwc(dims);
    const double flops = 2.0 * (double)tensor_elements(&self->out) *
                         (double)(spec->in[0].dims[1] * self->forward.places);
    *info = (struct kernel_info){
        .out = self->out,
        .scratch_bytes = conv_amx_scratch_bytes(&self->forward),
        .cache_bytes = cpu_align(conv_amx_cache_bytes(&self->forward)),
        .backward_needs_in = { true },
        .din = { spec->in[0] },
        .flops_forward = flops,
        .flops_backward = spec->need_din0 ? 2.0 * flops : flops,
        .implementation = "own_amx",
    };
    if (data) {
        conv_amx_geometry(spec, true, &self->data);
        info->cache_bytes += conv_amx_cache_bytes(&self->data);
        info->scratch_bytes = cpu_most(info->scratch_bytes, conv_amx_scratch_bytes(&self->data));
    }
    if (spec->training) {
        conv_amx_dweights_geometry(&self->forward, &self->dweights);
        info->scratch_bytes = cpu_most(
            info->scratch_bytes, conv_amx_dweights_scratch_bytes(&self->forward, &self->dweights));
    }
}

static bool conv_half_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    if (spec->out_dtype != DTYPE_BF16 || spec->in_count < 1 || in->ndim != 4)
        return false;
    return cpu_is_nhwc(in) || (in->dtype == DTYPE_F32 && in->format != FORMAT_NHWC);
}

enum status conv_half_prepare(struct backend *backend, const struct op_spec *spec,
                              struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!conv_half_is_valid(spec))
        return ST_INVALID;
    struct half_kernel *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->base.refresh = half_refresh;
    self->base.release = half_release;
    *out_kernel = &self->base;
    if (backend->amx && conv_amx_takes(spec)) {
        amx_init(self, out_info);
        return ST_OK;
    }
    if (backend->amx && conv_amx_stem_takes(spec)) {
        stem_init(self, out_info);
        return ST_OK;
    }
    enum status st = inner_init(backend, self);
    if (st != ST_OK) {
        half_release(&self->base);
        free(self);
        return st;
    }
    *out_info = self->inner_info;
    out_info->out = self->out;
    out_info->scratch_bytes = self->at_own + self->inner_info.scratch_bytes;
    out_info->din[0] = spec->in[0];
    return ST_OK;
}

/* x as the float32 kernel wants it, at the start of scratch where it is not that already. */
static const void *inner_input(const struct backend *backend, const struct half_kernel *self,
                               const struct op_buffers *buffers)
{
    if (takes_as_is(&self->base.spec))
        return buffers->in[0];
    cpu_reformat(backend, &self->base.spec.in[0], buffers->in[0], &self->inner_in,
                 buffers->scratch);
    return buffers->scratch;
}

enum status conv_half_forward(struct backend *backend, struct kernel *kernel,
                              const struct op_buffers *buffers)
{
    struct half_kernel *self = (struct half_kernel *)kernel;
    char *scratch = buffers->scratch;
    struct op_buffers inner = *buffers;
    cpu_enter(backend);
    if (self->is_stem) {
        conv_amx_stem_run(&self->stem, buffers->in[0], buffers->cache, buffers->out, scratch);
        return ST_OK;
    }
    if (self->amx) {
        conv_amx_run(&self->forward, buffers->in[0], buffers->cache, buffers->out, scratch);
        return ST_OK;
    }
    inner.in[0] = inner_input(backend, self, buffers);
    inner.out = scratch + self->at_out;
    inner.scratch = scratch + self->at_own;
    enum status st = cpu_conv2d_forward(backend, self->inner, &inner, NULL);
    if (st == ST_OK)
        cpu_reformat(backend, &self->inner_info.out, inner.out, &self->out, buffers->out);
    return st;
}

static void amx_backward(const struct half_kernel *self, const struct op_buffers *buffers)
{
    const char *cache = buffers->cache;
    const struct amx_source source = { .x = buffers->in[0],
                                       .stem = self->is_stem ? &self->stem : NULL,
                                       .images = buffers->in[0] };
    if (buffers->dparam[0] != NULL) {
        conv_amx_dweights_run(&self->forward, &self->dweights, &source, buffers->dout[0],
                              buffers->accumulate[0], buffers->dparam[0], buffers->scratch);
    }
    if (buffers->din[0] != NULL && !self->is_stem) {
        const void *weights = cache + cpu_align(conv_amx_cache_bytes(&self->forward));
        conv_amx_run(&self->data, buffers->dout[0], weights, buffers->din[0], buffers->scratch);
    }
}

enum status conv_half_backward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers)
{
    struct half_kernel *self = (struct half_kernel *)kernel;
    char *scratch = buffers->scratch;
    struct op_buffers inner = *buffers;
    cpu_enter(backend);
    if (self->amx) {
        amx_backward(self, buffers);
        return ST_OK;
    }
    if (buffers->dparam[0] != NULL)
        inner.in[0] = inner_input(backend, self, buffers);
    inner.dout[0] = scratch + self->at_out;
    inner.scratch = scratch + self->at_own;
    cpu_reformat(backend, &self->out, buffers->dout[0], &self->inner_info.out,
                 scratch + self->at_out);
    const bool convert = buffers->din[0] != NULL && !takes_as_is(&kernel->spec);
    if (convert)
        inner.din[0] = scratch + self->at_din;
    enum status st = cpu_conv2d_backward(backend, self->inner, &inner, NULL);
    if (st == ST_OK && convert)
        cpu_reformat(backend, &self->inner_in, inner.din[0], &kernel->spec.in[0], buffers->din[0]);
    return st;
}
