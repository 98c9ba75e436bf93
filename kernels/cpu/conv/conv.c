/*
 * conv2d in float32, by oneDNN or by our own Winograd, as conv_table.h says. (bfloat16:
 * conv_half.h.)
 *
 * Weights are canonical, [K, C, R, S]. The cache has them in the layouts that the methods want:
 *
 *   cache     forward's · backward-data's, where it is another
 *
 * refresh rewrites it. For their gradient oneDNN writes its own layout into scratch, and a reorder
 * writes or adds that to the canonical gradient; our own Winograd does this itself.
 *
 * out is blocked (FORMAT_BLOCKED), and in is as a rule. A plain input of 1 to 3 channels that needs
 * no gradient (images) is read as it is. Any other plain input is first repacked into scratch, and
 * its gradient repacked back.
 *
 *   scratch   forward:  repacked x · the method's own
 *             backward: repacked x · blocked dx · dW in oneDNN's layout · db · the method's own
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/check.h"
#include "kernels/cpu/conv/conv_dnn.h"
#include "kernels/cpu/conv/conv_half.h"
#include "kernels/cpu/conv/conv_table.h"
#include "kernels/cpu/conv/winograd.h"

#define PLAIN_CHANNELS_MAX 3 /* what oneDNN's first-layer kernels take */

enum conv_region { CONV_X, CONV_DX, CONV_DW, CONV_DB, CONV_OWN, CONV_REGIONS };

struct conv_kernel {
    struct kernel base;
    struct tensor out, blocked_in;
    struct conv_shape shape;
    bool repack;
    /* Forward and backward-data: own ? wino, wino_data : forward, backward_data. */
    bool own;
    struct winograd wino, wino_data;
    struct conv_dnn forward, backward_data;
    /* The weights' gradient: own_dweights ? wino_dweights : backward_weights. */
    bool own_dweights;
    struct winograd_dweights wino_dweights;
    struct conv_dnn backward_weights;
    bool shared;                 /* backward-data reads forward's copy of the weights */
    size_t data_at, cache_bytes; /* data_at: where backward-data's copy begins in the cache */
    size_t offset[CONV_REGIONS]; /* of scratch, in backward */
    char implementation[160];
};

static void conv_release(struct kernel *kernel)
{
    struct conv_kernel *self = (struct conv_kernel *)kernel;
    conv_dnn_release(&self->forward);
    conv_dnn_release(&self->backward_data);
    conv_dnn_release(&self->backward_weights);
}

static enum status conv_refresh(struct backend *backend, struct kernel *kernel,
                                const float *const param[OP_PARAM_MAX], void *cache)
{
    struct conv_kernel *self = (struct conv_kernel *)kernel;
    const bool data = kernel->spec.training && kernel->spec.need_din0 && !self->shared;
    void *data_cache = (char *)cache + self->data_at;
    if (self->own) {
        winograd_weights(&self->wino, param[0], false, cache);
        if (data)
            winograd_weights(&self->wino_data, param[0], true, data_cache);
        return ST_OK;
    }
    enum status st = conv_dnn_pack(backend->dnn, &self->forward, param[0], cache);
    if (st == ST_OK && data)
        st = conv_dnn_pack(backend->dnn, &self->backward_data, param[0], data_cache);
    return st;
}

static void shapes_init(struct backend *backend, struct conv_kernel *self)
{
    const struct op_attr *attr = &self->base.spec.attr;
    const struct tensor *in = &self->base.spec.in[0];
    const int64_t out[4] = { in->dims[0], attr->out, op_windows(in->dims[2], attr),
                             op_windows(in->dims[3], attr) };
    self->out = cpu_tensor(backend, FORMAT_BLOCKED, out);
    self->blocked_in = cpu_tensor(backend, FORMAT_BLOCKED, in->dims);
    const bool as_it_is = in->dims[1] <= PLAIN_CHANNELS_MAX && !self->base.spec.need_din0 &&
                          (backend->block == 16 || in->dims[1] == PLAIN_CHANNELS_MAX);
    self->repack = in->format == FORMAT_PLAIN && !as_it_is;
}

static void own_init(struct conv_kernel *self)
{
    const int64_t *in = self->base.spec.in[0].dims, k = self->base.spec.attr.out;
    const bool data = self->base.spec.training && self->base.spec.need_din0;
    self->wino = winograd_geometry(in[0], in[1], k, in[2], in[3]);
    self->data_at = winograd_cache_bytes(&self->wino);
    self->cache_bytes = self->data_at;
    if (data) {
        self->wino_data = winograd_geometry(in[0], k, in[1], in[2], in[3]);
        self->cache_bytes += winograd_cache_bytes(&self->wino_data);
    }
}

static enum status library_init(struct backend *backend, struct conv_kernel *self, bool winograd)
{
    const bool data = self->base.spec.training && self->base.spec.need_din0;
    struct conv_dnn *forward = &self->forward, *backward = &self->backward_data;
    enum status st = conv_dnn_init(backend->dnn, &self->shape, CONV_FORWARD, winograd, forward);
    if (st == ST_OK && data)
        st = conv_dnn_init(backend->dnn, &self->shape, CONV_BACKWARD_DATA, winograd, backward);
    if (st != ST_OK)
        return st;
    self->shared = data && dnnl_memory_desc_equal(&forward->weights, &backward->weights) != 0;
    self->cache_bytes = forward->weights_bytes;
    if (data && !self->shared) {
        self->data_at = cpu_align(forward->weights_bytes);
        self->cache_bytes = self->data_at + backward->weights_bytes;
    }
    return ST_OK;
}

static enum status methods_init(struct backend *backend, struct conv_kernel *self)
{
    const struct op_spec *spec = &self->base.spec;
    const int64_t *in = spec->in[0].dims;
    const bool own_works = backend->block == 16 && backend->threads == 1;
    const enum conv_method forward = conv_table_forward(spec, own_works);
    const enum conv_method weights = conv_table_weights(spec, own_works);
    shapes_init(backend, self);
    enum status st =
        conv_shape_init(backend, &spec->attr, self->repack ? &self->blocked_in : &spec->in[0],
                        &self->out, &self->shape);
    if (st != ST_OK)
        return st;
    self->own = forward == CONV_WINOGRAD_OWN;
    if (self->own) {
        own_init(self);
    } else {
        st = library_init(backend, self, forward == CONV_WINOGRAD);
    }
    if (st != ST_OK || !spec->training)
        return st;
    self->own_dweights = weights == CONV_WINOGRAD_OWN;
    if (!self->own_dweights) {
        return conv_dnn_init(backend->dnn, &self->shape, CONV_BACKWARD_WEIGHTS,
                             weights == CONV_WINOGRAD, &self->backward_weights);
    }
    CHECK(!spec->attr.bias); /* our own gives no gradient of a bias */
    self->wino_dweights = winograd_dweights_geometry(in[0], in[1], spec->attr.out, in[2], in[3]);
    return ST_OK;
}

/* Lays scratch out; the size is what the greater of the two directions needs. */
static size_t scratch_layout(struct conv_kernel *self)
{
    const struct op_spec *spec = &self->base.spec;
    size_t bytes[CONV_REGIONS] = { 0 };
    size_t forward = self->own ? winograd_scratch_bytes(&self->wino) : self->forward.scratch_bytes;
    size_t data = self->own && spec->training && spec->need_din0
                      ? winograd_scratch_bytes(&self->wino_data)
                      : self->backward_data.scratch_bytes;
    if (self->repack) {
        bytes[CONV_X] = self->blocked_in.bytes;
        bytes[CONV_DX] = spec->training && spec->need_din0 ? self->blocked_in.bytes : 0;
    }
    if (spec->training) {
        bytes[CONV_DW] = self->backward_weights.weights_bytes;
        bytes[CONV_DB] = (size_t)spec->attr.out * sizeof(float);
    }
    bytes[CONV_OWN] =
        cpu_most(data, self->own_dweights ? winograd_dweights_scratch_bytes(&self->wino_dweights)
                                          : self->backward_weights.scratch_bytes);
    size_t at = 0;
    for (int i = 0; i < CONV_REGIONS; i++) {
        self->offset[i] = at;
        at += cpu_align(bytes[i]);
    }
    return cpu_most(at, cpu_align(bytes[CONV_X]) + forward);
}

static const char *conv_name(const struct conv_dnn *conv, bool own)
{
    if (own)
        return "own_wino_4x3:avx512";
    return conv->op.implementation == NULL ? "-" : conv->op.implementation;
}

static void fill_info(struct conv_kernel *self, struct kernel_info *info)
{
    const struct op_spec *spec = &self->base.spec;
    const double flops = 2.0 * (double)tensor_elements(&self->out) *
                         (double)(spec->in[0].dims[1] * spec->attr.kernel * spec->attr.kernel);
    (void)snprintf(self->implementation, sizeof(self->implementation), "%s,%s,%s",
                   conv_name(&self->forward, self->own), conv_name(&self->backward_data, self->own),
                   conv_name(&self->backward_weights, self->own_dweights));
    *info = (struct kernel_info){
        .out = self->out,
        .scratch_bytes = scratch_layout(self),
        .cache_bytes = self->cache_bytes,
        .backward_needs_in = { true },
        .din = { spec->in[0] },
        .flops_forward = flops,
        .flops_backward = spec->need_din0 ? 2.0 * flops : flops,
        .implementation = self->implementation,
    };
}

enum status cpu_conv2d_prepare(struct backend *backend, const struct op_spec *spec,
                               struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct op_attr *attr = &spec->attr;
    const struct tensor *in = &spec->in[0];
    if (spec->math == MATH_BF16)
        return conv_half_prepare(backend, spec, out_kernel, out_info);
    if (spec->math != MATH_F32 || spec->out_dtype != DTYPE_F32 || !cpu_input_is_valid(spec, 4) ||
        attr->kernel < 1 || attr->stride < 1 || attr->pad < 0 || attr->out < 1 ||
        op_windows(in->dims[2], attr) < 1 || op_windows(in->dims[3], attr) < 1)
        return ST_INVALID;
    struct conv_kernel *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->base.refresh = conv_refresh;
    self->base.release = conv_release;
    cpu_enter(backend);
    enum status st = methods_init(backend, self);
    if (st != ST_OK) {
        conv_release(&self->base);
        free(self);
        return st;
    }
    fill_info(self, out_info);
    *out_kernel = &self->base;
    return ST_OK;
}

/* x as the methods want it: itself, or repacked at the start of scratch. */
static const void *packed_input(const struct backend *backend, const struct conv_kernel *self,
                                const struct op_buffers *buffers)
{
    if (!self->repack)
        return buffers->in[0];
    cpu_reformat(backend, &self->base.spec.in[0], buffers->in[0], &self->blocked_in,
                 buffers->scratch);
    return buffers->scratch;
}

enum status cpu_conv2d_forward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    if (kernel->spec.math == MATH_BF16)
        return conv_half_forward(backend, kernel, buffers);
    struct conv_kernel *self = (struct conv_kernel *)kernel;
    const float *bias = kernel->spec.attr.bias ? buffers->param[1] : NULL;
    char *scratch = buffers->scratch;
    cpu_enter(backend);
    const void *x = packed_input(backend, self, buffers);
    if (self->repack)
        scratch += cpu_align(self->blocked_in.bytes);
    if (self->own) {
        winograd_run(&self->wino, x, buffers->cache, bias, buffers->out, scratch);
        return ST_OK;
    }
    return conv_dnn_forward(backend->dnn, &self->forward, x, buffers->cache, bias, buffers->out,
                            scratch);
}

static enum status run_backward_weights(struct backend *backend, struct conv_kernel *self,
                                        const struct op_buffers *buffers, const void *x)
{
    const bool bias = self->base.spec.attr.bias;
    char *scratch = buffers->scratch;
    if (self->own_dweights) {
        winograd_dweights_run(&self->wino_dweights, x, buffers->dout[0], buffers->accumulate[0],
                              buffers->dparam[0], scratch + self->offset[CONV_OWN]);
        return ST_OK;
    }
    float *dw = (float *)(scratch + self->offset[CONV_DW]);
    float *db = bias ? (float *)(scratch + self->offset[CONV_DB]) : NULL;
    enum status st =
        conv_dnn_backward_weights(backend->dnn, &self->backward_weights, x, buffers->dout[0], dw,
                                  db, scratch + self->offset[CONV_OWN]);
    if (st == ST_OK) {
        st = conv_dnn_unpack(backend->dnn, &self->backward_weights, dw, buffers->dparam[0],
                             buffers->accumulate[0]);
    }
    if (st == ST_OK && bias && buffers->dparam[1] != NULL) {
        backend->loops.flat->column_sums(buffers->dparam[1], db, 1,
                                         (size_t)self->base.spec.attr.out, buffers->accumulate[1]);
    }
    return st;
}

static enum status run_backward_data(struct backend *backend, struct conv_kernel *self,
                                     const struct op_buffers *buffers)
{
    char *scratch = buffers->scratch;
    void *dx = self->repack ? scratch + self->offset[CONV_DX] : buffers->din[0];
    const void *weights = (const char *)buffers->cache + self->data_at;
    enum status st = ST_OK;
    if (self->own) {
        winograd_run(&self->wino_data, buffers->dout[0], weights, NULL, dx,
                     scratch + self->offset[CONV_OWN]);
    } else {
        st = conv_dnn_backward_data(backend->dnn, &self->backward_data, buffers->dout[0], weights,
                                    dx, scratch + self->offset[CONV_OWN]);
    }
    if (st == ST_OK && self->repack)
        cpu_reformat(backend, &self->blocked_in, dx, &self->base.spec.in[0], buffers->din[0]);
    return st;
}

enum status cpu_conv2d_backward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    if (kernel->spec.math == MATH_BF16)
        return conv_half_backward(backend, kernel, buffers);
    struct conv_kernel *self = (struct conv_kernel *)kernel;
    enum status st = ST_OK;
    cpu_enter(backend);
    if (buffers->dparam[0] != NULL)
        st = run_backward_weights(backend, self, buffers, packed_input(backend, self, buffers));
    if (st == ST_OK && buffers->din[0] != NULL)
        st = run_backward_data(backend, self, buffers);
    return st;
}
