/*
 * The sockets of the data plane, whoever makes them: bind(), connect() and accept() of a program
 * that links this are defined here and win over libc's, also for libraries that are loaded later
 * (Gloo and NCCL have no settings for any of it).
 *
 *  - What is bound to port 0 gets a port of the node's range, if there is one, and listens at once.
 *    Loopback is left alone: no firewall stands there.
 *  - Connections that are accepted, and those that Gloo makes, end with an error when the other
 *    side has not acknowledged anything for SOCKETS_SILENCE_MS: a dead machine or a cut path is
 *    named so, and not by the deadline of a collective. NCCL's are covered by the side that
 *    accepts.
 *
 * All else is as libc has it: what gRPC and curl dial (they don't bind, and their connections have
 * their own patience), sockets of other kinds.
 *
 * Thread: sockets_use_ports before the first communicator; all else from any.
 */
#pragma once

#include <stdbool.h>

#include "common/port_range.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SOCKETS_SILENCE_MS 5000 /* as long as the coordinator waits for a silent node */

void sockets_use_ports(struct port_range range);
/* true once after a bind() found no port of the range free. */
bool sockets_were_taken(void);
/* Whether what this thread connects from now on is the data plane's; at first: no. */
void sockets_dial(bool on);

#ifdef __cplusplus
}
#endif
