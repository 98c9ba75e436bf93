/*
 * The results of an evaluation's batches, rank by rank in one array, and their way to all ranks: on
 * a device through its memory, since NCCL moves nothing else.
 *
 * Memory: all of it from open to close.
 */
#pragma once

#include <stdint.h>

#include "comm/comm.h"
#include "common/status.h"
#include "trainer/worker/device.h"

/* What one batch gave. */
struct gather_batch {
    double loss; /* sum */
    int64_t correct, counted;
};

struct gather {
    uint32_t size;
    uint64_t count;
    struct gather_batch *results;  /* [count] host */
    struct comm_segment *segments; /* [size] of results */
    void *on_device;               /* [count]; NULL: host memory */
    struct comm_segment *device_segments;
};

/* counts: batches of each rank. */
MUST_CHECK enum status gather_open(struct gather *gather, const struct device *device,
                                   const uint64_t *counts, uint32_t size);
void gather_close(struct gather *gather, const struct device *device);

/* Own results go to all, all of theirs come here. */
MUST_CHECK enum status gather_run(struct gather *gather, const struct device *device,
                                  struct comm *comm, uint32_t rank, int64_t timeout_ms);
