/*
 * The state from copies in copy files (docs/memory.md): every share is read where it lies, on this
 * node, or sent by a rank on whose node it lies. Its head says which extents of the buffers it has;
 * all together have to hold every chunk of the state once. What comes to a rank is checked by its
 * pieces' hashes. What the rank doesn't hold (worker->held) goes nowhere, and isn't read at all
 * where nobody has to be sent it.
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

struct copy_source {
    const char *dir; /* this node's copy files; NULL: none */
    const struct session_assignment *assignment;
    /* A communicator of host memory, where copy_restore_travels. */
    const struct comm_table *table;
    struct comm *comm;
};

/* Whether some rank is on another node than some share: then shares are sent, and all ranks must
 * call copy_restore together. */
bool copy_restore_travels(const struct session_assignment *assignment);

/*
 * Fills the state, with the scalars and the skip list that belong to it.
 * Errors: reason is one line
 *         ST_CORRUPT, ST_INCOMPLETE  a copy is damaged or gone, or they aren't the complete state
 *         ST_PEER, ST_STALE          comm/comm.h
 */
MUST_CHECK enum status copy_restore(struct worker *worker, const struct copy_source *from,
                                    struct reason *reason);

/* The pins that the copies carry, for the algorithms that a device's libraries chose then; the
 * caller frees *out. ST_NOT_FOUND: no copy lies on this node */
MUST_CHECK enum status copy_restore_pins(const char *dir,
                                         const struct session_assignment *assignment, char **out);
