/*
 * The training state as checkpoints see it: seeded, restored, described, digested.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"
#include "trainer/worker/worker.h"

/* Fills the state of step 0: see initial.h, also for message. Errors besides: those of the backend.
 */
MUST_CHECK enum status state_seed(struct worker *worker, char *message, size_t capacity);

/* Before the first save: room for this rank's copies where the state lies on a device. */
MUST_CHECK enum status state_allow_saves(struct worker *worker);

/* The digest of the whole state after `step` finished steps. On a device all of it is fetched. */
MUST_CHECK enum status state_digest(struct worker *worker, uint64_t step, struct ckpt_hash *out);

/*
 * Fills the state from a checkpoint's folder and checks all of it: every chunk's hashes, the digest
 * of what was read, that it is this job's and of that step. Its skip list is added to the worker's.
 * Errors: ST_CORRUPT, ST_INCOMPLETE, ST_VERSION  damaged, or not this job's
 *         ST_NOT_FOUND, ST_IO, …                 the store failed
 *         message is one line that begins with dir
 */
MUST_CHECK enum status state_restore(struct worker *worker, const char *dir, uint64_t step,
                                     char *message, size_t capacity);

/* The pins that a checkpoint was written with; the caller frees *out. For the algorithms that a
 * device's libraries chose then. */
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

/* A description of the state after `step` finished steps, pointing into the worker: at the live
 * buffers, or, once state_allow_saves made room on a device, at this rank's copies (snapshot.h). */
struct state_view {
    struct ckpt_state state;
    struct ckpt_blob blobs[STATE_BLOBS];
    char metrics[64]; /* the metric cursor: rows up to this step were made */
};
/* beside may be NULL: no blobs, as for a digest. view must not move. */
void state_describe(struct worker *worker, uint64_t step, const struct state_beside *beside,
                    struct state_view *view);

/* Bytes of this rank's share of the state: what a snapshot copies. */
size_t state_share_bytes(struct worker *worker);
uint64_t state_bytes(struct worker *worker);
