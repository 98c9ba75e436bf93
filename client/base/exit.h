/*
 * The exit codes of `cairn`. Scripts rely on them: `cairn -h` lists them, docs/ckpt.md says what
 * they mean of checkpoints.
 */
#pragma once

#include "common/status.h"
#include "rpc/rpc.h"

enum exit_code {
    EXIT_DONE = 0,
    EXIT_INTERNAL = 1,
    EXIT_DIFFERENT = 1, /* of `ckpt diff` and `audit`, as diff and cmp */
    EXIT_USAGE = 2,     /* usage or job file */
    EXIT_NOT_FOUND = 3,
    EXIT_REFUSED = 4,     /* not in this state, not for this caller */
    EXIT_UNREACHABLE = 5, /* no coordinator answers */
    EXIT_DAMAGED = 8,     /* a checkpoint is damaged */
    EXIT_FAILED = 10,     /* waited for a job: FAILED; computed one again, and that did */
    EXIT_STOPPED = 11,    /* waited for a job: STOPPED or KILLED */
    EXIT_TIMED_OUT = 124, /* --timeout is over */
    EXIT_DETACHED = 130,  /* Ctrl-C; the job goes on */
};

/* The exit code for the coordinator's answer. */
enum exit_code exit_of_code(enum rpc_code code);
/* The exit code for a status of this process itself. */
enum exit_code exit_of_status(enum status st);
