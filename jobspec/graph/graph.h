/*
 * A model of one's own as a graph: nodes in the order in which they are computed.
 *
 *     list of a file  →  struct jobspec_graph   graph_read.c: keys, names, ranges, what reads what
 *     struct jobspec_graph  →  shapes           graph_shapes.c: what each node makes, of what size
 *     struct jobspec_graph  →  list             graph_print.c
 *
 * A node reads the value that `from` names, the one before it where there is none, and makes one.
 * The last node's value is the logits: [classes] of an image, [context, vocab] of tokens. Shapes
 * are those of one sample, without the batch. Parameters are named after their node,
 * "NODE.weight", and lie in the order of the nodes (trainer/tape/tape.h).
 *
 * GRAPH_OPS has a row per op. Its enum, the keys of its nodes, its shape (graph_shapes.c) and the
 * builder that appends it to a tape (trainer/graph) are all made of that row.
 *
 * Memory: a graph is a value without pointers; what it has no use for is zero.
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/yaml/report.h"
#include "jobspec/yaml/tree.h"

#define GRAPH_NODES_MAX  512 /* ResNet-152 has 315 */
#define GRAPH_NAME_BYTES 48
#define GRAPH_DIMS_MAX   3
#define GRAPH_INPUT      (-1) /* in place of a node: the model's input */
#define GRAPH_NONE       (-2) /* in place of a node: there is none */
#define GRAPH_INPUT_NAME "input"

/* X(UPPER, lower): the keys of nodes, in the order in which they are printed. */
#define GRAPH_KEYS(X)                                                                              \
    X(NAME, name)                                                                                  \
    X(OP, op)                                                                                      \
    X(FROM, from)                                                                                  \
    X(OUT, out)                                                                                    \
    X(KERNEL, kernel)                                                                              \
    X(STRIDE, stride)                                                                              \
    X(PAD, pad)                                                                                    \
    X(BIAS, bias)                                                                                  \
    X(RELU, relu)                                                                                  \
    X(ACTIVATION, activation)                                                                      \
    X(RESIDUAL, residual)                                                                          \
    X(ROWS, rows)                                                                                  \
    X(POSITION, position)                                                                          \
    X(STD, std)                                                                                    \
    X(TIED, tied)                                                                                  \
    X(HEADS, heads)                                                                                \
    X(P, p)                                                                                        \
    X(EPS, eps)                                                                                    \
    X(KV_HEADS, kv_heads)                                                                          \
    X(ROPE_THETA, rope_theta)                                                                      \
    X(BIDIRECTIONAL, bidirectional)                                                                \
    X(ROW, row)

#define GRAPH_KEY_NAME_OF(upper, lower) GRAPH_KEY_##upper,
enum graph_key { GRAPH_KEYS(GRAPH_KEY_NAME_OF) GRAPH_KEY_COUNT };
#define GRAPH_HAS(upper) (1u << GRAPH_KEY_##upper)

/* X(UPPER, lower, keys that a node must have, keys that it may have); `op` and `from` are for all,
 * and so is `name`, which only nodes with parameters must have. */
#define GRAPH_OPS(X)                                                                               \
    X(CONV2D, conv2d, GRAPH_HAS(NAME) | GRAPH_HAS(OUT) | GRAPH_HAS(KERNEL),                        \
      GRAPH_HAS(STRIDE) | GRAPH_HAS(PAD) | GRAPH_HAS(BIAS))                                        \
    X(BATCH_NORM, batch_norm, GRAPH_HAS(NAME), GRAPH_HAS(RELU) | GRAPH_HAS(RESIDUAL))              \
    X(RELU, relu, 0, 0)                                                                            \
    X(MAX_POOL, max_pool, GRAPH_HAS(KERNEL), GRAPH_HAS(STRIDE) | GRAPH_HAS(PAD))                   \
    X(GLOBAL_AVG_POOL, global_avg_pool, 0, 0)                                                      \
    X(FLATTEN, flatten, 0, 0)                                                                      \
    X(LINEAR, linear, GRAPH_HAS(NAME) | GRAPH_HAS(OUT),                                            \
      GRAPH_HAS(BIAS) | GRAPH_HAS(ACTIVATION) | GRAPH_HAS(RESIDUAL) | GRAPH_HAS(STD) |             \
          GRAPH_HAS(TIED))                                                                         \
    X(LAYER_NORM, layer_norm, GRAPH_HAS(NAME), GRAPH_HAS(EPS))                                     \
    X(EMBEDDING, embedding, GRAPH_HAS(NAME) | GRAPH_HAS(ROWS) | GRAPH_HAS(OUT),                    \
      GRAPH_HAS(POSITION) | GRAPH_HAS(STD))                                                        \
    X(ATTENTION, attention, GRAPH_HAS(HEADS), GRAPH_HAS(BIDIRECTIONAL))                            \
    X(DROPOUT, dropout, GRAPH_HAS(P), GRAPH_HAS(RESIDUAL))                                         \
    X(RMS_NORM, rms_norm, GRAPH_HAS(NAME), GRAPH_HAS(EPS))                                         \
    X(GATED, gated, 0, 0)                                                                          \
    X(ROTARY, rotary, GRAPH_HAS(HEADS), GRAPH_HAS(KV_HEADS) | GRAPH_HAS(ROPE_THETA))               \
    X(SEQUENCE, sequence, GRAPH_HAS(NAME), GRAPH_HAS(STD))                                         \
    X(SELECT, select, 0, GRAPH_HAS(ROW))

#define GRAPH_OP_NAME_OF(upper, lower, needs, may) GRAPH_OP_##upper,
enum graph_op { GRAPH_OP_NONE, GRAPH_OPS(GRAPH_OP_NAME_OF) GRAPH_OP_COUNT };

enum graph_activation {
    GRAPH_ACTIVATION_NONE,
    GRAPH_ACTIVATION_RELU,
    GRAPH_ACTIVATION_GELU,     /* by tanh: GPT-2's */
    GRAPH_ACTIVATION_GELU_ERF, /* BERT's */
};

struct jobspec_node {
    char name[GRAPH_NAME_BYTES];     /* "": none, of a node without parameters */
    char position[GRAPH_NAME_BYTES]; /* embedding: of its table of positions; "": none */
    enum graph_op op;
    int32_t from;     /* a node before this one, or GRAPH_INPUT */
    int32_t residual; /* a node before this one whose value is added, or GRAPH_NONE */
    int32_t tied;     /* linear: a node before this one whose weight it has, or GRAPH_NONE */
    enum graph_activation activation;
    bool bias, relu, bidirectional;
    int64_t out;  /* channels or features */
    int64_t rows; /* embedding: tokens */
    int64_t kernel, stride, pad;
    int64_t heads, kv_heads;
    int64_t row; /* select */
    double std;  /* of the initial weights; 0: PyTorch's default of the op */
    double p;    /* dropout */
    double eps, rope_theta;
};

/* Trailing: only the nodes that there are take memory, where jobspec_bytes is used. */
struct jobspec_graph {
    int64_t count;
    struct jobspec_node nodes[GRAPH_NODES_MAX];
};

struct graph_shape {
    int ndim;
    int64_t dims[GRAPH_DIMS_MAX];
    bool is_tokens;  /* the input of a text model */
    bool is_trained; /* a parameter was read on the way to it */
};

/* What a graph reads, and what came of it. */
struct graph_sizes {
    struct graph_shape input; /* [channels, height, width], or tokens [context] */
    uint64_t parameters;
    int64_t logits;                             /* the last dim of the last node's value */
    struct graph_shape shapes[GRAPH_NODES_MAX]; /* by node */
};

/* "conv2d", …; of what isn't an op "". */
const char *graph_op_name(enum graph_op op);

/* The node's name; of one without a name its op and number: "relu (node 3)". */
const char *graph_label(const struct jobspec_graph *graph, int64_t node, char out[64]);

/* "[64, 32, 32]", "[256] tokens" */
void graph_shape_text(const struct graph_shape *shape, char out[64]);

/*
 * Reads a list of nodes. what: the key, for messages ("model.graph"). out is zero before.
 * False: mistakes were reported, each at its place.
 */
bool graph_read(struct jobspec_report *report, const char *what, const struct tree_node *list,
                struct jobspec_graph *out);

/*
 * Computes the shape of each node from that of sizes->input, the parameters and the logits; list is
 * what the graph was read from. False: a mistake was reported at its place.
 */
bool graph_shapes(struct jobspec_report *report, const struct tree_node *list,
                  const struct jobspec_graph *graph, struct graph_sizes *sizes);

/*
 * Checks a graph for half precision with amp O1, where embeddings and what residuals are added to
 * are float32 and all else isn't. False: mistakes were reported.
 */
bool graph_check_half(struct jobspec_report *report, const struct tree_node *list,
                      const struct jobspec_graph *graph);

/* Reads a graph of a text, a list as in a job file, and its shapes: what a library made. half:
 * graph_check_half is asked, too.
 * Errors: ST_CONFIG  reason has the first mistake */
MUST_CHECK enum status graph_read_text(const char *text, size_t size, bool half,
                                       struct jobspec_graph *out, struct graph_sizes *sizes,
                                       struct reason *reason);

/* Writes one node as YAML in one line, "{name: …}"; reads as the same node again. */
MUST_CHECK enum status graph_print_node(const struct jobspec_graph *graph, int64_t node,
                                        struct buf *out);
