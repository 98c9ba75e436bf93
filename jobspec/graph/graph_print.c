#include "common/check.h"
#include "jobspec/graph/keys.h"
#include "jobspec/text/number.h"

/* True if a node has a value of a key that isn't its default. */
static bool is_set(const struct jobspec_node *node, int64_t number, enum graph_key key)
{
    switch (key) {
    case GRAPH_KEY_NAME:
        return node->name[0] != '\0';
    case GRAPH_KEY_FROM:
        return node->from != number - 1;
    case GRAPH_KEY_RESIDUAL:
        return node->residual != GRAPH_NONE;
    case GRAPH_KEY_TIED:
        return node->tied != GRAPH_NONE;
    case GRAPH_KEY_POSITION:
        return node->position[0] != '\0';
    case GRAPH_KEY_STD:
        return node->std > 0;
    case GRAPH_KEY_OP:
    case GRAPH_KEY_OUT:
    case GRAPH_KEY_KERNEL:
    case GRAPH_KEY_STRIDE:
    case GRAPH_KEY_PAD:
    case GRAPH_KEY_BIAS:
    case GRAPH_KEY_RELU:
    case GRAPH_KEY_ACTIVATION:
    case GRAPH_KEY_ROWS:
    case GRAPH_KEY_HEADS:
    case GRAPH_KEY_P:
    case GRAPH_KEY_EPS:
    case GRAPH_KEY_KV_HEADS:
    case GRAPH_KEY_ROPE_THETA:
    case GRAPH_KEY_BIDIRECTIONAL:
    case GRAPH_KEY_ROW:
    case GRAPH_KEY_COUNT:
        break;
    }
    return true;
}

static enum status print_value(const struct jobspec_graph *graph, const struct jobspec_node *node,
                               const struct graph_key_row *row, struct buf *out)
{
    const void *at = (const char *)node + row->offset;
    switch (row->kind) {
    case GRAPH_KIND_NAME: /* in quotes: `n` and `1` would be no texts */
        return buf_printf(out, "\"%s\"", (const char *)at);
    case GRAPH_KIND_OP:
        return buf_append_text(out, graph_op_name(node->op));
    case GRAPH_KIND_NODE: {
        const int32_t other = *(const int32_t *)at;
        return buf_printf(out, "\"%s\"",
                          other == GRAPH_INPUT ? GRAPH_INPUT_NAME : graph->nodes[other].name);
    }
    case GRAPH_KIND_WHOLE:
        return buf_printf(out, "%lld", (long long)*(const int64_t *)at);
    case GRAPH_KIND_REAL:
        return number_print(*(const double *)at, out);
    case GRAPH_KIND_BOOL:
        return buf_append_text(out, *(const bool *)at ? "true" : "false");
    case GRAPH_KIND_WORD:
        return buf_append_text(out, graph_activation_word(node->activation));
    }
    check_failed("kind", __FILE__, __LINE__);
}

enum status graph_print_node(const struct jobspec_graph *graph, int64_t number, struct buf *out)
{
    const struct jobspec_node *node = &graph->nodes[number];
    const unsigned allowed = graph_keys_allowed(node->op);
    enum status st = buf_append_text(out, "{");
    bool first = true;
    for (unsigned key = 0; st == ST_OK && key < GRAPH_KEY_COUNT; key++) {
        const struct graph_key_row *row = graph_key_row((enum graph_key)key);
        if ((allowed & (1u << key)) == 0 || !is_set(node, number, (enum graph_key)key))
            continue;
        st = buf_printf(out, "%s%s: ", first ? "" : ", ", row->name);
        if (st == ST_OK)
            st = print_value(graph, node, row, out);
        first = false;
    }
    return st == ST_OK ? buf_append_text(out, "}") : st;
}
