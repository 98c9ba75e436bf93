/*
 * One step in its two phases (design 5).
 *
 * step_compute: forward and backward of the share's lanes, micro-batches in order, and the exact
 * sum over all lanes. Communicates; changes no state. step_update:  clipping, optimizer, running
 * statistics, and the kernels' copies of the parameters. Communicates with nobody; begins only when
 * everything that it reads is complete.
 *
 * So where a peer dies, the survivors differ by at most one whole step.
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "trainer/worker/worker.h"

/* Is called when all of this rank is computed, before its last bucket leaves: no rank can finish
 * the step before it returned. */
struct step_gate {
    enum status (*pass)(void *arg);
    void *arg;
};

/* step: from 0. Errors: ST_PEER, ST_STALE (comm.h); the gate's; those of the backend. */
MUST_CHECK enum status step_compute(struct worker *worker, uint64_t step,
                                    const struct step_gate *gate);
/*
 * A gradient that overflowed under dynamic loss scaling (out->overflow) changes nothing but the
 * scale, and the step goes to the skip list.
 * ST_NUMERIC: loss or gradient is not finite; nothing was changed, out is filled in.
 */
MUST_CHECK enum status step_update(struct worker *worker, uint64_t step, double lr,
                                   struct optimizer_report *out);
