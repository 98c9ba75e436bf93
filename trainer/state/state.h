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
#include "session/copies/copy_file.h"
#include "trainer/worker/worker.h"

/* Fills the state of step 0: initial_state.h, also for reason. Parameters and statistics are filled
 * whole, whatever is held. Errors besides: the backend's */
MUST_CHECK enum status state_seed(struct worker *worker, struct reason *reason);

/* Sets the parts of the state that are held to zero, in place. The scaler and the skip list stay.
 * Errors: the backend's */
MUST_CHECK enum status state_clear(struct worker *worker);

/* Makes staging for this rank's share, where the state lies on a device; before the first save. */
MUST_CHECK enum status state_allow_saves(struct worker *worker);

/* Computes the digest of the complete state after `step` finished steps. From a device all of it is
 * fetched. ST_INVALID: this rank holds a part of it only */
MUST_CHECK enum status state_digest(struct worker *worker, uint64_t step, struct ckpt_hash *out);

struct state_source {
    const char *dir; /* a checkpoint's folder */
    uint64_t step;   /* the checkpoint's step */
    /* Communicator of all ranks, which then call state_restore together and read a part each. It is
     * of host memory; where there are stages, the worker's own. NULL: this rank reads all. */
    const struct comm_table *table;
    struct comm *comm;
};

/* Culprit of a failed restore, where it is known: 1 + the damaged shard file (ckpt_reader_damaged),
 * or 1 + the rank whose part came damaged. 0: none */
struct state_blame {
    uint32_t file, rank;
};

/*
 * Fills the state from a checkpoint's folder and checks all of it: every chunk's hashes, that it is
 * this job's and of that step; what others have read by their hashes of it. A rank that reads all
 * of the state compares the digest besides. Its skip list is added to the worker's.
 * Errors: reason is one line, which begins with dir where the checkpoint failed
 *         ST_CORRUPT, ST_INCOMPLETE, ST_VERSION  damaged, or not this job's
 *         ST_NOT_FOUND, ST_IO, …                 the store failed
 *         ST_PEER, ST_STALE                      what others have read didn't come, or not complete
 * out_blame: or NULL; set where it is known, so zero before
 */
MUST_CHECK enum status state_restore(struct worker *worker, const struct state_source *from,
                                     struct state_blame *out_blame, struct reason *reason);

/* Reads the pins that a checkpoint was written with, for the algorithms that a device's libraries
 * chose then; the caller frees *out. */
MUST_CHECK enum status state_read_pins(const struct io *io, const char *dir, char **out);

/* Data that is saved with a state but isn't part of it. Borrowed texts. */
struct state_beside {
    const char *job; /* id */
    uint64_t generation;
    const char *job_file; /* normalised YAML */
    const char *pins;
};
#define STATE_BLOBS     3
#define STATE_PINS_BLOB "pins.json"
_Static_assert(WORKER_PINS_MAX + (size_t)LIMIT_JOB_FILE_BYTES < COPY_ROOM,
               "a copy has room for blobs");

/* A description of the state after `step` finished steps. Its buffers are the worker's live ones;
 * on a device, after state_allow_saves, those of trainer/device/staging.h: this rank's share. What
 * is saved and held is as the worker says (worker->share, worker->held). */
struct state_view {
    struct ckpt_state state;
    struct ckpt_blob blobs[STATE_BLOBS];
    char metrics[64]; /* blob: up to which step rows of metrics were made */
};
/* Fills in view. beside may be NULL: no blobs, as for a digest. view must not move. */
void state_describe(struct worker *worker, uint64_t step, const struct state_beside *beside,
                    struct state_view *view);

/* Returns the bytes of this rank's share of the state, which a snapshot copies. ST_FULL: a report
 * of its hashes would fit no message. */
MUST_CHECK enum status state_share_bytes(struct worker *worker, size_t *out, struct reason *reason);
uint64_t state_bytes(struct worker *worker);
