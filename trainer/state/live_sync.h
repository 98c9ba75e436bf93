/*
 * The state from workers that have it: every rank of a generation whose assignment says so
 * (live_sources) calls this together. Sources keep what they have; the others get all of it, and
 * the scalars and the skip list that belong to it (chunk_stream.h).
 *
 * Before anything is sent all ranks compare what they are about to do: sources must have the state
 * of that step, complete and with the same scalars, and all must describe it alike.
 *
 * Thread: the step thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/reason.h"
#include "session/session.h"
#include "trainer/worker/worker.h"

#define LIVE_NOTE_MAX 128 /* bytes */

struct live_sync_options {
    const struct session_assignment *assignment;
    const struct comm_table *table; /* of host memory */
    struct comm *comm;
    const struct session_parked *kept; /* state that this rank has */
    const void *note;                  /* goes to all ranks; may be NULL with size 0 */
    size_t note_size;                  /* the same on all */
    void *notes;                       /* out: [ranks][note_size], those of the sources */
    void *tail;                        /* the first source's comes to lie here on all ranks */
    size_t tail_size;                  /* the same on all; 0: none */
};

/*
 * Errors: ST_CORRUPT  what came is damaged, or sources differ; out_blamed is one of them
 *         ST_INVALID  the assignment names this rank as a source, and it is none
 *         ST_PEER, ST_STALE  comm/comm.h
 *         After any of them the state of a rank that is no source is not complete.
 */
MUST_CHECK enum status live_sync(struct worker *worker, const struct live_sync_options *options,
                                 uint32_t *out_blamed, struct reason *reason);

/* Whether that rank is among the sources. */
bool live_sync_is_source(const struct session_assignment *assignment, uint32_t rank);
