/*
 * A trainer that this agent answers for: from the order to start it until its exit is acknowledged.
 *
 * Invariants
 * 1. The record on disk is never behind: intent before the process is made, running before anything
 *    is said of it, exited before its exit is said, removed only when that was acknowledged.
 * 2. A process is named by its pidfd; pid numbers are only used while it can't have been reused
 * (our unreaped child, or a process whose pidfd just proved to live).
 * 3. What its process group leaves behind is killed before the exit is said: no orphans.
 *
 * States
 *   trainer_start ──▶ RUNNING ──(pidfd)──▶ EXITED ──trainer_acknowledged──▶ freed
 *   trainer_adopt ──▶ RUNNING or EXITED
 *   a failed start ─▶ EXITED (SPAWN_FAILED)
 */
#pragma once

#include "agent/agent.h"

struct trainer {
    struct trainer *next;
    struct agent *agent;
    struct record record;
    struct ref_files files;
    int pidfd;                  /* -1: exited */
    int sent;                   /* the last signal that we sent */
    char why_ended[LIMIT_NAME]; /* why we sent it, where it was our own idea; or "" */
    bool watched;
    uv_poll_t poll;
    uv_timer_t grace;
    unsigned handles; /* open libuv handles of it */
    bool forgotten;   /* freed when the last handle is closed */
};

/* NULL: not known. */
struct trainer *trainer_find(const struct agent *agent, const struct ref *ref);

/* Starts it, or says again what became of it: orders may be repeated. */
void trainer_start(struct agent *agent, const struct ref *ref,
                   const Cairn__V1__StartTrainer *order);

/* Signals its process group; SIGKILL after grace_ms. */
void trainer_end(struct trainer *trainer, int signal_number, uint32_t grace_ms);

/* Removes record and trainer. */
void trainer_acknowledged(struct trainer *trainer);

/* Takes over what the record at path says. */
void trainer_adopt(struct agent *agent, const char *path);

/* At the agent's end: closes handles and forgets, processes go on. */
void trainer_let_go(struct trainer *trainer);
