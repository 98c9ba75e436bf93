#include <string.h>

#include "trainer/tape/tape_append.h"

int tape_conv2d(struct tape *tape, const char *name, int x, const struct tape_conv2d *conv)
{
    if (!tape_has_dims(tape, x, 4) || conv->out < 1 || conv->kernel < 1 || conv->stride < 1 ||
        conv->pad < 0 || !(conv->std >= 0))
        return tape_refuse(tape, ST_INVALID);
    const int64_t *in = tape_dims(tape, x);
    int64_t side = conv->kernel;
    int64_t pads = 2 * (int64_t)conv->pad;
    if (in[2] + pads < side || in[3] + pads < side)
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_CONV2D, x, -1);
    if (node == NULL)
        return -1;
    node->attr.out = conv->out;
    node->attr.kernel = conv->kernel;
    node->attr.stride = conv->stride;
    node->attr.pad = conv->pad;
    node->attr.bias = conv->bias;
    const bool normal = conv->std > 0;
    struct tape_tensor_spec spec = { .suffix = "weight",
                                     .init = normal ? TAPE_INIT_NORMAL : TAPE_INIT_UNIFORM,
                                     .fan_in = in[1] * side * side,
                                     .std = conv->std,
                                     .ndim = 4,
                                     .dims = { conv->out, in[1], side, side } };
    node->param[0] = tape_append_param(tape, name, &spec);
    spec.suffix = "bias";
    spec.kind = TAPE_BIAS;
    spec.init = normal ? TAPE_INIT_ZERO : TAPE_INIT_UNIFORM;
    spec.ndim = 1;
    if (conv->bias)
        node->param[1] = tape_append_param(tape, name, &spec);
    int64_t height = (in[2] + pads - side) / conv->stride + 1;
    int64_t width = (in[3] + pads - side) / conv->stride + 1;
    return tape_append_value(tape, 4, (int64_t[]){ in[0], conv->out, height, width }, true);
}

int tape_batch_norm(struct tape *tape, const char *name, int x, int residual, bool relu)
{
    if (!tape_has_dims(tape, x, 4))
        return tape_refuse(tape, ST_INVALID);
    const int64_t *in = tape_dims(tape, x);
    bool adds = residual != TAPE_NO_RESIDUAL;
    if (adds && (!tape_has_dims(tape, residual, 4) ||
                 memcmp(in, tape_dims(tape, residual), 4 * sizeof(*in)) != 0))
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_BATCH_NORM, x, adds ? residual : -1);
    if (node == NULL)
        return -1;
    node->attr.relu = relu;
    node->attr.residual = adds;
    node->attr.eps = TAPE_NORM_EPSILON;
    struct tape_tensor_spec spec = {
        .suffix = "weight", .kind = TAPE_NORM, .init = TAPE_INIT_ONE, .ndim = 1, .dims = { in[1] }
    };
    node->param[0] = tape_append_param(tape, name, &spec);
    spec.suffix = "running_var";
    struct tape_tensor_spec variance = spec;
    spec.init = TAPE_INIT_ZERO;
    spec.suffix = "bias";
    node->param[1] = tape_append_param(tape, name, &spec);
    spec.suffix = "running_mean";
    node->stat[0] = tape_append_stat(tape, name, &spec);
    node->stat[1] = tape_append_stat(tape, name, &variance);
    return tape_append_value(tape, 4, in, true);
}

int tape_relu(struct tape *tape, int x)
{
    if (tape_append_node(tape, OP_RELU, x, -1) == NULL)
        return -1;
    return tape_append_value(tape, tape->values[x].tensor.ndim, tape_dims(tape, x), true);
}

int tape_max_pool(struct tape *tape, int x, int kernel, int stride, int pad)
{
    if (!tape_has_dims(tape, x, 4) || kernel < 1 || stride < 1 || pad < 0 || 2 * pad > kernel)
        return tape_refuse(tape, ST_INVALID);
    const int64_t *in = tape_dims(tape, x);
    int64_t pads = 2 * (int64_t)pad;
    if (in[2] + pads < kernel || in[3] + pads < kernel)
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_MAX_POOL, x, -1);
    if (node == NULL)
        return -1;
    node->attr.kernel = kernel;
    node->attr.stride = stride;
    node->attr.pad = pad;
    int64_t height = (in[2] + pads - kernel) / stride + 1;
    int64_t width = (in[3] + pads - kernel) / stride + 1;
    return tape_append_value(tape, 4, (int64_t[]){ in[0], in[1], height, width }, true);
}

int tape_global_avg_pool(struct tape *tape, int x)
{
    if (!tape_has_dims(tape, x, 4))
        return tape_refuse(tape, ST_INVALID);
    if (tape_append_node(tape, OP_GLOBAL_AVG_POOL, x, -1) == NULL)
        return -1;
    return tape_append_value(tape, 2, tape_dims(tape, x), true);
}

int tape_flatten(struct tape *tape, int x)
{
    if (!tape_has_dims(tape, x, 4))
        return tape_refuse(tape, ST_INVALID);
    if (tape_append_node(tape, OP_FLATTEN, x, -1) == NULL)
        return -1;
    const int64_t *in = tape_dims(tape, x);
    return tape_append_value(tape, 2, (int64_t[]){ in[0], in[1] * in[2] * in[3] }, true);
}

int tape_sequence(struct tape *tape, int x, const struct tape_sequence *sequence)
{
    if (!tape_has_dims(tape, x, 4) || !(sequence->std > 0))
        return tape_refuse(tape, ST_INVALID);
    const int64_t *in = tape_dims(tape, x);
    const int64_t tokens = 1 + in[2] * in[3];
    struct tape_node *node = tape_append_node(tape, OP_SEQUENCE, x, -1);
    if (node == NULL)
        return -1;
    struct tape_tensor_spec spec = { .suffix = sequence->first,
                                     .kind = TAPE_EMBEDDING,
                                     .init = TAPE_INIT_NORMAL,
                                     .std = sequence->std,
                                     .ndim = 3,
                                     .dims = { 1, 1, in[1] } };
    node->param[0] = tape_append_param(tape, sequence->name, &spec);
    spec.suffix = sequence->position;
    spec.dims[1] = tokens;
    node->param[1] = tape_append_param(tape, sequence->name, &spec);
    return tape_append_value(tape, 3, (int64_t[]){ in[0], tokens, in[1] }, true);
}

int tape_select(struct tape *tape, int x, int64_t row)
{
    if (!tape_has_dims(tape, x, 3) || row < 0 || row >= tape_dims(tape, x)[1])
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_SELECT, x, -1);
    if (node == NULL)
        return -1;
    node->attr.row = row;
    const int64_t *in = tape_dims(tape, x);
    return tape_append_value(tape, 2, (int64_t[]){ in[0], in[2] }, true);
}
