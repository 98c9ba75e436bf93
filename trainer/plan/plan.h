/*
 * A plan: a tape, or a stage of one, prepared on a backend for one batch size. Runs it forward and
 * backward.
 *
 * plan_new prepares every op in order, inserts copies between formats only where two neighbours
 * differ, and lays out activations, gradients, saved and scratch regions in one arena by their
 * lifetimes. Nothing is allocated after it.
 *
 * Stages:  nodes [begin, end) of the tape, between two cuts (trainer/tape/tape_cuts.h). The whole
 *          tape is prepared, so that kernels, formats and dtypes are the same wherever it is cut:
 *          stages one after the other give the bits of the whole. What crosses a border,
 *          plan_border says; moving it is the caller's. The loss and its scalars are the last
 *          stage's.
 *          call->lane, params and stats are those of the whole tape, of which a stage touches what
 *          is its nodes' own: the lane's gradients (those of ties, too) and statistics, and the
 *          number of micro-batches, which every stage writes.
 * Stashes: memory of micro-batches in flight. Between forward and backward of one micro-batch
 *          others may go through the plan, each in a stash of its own. Backward passes are in the
 *          order of the micro-batches, as forward ones are: sums depend on it.
 * Recompute: values that backward needs may be dropped after forward and computed again right
 *          before (enum plan_recompute): less memory for more time, the same bits.
 *
 * Use, per update:  plan_refresh → for each lane, for each of its micro-batches:
 *                   plan_forward, plan_backward with the lane's vector (trainer/tape/lane.h)
 *      evaluation:  a plan with training = false; plan_refresh before, plan_forward per batch
 *
 * Thread: one at a time.
 * Memory: tape, backend, stream and the calls' buffers are borrowed.
 * Errors: what the backend returns; ST_NO_MEMORY
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"
#include "kernels/backend.h"
#include "trainer/tape/precision.h"
#include "trainer/tape/tape.h"

#define PLAN_GRADIENTS_MAX 8 /* nodes that read one value */
#define PLAN_STASHES_MAX   1024

/*
 * What is computed again in the backward pass, in place of being kept.
 *
 * Sources: Chen et al., "Training deep nets with sublinear memory cost", 2016 (full);
 * Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022 (the
 * idea of choosing by what a byte costs).
 */
enum plan_recompute {
    PLAN_RECOMPUTE_NONE,
    PLAN_RECOMPUTE_SELECTIVE, /* norms, activations, pools, dropout: what costs little */
    PLAN_RECOMPUTE_FULL,      /* all between cuts, as many as make the arena least */
};

struct plan;

struct plan_options {
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
    int begin, end; /* nodes of a stage, both at cuts; end 0: the tape's, so 0, 0 is all of it */
    int stashes;    /* micro-batches in flight at once; 0: 1 */
    size_t stash_bytes; /* of each at least, where plans of other nodes have stashes in one arena */
    int64_t batch;      /* samples that go through the model at once */
    bool training;      /* false: no backward, running statistics are used */
    bool split;     /* backward is called in its two halves: what the second one needs is kept */
    enum math math; /* products; decides the dtype of every value: trainer/tape/precision.h */
    enum amp amp;
    enum plan_recompute recompute; /* ignored unless training */
    /* Record the forward pass and the backward pass, where the backend can, and play them again. A
     * backward pass is recorded by stretches between two borders of buckets where on_final is told.
     * There is a recording for every set of pointers in a plan_call. Same bits. The first time each
     * runs as usual. The first half of a split backward is one recording, for all lanes. */
    bool graphs;
    const size_t *bucket_begin; /* with graphs: of lane_buckets (trainer/tape/lane.h); borrowed */
    size_t bucket_count;
    /* A plan whose arenas are used if large enough; NULL: own ones. Never run both at once, unless
     * both have the same arena_bytes, and each uses only stashes that the other doesn't. */
    struct plan *share;
    bool poison; /* tests: memory whose life is over, or hasn't begun, is filled with NaN */
    /* Called after each node, in both directions; after the last node of a recording that is
     * played. false ends the pass with ST_STALE, wherever it is. May be NULL. */
    bool (*progress)(void *arg, int node, bool backward);
    void *progress_arg;
};

/* Sizes of the plan's nodes. */
struct plan_sizes {
    size_t arena_bytes;    /* of each stash: activations, gradients, saved, scratch; reused by
                              lifetime */
    size_t unshared_bytes; /* the same without reuse */
    size_t cache_bytes;    /* parameters in the kernels' own formats */
    double flops_forward, flops_backward; /* of one batch */
    double flops_again; /* of one batch: forward of nodes that run again before their backward */
    int reformats;      /* copies of gradients between formats */
};

/* Prepares and allocates. With options->stream NULL nothing is allocated and nothing can be run:
 * for sizes only. ST_INVALID also: begin or end is no cut, or stashes out of range. */
MUST_CHECK enum status plan_new(const struct tape *tape, const struct plan_options *options,
                                struct plan **out);
void plan_free(struct plan *plan);
const struct plan_sizes *plan_sizes(const struct plan *plan);
/* Returns the cost of a node for a batch, forward and backward, for tape_balance: its operations,
 * plus OPS_OF_A_WORD for each word that it touches. */
double plan_cost(const struct plan *plan, int node);
/* Prints a table of nodes for people: shape, implementation, parameters, bytes, GFLOP. */
MUST_CHECK enum status plan_print(const struct plan *plan, struct buf *out);
/* Prints the implementations of the whole tape, in its order, as a JSON array: a pin. */
MUST_CHECK enum status plan_pins(const struct plan *plan, struct buf *out);

/* Lists the kernels' copies of parameters that an update may write itself (struct copy_map). out:
 * room for each parameter of the tape. Returns how many there are, ascending. */
size_t plan_copies(const struct plan *plan, struct param_copy *out);
/* Rewrites the kernels' copies of the parameters: after every update, and once the state was filled
 * in. */
MUST_CHECK enum status plan_refresh(struct plan *plan, const float *params);
/* Rewrites the other copies, if there are any, after an update that wrote those of plan_copies. */
MUST_CHECK enum status plan_refresh_rest(struct plan *plan, const float *params);

/*
 * One micro-batch. All pointers but the last three lead to the backend's memory; what lies there
 * must stay until the stream is past plan_backward, or its second half (on the CPU: until that
 * returns).
 */
struct plan_call {
    const void *inputs[TAPE_INPUTS_MAX]; /* in the order of tape_input: images f32, labels i32 */
    const float *params;                 /* flat */
    const float *stats;                  /* flat, running: read when not training */
    float *lane;             /* training: lane_layout.count floats, written or added to */
    const uint32_t *draw;    /* inputs of random numbers: enum op_draw; NULL without dropout */
    const float *loss_scale; /* one factor of the gradient; NULL: 1 */
    uint32_t micro;          /* which of the lane's micro-batches: 0 writes, all others add */
    int stash;               /* where it lies; the same forward and backward */
    /* Sums in host memory that are added to: all three, or none (NULL), which spares waiting for
     * the device. Stages but the last: none. */
    double *loss_sum;
    int64_t *correct, *counted;
};

/* Runs the forward pass. Training: writes the sums of statistics and the scalars of call->lane.
 * Labels of -1 are ignored: a short batch is filled up with them. */
MUST_CHECK enum status plan_forward(struct plan *plan, const struct plan_call *call);

/*
 * Elements [first, first + count) of the lane's vector are final once the stream is past what is on
 * it now (on the CPU: they are). The calls of a pass cover the vector from its end to its start
 * without gaps; those of a stage likewise, but without what isn't its own.
 */
typedef void (*plan_final_fn)(void *arg, size_t first, size_t count);

/*
 * Runs the backward pass, after plan_forward with the same call: writes the gradients of
 * call->lane. Doesn't wait for a device. on_final: for the last micro-batch of a lane whose buckets
 * are reduced while the pass is still under way; else NULL.
 */
MUST_CHECK enum status plan_backward(struct plan *plan, const struct plan_call *call,
                                     plan_final_fn on_final, void *arg);

/*
 * The two halves of plan_backward, of a plan with options->split; the same bits. First the
 * gradients of inputs, down to those that leave the stage: nothing of call->lane is touched. Then,
 * after others' passes if need be, the gradients of parameters, which go through the micro-batches
 * in order.
 */
MUST_CHECK enum status plan_backward_inputs(struct plan *plan, const struct plan_call *call);
MUST_CHECK enum status plan_backward_params(struct plan *plan, const struct plan_call *call,
                                            plan_final_fn on_final, void *arg);

enum plan_side { PLAN_BEFORE, PLAN_AFTER }; /* the border where the stage begins, or ends */
enum plan_direction { PLAN_FORWARD, PLAN_BACKWARD }; /* a value goes, gradients of it come back */

/* Tensors in the backend's memory, as the kernels have them. Both stages at a border have the same
 * number of them, with the same bytes. */
struct plan_border {
    int count; /* 0: nothing crosses */
    struct {
        void *data; /* NULL in a plan for sizes only */
        size_t bytes;
    } tensor[PLAN_GRADIENTS_MAX];
};

/*
 * Returns the tensors that cross a border of the stage, for a micro-batch in that stash. Forward it
 * is one tensor. Backward it is all gradients of it that the kernel before takes: one for each node
 * that reads the value, where none was added to another. There are none if nothing before has
 * parameters, or when not training. Nothing crosses the tape's start and end.
 *
 *   side, direction          written                            stays
 *   PLAN_BEFORE, FORWARD     by the caller, before              for plan_forward and plan_backward
 *                            plan_forward
 *   PLAN_AFTER, FORWARD      by plan_forward                    until plan_backward, before which
 *                                                               its gradients have come; if none
 *                                                               come, until the stash is used again
 *   PLAN_AFTER, BACKWARD     by the caller, after plan_forward  for plan_backward, and both halves
 *                            and before plan_backward           of it
 *   PLAN_BEFORE, BACKWARD    by plan_backward, or its first     until the stash is used again, or
 *                            half                               the second half is called
 *
 * A stash is used again when the caller writes to what goes forward, or calls plan_forward. Each
 * means the stream's time, where calls only enqueue.
 */
void plan_border(const struct plan *plan, enum plan_side side, enum plan_direction direction,
                 int stash, struct plan_border *out);
