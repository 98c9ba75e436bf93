/*
 * Inside of a plan, shared by plan.c (prepare), plan_memory.c (layout), plan_run.c (execute).
 *
 * Time: node n runs forward at time n and backward at time 2·nodes - 1 - n.
 * Invariants:
 *  1. A region is written at its `begin` (or later), read up to its `end`, and overlaps in bytes
 * with no region whose [begin, end] meets its own.
 *  2. A gradient is written by the consumer's backward and lives until the producer's; one that
 *     aliases another lengthens the other's life.
 *  3. A producer gets its gradients in the format and dtype of its output: one, or two if it adds
 *     them itself. What is missing to that is done by its fixes, right before its backward; or a
 *     consumer's backward has added one to its own.
 *  4. A gradient may lie where its value lay (din_overwrites_in): then nobody reads the value any
 *     more; and a sum where one of the two lay, if that one is no other value's gradient.
 */
#pragma once

#include "trainer/tape/lane.h"
#include "trainer/tape/plan.h"

#define PLAN_GRADS_MAX   8     /* consumers of one value */
#define PLAN_REGIONS_MAX 16384 /* 16 of each node */
#define PLAN_FIXES_MAX   2048
#define PLAN_RECORDS_MAX 1024 /* pieces times sets of pointers; what is beyond runs as usual */
#define PLAN_ALIGN       64
#define SCALARS          3 /* what the loss node gives */

#define NO_REGION (-1)

struct region {
    size_t bytes; /* multiple of PLAN_ALIGN */
    size_t offset;
    int begin, end;
};

/* to = reformat(from), or with other: to = from + other. */
struct fix {
    int from, other, to;
    struct tensor from_tensor, to_tensor;
};

struct gradient {
    int region;
    struct tensor tensor;
};

struct plan_value {
    struct tensor tensor; /* with the batch, in the producer's format */
    bool needs_gradient;
    int region; /* NO_REGION: an input of the tape */
    struct gradient gradients[PLAN_GRADS_MAX];
    int gradient_count;
};

struct plan_node {
    struct kernel *kernel;
    struct kernel_info info;
    void *cache;
    bool backward; /* has one */
    int saved, scratch_forward, scratch_backward;
    int din[OP_IN_MAX];
    int din_add[OP_IN_MAX]; /* a gradient that the kernel adds to din */
    int dout[2];
    bool adds[OP_PARAM_MAX]; /* a later node has written this parameter's gradient already */
    size_t final;            /* elements from here on are final after its backward; 0 at last */
    bool ends_piece;         /* of the backward pass; its first node does at the latest */
    int fix_begin, fix_count;
};

/* Nodes [begin, end), forward in this order or backward in the other: what is recorded as one. */
struct piece {
    int begin, end;
    bool backward;
};

/* All that the recorded calls of a piece depend on beside the plan. */
struct record_key {
    const void *inputs[TAPE_INPUTS_MAX];
    const void *params, *stats, *lane, *draw, *loss_scale;
    uint64_t first; /* micro-batch 0: writes */
};

struct record {
    struct record_key key;
    struct piece piece;
    int graph;    /* NO_GRAPH: was run once, not recorded yet */
    bool refused; /* the backend has no room for it */
};

#define NO_GRAPH (-1)

struct plan {
    const struct tape *tape;
    struct plan_options options;
    struct lane_layout layout;
    struct plan_sizes sizes;
    struct plan_node *nodes;
    struct plan_value *values;
    struct region *regions;
    struct fix *fixes;
    int region_count, fix_count;
    void *arena, *own_arena, *caches; /* arena is own_arena or the shared one */
    float *told;                      /* host: SCALARS of one forward */
    struct record *records;           /* NULL: nothing is recorded */
    int record_count;
};

/* Enqueues a piece: runs it, records it the second time, plays it from then on (plan_graph.c). */
MUST_CHECK enum status plan_piece(struct plan *plan, const struct plan_call *call,
                                  struct piece piece);
/* Runs it (plan_run.c). */
MUST_CHECK enum status plan_run_piece(const struct plan *plan, const struct plan_call *call,
                                      struct piece piece);

/* Fills regions, fixes and each node's places from what prepare said; then lays out the arena. */
MUST_CHECK enum status plan_memory(struct plan *plan);
