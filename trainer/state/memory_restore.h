/*
 * The state from copies in memory (session/copy_file.h): every share is read where it lies, on
 * this node, or sent by a rank on whose node it lies; every piece is checked by its hash where it
 * came to lie.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "session/session.h"
#include "trainer/worker/worker.h"

struct state_memory {
    const char *dir; /* of this node's copies; NULL: none */
    const struct session_assignment *plan;
    /* A communicator of host memory, if the ranks are not all on one node: every rank calls. */
    const struct comm_table *table;
    struct comm *comm;
};

/* Whether a share lies on another node than some rank's. */
bool state_memory_travels(const struct session_assignment *plan);

/*
 * Errors: ST_CORRUPT, ST_INCOMPLETE  a copy is damaged or gone
 *         ST_PEER, ST_STALE          comm.h
 *         message is one line
 */
MUST_CHECK enum status state_restore_memory(struct worker *worker, const struct state_memory *from,
                                            char *message, size_t capacity);

/* The pins that go with the copies, if one with them lies here; the caller frees *out. For the
 * algorithms that a device's libraries chose then. ST_NOT_FOUND */
MUST_CHECK enum status state_memory_pins(const char *dir, const struct session_assignment *plan,
                                         char **out);
