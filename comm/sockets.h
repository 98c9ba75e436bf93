/*
 * The sockets of the data plane, whichever library makes them. bind(), listen(), accept() and
 * getpeername() of a program that links this are defined here and win over libc's, also for
 * libraries that are loaded later. Gloo and NCCL have no settings for any of it.
 *
 *  - What is bound to port 0 gets a port of the node's range, if there is one, and listens at once.
 *    Loopback is left alone: no firewall stands there.
 *  - Connections that are accepted end with an error when the other side has not acknowledged
 *    anything for SOCKETS_SILENCE_MS: a dead machine or a cut path is named so, and not by the
 *    deadline of a collective. So do those that comm/peers.c makes; NCCL's are covered by the side
 *    that accepts.
 *  - A library that only takes connections from a listener of its own is given one that exists
 *    already: what it makes while its thread is on stage is no listener of the network, but one end
 *    of a pair, and accepts what is handed in at the other.
 *
 *  - The peer of a connection that has ended has the address zero, and not none: Gloo asks for it
 *    on a thread of its own as soon as a connection is made, and an error there ends the process.
 *    What it reads next tells it that the peer is gone.
 *
 * All else is as libc has it: what gRPC and curl dial, sockets of other kinds.
 *
 * Thread: sockets_use_ports before the first communicator; a stage is its thread's; all else from
 *         any.
 */
#pragma once

#include <stdbool.h>

#include "common/port_range.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SOCKETS_SILENCE_MS 5000 /* as long as the coordinator waits for a silent node */

void sockets_use_ports(struct port_range range);
/* true once after a bind() found no port of the range free. */
bool sockets_were_taken(void);
/* Sets SOCKETS_SILENCE_MS for a connection that peers.c makes. */
void sockets_set_patience(int fd);

/* From now on bind() of this thread does nothing, and listen() replaces its socket by one end of a
 * pair. */
void sockets_stage_begin(void);
/* Ends that, and returns the other end of the last pair, which the caller closes; -1: nobody called
 * listen(). The end reads as hung up once the listener is closed. */
int sockets_stage_end(void);
/* Hands a connection, which stays the caller's, to the listener at the other side of that end. */
MUST_CHECK enum status sockets_hand_in(int end, int connection);

#ifdef __cplusplus
}
#endif
