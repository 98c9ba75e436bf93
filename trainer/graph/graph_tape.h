/*
 * From a graph (jobspec/graph/graph.h) to a tape: each node is appended by the builder of its op,
 * so that node n of the graph is node n of the tape. The loss is the tape's last node.
 *
 * Thread: any.
 */
#pragma once

#include "common/status.h"
#include "jobspec/graph/graph.h"
#include "trainer/tape/tape.h"

struct graph_tape_options {
    int64_t input[3]; /* channels, height, width; 0: tokens */
    int64_t context;  /* of tokens */
    float label_smoothing;
};

/*
 * Makes the tape of a graph whose shapes fit (graph_shapes). The caller owns *out.
 * Errors: ST_INVALID    the tape has no room for it
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status graph_tape(const struct jobspec_graph *graph,
                                  const struct graph_tape_options *options, struct tape **out);
