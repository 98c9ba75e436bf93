#include "trainer/tape/tape_append.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "trainer/tape/tape.h"

#define SAMPLE_MAX (INT64_C(1) << 40) /* elements of one value of one sample */
#define VALUES_MAX (TAPE_NODES_MAX + TAPE_INPUTS_MAX)

_Static_assert(TAPE_PARAMS_MAX == TAPE_NODES_MAX * OP_PARAM_MAX, "two parameters of a node");
_Static_assert(TAPE_STATS_MAX == TAPE_NODES_MAX * OP_STAT_MAX, "two statistics of each node");

enum status tape_new(struct tape **out)
{
    struct tape *tape = calloc(1, sizeof(*tape));
    if (tape == NULL)
        return ST_NO_MEMORY;
    tape->nodes = calloc(TAPE_NODES_MAX, sizeof(*tape->nodes));
    tape->values = calloc(VALUES_MAX, sizeof(*tape->values));
    tape->params = calloc(TAPE_PARAMS_MAX, sizeof(*tape->params));
    tape->stats = calloc(TAPE_STATS_MAX, sizeof(*tape->stats));
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

int tape_refuse(struct tape *tape, enum status st)
{
    if (tape->error == ST_OK)
        tape->error = st;
    return -1;
}

bool tape_has_value(const struct tape *tape, int value)
{
    return tape->error == ST_OK && value >= 0 && value < tape->value_count;
}

const int64_t *tape_dims(const struct tape *tape, int value)
{
    return tape->values[value].tensor.dims;
}

bool tape_has_dims(const struct tape *tape, int value, int ndim)
{
    return tape_has_value(tape, value) && tape->values[value].tensor.ndim == ndim;
}

bool tape_same_dims(const struct tape *tape, int left, int right)
{
    if (!tape_has_value(tape, left) || !tape_has_value(tape, right))
        return false;
    const struct tensor *a = &tape->values[left].tensor;
    const struct tensor *b = &tape->values[right].tensor;
    return a->ndim == b->ndim &&
           memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof(a->dims[0])) == 0;
}

/* Returns a shape whose bytes are not computed yet: dims may still be out of range. */
static struct tensor shape_without_bytes(enum dtype dtype, int ndim, const int64_t *dims)
{
    struct tensor shape = { .dtype = dtype, .ndim = ndim };
    for (int i = 0; i < ndim; i++)
        shape.dims[i] = dims[i];
    return shape;
}

static int add_value(struct tape *tape, int producer, const struct tensor *shape, bool batched)
{
    int64_t elements = 1;
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] < 1 || shape->dims[i] > SAMPLE_MAX / elements)
            return tape_refuse(tape, ST_INVALID);
        elements *= shape->dims[i];
    }
    CHECK(tape->value_count < VALUES_MAX);
    struct tape_value *value = &tape->values[tape->value_count];
    value->tensor = tensor_plain(shape->dtype, shape->ndim, shape->dims);
    value->producer = producer;
    value->batched = batched;
    return tape->value_count++;
}

int tape_input(struct tape *tape, enum dtype dtype, int ndim, const int64_t *dims)
{
    if (tape->error != ST_OK)
        return -1;
    if (tape->input_count == TAPE_INPUTS_MAX || ndim < 1 || ndim > TENSOR_DIMS_MAX)
        return tape_refuse(tape, ST_INVALID);
    const struct tensor shape = shape_without_bytes(dtype, ndim, dims);
    int value = add_value(tape, -1 - tape->input_count, &shape, true);
    if (value >= 0)
        tape->inputs[tape->input_count++] = value;
    return value;
}

struct tape_node *tape_append_node(struct tape *tape, enum op op, int x, int second)
{
    if (!tape_has_value(tape, x) || second >= tape->value_count ||
        tape->node_count == TAPE_NODES_MAX) {
        (void)tape_refuse(tape, ST_INVALID);
        return NULL;
    }
    struct tape_node *node = &tape->nodes[tape->node_count++];
    node->op = op;
    node->in[0] = x;
    node->in[1] = second;
    node->in_count = second >= 0 ? 2 : 1;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        node->param[i] = node->tie[i] = -1;
    for (int i = 0; i < OP_STAT_MAX; i++)
        node->stat[i] = -1;
    return node;
}

int tape_append_value(struct tape *tape, int ndim, const int64_t *dims, bool batched)
{
    const struct tensor shape = shape_without_bytes(DTYPE_F32, ndim, dims);
    int node = tape->node_count - 1;
    CHECK(node >= 0);
    int value = add_value(tape, node, &shape, batched);
    tape->nodes[node].out = value;
    return value;
}

static void name_tensor(struct tape *tape, struct tape_tensor *tensor, const char *name,
                        const char *suffix)
{
    int length = snprintf(tensor->name, sizeof(tensor->name), "%s.%s", name, suffix);
    if (length < 0 || (size_t)length >= sizeof(tensor->name))
        (void)tape_refuse(tape, ST_INVALID);
}

static void fill_tensor(struct tape *tape, struct tape_tensor *tensor, const char *name,
                        const struct tape_tensor_spec *spec, size_t *elements)
{
    name_tensor(tape, tensor, name, spec->suffix);
    tensor->kind = spec->kind;
    tensor->init = spec->init;
    tensor->std = spec->std;
    tensor->fan_in = spec->fan_in;
    tensor->ndim = spec->ndim;
    tensor->count = 1;
    for (int i = 0; i < spec->ndim; i++) {
        if (spec->dims[i] > (int64_t)(UINT32_MAX / tensor->count)) {
            (void)tape_refuse(tape,
                              ST_INVALID); /* elements are counted in 32 bits by initial_values.h */
            return;
        }
        tensor->dims[i] = spec->dims[i];
        tensor->count *= (size_t)spec->dims[i];
    }
    tensor->offset = *elements;
    *elements += tensor->count;
}

int tape_append_param(struct tape *tape, const char *name, const struct tape_tensor_spec *spec)
{
    if (tape->param_count == TAPE_PARAMS_MAX)
        return tape_refuse(tape, ST_INVALID);
    struct tape_tensor *tensor = &tape->params[tape->param_count];
    fill_tensor(tape, tensor, name, spec, &tape->param_elements);
    tensor->first_node = tape->node_count - 1;
    return tape->param_count++;
}

int tape_append_stat(struct tape *tape, const char *name, const struct tape_tensor_spec *spec)
{
    CHECK(tape->stat_count < TAPE_STATS_MAX);
    fill_tensor(tape, &tape->stats[tape->stat_count], name, spec, &tape->stat_elements);
    return tape->stat_count++;
}

/* Labels: a row for each of the logits' rows. */
static bool labels_fit(const struct tape *tape, int logits, int labels)
{
    if (!tape_has_value(tape, logits) || !tape_has_value(tape, labels))
        return false;
    const struct tensor *x = &tape->values[logits].tensor;
    const struct tensor *y = &tape->values[labels].tensor;
    if ((x->ndim != 2 && x->ndim != 3) || y->ndim != x->ndim - 1 || y->dtype != DTYPE_I32)
        return false;
    return memcmp(x->dims, y->dims, (size_t)y->ndim * sizeof(y->dims[0])) == 0;
}

int tape_loss(struct tape *tape, int logits, int labels, float label_smoothing)
{
    if (!labels_fit(tape, logits, labels) || tape->loss >= 0 ||
        !(label_smoothing >= 0 && label_smoothing < 1))
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_SOFTMAX_CROSS_ENTROPY, logits, labels);
    if (node == NULL)
        return -1;
    node->attr.label_smoothing = label_smoothing;
    tape->loss = tape_append_value(tape, 1, (int64_t[]){ TAPE_LOSS_SCALARS }, false);
    return tape->loss;
}

int tape_find_param(const struct tape *tape, const char *name)
{
    for (int i = 0; i < tape->param_count; i++) {
        if (strcmp(tape->params[i].name, name) == 0)
            return i;
    }
    return -1;
}

size_t tape_param_elements(const struct tape *tape, int param)
{
    size_t count = 0;
    if (param < 0)
        return 0;
    for (int i = 0; i <= tape->params[param].more_parts; i++)
        count += tape->params[param + i].count;
    return count;
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
