/*
 * Scratch: x · y or dy · dx, all in the float32 kernel's formats · that kernel's own
 */
#include "kernels/cpu/conv_half.h"

#include <stdlib.h>

struct half_kernel {
    struct kernel base;
    struct kernel *inner; /* the same in float32 */
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
    return self->inner->refresh(backend, self->inner, param, cache);
}

/* Whether in[0] needs no conversion: float32 data, as the float32 kernel takes it. */
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

static bool spec_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    if (spec->out_dtype != DTYPE_BF16 || spec->in_count < 1 || in->ndim != 4)
        return false;
    return cpu_is_nhwc(in) || (in->dtype == DTYPE_F32 && in->format != FORMAT_NHWC);
}

enum status conv_half_prepare(struct backend *backend, const struct op_spec *spec,
                              struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!spec_is_valid(spec))
        return ST_INVALID;
    struct half_kernel *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->base.refresh = half_refresh;
    self->base.release = half_release;
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
    *out_kernel = &self->base;
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
    inner.in[0] = inner_input(backend, self, buffers);
    inner.out = scratch + self->at_out;
    inner.scratch = scratch + self->at_own;
    enum status st = cpu_conv2d_forward(backend, self->inner, &inner, NULL);
    if (st == ST_OK)
        cpu_reformat(backend, &self->inner_info.out, inner.out, &self->out, buffers->out);
    return st;
}

enum status conv_half_backward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers)
{
    struct half_kernel *self = (struct half_kernel *)kernel;
    char *scratch = buffers->scratch;
    struct op_buffers inner = *buffers;
    cpu_enter(backend);
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
