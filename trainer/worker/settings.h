/*
 * Meaning of a job file once the size of its data is known: counts in steps, and the options of the
 * parts. A pure function of (job, samples): the same on every rank in every generation.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "trainer/plan/plan.h"
#include "trainer/tape/precision.h"
#include "trainer/update/history.h"
#include "trainer/update/optimizer.h"
#include "trainer/update/scaler.h"
#include "trainer/update/schedule.h"

struct settings {
    uint32_t lanes, lane_size;        /* samples */
    uint32_t micro_batch, accumulate; /* 0: for memory_need_fit to say */
    uint64_t seed;
    uint64_t steps_per_epoch;
    uint64_t total_steps;    /* at least 1 */
    uint64_t eval_every;     /* steps; 0: at the end only */
    uint64_t save_every;     /* steps; 0: at the end only */
    uint64_t audit_every;    /* steps; 0: no lane is computed twice */
    uint64_t checksum_every; /* steps between two comparisons of the replicas; 0: none */
    struct schedule schedule;
    struct optimizer_options optimizer;
    enum math math; /* of products: train.precision */
    enum amp amp;   /* O1 where the precision has none */
    enum plan_recompute recompute;
    struct scaler_options scaler;
    struct history_options history;
};

/* Errors: ST_CONFIG  reason is one line for the user: fewer samples than a global batch, or
 *                    something that this version doesn't do */
MUST_CHECK enum status settings_derive(const struct jobspec *job, uint64_t samples,
                                       struct settings *out, struct reason *reason);
