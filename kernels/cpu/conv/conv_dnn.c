#include "kernels/cpu/conv/conv_dnn.h"

#include <string.h>

/* A request for one primitive. */
struct conv_request {
    struct dnn *dnn;
    const struct conv_shape *shape;
    enum conv_direction direction;
    dnnl_alg_kind_t algorithm;
    const_dnnl_primitive_desc_t hint; /* forward's, for the other directions */
};

static enum status tensor_desc(const struct backend *backend, const struct tensor *tensor,
                               dnnl_memory_desc_t *desc)
{
    const dnnl_dims_t dims = { tensor->dims[0], tensor->dims[1], tensor->dims[2], tensor->dims[3] };
    const dnnl_format_tag_t blocked = backend->block == 16 ? dnnl_nChw16c : dnnl_nChw8c;
    return dnn_status(dnnl_memory_desc_init_by_tag(
        desc, 4, dims, dnnl_f32, tensor->format == FORMAT_BLOCKED ? blocked : dnnl_nchw));
}

enum status conv_shape_init(const struct backend *backend, const struct op_attr *attr,
                            const struct tensor *in, const struct tensor *out,
                            struct conv_shape *shape)
{
    const dnnl_dims_t weights = { attr->out, in->dims[1], attr->kernel, attr->kernel };
    const dnnl_dims_t bias = { attr->out };
    shape->attr = attr;
    /* oneDNN takes an x with fewer channels than a block for an image, and wants it plain. So we
     * state the block's full number of channels: those that are missing lie there, as zeros. */
    struct tensor whole = *in;
    if (in->format == FORMAT_BLOCKED && in->dims[1] < backend->block)
        whole.dims[1] = backend->block;
    enum status st = tensor_desc(backend, &whole, &shape->x);
    if (st == ST_OK)
        st = tensor_desc(backend, out, &shape->y);
    if (st == ST_OK) {
        st = dnn_status(
            dnnl_memory_desc_init_by_tag(&shape->canonical, 4, weights, dnnl_f32, dnnl_oihw));
    }
    if (st == ST_OK)
        st = dnn_status(dnnl_memory_desc_init_by_tag(&shape->bias, 1, bias, dnnl_f32, dnnl_x));
    return st;
}

static dnnl_status_t conv_describe(const struct conv_request *r, dnnl_convolution_desc_t *desc)
{
    const struct conv_shape *s = r->shape;
    const dnnl_dims_t stride = { s->attr->stride, s->attr->stride };
    const dnnl_dims_t pad = { s->attr->pad, s->attr->pad };
    const dnnl_memory_desc_t *bias = s->attr->bias ? &s->bias : NULL;
    const dnnl_dims_t weights = { s->canonical.dims[0], s->x.dims[1], s->canonical.dims[2],
                                  s->canonical.dims[3] };
    dnnl_memory_desc_t any;
    dnnl_status_t st =
        dnnl_memory_desc_init_by_tag(&any, 4, weights, dnnl_f32, dnnl_format_tag_any);
    if (st != dnnl_success)
        return st;
    switch (r->direction) {
    case CONV_FORWARD:
        return dnnl_convolution_forward_desc_init(desc, dnnl_forward_training, r->algorithm, &s->x,
                                                  &any, bias, &s->y, stride, pad, pad);
    case CONV_BACKWARD_DATA:
        return dnnl_convolution_backward_data_desc_init(desc, r->algorithm, &s->x, &any, &s->y,
                                                        stride, pad, pad);
    case CONV_BACKWARD_WEIGHTS:
        return dnnl_convolution_backward_weights_desc_init(desc, r->algorithm, &s->x, &any, bias,
                                                           &s->y, stride, pad, pad);
    }
    return dnnl_invalid_arguments;
}

static enum status conv_ask(const struct conv_request *r, dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t desc;
    enum status st = dnn_status(conv_describe(r, &desc));
    if (st != ST_OK)
        return st;
    dnnl_primitive_attr_t attr = NULL;
    st = dnn_attr_new(false, &attr);
    if (st != ST_OK)
        return st;
    st = dnn_status(dnnl_primitive_desc_create(out, &desc, attr, r->dnn->engine, r->hint));
    (void)dnnl_primitive_attr_destroy(attr);
    return st;
}

static enum status conv_choose(struct conv_request *r, bool winograd, dnnl_primitive_desc_t *out)
{
    const dnnl_alg_kind_t order[] = { dnnl_convolution_winograd, dnnl_convolution_direct,
                                      dnnl_convolution_auto };
    enum status st = ST_INVALID;
    for (int i = winograd ? 0 : 1; i < 3 && st == ST_INVALID; i++) {
        r->algorithm = order[i];
        st = conv_ask(r, out);
    }
    return st;
}

/* Makes the primitive; the other directions' want a forward one as a hint. */
static enum status primitive_init(struct conv_request *r, bool winograd, struct conv_dnn *conv)
{
    const enum conv_direction direction = r->direction;
    dnnl_primitive_desc_t hint = NULL, desc = NULL;
    enum status st = ST_OK;
    if (direction != CONV_FORWARD) {
        r->direction = CONV_FORWARD;
        st = conv_choose(r, winograd, &hint);
        r->direction = direction;
        r->hint = hint;
    }
    if (st == ST_OK)
        st = conv_choose(r, winograd, &desc);
    if (st == ST_OK)
        st = dnn_op_init(r->dnn, &conv->op, desc);
    if (hint != NULL)
        (void)dnnl_primitive_desc_destroy(hint);
    return st;
}

static bool is_reference(const struct conv_dnn *conv)
{
    return strncmp(conv->op.implementation, "ref", 3) == 0;
}

static dnnl_status_t plain_desc(const dnnl_memory_desc_t *from, dnnl_memory_desc_t *plain)
{
    return dnnl_memory_desc_init_by_tag(plain, from->ndims, from->dims, from->data_type, dnnl_nchw);
}

/* Makes the primitive for `s`; where that is oneDNN's reference, once more for plain tensors, and
 * *s says so. */
static enum status primitive_choose(struct conv_request *r, bool winograd, struct conv_shape *s,
                                    struct conv_dnn *conv)
{
    r->shape = s;
    enum status st = primitive_init(r, winograd, conv);
    if (st != ST_OK || !is_reference(conv))
        return st;
    dnn_op_release(&conv->op);
    dnnl_memory_desc_t x, y;
    st = dnn_status(plain_desc(&s->x, &x));
    if (st == ST_OK)
        st = dnn_status(plain_desc(&s->y, &y));
    if (st != ST_OK)
        return st;
    s->x = x;
    s->y = y;
    r->hint = NULL;
    return primitive_init(r, false, conv);
}

/* The copy between the caller's layout and the primitive's, if they differ. */
static enum status copy_init(struct dnn *dnn, const dnnl_memory_desc_t *callers,
                             const dnnl_memory_desc_t *own, bool is_read, struct conv_dnn *conv,
                             struct conv_copy *copy)
{
    if (dnnl_memory_desc_equal(callers, own) != 0)
        return ST_OK;
    copy->at = cpu_align(conv->scratch_bytes);
    conv->scratch_bytes = copy->at + dnnl_memory_desc_get_size(own);
    return is_read ? dnn_reorder_init(dnn, &copy->reorder, callers, own, false)
                   : dnn_reorder_init(dnn, &copy->reorder, own, callers, false);
}

static enum status query_weights(struct conv_dnn *conv, enum conv_direction direction)
{
    const_dnnl_primitive_desc_t desc = NULL;
    enum status st = dnn_status(dnnl_primitive_get_primitive_desc(conv->op.primitive, &desc));
    if (st != ST_OK)
        return st;
    const dnnl_query_t what =
        direction == CONV_BACKWARD_WEIGHTS ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    conv->weights = *dnnl_primitive_desc_query_md(desc, what, 0);
    conv->weights_bytes = dnnl_memory_desc_get_size(&conv->weights);
    return ST_OK;
}

static enum status conv_bind(struct dnn *dnn, const struct conv_shape *s,
                             enum conv_direction direction, struct conv_dnn *conv)
{
    static const int args[][4] = {
        [CONV_FORWARD] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
        [CONV_BACKWARD_DATA] = { DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0 },
        [CONV_BACKWARD_WEIGHTS] = { DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST,
                                    DNNL_ARG_DIFF_BIAS },
    };
    const int *arg = args[direction];
    enum status st = dnn_op_bind(dnn, &conv->op, arg[0], &s->x);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, &conv->op, arg[1], &conv->weights);
    if (st == ST_OK)
        st = dnn_op_bind(dnn, &conv->op, arg[2], &s->y);
    if (st == ST_OK && s->attr->bias && arg[3] != 0)
        st = dnn_op_bind(dnn, &conv->op, arg[3], &s->bias);
    return st;
}

static enum status copies_init(struct dnn *dnn, const struct conv_shape *callers,
                               const struct conv_shape *own, enum conv_direction direction,
                               struct conv_dnn *conv)
{
    conv->scratch_bytes = conv->op.scratch_bytes;
    enum status st =
        copy_init(dnn, &callers->x, &own->x, direction != CONV_BACKWARD_DATA, conv, &conv->x);
    if (st == ST_OK) {
        st = copy_init(dnn, &callers->y, &own->y, direction != CONV_FORWARD, conv, &conv->y);
    }
    return st;
}

enum status conv_dnn_init(struct dnn *dnn, const struct conv_shape *shape,
                          enum conv_direction direction, bool winograd, struct conv_dnn *conv)
{
    struct conv_request r = { .dnn = dnn, .direction = direction };
    struct conv_shape own = *shape;
    const dnnl_memory_desc_t *canonical = &shape->canonical;
    enum status st = primitive_choose(&r, winograd, &own, conv);
    if (st == ST_OK)
        st = copies_init(dnn, shape, &own, direction, conv);
    if (st == ST_OK)
        st = query_weights(conv, direction);
    if (st == ST_OK)
        st = conv_bind(dnn, &own, direction, conv);
    if (st != ST_OK)
        return st;
    /* The reorders see the same bytes, but with the canonical number of channels: the others count
     * as padding, which packing zeroes and unpacking leaves out. */
    dnnl_memory_desc_t weights = conv->weights;
    weights.dims[1] = canonical->dims[1];
    if (direction != CONV_BACKWARD_WEIGHTS)
        return dnn_reorder_init(dnn, &conv->pack, canonical, &weights, false);
    st = dnn_reorder_init(dnn, &conv->unpack, &weights, canonical, false);
    if (st == ST_OK)
        st = dnn_reorder_init(dnn, &conv->unpack_add, &weights, canonical, true);
    return st;
}

void conv_dnn_release(struct conv_dnn *conv)
{
    dnn_op_release(&conv->op);
    dnn_op_release(&conv->x.reorder);
    dnn_op_release(&conv->y.reorder);
    dnn_op_release(&conv->pack);
    dnn_op_release(&conv->unpack);
    dnn_op_release(&conv->unpack_add);
}

static enum status conv_reorder(struct dnn *dnn, struct dnn_op *op, const void *from, void *to)
{
    enum status st = dnn_op_set(op, DNNL_ARG_FROM, from);
    if (st == ST_OK)
        st = dnn_op_set(op, DNNL_ARG_TO, to);
    if (st == ST_OK)
        st = dnn_op_run(dnn, op, NULL);
    return st;
}

enum status conv_dnn_pack(struct dnn *dnn, struct conv_dnn *conv, const float *canonical,
                          void *weights)
{
    return conv_reorder(dnn, &conv->pack, canonical, weights);
}

enum status conv_dnn_unpack(struct dnn *dnn, struct conv_dnn *conv, const void *weights,
                            float *canonical, bool add)
{
    return conv_reorder(dnn, add ? &conv->unpack_add : &conv->unpack, weights, canonical);
}

/* Binds `arg` to what the primitive reads: data, or its copy in the plain layout, made here. */
static enum status bind_read(struct dnn *dnn, struct conv_dnn *conv, struct conv_copy *copy,
                             int arg, const void *data, void *scratch)
{
    if (copy->reorder.primitive == NULL)
        return dnn_op_set(&conv->op, arg, data);
    void *plain = (char *)scratch + copy->at;
    enum status st = conv_reorder(dnn, &copy->reorder, data, plain);
    return st == ST_OK ? dnn_op_set(&conv->op, arg, plain) : st;
}

/* Runs the primitive, which writes `data`, by way of its copy if there is one. */
static enum status run_written(struct dnn *dnn, struct conv_dnn *conv, struct conv_copy *copy,
                               int arg, void *data, void *scratch)
{
    const bool copied = copy->reorder.primitive != NULL;
    void *written = copied ? (char *)scratch + copy->at : data;
    enum status st = dnn_op_set(&conv->op, arg, written);
    if (st == ST_OK)
        st = dnn_op_run(dnn, &conv->op, scratch);
    if (st == ST_OK && copied)
        st = conv_reorder(dnn, &copy->reorder, written, data);
    return st;
}

enum status conv_dnn_forward(struct dnn *dnn, struct conv_dnn *conv, const void *x,
                             const void *weights, const float *bias, void *y, void *scratch)
{
    enum status st = bind_read(dnn, conv, &conv->x, DNNL_ARG_SRC, x, scratch);
    if (st == ST_OK)
        st = dnn_op_set(&conv->op, DNNL_ARG_WEIGHTS, weights);
    if (st == ST_OK && bias != NULL)
        st = dnn_op_set(&conv->op, DNNL_ARG_BIAS, bias);
    if (st == ST_OK)
        st = run_written(dnn, conv, &conv->y, DNNL_ARG_DST, y, scratch);
    return st;
}

enum status conv_dnn_backward_data(struct dnn *dnn, struct conv_dnn *conv, const void *dy,
                                   const void *weights, void *dx, void *scratch)
{
    enum status st = bind_read(dnn, conv, &conv->y, DNNL_ARG_DIFF_DST, dy, scratch);
    if (st == ST_OK)
        st = dnn_op_set(&conv->op, DNNL_ARG_WEIGHTS, weights);
    if (st == ST_OK)
        st = run_written(dnn, conv, &conv->x, DNNL_ARG_DIFF_SRC, dx, scratch);
    return st;
}

enum status conv_dnn_backward_weights(struct dnn *dnn, struct conv_dnn *conv, const void *x,
                                      const void *dy, void *dw, float *db, void *scratch)
{
    enum status st = bind_read(dnn, conv, &conv->x, DNNL_ARG_SRC, x, scratch);
    if (st == ST_OK)
        st = bind_read(dnn, conv, &conv->y, DNNL_ARG_DIFF_DST, dy, scratch);
    if (st == ST_OK)
        st = dnn_op_set(&conv->op, DNNL_ARG_DIFF_WEIGHTS, dw);
    if (st == ST_OK && db != NULL)
        st = dnn_op_set(&conv->op, DNNL_ARG_DIFF_BIAS, db);
    if (st == ST_OK)
        st = dnn_op_run(dnn, &conv->op, scratch);
    return st;
}
