/*
 * A trainer that this agent answers for: from the order to start it until its exit is acknowledged.
 *
 *     no record -> INTENT    [trainer_start]          the record is written, then the process made
 *     INTENT    -> RUNNING   [set_running]            it is watched
 *     INTENT    -> EXITED    [fail_start]             SPAWN_FAILED
 *     RUNNING   -> EXITED    [trainer_died]           it is dead
 *     EXITED    -> no record [trainer_acknowledged]   the coordinator has heard of it
 *
 * The next agent of this name goes on from the record [trainer_adopt]: a process that is there is
 * watched again, one that is gone has exited.
 *
 * Invariants
 *  1. The record on disk is never behind: INTENT is written before the process is made, RUNNING
 *     before anything is said of it, EXITED before its exit is said; it is removed only when that
 *     was acknowledged.
 *  2. A process is named by its pidfd. Its number is used only while it can't have been given to
 *     another process: for our unreaped child, or one whose pidfd just proved to live. Where the
 *     system refuses pidfds (old kernels, filters of containers) it is looked at ten times a
 *     second: our unreaped child by its number, an adopted one by number and start time.
 *  3. What its process group leaves behind is killed before the exit is said: no orphans.
 *
 * Thread: the loop's.
 */
#pragma once

#include "agent/agent.h"

/* NULL: not known. */
struct trainer *trainer_find(const struct agent *agent, const struct ref *ref);

/* Starts a trainer, or reports its state again: orders may be repeated. */
void trainer_start(struct agent *agent, const struct ref *ref,
                   const Cairn__V1__StartTrainer *order);

/* Signals the trainer's process group; SIGKILL follows after grace_ms. */
void trainer_end(struct trainer *trainer, int signal_number, uint32_t grace_ms);

/* For process 1 alone: reaps dead processes that others left behind. */
void trainer_reap_others(struct agent *agent);

/* Removes record and trainer. */
void trainer_acknowledged(struct trainer *trainer);

/* Takes over the trainer that the record at path describes. */
void trainer_adopt(struct agent *agent, const char *path);

/* At the agent's end: closes handles and frees the trainer; its process goes on. */
void trainer_let_go(struct trainer *trainer);
