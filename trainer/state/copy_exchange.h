/*
 * Copies of this rank's share at another node, so that a lost node takes no step with it.
 *
 * A thread with a communicator of its own exchanges copies in *rounds*, with pauses in between. In
 * a round all ranks agree on one step of which each has a complete copy; each sends its copy to its
 * copy peer and receives those of the peers that it holds (copy_peers.h). What it receives goes
 * into copy files of its own (session/copies): two for each peer, used by turns, with the peer's
 * rank in their names and numbers from COPY_EXCHANGE_FIRST on. They are sealed when every piece of
 * them was checked. The copies of a round, own and received, stay until all ranks have finished a
 * later round: so at any time there is a step of which every share is at two nodes.
 *
 * A round takes processors, memory and network from the training, but never more than its own time.
 * So a pause of COPY_EXCHANGE_SHARE - 1 times that follows it: rounds are under way for one part in
 * COPY_EXCHANGE_SHARE of the time. That bounds what they cost where the machine is busy; where
 * processors are idle they cost far less.
 *
 * Nothing of it is on the step's path, and no failure of it ends the job: it is warned of once, and
 * the generation goes on without.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/log.h"
#include "common/status.h"
#include "session/session.h"

#define COPY_EXCHANGE_FIRST 8 /* number of the first file for a peer's copies; own ones are below */
#define COPY_EXCHANGE_SHARE 50

struct copy_exchange;

/* The pause after a round that took so long. */
int64_t copy_exchange_pause_ns(int64_t round_ns);

struct copy_exchange_options {
    struct session *session;                     /* after session_set_ready, which said peers */
    const struct session_assignment *assignment; /* borrowed for life, as all */
    const uint32_t *copy_peers;                  /* of copy_peers_choose */
    const char *copies;                          /* the node's folder of the job */
    size_t peer_copy_bytes; /* most that a peer's share has; memory is budgeted for it */
    const char *secret;     /* the generation's (comm/comm.h) */
    const struct log *log;
};

/* Starts the thread. ST_NO_MEMORY */
MUST_CHECK enum status copy_exchange_open(const struct copy_exchange_options *options,
                                          struct copy_exchange **out);
/*
 * Ends it, before the session is closed. NULL is fine.
 * waits: all ranks close now, so that the round under way is given 2 s to end; else it is broken
 * off where it is.
 */
void copy_exchange_close(struct copy_exchange *exchange, bool waits);
