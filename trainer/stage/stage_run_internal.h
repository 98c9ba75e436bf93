/*
 * Inside of a stage's run, shared by
 *
 *   stage_run_open.c   memory
 *   stage_messages.c   what goes between two actions
 *   stage_step.c       a step's actions
 *   stage_evaluate.c   an evaluation's
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "trainer/stage/stage_run.h"

/* Messages of one border and direction, and their tensors' posts. */
struct message {
    struct comm_post post[PLAN_GRADIENTS_MAX];
    int count; /* under way; 0: none */
};

/* Inputs of a micro-batch from the feed, kept from its first F to its last backward. */
struct kept {
    uint32_t micro;
    void *inputs[TAPE_INPUTS_MAX]; /* copies, device memory; NULL: the stage reads none */
    uint32_t *draw;
    bool draws;               /* the micro-batch has random numbers */
    struct stage_result sums; /* of an evaluation */
};

/* Data of a micro-batch in flight beside the plan's stash. */
struct stage_flight {
    const struct kept *kept;
    float *lane; /* addresses of a lane vector, memory for statistics and scalars */
    struct message value_in, value_out, gradients_in;
};

/* Gradients on their way: a copy, so that the next micro-batch may have the stash at once. */
struct outbox {
    void *memory;
    struct message message;
};
#define OUTBOXES 2

/* Gradients that are asked for at a time: tensors. A schedule that goes far ahead asks later. */
#define ASKED_MAX 192
/* Posts at a time: of each stash a value that was sent; the gradients above; what came before is
 * being sent from an outbox, and what comes next was asked for. */
_Static_assert(PLAN_STASHES_MAX + ASKED_MAX + (OUTBOXES + 1) * PLAN_GRADIENTS_MAX + 1 <=
                   COMM_POSTS_MAX,
               "posts of a pipeline");

struct stage_run {
    struct stage_run_options options;
    const struct device *device;
    struct comm *pipe;
    struct plan *const *plans;    /* the options' or an evaluation's */
    struct stage_flight *flights; /* [stashes] */
    uint32_t stashes;
    struct kept *kept; /* [kept_count] in turn */
    uint32_t kept_count, taken;
    uint32_t lanes_done[STAGE_CHUNKS_MAX];
    struct outbox outboxes[OUTBOXES]; /* in turn */
    uint32_t turn;
    uint32_t asked;   /* tensors of gradients that are asked for and were not waited for */
    uint32_t unasked; /* micro-batches that went forward since, with theirs still to be asked for */
    size_t input_bytes[TAPE_INPUTS_MAX];
    size_t draw_bytes;
    struct lane_layout layout;
    struct lane_extent sums; /* of the lane vector: what F makes */
};

/* Enqueues a copy on the compute stream. */
MUST_CHECK enum status stage_run_copy(struct stage_run *run, void *to, const void *from,
                                      size_t bytes);
/* Copies the item's inputs, which the feed leaves in place for the next item only. */
MUST_CHECK enum status stage_run_keep(struct stage_run *run, struct kept *kept,
                                      const struct feed_item *item);
/* Returns the arguments of a plan for an action, whose flight knows its micro-batch. */
struct plan_call stage_run_call(const struct stage_run *run, const struct pipeline_action *action);

/* Waits for the posts of a message, if there are any. */
MUST_CHECK enum status stage_run_wait(struct stage_run *run, struct message *message);
/* Waits for everything that was sent, too. */
MUST_CHECK enum status stage_run_wait_all(struct stage_run *run);
/* Exchanges one bundle between two actions; before, after: or NULL. */
MUST_CHECK enum status stage_run_bundle(struct stage_run *run, const struct pipeline_action *before,
                                        const struct pipeline_action *after);
