/*
 * The training state as checkpoints see it: seeded, restored, described, digested.
 *
 * Thread: the step thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/reason.h"
#include "common/status.h"
#include "trainer/worker/worker.h"

/* Fills the state of step 0: initial_state.h, also for reason. Parameters and statistics are filled
 * whole, whatever is held. Errors besides: the backend's */
MUST_CHECK enum status state_seed(struct worker *worker, struct reason *reason);

/* Zero, where it lies, what is held of it. The scaler and the skip list stay. Errors: the backend's
 */
MUST_CHECK enum status state_clear(struct worker *worker);

/* Before the first save: staging for this rank's share, where the state lies on a device. */
MUST_CHECK enum status state_allow_saves(struct worker *worker);

/* The digest of the whole state after `step` finished steps. From a device all of it is fetched.
 * ST_INVALID: this rank holds a part of it only */
MUST_CHECK enum status state_digest(struct worker *worker, uint64_t step, struct ckpt_hash *out);

/*
 * Fills the state from a checkpoint's folder and checks all of it: every chunk's hashes, the digest
 * of what was read, that it is this job's and of that step. A rank that holds a part of the state
 * reads that only, and compares no digest. Its skip list is added to the worker's.
 * Errors: reason is one line that begins with dir
 *         ST_CORRUPT, ST_INCOMPLETE, ST_VERSION  damaged, or not this job's
 *         ST_NOT_FOUND, ST_IO, …                 the store failed
 * out_damaged: or NULL; 1 + the shard file that is damaged, where it is one (ckpt_reader_damaged)
 */
MUST_CHECK enum status state_restore(struct worker *worker, const char *dir, uint64_t step,
                                     uint32_t *out_damaged, struct reason *reason);

/* The pins that a checkpoint was written with, for the algorithms that a device's libraries chose
 * then; the caller frees *out. */
MUST_CHECK enum status state_read_pins(const struct io *io, const char *dir, char **out);

/* What goes with a state but isn't part of it. Borrowed texts. */
struct state_beside {
    const char *job; /* id */
    uint64_t generation;
    const char *job_file; /* normalised YAML */
    const char *pins;
};
#define STATE_BLOBS     3
#define STATE_PINS_BLOB "pins.json"

/* A description of the state after `step` finished steps. Its buffers are the worker's live ones;
 * on a device, after state_allow_saves, those of trainer/device/staging.h: this rank's share. What
 * is saved and held is as the worker says (worker->share, worker->held). */
struct state_view {
    struct ckpt_state state;
    struct ckpt_blob blobs[STATE_BLOBS];
    char metrics[64]; /* blob: up to which step rows of metrics were made */
};
/* beside may be NULL: no blobs, as for a digest. view must not move. */
void state_describe(struct worker *worker, uint64_t step, const struct state_beside *beside,
                    struct state_view *view);

/* Bytes of this rank's share of the state: what a snapshot copies. */
size_t state_share_bytes(struct worker *worker);
uint64_t state_bytes(struct worker *worker);
