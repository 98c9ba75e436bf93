/*
 * Inside of a plan, shared by
 *
 *   plan_prepare.c    kernels, which node completes which gradients, allocation
 *   plan_recompute.c which nodes run forward again in the backward pass, and the times of all
 *   plan_memory.c   regions, and their places in the arena
 *   plan_nodes.c    runs the nodes of a section
 *   plan_graph.c    records sections and plays them again
 *   plan_run.c      whole passes, section by section
 *   plan_stage.c    what of the lane's vector is the plan's, and final when; what crosses borders
 *   plan_print.c    the plan for people, and as a pin
 *
 * Time: node n runs forward at time n. From time `nodes` on, which are the whole tape's, backward
 * runs from the last node to the first. Right before it come the nodes that run forward again for
 * it. Then, where backward is split, the second halves in the same order. In a stage the times of
 * other nodes pass with nothing running: then tensors cross borders.
 *
 * Invariants
 *  1. A region is written at its `begin` (or later), read up to its `end`, and overlaps in bytes
 *     with no region whose [begin, end] meets its own.
 *  2. A gradient of a value is written by the backward of a node that reads the value, and lives
 *     until the backward of the node that made it. One that aliases another lengthens the other's
 *     life.
 *  3. A node's backward gets the gradients of its output in the output's format and dtype: one, or
 *     two where the kernel adds them itself (kernel_info.sums_douts). Where its readers left
 *     gradients in other formats, or more of them, its adaptations change that right before; or a
 *     reader has added the gradient of another to its own already (kernel_info.din_adds).
 *  4. A gradient may lie where its value lay (kernel_info.din_overwrites_in), if nobody reads the
 *     value any more; and a sum where one of the two lay, if that is no other value's gradient.
 *  5. Where backward is split, all that a node with parameters reads lives until its second half:
 *     the value that it takes is not overwritten, nor is a gradient that it has taken added to.
 *  6. What runs again writes what the first run wrote, to places of its own; statistics go where
 *     nobody reads them. Backward reads `again` of a value, forward `region`; without a second run
 *     they are the same.
 *  7. At a border one value is alive, the output of the node before. The later stage has all nodes
 *     that read it, so the gradients of it that nobody has taken when its backward ends are all
 *     that there are, and in the order in which the whole plan has them. Which those are and in
 *     what formats depends on later nodes only: the earlier stage finds out without memory of
 *     theirs.
 */
#pragma once

#include "trainer/plan/plan.h"
#include "trainer/tape/lane.h"

#define PLAN_REGIONS_MAX     16384 /* 16 of each node */
#define PLAN_ADAPTATIONS_MAX 2048
#define PLAN_RECORDINGS_MAX  1024 /* sections times sets of pointers; others run as usual */
#define PLAN_ALIGN           64

#define NO_REGION (-1)
#define NO_NODE   (-1)
#define NO_GRAPH  (-1)

/* A stretch of the arena that is in use during some times. */
struct plan_region {
    size_t bytes; /* multiple of PLAN_ALIGN */
    size_t offset;
    int begin, end; /* times, both included */
};

/* Change of a gradient before a backward takes it: to = reformat(from), or to = from + other. */
struct plan_adaptation {
    int from, other, to; /* regions; other NO_REGION: reformat */
    struct tensor from_tensor, to_tensor;
};

struct plan_gradient {
    int region;
    struct tensor tensor;
};

struct plan_value {
    struct tensor tensor; /* with the batch, in the producer's format */
    bool needs_gradient;
    int region; /* NO_REGION: an input of the tape, or of other stages only */
    int again;  /* where backward, and what runs again, find it */
    /* While memory is laid out: gradients that readers have written and the producer hasn't taken.
     * Afterwards only the value that enters a stage has any: they leave the stage. */
    struct plan_gradient gradients[PLAN_GRADIENTS_MAX];
    int gradient_count;
};

/* din, dout: gradients of an input and of the output, as kernels/backend.h calls them. */
struct plan_node {
    struct kernel *kernel;
    struct kernel_info info;
    void *cache;
    bool copied;                                  /* plan_copies has all that the cache has */
    bool backward;                                /* has one */
    int saved, scratch_forward, scratch_backward; /* regions, as those below */
    int scratch_params;                           /* of the second half, where backward is split */
    int again_for;   /* the node before whose backward it runs forward again; NO_NODE: it doesn't */
    int again_begin; /* nodes from here on, up to itself, may run again for it */
    int dropped;     /* what the first run of such a node saves */
    int scratch_again, stats_again;
    int again_time, backward_time, params_time;
    int din[OP_IN_MAX];
    int din_add[OP_IN_MAX]; /* a gradient that the kernel adds to din */
    int dout[2];
    size_t final;      /* elements from here on are final after its backward; 0 at last */
    bool ends_section; /* of the backward pass; its first node does at the latest */
    int adaptation_begin, adaptation_count; /* right before its backward */
};

enum plan_pass {
    PLAN_PASS_FORWARD,
    PLAN_PASS_BACKWARD, /* both halves at once */
    PLAN_PASS_INPUTS,
    PLAN_PASS_PARAMS,
    PLAN_PASS_REFRESH, /* of kernels' own copies of parameters; upwards */
    PLAN_PASS_REST,    /* the same, of kernels that plan_copies doesn't have */
};

/* Nodes [begin, end) of one pass, run upwards or, in a backward pass, downwards. A section is
 * recorded as a whole. */
struct plan_section {
    int begin, end;
    enum plan_pass pass;
};

/* All that the recorded calls of a section depend on beside the plan. Compared byte by byte. */
struct plan_recording_key {
    const void *inputs[TAPE_INPUTS_MAX];
    const void *params, *stats, *lane, *draw, *loss_scale;
    uint64_t first; /* micro-batch 0: writes */
    uint64_t stash;
};

struct plan_recording {
    struct plan_recording_key key;
    struct plan_section section;
    int graph;    /* NO_GRAPH: was run once, not recorded yet */
    bool refused; /* the backend has no room for it */
};

struct plan {
    const struct tape *tape;
    struct plan_options options;
    int begin, end; /* nodes */
    int stashes;
    struct lane_extent parts[LANE_PARTS];              /* that the plan's nodes write, ascending */
    struct plan_gradient arriving[PLAN_GRADIENTS_MAX]; /* from the stage after this one */
    int arriving_count;
    struct lane_layout layout;
    struct plan_sizes sizes;
    struct plan_node *nodes;
    struct plan_value *values;
    struct plan_region *regions;
    struct plan_adaptation *adaptations;
    int region_count, adaptation_count;
    void *arena, *own_arena, *caches;  /* arena is own_arena or the shared one; stash by stash */
    float *scalars;                    /* host: TAPE_LOSS_SCALARS of one forward */
    struct plan_recording *recordings; /* NULL: nothing is recorded */
    int recording_count;
};

/* Whether a pass rewrites kernels' copies of parameters; and which of them. */
static inline bool plan_refreshes(enum plan_pass pass)
{
    return pass == PLAN_PASS_REFRESH || pass == PLAN_PASS_REST;
}

static inline bool plan_is_refreshed(const struct plan_node *node, enum plan_pass pass)
{
    return node->cache != NULL && !(pass == PLAN_PASS_REST && node->copied);
}

/* Returns the address of a region in a stash; NO_REGION: NULL. */
static inline void *plan_region_at(const struct plan *plan, int stash, int region)
{
    if (region == NO_REGION || plan->arena == NULL)
        return NULL;
    return (char *)plan->arena + (size_t)stash * plan->sizes.arena_bytes +
           plan->regions[region].offset;
}

/* Returns the value that crosses the border before a node: an index, or -1 at the tape's start and
 * end. */
static inline int plan_crossing_value(const struct plan *plan, int node)
{
    return node > 0 && node < plan->tape->node_count ? plan->tape->nodes[node - 1].out : -1;
}

static inline size_t plan_round_up(size_t bytes)
{
    return (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

/* Whether a node runs forward again in the backward pass. */
static inline bool plan_runs_again(const struct plan *plan, int node)
{
    return plan->nodes[node].again_for != NO_NODE;
}

/* Decides what runs again and lays out memory (plan_memory_lay_out) for it. */
MUST_CHECK enum status plan_recompute_lay_out(struct plan *plan);

/* Fills in regions, adaptations and each node's places from what prepare and plan_recompute_lay_out
 * said; then lays out the arena. Can be done again. ST_NO_MEMORY; ST_INVALID: more gradients of one
 * value than there is room for */
MUST_CHECK enum status plan_memory_lay_out(struct plan *plan);

/* Reports progress to options.progress. ST_STALE: the pass is to end. */
MUST_CHECK enum status plan_nodes_report(const struct plan *plan, int node, bool backward);
/* Enqueues the calls of a section, as they are. */
MUST_CHECK enum status plan_nodes_run(const struct plan *plan, const struct plan_call *call,
                                      struct plan_section section);
/* Returns the address of a value during the forward pass of a call. */
const void *plan_nodes_value(const struct plan *plan, const struct plan_call *call, int value);
/* With options.poison, fills regions that end at `time` in a stash with NaN; else does nothing. */
MUST_CHECK enum status plan_nodes_poison(const struct plan *plan, int stash, int time);

/* Enqueues a section: runs it at first, records it the second time, plays it from then on. */
MUST_CHECK enum status plan_section_run(struct plan *plan, const struct plan_call *call,
                                        struct plan_section section);

/* Fills in parts, and each node's `final`. */
void plan_stage_find_parts(struct plan *plan);
/* Return where the gradients that the plan writes end, and where the part of the vector begins that
 * is final after a backward pass. */
size_t plan_stage_gradients_end(const struct plan *plan);
size_t plan_stage_last_final(const struct plan *plan);
/* Calls on_final, which may be NULL, for the plan's parts of [first, end), from its end on. */
void plan_stage_notify_final(const struct plan *plan, size_t first, size_t end,
                             plan_final_fn on_final, void *arg);
