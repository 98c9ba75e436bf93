/*
 * Evaluation of the whole set, the same bits however lanes are spread (docs/invariants.md,
 * "The exact step"): batch i, as large as a lane, belongs to lane i mod V; losses are summed by the
 * tree over i, counts are integers.
 *
 * Changes no state. All ranks get the result. Thread: the step thread.
 * Errors: ST_CONFIG          the data are wrong: feed_reason of worker->eval_batches
 *         ST_PEER, ST_STALE  comm/comm.h
 *         those of the backend
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "trainer/worker/worker.h"

struct evaluation {
    double loss;     /* mean over what was counted */
    double accuracy; /* correct / counted */
    uint64_t correct, counted;
};

/* Evaluates; only where the job has data for it (worker->eval.dataset). */
MUST_CHECK enum status evaluation_run(struct worker *worker, struct evaluation *out);
