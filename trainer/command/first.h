/*
 * Rank 0 first. Programs meet where rank 0 listens, at MASTER_PORT. PyTorch's TCPStore that comes
 * earlier is refused and pauses for half a second (findings/tcpstore-client-that-is-early.sh),
 * which is most of a restart where processes are forked. So the other ranks are started once rank 0
 * listens, if it listened soon in an earlier start of this program. A program that meets otherwise,
 * or starts slowly, is not waited for.
 *
 * Rank 0's worker sees how soon that is. It is told to all with the round of the next start
 * (launch_meet), so that all wait for the same, on other nodes by time alone.
 *
 * Thread: the worker's main thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct command_worker;

/* The most that a listener may take to be waited for: the pause costs a quarter of a second on
 * average, and waiting lets ranks start one after the other. */
#define FIRST_SOON_MS 400
#define FIRST_LOOK_MS 5 /* between two looks */

/* True if some process listens at that TCP port, as /proc/net says; false if that can't be read. */
bool first_listens(uint32_t port);
/* Notes that rank 0's process, which is this worker's, was just started. */
void first_started(struct command_worker *c);
/* Looks whether that process listens by now. Returns how long to wait for the next look,
 * `otherwise` where there is nothing to look for. */
int first_look(struct command_worker *c, int otherwise);
/* Waits, before another rank's process is started, until rank 0 listens. Returns early if that has
 * ended, or the program is to be stopped; after a bounded time in any case. */
void first_await(struct command_worker *c);
