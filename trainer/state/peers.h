/*
 * Copies of this rank's share at another node: a node that is lost takes no step with it.
 *
 *   peers_open ─▶ the exchange, a thread with a communicator of its own: rounds, with pauses
 *
 * A round: all ranks tell their newest whole copy and take the oldest of these; each sends that
 * to its partner and receives those of its wards into files of its own (session/copy_file.h: a
 * ward's rank, numbers from PEERS_FIRST on, two by turns), which are sealed when every piece of
 * them was checked. That round's own copies, and what was received in it, stay until all ranks have
 * finished a later round: so at any time there is a step of which every share is at two nodes.
 *
 * A round takes processors, memory and network from the training. Whatever it takes, it takes no
 * more than its own time: so a pause of so many times that follows it (peers_pause_ns), and rounds
 * are under way for one of PEERS_SHARE parts of the time at most. That bound holds where nothing is
 * left over; where much is, they cost far less.
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

#define PEERS_FIRST 8 /* number of the first copy file for a ward; own ones are below */
#define PEERS_SHARE 50

struct peers;

/*
 * Who holds whose copies: out[r] is rank r's partner, always on another node; a pure function of
 * the ranks' nodes. Each rank has one ward, except where more than half of all are on one node:
 * then the others share those.
 * Errors: ST_NOT_FOUND  all are on one node
 */
MUST_CHECK enum status peers_pair(char *const *nodes, uint32_t size, uint32_t *out);
/* How many have `rank` as their partner. */
uint32_t peers_wards(const uint32_t *partners, uint32_t size, uint32_t rank);

/* The pause after a round that took so long. */
int64_t peers_pause_ns(int64_t round_ns);

struct peers_options {
    struct session *session;               /* ready, with peers */
    const struct session_assignment *plan; /* borrowed for life, as all */
    const uint32_t *partners;
    const char *copies; /* the node's folder of the job */
    const struct log *log;
};

/* Starts the exchange. ST_NO_MEMORY */
MUST_CHECK enum status peers_open(const struct peers_options *options, struct peers **out);
/* waits: the others close now, too; else it is ended where it is. Before the session. NULL is fine.
 */
void peers_close(struct peers *peers, bool waits);
