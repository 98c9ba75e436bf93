/*
 * Moments that ranks own, from the owners of one generation to those of the next: part of a live
 * recovery in which all parts are there (trainer/state/live_sync.h).
 *
 * Each part goes to all ranks, a stretch at a time, and each takes what it owns now.
 *
 * Thread: the step thread.
 */
#pragma once

#include <stdint.h>

#include "comm/comm.h"
#include "common/status.h"
#include "trainer/worker/worker.h"

struct owned_sync_options {
    const struct comm_table *table; /* of host memory */
    struct comm *comm;              /* of all ranks of this generation */
    uint32_t parts;                 /* ranks that owned before; 1: one had all */
    const uint32_t *sources;        /* [parts] a rank that has that part */
};

/* Every rank calls it alike. Errors: comm/comm.h, the backend's, ST_NO_MEMORY */
MUST_CHECK enum status owned_sync(struct worker *worker, const struct owned_sync_options *options);
