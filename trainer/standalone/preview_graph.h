/*
 * What `cairn-trainer --plan` prints of a model of one's own: a line per node.
 */
#pragma once

#include "common/buf.h"
#include "common/status.h"
#include "jobspec/graph/graph.h"
#include "trainer/tape/tape.h"

/* tape: of the graph (graph_tape). */
MUST_CHECK enum status preview_graph_print(const struct jobspec_graph *graph,
                                           const struct tape *tape, struct buf *out);
