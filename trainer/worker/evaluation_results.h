/*
 * The results of an evaluation's batches, rank by rank in one array, and their way to all ranks. On
 * a device they go through its memory, since NCCL moves nothing else.
 *
 * Memory: all of it from open to close. Thread: the step thread.
 */
#pragma once

#include <stdint.h>

#include "comm/comm.h"
#include "common/status.h"
#include "trainer/worker/device.h"

/* What one batch gave. */
struct evaluation_batch {
    double loss; /* sum */
    int64_t correct, counted;
};

struct evaluation_results {
    uint32_t size;
    uint64_t count;
    struct evaluation_batch *results; /* [count] host */
    struct comm_segment *segments;    /* [size] of results */
    void *on_device;                  /* [count]; NULL: host memory */
    struct comm_segment *device_segments;
};

/* counts: batches of each rank. results starts zeroed and is closed whatever is returned. */
MUST_CHECK enum status evaluation_results_open(struct evaluation_results *results,
                                               const struct device *device, const uint64_t *counts,
                                               uint32_t size);
void evaluation_results_close(struct evaluation_results *results, const struct device *device);

/* Sends own results to all ranks and receives theirs. */
MUST_CHECK enum status evaluation_results_exchange(struct evaluation_results *results,
                                                   const struct device *device, struct comm *comm,
                                                   uint32_t rank, int64_t timeout_ms);
