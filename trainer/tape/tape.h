/*
 * The tape: a model as a static array of nodes, appended once by a C function (trainer/models).
 *
 * Node i reads values that earlier nodes made and makes one value. Everything else is a loop over
 * the array: plan.h lays out memory and runs it, lane.h cuts its flat vectors, state.h names its
 * tensors.
 *
 * Parameters lie in one flat float32 buffer in tape order, row-major in PyTorch's index order,
 * without padding; running statistics in one of their own. Names are PyTorch's
 * ("layer1.0.bn1.weight").
 *
 * Shapes are those of one sample (dims[0] = 1); a plan multiplies dims[0] by its batch. The loss is
 * [1]. Errors: the first mistake of a builder call is kept; later calls do nothing and return -1,
 * and tape_finish returns it: ST_INVALID  shapes don't fit, or a bound is passed ST_NO_MEMORY
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/status.h"
#include "kernels/op.h"

#define TAPE_NODES_MAX  1024
#define TAPE_INPUTS_MAX 4
#define TAPE_PARAMS_MAX 2048 /* two of each node */
#define TAPE_STATS_MAX  2048

enum tape_init {
    TAPE_INIT_UNIFORM, /* ±1/sqrt(fan_in): PyTorch's default of Linear and Conv2d, weight and bias
                        */
    TAPE_INIT_ZERO,
    TAPE_INIT_ONE,
};

/* A parameter, or a running statistic, in its flat buffer. */
struct tape_tensor {
    char name[LIMIT_NAME];
    size_t offset, count; /* elements */
    int ndim;
    int64_t dims[TENSOR_DIMS_MAX];
    enum tape_init init;
    int64_t fan_in;
};

struct tape_value {
    struct tensor tensor; /* plain; dims[0] of one sample */
    bool batched;         /* dims[0] grows with the batch */
    int producer;         /* a node, or -1 - input index */
};

struct tape_node {
    enum op op;
    struct op_attr attr;
    int in[OP_IN_MAX]; /* values */
    int in_count;
    int out;
    int param[OP_PARAM_MAX]; /* indices, or -1 */
    int stat[OP_STAT_MAX];
};

struct tape {
    struct tape_node *nodes; /* owned, as the arrays below */
    struct tape_value *values;
    struct tape_tensor *params, *stats;
    int node_count, value_count, param_count, stat_count;
    int inputs[TAPE_INPUTS_MAX]; /* values, in the order of tape_input */
    int input_count;
    int logits, loss; /* values, set by tape_loss */
    size_t param_elements, stat_elements;
    enum status error;
};

MUST_CHECK enum status tape_new(struct tape **out);
void tape_free(struct tape *tape);

/* Builders: append a node (but tape_input) and return its value, or -1. */

/* dims [1, …] of one sample. */
int tape_input(struct tape *tape, enum dtype dtype, int ndim, const int64_t *dims);

struct tape_conv2d {
    int64_t out; /* channels */
    int kernel, stride, pad;
    bool bias;
};
/* Parameters NAME.weight, NAME.bias. */
int tape_conv2d(struct tape *tape, const char *name, int x, const struct tape_conv2d *conv);
/* relu?(norm(x)·γ + β (+ residual)); residual is a value or -1. eps 1e-5. Parameters NAME.weight,
 * NAME.bias; statistics NAME.running_mean, NAME.running_var. */
int tape_batch_norm(struct tape *tape, const char *name, int x, int residual, bool relu);
int tape_relu(struct tape *tape, int x);
int tape_max_pool(struct tape *tape, int x, int kernel, int stride, int pad);
int tape_global_avg_pool(struct tape *tape, int x);
int tape_flatten(struct tape *tape, int x);
/* relu?(x·Wᵀ + b) with bias. Parameters NAME.weight, NAME.bias. */
int tape_linear(struct tape *tape, const char *name, int x, int64_t out, bool relu);
/* The sum of the losses of a micro-batch; ends the tape. */
int tape_loss(struct tape *tape, int logits, int labels, float label_smoothing);

/* Returns the first mistake of the calls above; ST_INVALID as well where the loss is not the last
 * node, or a value is read by nobody. */
MUST_CHECK enum status tape_finish(const struct tape *tape);
