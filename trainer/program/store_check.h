/*
 * Check before a worker's first step that its node sees the job's checkpoint store and may write
 * there. A worker whose node can't would train for nothing.
 *
 * Thread: the step thread.
 */
#pragma once

#include "common/io.h"
#include "session/session.h"

/*
 * The store has the mark that the coordinator told; and, by one worker of each node where the store
 * is a folder, a file comes and goes beside it. That it is full, or fails, is for the saves to say.
 * store: of the job file
 * Errors: reason is one line that names the node
 *         ST_UNREACHABLE  another store is there, or none
 *         ST_REFUSED      this user may not write there, or not read it; *of_node is set
 *         ST_IO, …        the mark can't be read
 */
MUST_CHECK enum status store_check(const struct io *io, const char *store,
                                   const struct session_assignment *assignment, bool *of_node,
                                   struct reason *reason);
