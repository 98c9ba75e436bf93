/* The lowest layer of the core: giving up, and random names. */
#pragma once

#include "server/coord/state.h"

/*
 * Gives up: nothing leaves any more, and the process ends. It is for what nobody can go on without
 * (memory, the journal), and for records of our own that contradict each other.
 *
 * A failure that concerns one job only (a path or a table that is too large) is for that job to
 * hear. A coordinator that starts again would meet it again, and end again, for all jobs.
 */
void coord_fail(struct coord *coord, enum status st, const char *doing);
/* Writes random hex digits, capacity - 1 of them: an even number, 64 at most. */
void coord_nonce(struct coord *coord, char *out, size_t capacity);
