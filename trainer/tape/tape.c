#include "trainer/tape/tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

#define VALUES_MAX (TAPE_NODES_MAX + TAPE_INPUTS_MAX)

_Static_assert(TAPE_PARAMS_MAX == TAPE_NODES_MAX * OP_PARAM_MAX, "two parameters of each node");
_Static_assert(TAPE_STATS_MAX == TAPE_NODES_MAX * OP_STAT_MAX, "two statistics of each node");

enum status tape_new(struct tape **out)
{
    struct tape *tape = calloc(1, sizeof *tape);
    if (tape == NULL)
        return ST_NO_MEMORY;
    tape->nodes = calloc(TAPE_NODES_MAX, sizeof *tape->nodes);
    tape->values = calloc(VALUES_MAX, sizeof *tape->values);
    tape->params = calloc(TAPE_PARAMS_MAX, sizeof *tape->params);
    tape->stats = calloc(TAPE_STATS_MAX, sizeof *tape->stats);
    tape->logits = -1;
    tape->loss = -1;
    if (tape->nodes == NULL || tape->values == NULL || tape->params == NULL ||
        tape->stats == NULL) {
        tape_free(tape);
        return ST_NO_MEMORY;
    }
    *out = tape;
    return ST_OK;
}

void tape_free(struct tape *tape)
{
    if (tape == NULL)
        return;
    free(tape->nodes);
    free(tape->values);
    free(tape->params);
    free(tape->stats);
    free(tape);
}

static int refuse(struct tape *tape, enum status st)
{
    if (tape->error == ST_OK)
        tape->error = st;
    return -1;
}

static bool known(const struct tape *tape, int value)
{
    return tape->error == ST_OK && value >= 0 && value < tape->value_count;
}

static const int64_t *dims_of(const struct tape *tape, int value)
{
    return tape->values[value].tensor.dims;
}

static bool has_dims(const struct tape *tape, int value, int ndim)
{
    return known(tape, value) && tape->values[value].tensor.ndim == ndim;
}

static int add_value(struct tape *tape, int producer, const struct tensor *tensor, bool batched)
{
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->dims[i] < 1)
            return refuse(tape, ST_INVALID);
    }
    CHECK(tape->value_count < VALUES_MAX);
    struct tape_value *value = &tape->values[tape->value_count];
    value->tensor = *tensor;
    value->producer = producer;
    value->batched = batched;
    return tape->value_count++;
}

int tape_input(struct tape *tape, enum dtype dtype, int ndim, const int64_t *dims)
{
    if (tape->error != ST_OK)
        return -1;
    if (tape->input_count == TAPE_INPUTS_MAX || ndim < 1 || ndim > TENSOR_DIMS_MAX)
        return refuse(tape, ST_INVALID);
    struct tensor tensor = tensor_plain(dtype, ndim, dims);
    int value = add_value(tape, -1 - tape->input_count, &tensor, true);
    if (value >= 0)
        tape->inputs[tape->input_count++] = value;
    return value;
}

/* A node with the given inputs (second may be -1) and no parameters yet, or NULL. */
static struct tape_node *add_node(struct tape *tape, enum op op, int x, int second)
{
    if (!known(tape, x) || second >= tape->value_count || tape->node_count == TAPE_NODES_MAX) {
        (void)refuse(tape, ST_INVALID);
        return NULL;
    }
    struct tape_node *node = &tape->nodes[tape->node_count++];
    node->op = op;
    node->in[0] = x;
    node->in[1] = second;
    node->in_count = second >= 0 ? 2 : 1;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        node->param[i] = -1;
    for (int i = 0; i < OP_STAT_MAX; i++)
        node->stat[i] = -1;
    return node;
}

/* The output of the newest node. */
static int add_out(struct tape *tape, int ndim, const int64_t *dims, bool batched)
{
    struct tensor tensor = tensor_plain(DTYPE_F32, ndim, dims);
    int node = tape->node_count - 1;
    int value = add_value(tape, node, &tensor, batched);
    tape->nodes[node].out = value;
    return value;
}

static void name_tensor(struct tape *tape, struct tape_tensor *tensor, const char *name,
                        const char *suffix)
{
    int length = snprintf(tensor->name, sizeof tensor->name, "%s.%s", name, suffix);
    if (length < 0 || (size_t)length >= sizeof tensor->name)
        (void)refuse(tape, ST_INVALID);
}

struct tensor_spec {
    const char *suffix;
    enum tape_init init;
    int64_t fan_in;
    int ndim;
    int64_t dims[TENSOR_DIMS_MAX];
};

static void fill_tensor(struct tape *tape, struct tape_tensor *tensor, const char *name,
                        const struct tensor_spec *spec, size_t *elements)
{
    name_tensor(tape, tensor, name, spec->suffix);
    tensor->init = spec->init;
    tensor->fan_in = spec->fan_in;
    tensor->ndim = spec->ndim;
    tensor->count = 1;
    for (int i = 0; i < spec->ndim; i++) {
        tensor->dims[i] = spec->dims[i];
        tensor->count *= (size_t)spec->dims[i];
    }
    tensor->offset = *elements;
    *elements += tensor->count;
}

static int add_param(struct tape *tape, const char *name, const struct tensor_spec *spec)
{
    CHECK(tape->param_count < TAPE_PARAMS_MAX);
    fill_tensor(tape, &tape->params[tape->param_count], name, spec, &tape->param_elements);
    return tape->param_count++;
}

static int add_stat(struct tape *tape, const char *name, const struct tensor_spec *spec)
{
    CHECK(tape->stat_count < TAPE_STATS_MAX);
    fill_tensor(tape, &tape->stats[tape->stat_count], name, spec, &tape->stat_elements);
    return tape->stat_count++;
}

int tape_conv2d(struct tape *tape, const char *name, int x, const struct tape_conv2d *conv)
{
    if (!has_dims(tape, x, 4) || conv->out < 1 || conv->kernel < 1 || conv->stride < 1 ||
        conv->pad < 0)
        return refuse(tape, ST_INVALID);
    const int64_t *in = dims_of(tape, x);
    int64_t side = conv->kernel;
    int64_t pads = 2 * (int64_t)conv->pad;
    if (in[2] + pads < side || in[3] + pads < side)
        return refuse(tape, ST_INVALID);
    struct tape_node *node = add_node(tape, OP_CONV2D, x, -1);
    if (node == NULL)
        return -1;
    node->attr.out = conv->out;
    node->attr.kernel = conv->kernel;
    node->attr.stride = conv->stride;
    node->attr.pad = conv->pad;
    node->attr.bias = conv->bias;
    int64_t fan_in = in[1] * side * side;
    node->param[0] = add_param(tape, name,
                               &(struct tensor_spec){ .suffix = "weight",
                                                      .fan_in = fan_in,
                                                      .ndim = 4,
                                                      .dims = { conv->out, in[1], side, side } });
    if (conv->bias) {
        node->param[1] =
            add_param(tape, name,
                      &(struct tensor_spec){
                          .suffix = "bias", .fan_in = fan_in, .ndim = 1, .dims = { conv->out } });
    }
    int64_t height = (in[2] + pads - side) / conv->stride + 1;
    int64_t width = (in[3] + pads - side) / conv->stride + 1;
    return add_out(tape, 4, (int64_t[]){ in[0], conv->out, height, width }, true);
}

int tape_batch_norm(struct tape *tape, const char *name, int x, int residual, bool relu)
{
    if (!has_dims(tape, x, 4))
        return refuse(tape, ST_INVALID);
    const int64_t *in = dims_of(tape, x);
    if (residual >= 0 &&
        (!has_dims(tape, residual, 4) || memcmp(in, dims_of(tape, residual), 4 * sizeof *in) != 0))
        return refuse(tape, ST_INVALID);
    struct tape_node *node = add_node(tape, OP_BATCH_NORM, x, residual);
    if (node == NULL)
        return -1;
    node->attr.relu = relu;
    node->attr.residual = residual >= 0;
    node->attr.eps = 1e-5f;
    struct tensor_spec spec = {
        .suffix = "weight", .init = TAPE_INIT_ONE, .ndim = 1, .dims = { in[1] }
    };
    node->param[0] = add_param(tape, name, &spec);
    spec.suffix = "running_var";
    struct tensor_spec variance = spec;
    spec.init = TAPE_INIT_ZERO;
    spec.suffix = "bias";
    node->param[1] = add_param(tape, name, &spec);
    spec.suffix = "running_mean";
    node->stat[0] = add_stat(tape, name, &spec);
    node->stat[1] = add_stat(tape, name, &variance);
    return add_out(tape, 4, in, true);
}

int tape_relu(struct tape *tape, int x)
{
    if (add_node(tape, OP_RELU, x, -1) == NULL)
        return -1;
    return add_out(tape, tape->values[x].tensor.ndim, dims_of(tape, x), true);
}

int tape_max_pool(struct tape *tape, int x, int kernel, int stride, int pad)
{
    if (!has_dims(tape, x, 4) || kernel < 1 || stride < 1 || pad < 0 || 2 * pad > kernel)
        return refuse(tape, ST_INVALID);
    const int64_t *in = dims_of(tape, x);
    int64_t pads = 2 * (int64_t)pad;
    if (in[2] + pads < kernel || in[3] + pads < kernel)
        return refuse(tape, ST_INVALID);
    struct tape_node *node = add_node(tape, OP_MAX_POOL, x, -1);
    if (node == NULL)
        return -1;
    node->attr.kernel = kernel;
    node->attr.stride = stride;
    node->attr.pad = pad;
    int64_t height = (in[2] + pads - kernel) / stride + 1;
    int64_t width = (in[3] + pads - kernel) / stride + 1;
    return add_out(tape, 4, (int64_t[]){ in[0], in[1], height, width }, true);
}

int tape_global_avg_pool(struct tape *tape, int x)
{
    if (!has_dims(tape, x, 4))
        return refuse(tape, ST_INVALID);
    if (add_node(tape, OP_GLOBAL_AVG_POOL, x, -1) == NULL)
        return -1;
    return add_out(tape, 2, dims_of(tape, x), true);
}

int tape_flatten(struct tape *tape, int x)
{
    if (!has_dims(tape, x, 4))
        return refuse(tape, ST_INVALID);
    if (add_node(tape, OP_FLATTEN, x, -1) == NULL)
        return -1;
    const int64_t *in = dims_of(tape, x);
    return add_out(tape, 2, (int64_t[]){ in[0], in[1] * in[2] * in[3] }, true);
}

int tape_linear(struct tape *tape, const char *name, int x, int64_t out, bool relu)
{
    if (!has_dims(tape, x, 2) || out < 1)
        return refuse(tape, ST_INVALID);
    struct tape_node *node = add_node(tape, OP_LINEAR, x, -1);
    if (node == NULL)
        return -1;
    const int64_t *in = dims_of(tape, x);
    node->attr.out = out;
    node->attr.bias = true;
    node->attr.activation = relu ? ACTIVATION_RELU : ACTIVATION_NONE;
    node->param[0] =
        add_param(tape, name,
                  &(struct tensor_spec){
                      .suffix = "weight", .fan_in = in[1], .ndim = 2, .dims = { out, in[1] } });
    node->param[1] = add_param(
        tape, name,
        &(struct tensor_spec){ .suffix = "bias", .fan_in = in[1], .ndim = 1, .dims = { out } });
    return add_out(tape, 2, (int64_t[]){ in[0], out }, true);
}

int tape_loss(struct tape *tape, int logits, int labels, float label_smoothing)
{
    if (!has_dims(tape, logits, 2) || !has_dims(tape, labels, 1) || tape->loss >= 0)
        return refuse(tape, ST_INVALID);
    if (dims_of(tape, logits)[0] != dims_of(tape, labels)[0] ||
        !(label_smoothing >= 0 && label_smoothing < 1))
        return refuse(tape, ST_INVALID);
    struct tape_node *node = add_node(tape, OP_SOFTMAX_CROSS_ENTROPY, logits, labels);
    if (node == NULL)
        return -1;
    node->attr.label_smoothing = label_smoothing;
    tape->logits = logits;
    tape->loss = add_out(tape, 1, (int64_t[]){ 3 }, false);
    return tape->loss;
}

static bool is_read(const struct tape *tape, int value)
{
    for (int n = 0; n < tape->node_count; n++) {
        for (int i = 0; i < tape->nodes[n].in_count; i++) {
            if (tape->nodes[n].in[i] == value)
                return true;
        }
    }
    return false;
}

enum status tape_finish(const struct tape *tape)
{
    if (tape->error != ST_OK)
        return tape->error;
    if (tape->loss < 0 || tape->nodes[tape->node_count - 1].out != tape->loss)
        return ST_INVALID;
    for (int v = 0; v < tape->value_count; v++) {
        if (v != tape->loss && !is_read(tape, v))
            return ST_INVALID;
    }
    return ST_OK;
}
