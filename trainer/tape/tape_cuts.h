/*
 * Cuts of a tape into stages: where it may be cut, and which cuts make stages of like cost.
 *
 * A stage is a run of nodes [begin, end) that a rank carries for itself (trainer/plan/plan.h). A
 * cut is named by the node with which the later stage begins. It is legal where exactly one value
 * lives across it: made before, read at the cut or later. That value is the output of the node
 * right before the cut, and has the batch. The tape's inputs don't count: whatever stage reads one
 * of them, such as the labels, is given it.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>

#include "common/status.h"
#include "trainer/tape/tape.h"

#define TAPE_STAGES_MAX 128 /* LIMIT_STAGES of two parts each */

/* True if a stage may begin at the node, which has others before it. */
bool tape_is_cut(const struct tape *tape, int node);

/*
 * Lists all cuts, ascending. TAPE_NODES_MAX places are always enough.
 * Errors: ST_FULL  more than `capacity`
 */
MUST_CHECK enum status tape_cuts(const struct tape *tape, int *out_nodes, int capacity,
                                 int *out_count);

/*
 * The cuts that make the costliest of `stages` stages as cheap as it can be; of several such the
 * one with the smallest sum of squares of the stages' costs, then the one with the lowest nodes.
 * cost[node_count] is what each node takes, in any unit, from 0 to 1e100. out_first[stages]
 * are the stages' first nodes; the first one is 0.
 *
 * Errors: ST_INVALID    stages isn't in [1, *out_possible], which is set in any case: how many
 *                       stages there can be
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status tape_balance(const struct tape *tape, const double *cost, int stages,
                                    int *out_first, int *out_possible);
