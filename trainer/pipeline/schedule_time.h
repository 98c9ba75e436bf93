/*
 * Duration of a step's table on a simulated clock: `cairn plan` compares schedules by it, and the
 * checker is tested against it.
 *
 * An action begins when its worker is through with the one before it and, where it needs what
 * another worker computes, that is there: at once, since messages take no time here. Where sends
 * are met, a worker also waits until all that take part in its call are there.
 *
 * Pure functions. Thread: any.
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "trainer/pipeline/schedule.h"

/* Costs of one micro-batch in one chunk, in any unit, by pipeline_kind; 0 or more. */
struct pipeline_cost {
    double of[PIPELINE_KINDS];
};

struct pipeline_time {
    double whole;  /* when the last worker is through */
    double bubble; /* of the worker that computes longest: what it doesn't compute, by what it does;
                      0 where nothing takes time */
};

/*
 * cost: [stages]. idle: [row_count] of each worker, `whole` less what it computes; may be NULL.
 * The table's numbers are in range and each action is there once at most; else it may be wrong.
 * Errors: ST_INVALID    it gets stuck: nothing is written
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status pipeline_clock(const struct pipeline_table *table,
                                      const struct pipeline_cost *cost, enum pipeline_sends sends,
                                      struct pipeline_time *out, double *idle);
