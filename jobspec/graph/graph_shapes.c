/* What each node of a graph makes, and whether it can. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/limits.h"
#include "jobspec/graph/keys.h"

#define VALUE_MAX    (INT64_C(1) << 40) /* elements of one value of one sample */
#define TENSOR_MAX   UINT32_MAX         /* elements of one parameter */
#define CHANNELS_MAX INT64_C(65536)
#define TIES_MAX     8 /* as TAPE_TIES_MAX */

/* A node that is looked at. */
struct look {
    struct jobspec_report *report;
    const struct tree_node *item; /* in the file */
    const struct jobspec_graph *graph;
    struct graph_sizes *sizes;
    const struct jobspec_node *node;
    int64_t number;
    int ties;
    bool good;
    char label[64], reads[128]; /* "conv2", "[16, 5, 5] of pool1" */
};

static const char *way_out_of_sizes = "change its sizes, or what it reads";

static bool refuse(struct look *l, const char *key, const char *way_out, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Reports a mistake at a key of the node, or at the node where it hasn't that key. */
static bool refuse(struct look *l, const char *key, const char *way_out, const char *format, ...)
{
    char cause[LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(cause, sizeof(cause), format, args);
    va_end(args);
    const struct tree_node *value = tree_find(l->item, key);
    jobspec_report_add(l->report, value != NULL ? value->place : l->item->place, way_out, "%s: %s",
                       l->label, cause);
    l->good = false;
    return false;
}

/* Counts a parameter of a x b elements. */
static bool add_tensor(struct look *l, int64_t a, int64_t b)
{
    if (a > (int64_t)TENSOR_MAX / b) {
        return refuse(l, "op", "use smaller sizes",
                      "a parameter of %lld x %lld elements is too large", (long long)a,
                      (long long)b);
    }
    l->sizes->parameters += (uint64_t)(a * b);
    return true;
}

static const struct graph_shape *shape_of(const struct look *l, int32_t node)
{
    return node == GRAPH_INPUT ? &l->sizes->input : &l->sizes->shapes[node];
}

static bool is_image(const struct graph_shape *shape)
{
    return shape->ndim == 3 && !shape->is_tokens;
}

static bool wants_image(struct look *l, const struct graph_shape *in)
{
    if (is_image(in))
        return true;
    return refuse(l, "op",
                  l->sizes->input.is_tokens
                      ? "give model.input, as in [1, 28, 28], where the data are images"
                      : "put it before flatten and global_avg_pool",
                  "it takes images, [channels, height, width], but reads %s", l->reads);
}

/* Values of [features], or [context, features]. */
static bool wants_features(struct look *l, const struct graph_shape *in)
{
    if (in->is_tokens) {
        return refuse(l, "op", "begin with an embedding",
                      "it takes numbers, but reads %s: only an embedding reads tokens", l->reads);
    }
    if (in->ndim == 3) {
        return refuse(l, "op", "put flatten or global_avg_pool before it",
                      "it takes [features], but reads the image %s", l->reads);
    }
    return true;
}

/* Norms compute the gradient of what they read. */
static bool wants_trained(struct look *l, const struct graph_shape *in)
{
    if (in->is_trained)
        return true;
    return refuse(l, "op", "put it behind a conv2d, linear or embedding",
                  "nothing before it has parameters");
}

static bool check_residual(struct look *l, const struct graph_shape *in,
                           const struct graph_shape *out)
{
    if (l->node->residual == GRAPH_NONE)
        return true;
    const struct graph_shape *added = shape_of(l, l->node->residual);
    char is[64], to[64], name[64];
    if (added->ndim != out->ndim ||
        memcmp(added->dims, out->dims, (size_t)out->ndim * sizeof(out->dims[0])) != 0) {
        graph_shape_text(added, is);
        graph_shape_text(out, to);
        return refuse(l, "residual", way_out_of_sizes, "it can't add %s of %s to its own %s", is,
                      graph_label(l->graph, l->node->residual, name), to);
    }
    if (!added->is_trained || (l->node->op != GRAPH_OP_LINEAR && !in->is_trained)) {
        return refuse(l, "residual", "put a conv2d, linear or embedding before them",
                      "what it adds up comes from no parameter");
    }
    return true;
}

/* ---- ops ---- */

/* Windows along two sides: P and Q. */
static bool slide(struct look *l, const struct graph_shape *in, int64_t out[2])
{
    const struct jobspec_node *node = l->node;
    for (int i = 0; i < 2; i++) {
        const int64_t room = in->dims[1 + i] + 2 * node->pad - node->kernel;
        if (room < 0) {
            return refuse(l, "kernel", "use a smaller kernel, or more pad",
                          "a kernel of %lld doesn't fit into %s with a pad of %lld",
                          (long long)node->kernel, l->reads, (long long)node->pad);
        }
        out[i] = room / node->stride + 1;
    }
    return true;
}

static bool shape_conv2d(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    const struct jobspec_node *node = l->node;
    if (!wants_image(l, in) || !slide(l, in, out->dims + 1))
        return false;
    out->dims[0] = node->out;
    out->is_trained = true;
    if (node->out > CHANNELS_MAX) {
        return refuse(l, "out", "use at most 65536", "%lld channels are too many",
                      (long long)node->out);
    }
    return add_tensor(l, node->out * in->dims[0], node->kernel * node->kernel) &&
           (!node->bias || add_tensor(l, node->out, 1));
}

static bool shape_batch_norm(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    *out = *in;
    return wants_image(l, in) && wants_trained(l, in) && add_tensor(l, in->dims[0], 2);
}

static bool shape_relu(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    *out = *in;
    return is_image(in) || wants_features(l, in);
}

static bool shape_max_pool(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    *out = *in;
    if (2 * l->node->pad > l->node->kernel) {
        return refuse(l, "pad", "pad with half of the kernel at most",
                      "a pad of %lld leaves windows of %lld without a pixel",
                      (long long)l->node->pad, (long long)l->node->kernel);
    }
    return wants_image(l, in) && slide(l, in, out->dims + 1);
}

static bool shape_global_avg_pool(struct look *l, const struct graph_shape *in,
                                  struct graph_shape *out)
{
    out->ndim = 1;
    out->dims[0] = in->dims[0];
    out->is_trained = in->is_trained;
    return wants_image(l, in);
}

static bool shape_flatten(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    out->ndim = 1;
    out->is_trained = in->is_trained;
    if (!wants_image(l, in))
        return false;
    out->dims[0] = in->dims[0] * in->dims[1] * in->dims[2];
    return true;
}

/* Checks that the weight of the node that this one is tied to is [out, in]. */
static bool check_tie(struct look *l, int64_t in)
{
    const struct jobspec_node *of = &l->graph->nodes[l->node->tied];
    int64_t rows = of->out, columns = of->out;
    if (of->op == GRAPH_OP_EMBEDDING) {
        rows = of->rows;
    } else if (of->op == GRAPH_OP_LINEAR && of->tied == GRAPH_NONE) {
        const struct graph_shape *read = shape_of(l, of->from);
        columns = read->dims[read->ndim - 1];
    } else {
        return refuse(l, "tied", "name an embedding, or a linear with a weight of its own",
                      "'%s' has no weight that another node can have", of->name);
    }
    if (rows != l->node->out || columns != in) {
        return refuse(l, "tied", way_out_of_sizes,
                      "the weight of '%s' is [%lld, %lld], but this node needs [%lld, %lld]",
                      of->name, (long long)rows, (long long)columns, (long long)l->node->out,
                      (long long)in);
    }
    if (l->ties++ == TIES_MAX) {
        return refuse(l, "tied", "give it a weight of its own", "more than %d nodes are tied",
                      TIES_MAX);
    }
    return true;
}

static bool shape_linear(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    if (!wants_features(l, in))
        return false;
    const int64_t features = in->dims[in->ndim - 1];
    *out = *in;
    out->dims[in->ndim - 1] = l->node->out;
    out->is_trained = true;
    if (l->node->tied != GRAPH_NONE ? !check_tie(l, features)
                                    : !add_tensor(l, l->node->out, features))
        return false;
    return !l->node->bias || add_tensor(l, l->node->out, 1);
}

static bool shape_layer_norm(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    *out = *in;
    return wants_features(l, in) && wants_trained(l, in) &&
           add_tensor(l, in->dims[in->ndim - 1], 2);
}

static bool shape_rms_norm(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    *out = *in;
    return wants_features(l, in) && wants_trained(l, in) &&
           add_tensor(l, in->dims[in->ndim - 1], 1);
}

static bool shape_gated(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    *out = *in;
    if (!wants_features(l, in))
        return false;
    out->dims[in->ndim - 1] = in->dims[in->ndim - 1] / 2;
    if (in->dims[in->ndim - 1] % 2 != 0) {
        return refuse(l, "op", "make the features before it an even number",
                      "it multiplies one half of the features with the other, but reads %s",
                      l->reads);
    }
    return true;
}

static bool shape_embedding(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    if (!in->is_tokens) {
        return refuse(l, "op", "read the input of a text model, which has no model.input",
                      "it takes tokens, but reads %s", l->reads);
    }
    *out = (struct graph_shape){ .ndim = 2,
                                 .dims = { in->dims[0], l->node->out },
                                 .is_trained = true };
    return add_tensor(l, l->node->rows, l->node->out) &&
           (l->node->position[0] == '\0' || add_tensor(l, in->dims[0], l->node->out));
}

static bool shape_attention(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    const int64_t heads = l->node->heads;
    *out = *in;
    if (in->is_tokens || in->ndim != 2) {
        return refuse(l, "op", "use it behind an embedding or a sequence",
                      "it takes [context, 3 x width], but reads %s", l->reads);
    }
    if (in->dims[1] % (3 * heads) != 0) {
        return refuse(l, "heads", "three times the heads have to divide the features before it",
                      "%lld heads don't divide the queries, keys and values in %s evenly",
                      (long long)heads, l->reads);
    }
    out->dims[1] = in->dims[1] / 3;
    return true;
}

static bool shape_rotary(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    const int64_t heads = l->node->heads, shared = l->node->kv_heads;
    *out = *in;
    if (in->is_tokens || in->ndim != 2) {
        return refuse(l, "op", "use it behind an embedding or a sequence",
                      "it takes [context, (heads + 2 x kv_heads) x depth], but reads %s", l->reads);
    }
    if (heads % shared != 0) {
        return refuse(l, "kv_heads", "use kv_heads that divide the heads",
                      "%lld heads of keys and values don't divide %lld heads evenly",
                      (long long)shared, (long long)heads);
    }
    if (in->dims[1] % (2 * (heads + 2 * shared)) != 0) {
        return refuse(l, "heads", "heads + 2 x kv_heads, each of an even number of columns",
                      "%lld heads and 2 x %lld of keys and values aren't all of %s",
                      (long long)heads, (long long)shared, l->reads);
    }
    out->dims[1] = in->dims[1] / (heads + 2 * shared) * heads * 3;
    return true;
}

static bool shape_sequence(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    if (!wants_image(l, in) || !wants_trained(l, in))
        return false;
    const int64_t channels = in->dims[0], tokens = 1 + in->dims[1] * in->dims[2];
    *out = (struct graph_shape){ .ndim = 2, .dims = { tokens, channels }, .is_trained = true };
    return add_tensor(l, channels, 1) && add_tensor(l, tokens, channels);
}

static bool shape_select(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    if (!wants_features(l, in))
        return false;
    if (in->ndim != 2 || l->node->row >= in->dims[0]) {
        return refuse(l, "row", "name a row of [rows, features], from 0 on",
                      "there is no row %lld in %s", (long long)l->node->row, l->reads);
    }
    out->ndim = 1;
    out->dims[0] = in->dims[1];
    out->is_trained = in->is_trained;
    return true;
}

static bool shape_dropout(struct look *l, const struct graph_shape *in, struct graph_shape *out)
{
    *out = *in;
    return wants_features(l, in);
}

#define OP_SHAPE(upper, lower, needs, may) [GRAPH_OP_##upper] = shape_##lower,
static bool (*const op_shapes[GRAPH_OP_COUNT])(struct look *, const struct graph_shape *,
                                               struct graph_shape *) = { GRAPH_OPS(OP_SHAPE) };

/* ---- the graph ---- */

/* What a value may have before a tape takes it. */
static bool fits(struct look *l, const struct graph_shape *shape)
{
    int64_t elements = 1;
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] > VALUE_MAX / elements)
            return refuse(l, "op", "use smaller sizes", "what it makes is too large");
        elements *= shape->dims[i];
    }
    return true;
}

static bool look_at(struct look *l)
{
    const struct graph_shape *in = shape_of(l, l->node->from);
    struct graph_shape *out = &l->sizes->shapes[l->number];
    char shape[64], name[64];
    (void)graph_label(l->graph, l->number, l->label);
    graph_shape_text(in, shape);
    if (l->node->from == GRAPH_INPUT) {
        (void)snprintf(l->reads, sizeof(l->reads), "the input, %s", shape);
        if (l->node->op != GRAPH_OP_CONV2D && l->node->op != GRAPH_OP_FLATTEN && is_image(in)) {
            return refuse(l, "op", "begin with conv2d or flatten",
                          "only conv2d and flatten read the model's images");
        }
    } else {
        (void)snprintf(l->reads, sizeof(l->reads), "%s of %s", shape,
                       graph_label(l->graph, l->node->from, name));
    }
    *out = (struct graph_shape){ .ndim = in->ndim };
    return op_shapes[l->node->op](l, in, out) && fits(l, out) && check_residual(l, in, out);
}

/* Every value is read but the last one, which is the logits. */
static void check_reads(struct look *l)
{
    bool is_read[GRAPH_NODES_MAX] = { false };
    const struct tree_node *item = l->item;
    for (int64_t n = 0; n < l->graph->count; n++) {
        const struct jobspec_node *node = &l->graph->nodes[n];
        if (node->from >= 0)
            is_read[node->from] = true;
        if (node->residual >= 0)
            is_read[node->residual] = true;
    }
    for (int64_t n = 0; n < l->graph->count - 1; n++, l->item = l->item->next) {
        (void)graph_label(l->graph, n, l->label);
        if (!is_read[n]) {
            (void)refuse(l, "name", "remove it, or name it in 'from' or 'residual' of another node",
                         "no node reads it");
        }
    }
    l->item = item;
}

static void check_logits(struct look *l)
{
    const bool text = l->sizes->input.is_tokens;
    const struct graph_shape *last = &l->sizes->shapes[l->graph->count - 1];
    char shape[64];
    graph_shape_text(last, shape);
    if (last->ndim != (text ? 2 : 1) || last->dims[last->ndim - 1] < 2 || !last->is_trained) {
        (void)refuse(l, "op", "end with a linear",
                     "the last node makes %s, but a model ends with %s, 2 %s at least", shape,
                     text ? "[context, vocab]" : "[classes]", text ? "tokens" : "classes");
    }
    l->sizes->logits = last->dims[last->ndim - 1];
}

bool graph_shapes(struct jobspec_report *report, const struct tree_node *list,
                  const struct jobspec_graph *graph, struct graph_sizes *sizes)
{
    struct look l = {
        .report = report, .item = list->first, .graph = graph, .sizes = sizes, .good = true
    };
    sizes->parameters = 0;
    for (int64_t n = 0; n < graph->count; n++, l.item = l.item->next) {
        l.number = n;
        l.node = &graph->nodes[n];
        if (!look_at(&l))
            return false; /* nodes behind it have no shape */
        if (n == graph->count - 1)
            check_logits(&l);
    }
    l.item = list->first;
    check_reads(&l);
    return l.good;
}
