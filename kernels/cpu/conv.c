/*
 * conv2d by oneDNN: blocked in, blocked out; Winograd where a fixed table says so.
 *
 * Weights are canonical [K, C, R, S]; the layouts that the primitives want are in the cache
 * (forward's first, then backward-data's where it differs), rewritten by refresh. Backward-weights
 * writes its own layout into scratch, and a reorder writes or adds it to the canonical gradient.
 *
 * A plain input of 1 to 3 channels that needs no gradient (the data) is read as it is. Any other
 * plain input is repacked into scratch first, and its gradient back.
 *
 * Scratch: forward   repacked x · scratchpad
 *          backward  repacked x · blocked dx · dW in oneDNN's layout · db · scratchpad
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/conv_table.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnn.h"

#define PLAIN_CHANNELS_MAX 3 /* what oneDNN's first-layer kernels take */

enum conv_direction { CONV_FORWARD, CONV_BACKWARD_DATA, CONV_BACKWARD_WEIGHTS };

enum conv_region { CONV_X, CONV_DX, CONV_DW, CONV_DB, CONV_PAD, CONV_REGIONS };

struct conv_kernel {
    struct kernel base;
    struct tensor out, blocked_in;
    bool repack;
    dnnl_memory_desc_t x, y, bias, canonical;     /* as the primitives see them */
    dnnl_memory_desc_t weights, data_weights, dw; /* oneDNN's choice */
    struct dnn_op forward, backward_data, backward_weights;
    struct dnn_op pack, pack_data, unpack, unpack_add; /* weights to caches, dW to canonical */
    size_t data_cache_offset;                          /* of backward-data's weights in the cache */
    size_t offset[CONV_REGIONS];                       /* of scratch, in backward */
    char implementation[160];
};

/* One way to ask for a primitive. */
struct request {
    struct dnn *dnn;
    const struct conv_kernel *self;
    enum conv_direction direction;
    dnnl_alg_kind_t algorithm;
};

static dnnl_status_t describe(const struct request *r, dnnl_convolution_desc_t *desc)
{
    const struct conv_kernel *self = r->self;
    const struct op_attr *attr = &self->base.spec.attr;
    const dnnl_dims_t stride = { attr->stride, attr->stride }, pad = { attr->pad, attr->pad };
    const dnnl_memory_desc_t *bias = attr->bias ? &self->bias : NULL;
    dnnl_memory_desc_t any = self->canonical;
    dnnl_status_t st =
        dnnl_memory_desc_init_by_tag(&any, 4, self->canonical.dims, dnnl_f32, dnnl_format_tag_any);
    if (st != dnnl_success)
        return st;
    switch (r->direction) {
    case CONV_FORWARD:
        return dnnl_convolution_forward_desc_init(desc, dnnl_forward_training, r->algorithm,
                                                  &self->x, &any, bias, &self->y, stride, pad, pad);
    case CONV_BACKWARD_DATA:
        return dnnl_convolution_backward_data_desc_init(desc, r->algorithm, &self->x, &any,
                                                        &self->y, stride, pad, pad);
    case CONV_BACKWARD_WEIGHTS:
        return dnnl_convolution_backward_weights_desc_init(desc, r->algorithm, &self->x, &any, bias,
                                                           &self->y, stride, pad, pad);
    }
    return dnnl_invalid_arguments;
}

static enum status ask(const struct request *r, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t desc;
    enum status st = dnn_status(describe(r, &desc));
    if (st != ST_OK)
        return st;
    const_dnnl_primitive_desc_t hint = NULL;
    if (r->direction != CONV_FORWARD)
        st = dnn_status(dnnl_primitive_get_primitive_desc(r->self->forward.primitive, &hint));
    dnnl_primitive_attr_t attr = NULL;
    if (st == ST_OK)
        st = dnn_attr_new(false, &attr);
    if (st != ST_OK)
        return st;
    st = dnn_status(dnnl_primitive_desc_create(out, &desc, attr, r->dnn->engine, hint));
    (void)dnnl_primitive_attr_destroy(attr);
    return st;
}

/* The table's algorithm; where oneDNN has none such here (no AVX-512), direct, then any. */
static enum status choose(struct backend *backend, const struct conv_kernel *self,
                          enum conv_direction direction, dnnl_primitive_desc_t *out)
{
    const dnnl_alg_kind_t order[] = { dnnl_convolution_winograd, dnnl_convolution_direct,
                                      dnnl_convolution_auto };
    struct request r = { .dnn = backend->dnn, .self = self, .direction = direction };
    int first = conv_table_winograd(&self->base.spec) ? 0 : 1;
    enum status st = ST_INVALID;
    for (int i = first; i < 3 && st == ST_INVALID; i++) {
        r.algorithm = order[i];
        st = ask(&r, out);
    }
    return st;
}

static const dnnl_memory_desc_t *desc_of(const struct dnn_op *op, dnnl_query_t query)
{
    const_dnnl_primitive_desc_t desc = NULL;
    if (dnnl_primitive_get_primitive_desc(op->primitive, &desc) != dnnl_success)
        return NULL;
    return dnnl_primitive_desc_query_md(desc, query, 0);
}

static enum status forward_init(struct backend *backend, struct conv_kernel *self)
{
    struct dnn *dnn = backend->dnn;
    dnnl_primitive_desc_t desc = NULL;
    enum status st = choose(backend, self, CONV_FORWARD, &desc);
    if (st == ST_OK)
        st = dnn_op_init(dnn, &self->forward, desc);
    if (st != ST_OK)
        return st;
    self->weights = *desc_of(&self->forward, dnnl_query_weights_md);
    st = dnn_op_bind(dnn, &self->forward, DNNL_ARG_SRC, &self->x);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, &self->forward, DNNL_ARG_WEIGHTS, &self->weights);
    if (st == ST_OK && self->base.spec.attr.bias)
        st = dnn_op_bind(dnn, &self->forward, DNNL_ARG_BIAS, &self->bias);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, &self->forward, DNNL_ARG_DST, &self->y);
    if (st == ST_OK)
        st = dnn_reorder_init(dnn, &self->pack, &self->canonical, &self->weights, false);
    return st;
}

static enum status backward_data_init(struct backend *backend, struct conv_kernel *self)
{
    struct dnn *dnn = backend->dnn;
    dnnl_primitive_desc_t desc = NULL;
    enum status st = choose(backend, self, CONV_BACKWARD_DATA, &desc);
    if (st == ST_OK)
        st = dnn_op_init(dnn, &self->backward_data, desc);
    if (st != ST_OK)
        return st;
    self->data_weights = *desc_of(&self->backward_data, dnnl_query_weights_md);
    st = dnn_op_bind(dnn, &self->backward_data, DNNL_ARG_DIFF_DST, &self->y);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, &self->backward_data, DNNL_ARG_WEIGHTS, &self->data_weights);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, &self->backward_data, DNNL_ARG_DIFF_SRC, &self->x);
    if (st == ST_OK && !dnnl_memory_desc_equal(&self->weights, &self->data_weights))
        st = dnn_reorder_init(dnn, &self->pack_data, &self->canonical, &self->data_weights, false);
    return st;
}

static enum status backward_weights_init(struct backend *backend, struct conv_kernel *self)
{
    struct dnn *dnn = backend->dnn;
    dnnl_primitive_desc_t desc = NULL;
    enum status st = choose(backend, self, CONV_BACKWARD_WEIGHTS, &desc);
    if (st == ST_OK)
        st = dnn_op_init(dnn, &self->backward_weights, desc);
    if (st != ST_OK)
        return st;
    self->dw = *desc_of(&self->backward_weights, dnnl_query_diff_weights_md);
    st = dnn_op_bind(dnn, &self->backward_weights, DNNL_ARG_SRC, &self->x);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, &self->backward_weights, DNNL_ARG_DIFF_DST, &self->y);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, &self->backward_weights, DNNL_ARG_DIFF_WEIGHTS, &self->dw);
    if (st == ST_OK && self->base.spec.attr.bias)
        st = dnn_op_bind(dnn, &self->backward_weights, DNNL_ARG_DIFF_BIAS, &self->bias);
    if (st == ST_OK)
        st = dnn_reorder_init(dnn, &self->unpack, &self->dw, &self->canonical, false);
    if (st == ST_OK)
        st = dnn_reorder_init(dnn, &self->unpack_add, &self->dw, &self->canonical, true);
    return st;
}

static void conv_release(struct kernel *kernel)
{
    struct conv_kernel *self = (struct conv_kernel *)kernel;
    dnn_op_release(&self->forward);
    dnn_op_release(&self->backward_data);
    dnn_op_release(&self->backward_weights);
    dnn_op_release(&self->pack);
    dnn_op_release(&self->pack_data);
    dnn_op_release(&self->unpack);
    dnn_op_release(&self->unpack_add);
}

static enum status conv_refresh(struct backend *backend, struct kernel *kernel,
                                const float *const param[OP_PARAM_MAX], void *cache)
{
    struct conv_kernel *self = (struct conv_kernel *)kernel;
    struct dnn_op *packs[] = { &self->pack, &self->pack_data };
    char *to[] = { cache, (char *)cache + self->data_cache_offset };
    for (int i = 0; i < 2; i++) {
        if (packs[i]->primitive == NULL)
            continue;
        enum status st = dnn_op_set(packs[i], DNNL_ARG_FROM, param[0]);
        if (st == ST_OK)
            st = dnn_op_set(packs[i], DNNL_ARG_TO, to[i]);
        if (st == ST_OK)
            st = dnn_op_run(backend->dnn, packs[i], NULL);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status tensor_desc(const struct backend *backend, const struct tensor *tensor,
                               dnnl_memory_desc_t *desc)
{
    const dnnl_dims_t dims = { tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3] };
    const dnnl_format_tag_t blocked = backend->block == 16 ? dnnl_nChw16c : dnnl_nChw8c;
    return dnn_status(dnnl_memory_desc_init_by_tag(
        desc, 4, dims, dnnl_f32, tensor->format == FORMAT_BLOCKED ? blocked : dnnl_nchw));
}

static enum status descs_init(struct backend *backend, struct conv_kernel *self)
{
    const struct op_spec *spec = &self->base.spec;
    const struct tensor *in = &spec->in[0];
    const struct op_attr *attr = &spec->attr;
    const int64_t pads = 2 * (int64_t)attr->pad;
    const int64_t out[4] = { in->dims[0], attr->out,
                             (in->dims[2] + pads - attr->kernel) / attr->stride + 1,
                             (in->dims[3] + pads - attr->kernel) / attr->stride + 1 };
    const dnnl_dims_t weights = { attr->out, in->dims[1], attr->kernel, attr->kernel };
    const dnnl_dims_t bias = { attr->out };
    self->out = cpu_tensor(backend, FORMAT_BLOCKED, out);
    self->blocked_in = cpu_tensor(backend, FORMAT_BLOCKED, in->dims);
    self->repack =
        in->format == FORMAT_PLAIN && (in->dims[1] > PLAIN_CHANNELS_MAX || spec->need_din0);
    enum status st = tensor_desc(backend, self->repack ? &self->blocked_in : in, &self->x);
    if (st == ST_OK)
        st = tensor_desc(backend, &self->out, &self->y);
    if (st == ST_OK) {
        st = dnn_status(
            dnnl_memory_desc_init_by_tag(&self->canonical, 4, weights, dnnl_f32, dnnl_oihw));
    }
    if (st == ST_OK)
        st = dnn_status(dnnl_memory_desc_init_by_tag(&self->bias, 1, bias, dnnl_f32, dnnl_x));
    return st;
}

/* Lays scratch out; the size is what the greater of the two directions needs. */
static size_t scratch_layout(struct conv_kernel *self)
{
    const bool training = self->base.spec.training;
    size_t bytes[CONV_REGIONS] = { 0 };
    if (self->repack) {
        bytes[CONV_X] = self->blocked_in.bytes;
        bytes[CONV_DX] = training && self->base.spec.need_din0 ? self->blocked_in.bytes : 0;
    }
    if (training) {
        bytes[CONV_DW] = dnnl_memory_desc_get_size(&self->dw);
        bytes[CONV_DB] = (size_t)self->base.spec.attr.out * sizeof(float);
    }
    bytes[CONV_PAD] = self->backward_data.scratch_bytes;
    if (self->backward_weights.scratch_bytes > bytes[CONV_PAD])
        bytes[CONV_PAD] = self->backward_weights.scratch_bytes;
    size_t at = 0;
    for (int i = 0; i < CONV_REGIONS; i++) {
        self->offset[i] = at;
        at += cpu_align(bytes[i]);
    }
    size_t forward = cpu_align(bytes[CONV_X]) + self->forward.scratch_bytes;
    return forward > at ? forward : at;
}

static enum status primitives_init(struct backend *backend, struct conv_kernel *self)
{
    const struct op_spec *spec = &self->base.spec;
    enum status st = descs_init(backend, self);
    if (st == ST_OK)
        st = forward_init(backend, self);
    if (st == ST_OK && spec->training && spec->need_din0)
        st = backward_data_init(backend, self);
    if (st == ST_OK && spec->training)
        st = backward_weights_init(backend, self);
    return st;
}

static void fill_info(struct conv_kernel *self, struct kernel_info *info)
{
    const struct op_spec *spec = &self->base.spec;
    const double flops = 2.0 * (double)tensor_elements(&self->out) *
                         (double)(spec->in[0].dims[1] * spec->attr.kernel * spec->attr.kernel);
    const bool own_layout = self->pack_data.primitive != NULL;
    self->data_cache_offset = own_layout ? cpu_align(dnnl_memory_desc_get_size(&self->weights)) : 0;
    const char *data = self->backward_data.implementation;
    const char *weights = self->backward_weights.implementation;
    (void)snprintf(self->implementation, sizeof(self->implementation), "%s,%s,%s",
                   self->forward.implementation, data == NULL ? "-" : data,
                   weights == NULL ? "-" : weights);
    *info = (struct kernel_info){
        .out = self->out,
        .scratch_bytes = scratch_layout(self),
        .cache_bytes = self->data_cache_offset +
                       dnnl_memory_desc_get_size(own_layout ? &self->data_weights : &self->weights),
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
    const int64_t pads = 2 * (int64_t)attr->pad;
    if (!cpu_input_is_valid(spec, 4) || attr->kernel < 1 || attr->stride < 1 || attr->pad < 0 ||
        attr->out < 1 || in->dims[2] + pads < attr->kernel || in->dims[3] + pads < attr->kernel)
        return ST_INVALID;
    struct conv_kernel *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->base.refresh = conv_refresh;
    self->base.release = conv_release;
    cpu_enter(backend);
    enum status st = primitives_init(backend, self);
    if (st != ST_OK) {
        conv_release(&self->base);
        free(self);
        return st;
    }
    fill_info(self, out_info);
    *out_kernel = &self->base;
    return ST_OK;
}

/* x as the primitives want it: itself, or repacked at the start of scratch. */
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
    struct conv_kernel *self = (struct conv_kernel *)kernel;
    struct dnn_op *op = &self->forward;
    char *pad = buffers->scratch;
    cpu_enter(backend);
    if (self->repack)
        pad += cpu_align(self->blocked_in.bytes);
    enum status st = dnn_op_set(op, DNNL_ARG_SRC, packed_input(backend, self, buffers));
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_WEIGHTS, buffers->cache);
    if (st == ST_OK && kernel->spec.attr.bias)
        st = dnn_op_set(op, DNNL_ARG_BIAS, buffers->param[1]);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_DST, buffers->out);
    if (st == ST_OK)
        st = dnn_op_run(backend->dnn, op, pad);
    return st;
}

static enum status run_backward_weights(struct backend *backend, struct conv_kernel *self,
                                        const struct op_buffers *buffers, const void *x)
{
    struct dnn_op *op = &self->backward_weights;
    struct dnn_op *unpack = buffers->accumulate ? &self->unpack_add : &self->unpack;
    const bool bias = self->base.spec.attr.bias;
    char *scratch = buffers->scratch;
    float *dw = (float *)(scratch + self->offset[CONV_DW]);
    float *db = (float *)(scratch + self->offset[CONV_DB]);
    enum status st = dnn_op_set(op, DNNL_ARG_SRC, x);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_DIFF_DST, buffers->dout[0]);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_DIFF_WEIGHTS, dw);
    if (st == ST_OK && bias)
        st = dnn_op_set(op, DNNL_ARG_DIFF_BIAS, db);
    if (st == ST_OK)
        st = dnn_op_run(backend->dnn, op, scratch + self->offset[CONV_PAD]);
    if (st == ST_OK)
        st = dnn_op_set(unpack, DNNL_ARG_FROM, dw);
    if (st == ST_OK)
        st = dnn_op_set(unpack, DNNL_ARG_TO, buffers->dparam[0]);
    if (st == ST_OK)
        st = dnn_op_run(backend->dnn, unpack, NULL);
    if (st == ST_OK && bias && buffers->dparam[1] != NULL) {
        backend->loops.flat->column_sums(buffers->dparam[1], db, 1,
                                         (size_t)self->base.spec.attr.out, buffers->accumulate);
    }
    return st;
}

static enum status run_backward_data(struct backend *backend, struct conv_kernel *self,
                                     const struct op_buffers *buffers)
{
    struct dnn_op *op = &self->backward_data;
    char *scratch = buffers->scratch;
    void *dx = self->repack ? scratch + self->offset[CONV_DX] : buffers->din[0];
    const char *weights = (const char *)buffers->cache + self->data_cache_offset;
    enum status st = dnn_op_set(op, DNNL_ARG_DIFF_DST, buffers->dout[0]);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_WEIGHTS, weights);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_DIFF_SRC, dx);
    if (st == ST_OK)
        st = dnn_op_run(backend->dnn, op, scratch + self->offset[CONV_PAD]);
    if (st == ST_OK && self->repack)
        cpu_reformat(backend, &self->blocked_in, dx, &self->base.spec.in[0], buffers->din[0]);
    return st;
}

enum status cpu_conv2d_backward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    struct conv_kernel *self = (struct conv_kernel *)kernel;
    enum status st = ST_OK;
    cpu_enter(backend);
    if (buffers->dparam[0] != NULL)
        st = run_backward_weights(backend, self, buffers, packed_input(backend, self, buffers));
    if (st == ST_OK && buffers->din[0] != NULL)
        st = run_backward_data(backend, self, buffers);
    return st;
}
