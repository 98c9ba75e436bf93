#include "trainer/standalone/preview_graph.h"

#include <stdio.h>

/* Parameters that no node before it has. */
static size_t own_parameters(const struct tape *tape, int node)
{
    size_t count = 0;
    for (int i = 0; i < tape->param_count; i++)
        count += tape->params[i].first_node == node ? tape->params[i].count : 0;
    return count;
}

/* The shape of one sample's value. */
static const char *shape_text(const struct tensor *made, char out[64])
{
    struct graph_shape shape = { .ndim = made->ndim - 1 };
    for (int d = 1; d < made->ndim; d++)
        shape.dims[d - 1] = made->dims[d];
    graph_shape_text(&shape, out);
    return out;
}

static const char *name_of(const struct jobspec_graph *graph, int32_t node)
{
    static const char nameless[] = "-";
    if (node == GRAPH_INPUT)
        return GRAPH_INPUT_NAME;
    if (node == GRAPH_NONE)
        return "";
    return graph->nodes[node].name[0] != '\0' ? graph->nodes[node].name : nameless;
}

enum status preview_graph_print(const struct jobspec_graph *graph, const struct tape *tape,
                                struct buf *out)
{
    enum status st = buf_printf(out, "graph\n%4s  %-28s  %-16s  %-18s  %10s  %s\n", "node", "name",
                                "op", "makes", "parameters", "reads");
    for (int n = 0; st == ST_OK && n < (int)graph->count; n++) {
        const struct jobspec_node *node = &graph->nodes[n];
        const char *added = name_of(graph, node->residual), *tied = name_of(graph, node->tied);
        char shape[64];
        st = buf_printf(
            out, "%4d  %-28s  %-16s  %-18s  %10zu  %s%s%s%s%s\n", n, name_of(graph, n),
            graph_op_name(node->op), shape_text(&tape->values[tape->nodes[n].out].tensor, shape),
            own_parameters(tape, n), name_of(graph, node->from), added[0] != '\0' ? " + " : "",
            added, tied[0] != '\0' ? ", weight of " : "", tied);
    }
    return st;
}
