/*
 * A thread that fills the batches to come into a ring of fixed size, in one fixed order.
 *
 * Training order: steps ascending without end; in a step the lanes [lane_first, lane_first +
 * lane_count) ascending; in a lane its micro-batches. Evaluation order: the batches i with i mod
 * lanes in that range, ascending; in a batch its micro-batches; then the end.
 *
 * Memory: allocated at open; nothing afterwards.
 * Thread: one caller beside the thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/data/batch.h"

#define PREFETCH_SLOTS 4

struct prefetch;

struct prefetch_options {
    struct batch_source source;
    uint32_t lane_first, lane_count;
    bool evaluation;
};

struct prefetch_item {
    uint64_t step; /* evaluation: the batch */
    uint32_t lane, micro;
    const float *x;        /* [micro_batch, C, H, W], aligned to 64 bytes */
    const int32_t *labels; /* [micro_batch] */
};

MUST_CHECK enum status prefetch_open(const struct prefetch_options *options, struct prefetch **out);
void prefetch_close(struct prefetch *prefetch);

/* Drops what is in the ring and goes on from this step (evaluation: from batch 0; step is ignored).
 */
void prefetch_start(struct prefetch *prefetch, uint64_t step);
/* The next item, borrowed until the next call of prefetch_take or prefetch_start; waits for it.
 * NULL at the end of an evaluation. */
const struct prefetch_item *prefetch_take(struct prefetch *prefetch);
