/*
 * How the agent ends where its end is the end of its trainers: process 1 of a container, a job of a
 * cluster's scheduler. Nobody ends before the coordinator has had the jobs saved and their workers
 * moved, or the time of grace is over.
 *
 *     NOT   -> WAITS  [leave_begin]  SIGTERM: the coordinator is told, now and in every hello
 *     WAITS -> KILLS  [on_look]      the time of grace is over: SIGKILL
 *     WAITS -> SAID   [on_look]      no trainer is left: all have exited, and that is acknowledged
 *     KILLS -> SAID   [on_look]      the same, or LEAVE_KILL_MS later
 *     SAID  -> end    [on_look]      the coordinator ended the stream, or LEAVE_SAID_MS later
 *     SAID  -> AWAY   [on_look]      the same, where it was told so by SIGUSR1
 *     AWAY  -> NOT    [leave_begin]  SIGUSR1 again: the node is back
 *     AWAY  -> end    [leave_begin]  SIGTERM
 *
 * What asks again (a second SIGTERM) shortens nothing; after SIGUSR1 it says that the agent is to
 * end when it has left. Who is AWAY has no trainers and talks to nobody.
 *
 * Thread: the loop's.
 */
#pragma once

#include "agent/agent.h"

#define LEAVE_GRACE_MS 25000 /* Slurm and Kubernetes kill after 30 s, if nobody told them else */
#define LEAVE_KILL_MS  3000  /* from SIGKILL to the acknowledgement of all exits */
#define LEAVE_SAID_MS  2000
#define LEAVE_ALONE_MS 3000 /* without trainers, for a coordinator to come back */

/* True if an agent leaves by default: as process 1, in a container, in Slurm, in Kubernetes, but
 * not if `cairn up` supervises it. */
bool leave_is_usual(void);

void leave_open(struct agent *agent);
void leave_close(struct agent *agent);
/* Begins to leave: on SIGTERM, if the agent leaves on that; or, with stays, on SIGUSR1. */
void leave_begin(struct agent *agent, bool stays);
