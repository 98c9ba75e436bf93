/*
 * One rank, put together: data, model, state, reduction. What a step, an evaluation, a restore and
 * a save work on.
 *
 * Use: worker_open     reads the headers of the data, builds and prepares the model; the images are
 *                      loaded by threads beside it
 *      worker_connect  once a communicator is open
 *      the state is filled in: trainer/state/state.h, trainer/state/copy_restore.h
 *      worker_start    then steps: trainer/loop/step.h
 *
 *      worker_disconnect   wherever the worker is, once its generation has ended
 *      worker_regroup      in the next one; from there as above, from worker_connect on
 *
 *      A spare has neither a communicator nor a state: worker_warm after worker_open, and
 *      worker_regroup when it gets a seat.
 *
 * What stays from one generation to the next: data, what was prefetched of them, model, plans and
 * what the device recorded of them, optimizer and state, the buffers of the reduction.
 *
 * Memory: all of the step loop's is allocated when worker_start has returned.
 * Thread: the step thread.
 * Errors: reason is one line "place: cause; way out" for ST_CONFIG, a cause for others.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "comm/reducer.h"
#include "common/io.h"
#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "kernels/backend.h"
#include "trainer/audit/audit_judge.h"
#include "trainer/data/dataset.h"
#include "trainer/data/prefetch.h"
#include "trainer/device/device.h"
#include "trainer/device/feed.h"
#include "trainer/device/gather.h"
#include "trainer/device/lane_clock.h"
#include "trainer/device/lane_sums.h"
#include "trainer/device/progress.h"
#include "trainer/device/staging.h"
#include "trainer/plan/plan.h"
#include "trainer/stage/stage.h"
#include "trainer/stage/stage_run.h"
#include "trainer/tape/lane.h"
#include "trainer/update/optimizer.h"
#include "trainer/update/scaler.h"
#include "trainer/worker/build.h"
#include "trainer/worker/ownership.h"
#include "trainer/worker/settings.h"

/* Deadline of one exchange of the reduction. A peer that dies is noticed at once, and the
 * coordinator ends a generation that hangs sooner; this is for a peer that hangs while the
 * coordinator is away. */
#define WORKER_COMM_TIMEOUT_MS INT64_C(600000)

/* Result of one batch of an evaluation. */
struct evaluation_batch {
    double loss; /* sum */
    int64_t correct, counted;
};

/* A split of the data, and the thread that loads it. */
struct worker_loader {
    struct dataset *dataset;
    pthread_t thread;
    bool running;
    enum status st; /* once it has ended */
    struct reason reason;
};

struct worker_options {
    const struct jobspec *job; /* borrowed for life, as all below */
    const struct io *io;
    struct progress *progress;
    uint32_t rank, size;
    const uint32_t *shares;          /* lanes per rank */
    const struct stage_plan *stages; /* of a pipeline; NULL: every rank has all nodes */
    /* Backend and communication for tests; NULL: those of the job's device. */
    const struct backend_table *table;
    const struct comm_table *comm;
    /* True if the job trained on its data before: an error of the data then means that they were
     * changed or replaced (ST_CHANGED), not that the job file is wrong. */
    bool data_known;
    const char *sums;    /* the node's folder for hashes of data (trainer/data/sums.h), or NULL */
    const char *choices; /* pins of the checkpoint to start from, or NULL; until worker_open */
    const char *known;   /* the same, also where the device has no choices; until worker_open */
    bool *of_node;       /* set where the device or the data failed: another node may do; or NULL */
};

/* The ranks that have the same nodes as this one, among which gradients are summed. */
struct worker_group {
    uint32_t first; /* lowest rank of the group; the others follow */
    uint32_t rank, size;
    const uint32_t *shares; /* of these */
};

/* Communicators of a generation: all ranks, the group's, and neighbouring stages of a pipeline.
 * Where every rank has all nodes, world and group are one, and there is no pipe. */
struct worker_comms {
    struct comm *world, *group, *pipe;
};

struct worker {
    struct worker_options options;
    struct settings settings;
    struct worker_group group;
    uint32_t order[LIMIT_LANES]; /* all lanes, rank by rank of the group (comm/reducer_order.h) */
    const uint32_t *lanes;       /* [lane_count] its own, ascending: in order */
    uint32_t lane_count;

    struct worker_loader train, eval; /* eval.dataset may be NULL */
    struct feed *batches, *eval_batches;

    struct device device;
    struct tape *tape;
    char model_pins[BUILD_PINS_BYTES]; /* as in struct built_model */
    /* Plans, one for each chunk of the stage, or one for the whole tape. Evaluations' are NULL
     * without any. */
    struct plan *plans[STAGE_CHUNKS_MAX], *eval_plans[STAGE_CHUNKS_MAX];
    uint32_t plan_count;
    double micro_flops; /* operations of a micro-batch through all nodes, forward and backward */
    struct optimizer *optimizer;

    struct lane_layout layout;
    size_t bucket_count;
    size_t *bucket_begin; /* the ownership's */
    struct ownership ownership;
    struct worker_comms comms; /* device.comm's; owned */
    struct comm *comm;         /* comms.world; NULL with one rank */
    struct stage *stage;       /* NULL: this rank has all nodes */
    struct stage_run *stage_run;
    struct gather agreement; /* trainer/worker/agree.h; not with one rank */
    struct lane_sums *sums;  /* NULL: nothing is audited */
    struct lane_clock clock;
    int64_t lanes_us; /* of the newest step: its lanes, and one that it audited; 0: not known */
    struct reducer *reducer;
    bool lost; /* the loss of one of its own lanes in this step isn't finite; in host memory only */

    struct scaler scaler;
    float *loss_scale;        /* device memory, its value; NULL: 1 for ever */
    float *loss_scale_staged; /* host memory, on its way there */
    struct staging *staging;  /* NULL: state lies in host memory, or nothing is saved */
    /* The part of the state that this rank saves, and the part that it has, as in struct
     * ckpt_state; from worker_hold on. */
    const struct ckpt_share *share, *held;

    uint64_t eval_count;        /* batches of the whole set */
    struct gather eval_results; /* of struct evaluation_batch */
    double *eval_losses;        /* in the order of the batches */

    uint64_t *skip; /* steps (from 0) that are left out: skip_list.c */
    size_t skip_count, skip_room;
    uint64_t skip_older; /* how many were forgotten */
    struct loss_history history;
    uint64_t *noted; /* [CKPT_SKIPS_MAX] the list with the history's notes; NULL: none is kept */
};

MUST_CHECK enum status worker_open(const struct worker_options *options, struct worker **out,
                                   struct reason *reason);
void worker_close(struct worker *worker);

/* Begins the reduction over open communicators of device.comm, which belong to the worker from here
 * on, whatever is returned. NULL: one rank, or a spare: no step of it is reduced. */
MUST_CHECK enum status worker_connect(struct worker *worker, const struct worker_comms *comms,
                                      struct reason *reason);
/* Returns whether that rank's stage is a neighbour of this one's, so that the pipe connects
 * them. */
bool worker_is_neighbour(const struct worker *worker, uint32_t rank);
/* Lets go of the communicator, which is aborted, and of the step that was under way. A step that
 * was not updated is as if it had never begun. */
void worker_disconnect(struct worker *worker);
/*
 * Makes the worker another rank of another generation; options->job may have changed where a
 * running job's may. Call it after worker_disconnect, when nothing copies the state any more.
 * shares is borrowed for life. In a pipeline, or where there are stages now: worker_restage.
 * Errors: ST_INVALID, ST_CONFIG
 */
MUST_CHECK enum status worker_regroup(struct worker *worker, uint32_t rank, uint32_t size,
                                      const uint32_t *shares, struct reason *reason);
/*
 * Like worker_regroup, in a pipeline. stages: of the next generation.
 * Errors: ST_NOT_FOUND  this rank's stage has other nodes there, or it has none of its own: only
 *                       worker_close is left
 */
MUST_CHECK enum status worker_restage(struct worker *worker, const struct stage_plan *stages,
                                      uint32_t rank, uint32_t size, const uint32_t *shares,
                                      struct reason *reason);
/* Allocates memory for the part of the state that this rank owns in this generation; call it before
 * a state is filled in. Where that part changed, it is zero, or what move gives
 * (trainer/worker/ownership.h). */
MUST_CHECK enum status worker_hold(struct worker *worker, const struct optimizer_move *move);
/* Return the group of ranks that have the loss, and all lanes in the order of their shares. */
struct worker_group worker_last_group(const struct worker *worker);
const uint32_t *worker_last_order(const struct worker *worker);
/* True with parallel.reduction: fast. The digest then depends on the number of workers. */
bool worker_is_fast(const struct worker *worker);
/* Returns which lanes are computed twice. */
struct audit_rule worker_audits(const struct worker *worker);

/* Does the part of worker_start that needs no state, for a spare: waits for the data, allocates the
 * inputs. worker_connect without a communicator and step_rehearse (trainer/loop/step.h) follow. */
MUST_CHECK enum status worker_warm(struct worker *worker, struct reason *reason);
/* Waits for the data and starts the prefetch thread at `step`; the state must be filled in. */
MUST_CHECK enum status worker_start(struct worker *worker, uint64_t step, struct reason *reason);

/* Adds steps to the skip list: those that are not trained on. Notes among them go to the history. A
 * checkpoint's list may tell of older ones: their number is taken over. Of more than CKPT_SKIPS_MAX
 * entries the oldest are forgotten, except for their number. ST_NO_MEMORY */
MUST_CHECK enum status worker_skip_add(struct worker *worker, const uint64_t *steps, size_t count);
/* Empties the skip list and the history: another state is about to be filled in. */
void worker_skip_clear(struct worker *worker);
bool worker_skip_has(const struct worker *worker, uint64_t step);
/* Counts the steps before `step` that are left out; undefined for steps as old as forgotten
 * ones. */
uint64_t worker_skip_before(const struct worker *worker, uint64_t step);
/* Returns the skip list with notes, as a checkpoint has it: borrowed until the next change. */
const uint64_t *worker_skip_list(const struct worker *worker, uint64_t step, size_t *out_count);

/* Returns the parameters that evaluations take: those of the state, or their moving average
 * (train.eval_ema). */
float *worker_evaluated(const struct worker *worker);
/* Refreshes the plans, or those of evaluations, or only what an update didn't write
 * (plan_refresh). */
enum worker_refreshed { REFRESH_TRAINING, REFRESH_EVALUATION, REFRESH_REST };
MUST_CHECK enum status worker_refresh(struct worker *worker, enum worker_refreshed what);

/* Sets the next loss scale, after an update or an overflow. ST_NUMERIC: it can't be lowered. */
MUST_CHECK enum status worker_scale(struct worker *worker, bool overflow);

/* Room for the pins: implementations of all ops, and the files of both splits that are named. */
#define WORKER_PINS_MAX ((size_t)64 * 1024 + (size_t)2 * TOKENS_NAMED * (LIMIT_PATH + 64))
/* Appends the pins, on which bits depend beside the job, as a JSON object. Waits for the data,
 * which are among them. out has room for WORKER_PINS_MAX. ST_CONFIG: names with too many characters
 * that JSON escapes. */
MUST_CHECK enum status worker_pins(struct worker *worker, struct buf *out, struct reason *reason);
