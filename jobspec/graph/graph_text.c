/* A graph from a text of its own, as a library writes it. */
#include <stdio.h>
#include <string.h>

#include "common/limits.h"
#include "jobspec/graph/graph.h"

/* Puts the first mistake into one line: its cause and the way out. */
static void say_first(const struct jobspec_report *report, struct reason *reason)
{
    if (report->count == 0) {
        reason_set(reason, "it makes no graph");
        return;
    }
    const struct jobspec_error *first = &report->errors[0];
    reason_set(reason, "%.300s%s%.180s", first->cause, first->way_out[0] ? "; " : "",
               first->way_out);
}

enum status graph_read_text(const char *text, size_t size, bool half, struct jobspec_graph *out,
                            struct graph_sizes *sizes, struct reason *reason)
{
    const struct jobspec_source source = {
        .name = "library", .text = text, .size = size, .line = 1
    };
    struct jobspec_report report = { 0 };
    struct tree tree;
    enum status st = tree_init(&tree);
    if (st != ST_OK)
        return st;
    st = jobspec_report_init(&report, &source, 1);
    memset(out, 0, sizeof(*out));
    if (st == ST_OK)
        st = tree_read_yaml(&tree, 0, 0, &report, &tree.root);
    if (st == ST_OK) {
        const bool good = tree.root != NULL && graph_read(&report, "its graph", tree.root, out) &&
                          graph_shapes(&report, tree.root, out, sizes) &&
                          (!half || graph_check_half(&report, tree.root, out));
        st = good ? ST_OK : ST_CONFIG;
    }
    if (st == ST_CONFIG)
        say_first(&report, reason);
    jobspec_report_release(&report);
    tree_release(&tree);
    return st;
}
