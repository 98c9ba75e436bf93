/*
 * The ranks that have the same of the state: all of them, or those of one stage of a pipeline.
 *
 * Thread: the step thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "trainer/worker/worker.h"

struct replica_group {
    struct comm *comm; /* borrowed */
    uint32_t first;    /* lowest rank of the replica group; the others follow */
    uint32_t rank, size;
};

/* world: a communicator of all ranks, of the kind of the worker's own where there are stages. */
struct replica_group replica_group_of(const struct worker *worker, struct comm *world);
/* True if each rank of the replica group has the same extents of that buffer; false: moments that
 * ranks own parts of. */
bool replica_group_has(const struct worker *worker, uint32_t buffer);
