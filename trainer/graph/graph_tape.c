#include "trainer/graph/graph_tape.h"

#include <stdio.h>

/* A graph on its way to a tape: nodes as the tape's values. */
struct appending {
    struct tape *tape;
    const struct jobspec_graph *graph;
    const struct jobspec_node *node;
    int residual;                /* its value; TAPE_NO_RESIDUAL: none */
    int values[GRAPH_NODES_MAX]; /* by node */
};

static enum activation activation_of(enum graph_activation activation)
{
    switch (activation) {
    case GRAPH_ACTIVATION_NONE:
        return ACTIVATION_NONE;
    case GRAPH_ACTIVATION_RELU:
        return ACTIVATION_RELU;
    case GRAPH_ACTIVATION_GELU:
        return ACTIVATION_GELU_TANH;
    case GRAPH_ACTIVATION_GELU_ERF:
        return ACTIVATION_GELU_ERF;
    }
    return ACTIVATION_NONE;
}

/* ---- ops: x is the value that the node reads ---- */

static int append_conv2d(const struct appending *a, int x)
{
    const struct jobspec_node *node = a->node;
    const struct tape_conv2d conv = { .out = node->out,
                                      .kernel = (int)node->kernel,
                                      .stride = (int)node->stride,
                                      .pad = (int)node->pad,
                                      .bias = node->bias };
    return tape_conv2d(a->tape, node->name, x, &conv);
}

static int append_batch_norm(const struct appending *a, int x)
{
    return tape_batch_norm(a->tape, a->node->name, x, a->residual, a->node->relu);
}

static int append_relu(const struct appending *a, int x)
{
    return tape_relu(a->tape, x);
}

static int append_max_pool(const struct appending *a, int x)
{
    const struct jobspec_node *node = a->node;
    return tape_max_pool(a->tape, x, (int)node->kernel, (int)node->stride, (int)node->pad);
}

static int append_global_avg_pool(const struct appending *a, int x)
{
    return tape_global_avg_pool(a->tape, x);
}

static int append_flatten(const struct appending *a, int x)
{
    return tape_flatten(a->tape, x);
}

static int append_linear(const struct appending *a, int x)
{
    const struct jobspec_node *node = a->node;
    char tied[LIMIT_NAME];
    struct tape_linear linear = { .out = node->out,
                                  .bias = node->bias,
                                  .activation = activation_of(node->activation),
                                  .residual = a->residual,
                                  .std = (float)node->std };
    if (node->tied != GRAPH_NONE) {
        (void)snprintf(tied, sizeof(tied), "%s.weight", a->graph->nodes[node->tied].name);
        linear.tied = tied;
    }
    return tape_linear(a->tape, node->name, x, &linear);
}

static int append_layer_norm(const struct appending *a, int x)
{
    return tape_layer_norm_eps(a->tape, a->node->name, x, (float)a->node->eps);
}

static int append_rms_norm(const struct appending *a, int x)
{
    return tape_rms_norm(a->tape, a->node->name, x, (float)a->node->eps);
}

static int append_gated(const struct appending *a, int x)
{
    return tape_gated(a->tape, x);
}

static int append_rotary(const struct appending *a, int x)
{
    return tape_rotary(a->tape, x, (int)a->node->heads, (int)a->node->kv_heads,
                       (float)a->node->rope_theta);
}

static int append_sequence(const struct appending *a, int x)
{
    const struct tape_sequence sequence = {
        .name = a->node->name, .first = "first", .position = "position", .std = (float)a->node->std
    };
    return tape_sequence(a->tape, x, &sequence);
}

static int append_select(const struct appending *a, int x)
{
    return tape_select(a->tape, x, a->node->row);
}

static int append_embedding(const struct appending *a, int x)
{
    const struct jobspec_node *node = a->node;
    const bool positions = node->position[0] != '\0';
    const struct tape_embedding embedding = {
        .token = node->name,
        .position = positions ? node->position : NULL,
        .vocab = node->rows,
        .context = positions ? a->tape->values[x].tensor.dims[1] : 0,
        .out = node->out,
        .std = (float)node->std,
    };
    return tape_embedding(a->tape, x, &embedding);
}

static int append_attention(const struct appending *a, int x)
{
    const int heads = (int)a->node->heads;
    return a->node->bidirectional ? tape_attention_both(a->tape, x, TAPE_NO_TOKENS, heads)
                                  : tape_attention(a->tape, x, heads);
}

static int append_dropout(const struct appending *a, int x)
{
    return tape_dropout(a->tape, x, a->residual, (float)a->node->p);
}

#define OP_APPEND(upper, lower, needs, may) [GRAPH_OP_##upper] = append_##lower,
static int (*const op_appends[GRAPH_OP_COUNT])(const struct appending *a,
                                               int x) = { GRAPH_OPS(OP_APPEND) };

/* ---- the graph ---- */

/* Appends all nodes; returns the logits. */
static int append_nodes(struct appending *a, int input)
{
    int logits = -1;
    for (int64_t n = 0; n < a->graph->count && a->tape->error == ST_OK; n++) {
        a->node = &a->graph->nodes[n];
        const int x = a->node->from == GRAPH_INPUT ? input : a->values[a->node->from];
        a->residual =
            a->node->residual == GRAPH_NONE ? TAPE_NO_RESIDUAL : a->values[a->node->residual];
        logits = a->values[n] = op_appends[a->node->op](a, x);
    }
    return logits;
}

enum status graph_tape(const struct jobspec_graph *graph, const struct graph_tape_options *options,
                       struct tape **out)
{
    const int64_t image[4] = { 1, options->input[0], options->input[1], options->input[2] };
    const int64_t window[2] = { 1, options->context };
    const bool text = options->input[0] == 0;
    struct appending a = { .graph = graph };
    enum status st = tape_new(&a.tape);
    if (st != ST_OK)
        return st;
    const int input =
        text ? tape_input(a.tape, DTYPE_I32, 2, window) : tape_input(a.tape, DTYPE_F32, 4, image);
    const int labels = tape_input(a.tape, DTYPE_I32, text ? 2 : 1, window);
    (void)tape_loss(a.tape, append_nodes(&a, input), labels, options->label_smoothing);
    st = tape_finish(a.tape);
    if (st == ST_OK) {
        *out = a.tape;
    } else {
        tape_free(a.tape);
    }
    return st;
}
