/*
 * A model cut into stages, all in this process: runs micro-batches through them and through the
 * whole plan, and holds one against the other.
 *
 * What crosses a border is copied out when it is there and into the next stage when that needs it,
 * as messages would; memory that must stay until later is looked at again then.
 *
 * Every call asserts what it gets: a failure here is the test's.
 */
#pragma once

#include "tests/unit/trainer/training.h"

#define STAGE_RUNS_MAX 4
#define STAGE_MICROS   4 /* of a lane */

enum stage_order {
    STAGE_GPIPE, /* all forward, then all backward */
    STAGE_1F1B,  /* as few in flight as keep all stages busy */
    STAGE_SPLIT, /* as 1f1b, the second halves of backward later */
};

/* The inputs of the micro-batches, and where the plans find those of the one that runs. */
struct stage_inputs {
    void *x[STAGE_MICROS], *labels[STAGE_MICROS], *draw[STAGE_MICROS]; /* host */
    size_t x_bytes, label_bytes, draw_bytes;
    void *in_x, *in_labels, *in_draw; /* the backend's */
};

void stage_inputs_open(struct stage_inputs *inputs, struct training *t);
void stage_inputs_close(struct stage_inputs *inputs, struct training *t);

/* The lane vector of all micro-batches from the whole plan, in host memory; to be freed. */
float *stage_whole_lane(struct training *t, struct stage_inputs *inputs);

/* Asserts that stages which begin at these nodes (the first at 0) give that lane vector, each what
 * is its own and nothing else; in all of so many rounds. */
void stage_assert_lane(struct training *t, struct stage_inputs *inputs, const int *first,
                       int stages, enum stage_order order, int rounds, const float *whole);

/* Asserts that evaluation through the stages counts what the whole plan counts. */
void stage_assert_eval(struct training *t, struct stage_inputs *inputs, const int *first,
                       int stages);

/* Options of one of these stages, with as many stashes as the order needs. */
struct plan_options stage_options(struct training *t, const int *first, int stages, int stage,
                                  enum stage_order order);
