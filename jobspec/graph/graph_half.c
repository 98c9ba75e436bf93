/* What a graph may not have where the residual stream of its products is kept in float32. */
#include <stdio.h>

#include "jobspec/graph/graph.h"

/* True if the node starts the residual stream or goes on with it, as trainer/tape/precision.h says.
 * is_stream: of the nodes before it. */
static bool is_of_stream(const struct jobspec_node *node, const bool *is_stream)
{
    if (node->op == GRAPH_OP_EMBEDDING || node->op == GRAPH_OP_SEQUENCE ||
        node->residual != GRAPH_NONE)
        return node->op != GRAPH_OP_BATCH_NORM;
    return (node->op == GRAPH_OP_DROPOUT || node->op == GRAPH_OP_SELECT) && node->from >= 0 &&
           is_stream[node->from];
}

bool graph_check_half(struct jobspec_report *report, const struct tree_node *list,
                      const struct jobspec_graph *graph)
{
    static const char way_out[] = "set train.amp to O2, which keeps no value in float32";
    bool is_stream[GRAPH_NODES_MAX] = { false };
    bool good = true;
    const struct tree_node *item = list->first;
    for (int64_t n = 0; n < graph->count; n++, item = item->next) {
        const struct jobspec_node *node = &graph->nodes[n];
        const bool reads = node->from >= 0 && is_stream[node->from];
        char label[64];
        is_stream[n] = is_of_stream(node, is_stream);
        if (node->residual >= 0 && is_stream[n] && !is_stream[node->residual]) {
            jobspec_report_add(report, tree_find(item, "residual")->place, way_out,
                               "%s: with amp O1 a residual comes from an embedding, or from a node "
                               "with a residual",
                               graph_label(graph, n, label));
            good = false;
        }
        if (reads && (node->op == GRAPH_OP_RELU || node->op == GRAPH_OP_ATTENTION ||
                      node->op == GRAPH_OP_GATED || node->op == GRAPH_OP_ROTARY)) {
            jobspec_report_add(report, tree_find(item, "op")->place, way_out,
                               "%s: with amp O1 it reads no embedding and nothing with residuals",
                               graph_label(graph, n, label));
            good = false;
        }
    }
    return good;
}
