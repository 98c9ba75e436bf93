/*
 * Whether a table of a pipeline is right, before anybody runs it: a worker that follows a wrong one
 * waits for ever, or adds in another order than the job's.
 *
 * A table is right if in each row
 *   - every micro-batch of the worker's lanes, and no other, has one F and one B (or I and W) in
 *     every chunk, F before B, F before I before W;
 *   - what adds to gradients (B, W) goes through each chunk's micro-batches in ascending order;
 *   - an F takes a stash that is free, what follows uses the same one, and no more are planned than
 *     are in use at once;
 * and over all rows
 *   - what is received somebody computes;
 *   - every row comes to its end if sends are not waited for: there is no replica group of rows
 *     that wait for each other. That is a table for Gloo.
 * A table that comes to its end also where sends are met is one for NCCL, too: the verdict says so.
 * All schedules were in all layouts that tests have drawn; interleaved, if it was made for that.
 *
 * Linear in the actions of the table. Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "trainer/pipeline/schedule.h"

enum pipeline_fault {
    PIPELINE_FAULTLESS,
    PIPELINE_RANGE,   /* a number that there isn't */
    PIPELINE_FOREIGN, /* a micro-batch of another worker */
    PIPELINE_TWICE,
    PIPELINE_EARLY,    /* before what it needs of the same row */
    PIPELINE_UNSORTED, /* gradients are added in another order */
    PIPELINE_STASH,
    PIPELINE_UNSENT,  /* needs what nobody computes */
    PIPELINE_MISSING, /* an action that nobody waits for */
    PIPELINE_CIRCLE,
};

struct pipeline_verdict {
    enum pipeline_fault fault;
    uint32_t row, action; /* where; action is the row's count where it is about the row */
    bool may_meet;        /* sends may be met: NCCL can run it */
    struct reason reason; /* of the fault; of a faultless table: why sends may not be met */
};

/* Finds the first fault. out: written also with ST_INVALID, which is what a fault returns.
 * Errors: ST_INVALID, ST_NO_MEMORY. */
MUST_CHECK enum status pipeline_check(const struct pipeline_table *table,
                                      struct pipeline_verdict *out);
