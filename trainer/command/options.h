/*
 * What a run of a program is given.
 */
#pragma once

#include "common/log.h"
#include "jobspec/jobspec.h"
#include "session/session.h"
#include "trainer/command/failure.h"

#define COMMAND_PROCESSES_MAX 64

/* All pointers are borrowed for the call. */
struct command_options {
    const struct jobspec *job; /* has a command */
    struct session *session;   /* joined */
    const struct session_assignment *assignment;
    const struct log *log;
    int log_fd;         /* gets the program's output */
    const char *gpu;    /* CUDA_VISIBLE_DEVICES of this worker; "": none */
    const char *copies; /* folder of this job's copies on this node; NULL: none */
    const struct io *io;
    const char *worker; /* what its processes are known by: PATHS_WORKER_ENV */
    /* Called by command_run once the program has failed, before what is left of it is ended. */
    void (*failed)(void *arg, const struct command_failure *failure);
    void *failed_arg;
};
