/*
 * Evaluation of the whole set, the same bits however lanes are spread: batch i of lane size belongs
 * to lane i mod V, losses are summed by the tree over i, counts are integers (design 5).
 *
 * Changes no state. All ranks get the result.
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

/* Only where the job has a set for it (worker.eval.dataset). */
MUST_CHECK enum status evaluation_run(struct worker *worker, struct evaluation *out);
