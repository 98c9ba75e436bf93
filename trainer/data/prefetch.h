/*
 * A thread that fills the batches to come into a ring of fixed size, in one fixed order.
 *
 * Training order    steps ascending without end; in a step the lane that is audited, if there is
 *                   one (trainer/audit/audit_rule.h), then the lanes of the share, as they stand
 *                   there; in a lane its micro-batches
 * Evaluation order  the batches i with i mod lanes in the share, ascending; in a batch its
 *                   micro-batches; then the end
 *
 * Memory: allocated at open; nothing afterwards.
 * Thread: one caller beside the thread.
 * Errors: ST_CONFIG, ST_CHANGED  the data are wrong, or not what they were; prefetch_reason says
 *         what, and nothing comes any more
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/audit/audit_rule.h"
#include "trainer/data/batch.h"

#define PREFETCH_ENTRIES 4 /* of the ring */

struct prefetch;

/* Where the ring lies: for example in memory that a device copies from. Aligned to 64 bytes. */
struct prefetch_memory {
    enum status (*alloc)(void *self, size_t bytes, void **out);
    void (*free)(void *self, void *memory);
    void *self;
};

/* Which lanes; copied, with all that it points to. */
struct prefetch_share {
    const uint32_t *lanes; /* [lane_count] each at most once */
    uint32_t lane_count;
    uint32_t rank;           /* ... of audit */
    struct audit_rule audit; /* of training */
};

struct prefetch_options {
    struct batch_source source;
    struct prefetch_share share;
    bool evaluation;
    const struct prefetch_memory *memory; /* borrowed for life; NULL: malloc */
};

struct prefetch_item {
    uint64_t step; /* evaluation: the batch */
    uint32_t lane, micro;
    const void *x;         /* as batch.h says */
    const int32_t *labels; /* as batch.h says */
    const uint32_t *draw;  /* training: OP_DRAW_SAMPLES + micro_batch words; evaluation: NULL */
};

MUST_CHECK enum status prefetch_open(const struct prefetch_options *options, struct prefetch **out);
void prefetch_close(struct prefetch *prefetch);

/* Drops what is in the ring and goes on from this step (evaluation: from batch 0; step is ignored).
 */
void prefetch_start(struct prefetch *prefetch, uint64_t step);
/* Other lanes from the next prefetch_start on; until then nothing is filled. What was taken last is
 * not valid any more. */
void prefetch_move(struct prefetch *prefetch, const struct prefetch_share *share);
/* The next item, borrowed until the next call of prefetch_take or prefetch_start; waits for it.
 * *out is NULL at the end of an evaluation. */
MUST_CHECK enum status prefetch_take(struct prefetch *prefetch, const struct prefetch_item **out);
/* After an error of prefetch_take: one line "path: cause; way out". */
const struct reason *prefetch_reason(const struct prefetch *prefetch);
