/*
 * A layout says who computes what, as one table: it tiles the box
 *
 *     [nodes of the tape) x [tensor lanes) x [lanes)
 *
 * by workers. It is cut into stages along the nodes; each stage is cut for itself along the tensor
 * lanes, into ranges side by side, and along the lanes, into shares. The bits of a job depend on
 * the box alone, never on how it is tiled.
 *
 *     nodes 0..99, 1 tensor lane, 8 lanes           rank 0: nodes 0..59, 5 lanes
 *     stage 0 from node 0,  shares 5, 3             rank 1: nodes 0..59, 3 lanes
 *     stage 1 from node 60, shares 8                rank 2: nodes 60..99, all lanes
 *
 * Ranks are numbered stage by stage, in a stage tensor range by tensor range, in such a range share
 * by share. So the ranks of one stage and tensor range, among which gradients are summed (a *data
 * group*), follow each other.
 *
 * Which lanes a share has is not said here: sets of nodes of the lane tree, by reducer_spread() of
 * the stage's shares (comm/reducer_order.h). Who needs them passes what that gave as `order`.
 *
 * Pure functions. Thread: any.
 * Memory: everything is borrowed; a layout is as good as the arrays that it points to.
 */
#pragma once

#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"

struct layout_stage {
    uint32_t node_begin; /* the stage's nodes end where the next stage's begin */
    uint32_t tensor_width, data_width;
    const uint32_t *tensor_shares; /* [tensor_width] tensor lanes of each range */
    const uint32_t *shares;        /* [data_width] lanes of each share */
};

struct layout {
    uint32_t nodes, tensor_lanes, lanes; /* the job's */
    uint32_t stage_count;
    const struct layout_stage *stages;
};

/* The part of the box that one rank has. */
struct layout_box {
    uint32_t stage, node_begin, node_end;
    uint32_t tensor, tensor_begin,
        tensor_end; /* which tensor range of its stage, and its tensor lanes */
    uint32_t data, order_begin, order_end; /* which share, and the place of its lanes in `order` */
    uint32_t data_group_first, data_group_size; /* ranks */
};

/*
 * Checks that a layout is a tiling. Every stage has nodes, and the first stage begins at node 0.
 * The shares of each stage add up to all lanes, of either kind, and each share has one at least.
 * Errors: ST_INVALID, with the reason. All other functions want a layout that has passed.
 */
MUST_CHECK enum status layout_check(const struct layout *layout, struct reason *reason);

uint32_t layout_ranks(const struct layout *layout);
/* The rank that has the first share of the first tensor range of a stage. */
uint32_t layout_first_rank(const struct layout *layout, uint32_t stage);
struct layout_box layout_box(const struct layout *layout, uint32_t rank);

/* Fills owner: for each lane, the share of the stage that has it. order: [lanes] of the stage's
 * shares. owner: [lanes]. */
void layout_owners(const struct layout *layout, uint32_t stage, const uint32_t *order,
                   uint32_t *owner);
