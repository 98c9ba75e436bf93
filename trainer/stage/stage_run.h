/*
 * A step, and an evaluation, on one stage: the rank's row of the pipeline's table, action by
 * action.
 *
 * What crosses a border goes by posted messages (comm/comm.h) from where a plan left it to where
 * the next one wants it; gradients that go back by way of a copy, so that their stash is free.
 * Between two actions all that is sent and received is one bundle: what the action before gave, and
 * what the next one needs. On hosts gradients are asked for as soon as their micro-batch went
 * forward. Each border of parts has two channels, one for each direction.
 *
 *     F  its value has come → a copy of the inputs → plan_forward → the output is sent
 *     B  its gradients have come → plan_backward into the lane's vector → gradients are sent
 *     I  its gradients have come → plan_backward_inputs → gradients are sent
 *     W  plan_backward_params into the lane's vector
 *
 * Each chunk of the stage has a plan; their stashes lie in one arena, each used by one plan at a
 * time. A micro-batch is taken from the feed by its first F and kept until its last backward, as
 * later chunks may read inputs, too.
 *
 * A lane's statistics and scalars are made by F, which may be lanes ahead of the reduction: they
 * lie beside the stash until B or W adds them to the lane's vector, in the order and with the
 * additions of a plan of the whole tape.
 *
 * Memory: all of it from open to close. Thread: the step thread.
 * Errors: comm/comm.h; those of the feed and of the backend; ST_STALE: progress_stopped
 */
#pragma once

#include <stdint.h>

#include "comm/comm.h"
#include "comm/reducer.h"
#include "common/status.h"
#include "trainer/device/feed.h"
#include "trainer/plan/plan.h"
#include "trainer/stage/stage.h"

struct stage_run;

struct stage_run_options { /* borrowed for life */
    const struct stage *stage;
    struct plan *const *plans; /* [chunks] the same bytes for each stash */
    const float *params, *stats;
    const float *loss_scale; /* struct plan_call */
    int64_t batch;           /* samples of a micro-batch */
};

/* Number of micro-batches whose inputs are kept at once. */
uint32_t stage_run_kept(const struct stage *stage);

MUST_CHECK enum status stage_run_open(const struct stage_run_options *options,
                                      struct stage_run **out);
void stage_run_close(struct stage_run *run);
/* Sets the communicator of the pipe: of all ranks, connected between neighbouring stages. */
void stage_run_connect(struct stage_run *run, struct comm *pipe);

struct stage_step {
    uint64_t step;
    struct feed *feed;       /* at the step's first micro-batch */
    struct reducer *reducer; /* after reducer_begin */
    /* Called for the last micro-batch of the last lane, as plan_backward calls it. */
    plan_final_fn on_final;
    void *final_arg;
    /* Called when a lane's vector is complete, except for the last lane's. */
    void (*on_lane)(void *arg, float *lane);
    void *lane_arg;
};
/* Runs forward and backward of all own micro-batches, and hands them to the reduction as
 * trainer/loop/step.h does. */
MUST_CHECK enum status stage_run_step(struct stage_run *run, const struct stage_step *step);

/* Places for the result of an evaluation's batch, in the last stage. */
struct stage_result {
    double *loss;
    int64_t *correct, *counted;
};
struct stage_evaluation {
    struct plan *const *plans; /* [chunks] an evaluation's, of the same nodes */
    struct feed *feed;
    /* Called by the last stage before each micro-batch, to say where its sums go. */
    struct stage_result (*result)(void *arg, const struct feed_item *item);
    void *arg;
};
/* Runs forward of all batches of the feed. */
MUST_CHECK enum status stage_run_evaluate(struct stage_run *run,
                                          const struct stage_evaluation *evaluation);
