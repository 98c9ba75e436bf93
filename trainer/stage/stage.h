/*
 * A rank's stage of a pipeline: which nodes it computes, what it has of the vectors, when it
 * computes what, and what it exchanges with the other stages beside micro-batches.
 *
 *     nodes of the tape       0 ........ 57 | 58 ...... 99        tape_balance, or the job's cuts
 *     parameters, moments     |-- stage 0 --|-- stage 1 --|       by the node that reads them first
 *     saved by                |-- stage 0 ----|- stage 1 -|       at whole chunks of a checkpoint
 *                                           ^^ the fringe
 *
 * With `interleaved` a stage has several *chunks*: the model is cut into as many parts as all
 * stages have together, and chunk c of stage s is part c * stages + s. What is said here of a stage
 * and its nodes then holds of each part: a stage updates and saves those of all its chunks.
 *
 *     nodes of the tape       0 .... 20 | 21 ... 57 | 58 ... 80 | 81 ... 99
 *     part, stage and chunk   0: 0, 0     1: 1, 0     2: 0, 1     3: 1, 1
 *
 * Buffers keep the addresses of the whole state; there is memory for a stage's own, out to the
 * borders of chunks. A chunk is saved by the stage that has its first element; the rest of it, the
 * *fringe*, comes from the stages that update it, after each update, as snapshots are due at
 * steps that ranks needn't agree on in time.
 *
 * A parameter that a later stage reads as well (a tie) is updated by the stage that reads it first:
 * before an update it gets the sum of the tie's gradients, after it the reader gets new values.
 *
 * Exchanges go over the communicator of all ranks, `world`: every rank calls each of them. Nothing
 * here changes the bits of a job.
 *
 * Thread: the step thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "comm/reducer.h"
#include "common/layout/layout.h"
#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"
#include "trainer/device/device.h"
#include "trainer/device/gather.h"
#include "trainer/device/progress.h"
#include "trainer/pipeline/schedule.h"
#include "trainer/tape/lane.h"
#include "trainer/update/optimizer.h"
#include "trainer/update/owners.h"

/* The stages of a generation. */
struct stage_plan {
    uint32_t count;
    struct {
        uint32_t workers;
        uint32_t first_node; /* 0 but for the first: the stages are cut by cost */
    } of[LIMIT_STAGES];
};

struct stage_options { /* borrowed for life */
    const struct tape *tape;
    const struct device *device;
    struct progress *progress;
    const double *cost;              /* [nodes] of the tape; until stage_open returns */
    enum pipeline_schedule schedule; /* that is requested: struct stage */
    uint32_t accumulate;             /* micro-batches of a lane */
    uint32_t lanes;
    bool owns;          /* each rank of a stage has the moments of its own part alone */
    int64_t timeout_ms; /* of an exchange */
    /* The plan of this generation, and this rank in it. */
    const struct stage_plan *plan;
    uint32_t rank;
    const uint32_t *shares; /* lanes of each rank */
};

#define STAGE_CHUNKS_MAX REDUCER_SECTIONS_MAX
#define STAGE_PARTS_MAX  (STAGE_CHUNKS_MAX * LIMIT_STAGES)
_Static_assert(STAGE_CHUNKS_MAX <= OPTIMIZER_STRETCHES_MAX, "a stage's parts");
_Static_assert(2 * STAGE_PARTS_MAX <= COMM_CHANNELS_MAX, "two channels for each border");

struct stage {
    struct stage_options options;
    /* Lanes of each rank. The layout's nodes are those of the stages' first chunks alone. */
    struct layout layout;
    struct layout_stage stages[LIMIT_STAGES];
    struct layout_box box;
    /* The schedule of the options, or another one where that isn't possible; `instead` then says
     * why, for people. */
    enum pipeline_schedule schedule;
    struct reason instead;
    uint32_t parts;
    uint32_t node_begin[STAGE_PARTS_MAX + 1];
    uint32_t size;    /* ranks */
    uint32_t *orders; /* [stages][lanes] reducer_spread's */
    struct pipeline_table table;
    const struct pipeline_row *row;           /* this rank's */
    struct lane_slice slice[STAGE_PARTS_MAX]; /* by part */

    struct owners owners; /* a stage is an owner; with options.owns a rank */
    struct lane_extent params[STAGE_CHUNKS_MAX + TAPE_TIES_MAX], stats[STAGE_CHUNKS_MAX];
    size_t param_extents;
    struct reducer_extent extents[STAGE_CHUNKS_MAX * LANE_PARTS]; /* section: chunk */
    size_t extent_count;
    size_t *bucket_begin; /* of those extents */
    size_t bucket_count;
    size_t *borders; /* with options.owns: struct reducer_options ... */
    size_t kept;     /* ... likewise: the parameters' buckets */

    struct ckpt_share held, share; /* of the state; from stage_hold on */
    struct optimizer *optimizer;   /* borrowed, as the communicator */
    struct comm *world;
    struct comm *group; /* of the stage's ranks; borrowed, as the next */
    struct reducer *reducer;
    struct comm_segment *send, *recv; /* [size] */
    struct gather squares;
    struct optimizer_peers peers;
    float *arriving[TAPE_TIES_MAX]; /* sums of ties of other stages; device memory */
    float *ties[TAPE_TIES_MAX];     /* where each tie's sum lies, as lane_add_ties wants it */
};

/*
 * Makes the cuts and tables. The caller closes *out. `interleaved` becomes 1f1b if the model can't
 * be cut into so many parts. `gpipe` does if a worker would have more micro-batches under way than
 * PLAN_STASHES_MAX. `instead` then says so.
 * Errors: ST_CONFIG     the model can't be cut so, with the reason and how often it can; or the
 *                       schedule has too many micro-batches, with the reason
 *         ST_INVALID    the plan makes no sense, with the reason
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status stage_open(const struct stage_options *options, struct stage **out,
                                  struct reason *reason);
void stage_close(struct stage *stage);

static inline uint32_t stage_chunks(const struct stage *stage)
{
    return stage->table.chunks;
}

/* Returns this rank's c-th part of the model: nodes [node_begin[part], node_begin[part + 1]). */
static inline uint32_t stage_part(const struct stage *stage, uint32_t chunk)
{
    return pipeline_part(&stage->table, stage->box.stage, chunk);
}

/* Return whether the node is one of this rank's, and whether one of its nodes reads that value. */
bool stage_has_node(const struct stage *stage, int node);
bool stage_reads(const struct stage *stage, int value);
/* True if the same rank's stages before and after have the same nodes. */
bool stage_is_same(const struct stage *stage, const struct stage *before);

/* Returns the parts that optimizer_new must have memory for; valid until stage_close. */
struct optimizer_holding stage_holding(const struct stage *stage);
/* Notes the parts of the optimizer's state that this rank has and saves, and allocates the buffers
 * of exchanges; once per stage. Errors: the backend's */
MUST_CHECK enum status stage_hold(struct stage *stage, struct optimizer *optimizer);
/* Sets the communicators for exchanges: of all ranks, and of the stage's ranks, over which exact
 * reduces. NULL: none until the next call. */
void stage_connect(struct stage *stage, struct comm *world, struct comm *group,
                   struct reducer *reducer);

/* Sends the sums of ties to the ranks that have the parameter; call it before optimizer_update.
 * sum: of this stage's lanes. *out_ties: for struct optimizer_step. */
MUST_CHECK enum status stage_gather_ties(struct stage *stage, float *sum, float *const **out_ties);
/* Returns the peers for optimizer_update: sums of squares and scalars go to all ranks, new values
 * to their readers. */
const struct optimizer_peers *stage_peers(const struct stage *stage);
/* Sends the parts of a filled-in state that only their owner has to the ranks that read and save
 * them. */
MUST_CHECK enum status stage_spread(struct stage *stage);
