/*
 * The tape: a model as a static array of nodes, appended once by a C function (trainer/models).
 *
 * Node i reads values that earlier nodes made and makes one value. Everything else is a loop over
 * the array: trainer/plan/plan.h lays out memory and runs it, lane.h cuts its flat vectors, and the
 * optimizer (trainer/update/optimizer.h) names its tensors in checkpoints.
 *
 * Parameters lie in one flat float32 buffer in tape order, row-major in PyTorch's index order,
 * without padding; running statistics in one of their own. Names are PyTorch's
 * ("layer1.0.bn1.weight"), for text models Hugging Face's ("transformer.wte.weight"); but every
 * linear weight is [out, in] here, also those that Hugging Face stores as Conv1D [in, out]. A
 * parameter that several nodes read lies where the first of them has it.
 *
 * Shapes are those of one sample (dims[0] = 1); a plan multiplies dims[0] by its batch. The loss is
 * [TAPE_LOSS_SCALARS].
 *
 * Errors: the first mistake of a builder call is kept; later calls do nothing and return -1, and
 *         tape_finish returns it:
 *         ST_INVALID    shapes don't fit, or a bound is passed
 *         ST_NO_MEMORY
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
#define TAPE_TIES_MAX   8 /* a model ties a head or two */
#define TAPE_PARTS_MAX  3 /* of a weight */

enum tape_init {
    TAPE_INIT_UNIFORM, /* ±1/sqrt(fan_in): PyTorch's default of weight and bias of Linear, Conv2d */
    TAPE_INIT_ZERO,
    TAPE_INIT_ONE,
    TAPE_INIT_NORMAL, /* normal(0, std) */
};

/* Kind of a parameter, for the optimizer; bits, so that a set of kinds can be named. */
enum tape_kind {
    TAPE_WEIGHT = 0, /* of a product */
    TAPE_BIAS = 1 << 0,
    TAPE_NORM = 1 << 1, /* scale and shift of a norm */
    TAPE_EMBEDDING = 1 << 2,
};

/* Results of the loss node for a micro-batch, as float32. */
enum tape_loss_scalar { TAPE_LOSS_SUM, TAPE_LOSS_TARGETS, TAPE_LOSS_CORRECT, TAPE_LOSS_SCALARS };

/* A parameter, or a running statistic, in its flat buffer. */
struct tape_tensor {
    char name[LIMIT_NAME];
    size_t offset, count; /* elements */
    int ndim;
    int64_t dims[TENSOR_DIMS_MAX];
    enum tape_kind kind;
    enum tape_init init;
    int64_t fan_in; /* uniform */
    float std;      /* normal */
    int first_node; /* parameters: the first that reads it; each further one is a tie */
    int more_parts; /* parameters behind it that are the next rows of its matrix */
};

/*
 * A further reader of a parameter. Its gradient has a place of its own: added up with the first
 * reader's it would depend on how far the other's micro-batches are, and a reader in another stage
 * couldn't add to it at all. lane.h says where it lies and when both are added.
 */
struct tape_tie {
    int param, node;
    size_t offset; /* elements, from the first tie on; as many as the parameter has */
};

struct tape_value {
    struct tensor tensor; /* plain float32, i32; dims[0] of one sample; see precision.h */
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
    int tie[OP_PARAM_MAX];   /* where its gradient goes, or -1: into the parameter's own place */
    int stat[OP_STAT_MAX];
};

struct tape {
    struct tape_node *nodes; /* owned, as the arrays below */
    struct tape_value *values;
    struct tape_tensor *params, *stats;
    struct tape_tie ties[TAPE_TIES_MAX]; /* by node */
    int node_count, value_count, param_count, stat_count, tie_count;
    int inputs[TAPE_INPUTS_MAX]; /* values, in the order of tape_input */
    int input_count;
    int dropout_count;
    int loss; /* a value; -1 before tape_loss */
    size_t param_elements, stat_elements, tie_elements;
    enum status error;
};

MUST_CHECK enum status tape_new(struct tape **out);
void tape_free(struct tape *tape);

/*
 * Builders: each appends a node, but tape_input and tape_dropout with p = 0; all return a value, or
 * -1 after a mistake.
 *
 * A residual is a value like the output, which the node adds to it. No node adds an input of the
 * tape, so the first value can stand for none.
 */
#define TAPE_NO_RESIDUAL 0

/* dims [1, …] of one sample. */
int tape_input(struct tape *tape, enum dtype dtype, int ndim, const int64_t *dims);

struct tape_conv2d {
    int64_t out; /* channels */
    int kernel, stride, pad;
    bool bias;
    float std; /* > 0: weight normal(0, std), bias 0; 0: PyTorch's default */
};
/* x [1, C, H, W] → [1, out, H', W']. Parameters NAME.weight [out, C, kernel, kernel], NAME.bias. */
int tape_conv2d(struct tape *tape, const char *name, int x, const struct tape_conv2d *conv);
/* norm(x)·γ + β + residual, then ReLU if relu; eps 1e-5. Parameters NAME.weight (γ), NAME.bias (β);
 * statistics NAME.running_mean, NAME.running_var. */
int tape_batch_norm(struct tape *tape, const char *name, int x, int residual, bool relu);
int tape_relu(struct tape *tape, int x);
int tape_max_pool(struct tape *tape, int x, int kernel, int stride, int pad);
int tape_global_avg_pool(struct tape *tape, int x);
int tape_flatten(struct tape *tape, int x);

/* Rows of a weight that are a parameter of their own, and so are their biases. They lie one after
 * the other, so that to the node they are one matrix; checkpoints name them one by one. */
struct tape_part {
    const char *name;
    int64_t rows;
};

/* activation(x·Wᵀ + b) + residual, over the last dim of x. */
struct tape_linear {
    int64_t out; /* features */
    bool bias;
    enum activation activation; /* not together with a residual */
    int residual;
    const char *tied; /* name of an earlier parameter [out, in] that is the weight; NULL: own */
    float std;        /* > 0: weight normal(0, std), bias 0; 0: PyTorch's default */
    /* The weight's parts, whose rows sum to `out`; the first without a name: it is one. Not
     * tied. */
    struct tape_part parts[TAPE_PARTS_MAX];
};
/* Parameters NAME.weight (unless tied), NAME.bias; with parts NAME.PART.weight of each, then
 * NAME.PART.bias of each. */
int tape_linear(struct tape *tape, const char *name, int x, const struct tape_linear *linear);

/* norm(x)·γ + β over the last dim of x; eps 1e-5. Parameters NAME.weight (γ), NAME.bias (β). */
int tape_layer_norm(struct tape *tape, const char *name, int x);
/* Like tape_layer_norm with another eps, as other models have it. */
int tape_layer_norm_eps(struct tape *tape, const char *name, int x, float eps);
/* x/√(mean x² + eps)·γ over the last dim of x. Parameter NAME.weight (γ). */
int tape_rms_norm(struct tape *tape, const char *name, int x, float eps);
/* silu of the first half of x's last dim, times the second half. */
int tape_gated(struct tape *tape, int x);

struct tape_embedding {
    const char *token, *position; /* names; position NULL: none */
    int64_t vocab, context;       /* rows of each; context at least the tokens' T */
    int64_t out;                  /* C */
    float std;                    /* normal(0, std) */
    int residual;                 /* added; not together with positions */
};
/* Tokens i32 [1, T] → [1, T, C]. Parameters TOKEN.weight, POSITION.weight. */
int tape_embedding(struct tape *tape, int tokens, const struct tape_embedding *embedding);

/* Causal attention of qkv [1, T, 3·C] → [1, T, C]. */
int tape_attention(struct tape *tape, int qkv, int heads);
/* Attention in which each token sees all: but for the padding behind a sample's last token that
 * isn't 0, if there are tokens i32 [1, T] (else TAPE_NO_TOKENS). */
#define TAPE_NO_TOKENS (-1)
int tape_attention_both(struct tape *tape, int qkv, int tokens, int heads);

struct tape_sequence {
    const char *name, *first, *position; /* parameters NAME.FIRST, NAME.POSITION */
    float std;                           /* normal(0, std) */
};
/* x [1, C, H, W] → [1, 1 + H·W, C]: a first token, then x's pixels, plus a position each.
 * Parameters NAME.FIRST [1, 1, C], NAME.POSITION [1, 1 + H·W, C]. */
int tape_sequence(struct tape *tape, int x, const struct tape_sequence *sequence);
/* Token `row` of x [1, T, C] → [1, C]. */
int tape_select(struct tape *tape, int x, int64_t row);
/* Turns q and k [1, T, (heads + 2·kv_heads)·D] by their places, and repeats k and v for the heads
 * that share them: [1, T, 3·heads·D]. */
int tape_rotary(struct tape *tape, int qkv, int heads, int kv_heads, float theta);
/* dropout(x) + residual. With p = 0 and no residual: x itself. With p = 0 and one ST_INVALID: the
 * node that made x can add it. */
int tape_dropout(struct tape *tape, int x, int residual, float p);

/* Softmax and cross entropy, summed over a micro-batch; ends the tape. logits [1, V] with labels
 * i32 [1], or [1, T, V] with [1, T]. */
int tape_loss(struct tape *tape, int logits, int labels, float label_smoothing);

/* Returns the index of the parameter of that name, or -1. */
int tape_find_param(const struct tape *tape, const char *name);

/* Returns the elements of a parameter with all its parts, as the node that reads it counts them; of
 * -1: 0. */
size_t tape_param_elements(const struct tape *tape, int param);

/* Returns the first mistake of the calls above; also ST_INVALID where the loss is not the last
 * node, or a value is read by nobody. */
MUST_CHECK enum status tape_finish(const struct tape *tape);
