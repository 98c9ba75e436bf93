/*
 * A process of a job's own program, and all that comes of it.
 *
 * It leads a process group of its own, so that signals to the worker's group miss it, and dies with
 * the worker's main thread, whatever ends that. Its descendants come to the worker when their
 * parents die (PR_SET_CHILD_SUBREAPER), and processes_kill_all ends them too, whatever group or
 * session they made.
 *
 * Thread: the worker's main thread only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/reason.h"
#include "common/status.h"

struct process {
    pid_t pid;   /* 0: none was started */
    bool ended;  /* and reaped */
    int status;  /* ended: as waitpid gives it */
    int said_fd; /* what it writes, stdout and stderr; -1: closed */
    int end_fd;  /* reads as ready once it has ended (pidfd_open); -1: it must be looked at, or was
                  * reaped */
};

/* All pointers are borrowed for the call. */
struct process_start {
    char *const *argv; /* argv[0]: a path, or a name that is looked for in env's PATH */
    char *const *env;
    const char *workdir;
    int input_fd;      /* its stdin; 0: empty */
    bool keeps_output; /* what it writes goes where this process's goes; said_fd is -1 */
};

/* Makes what a process writes to and is read from: [0] to read, without waiting. */
MUST_CHECK enum status process_pipe(int out[2]);

/*
 * Starts a process. Signals have their defaults, and none is blocked.
 * Errors: ST_NOT_FOUND, ST_REFUSED, others of execve and chdir: out_why names what couldn't be run
 *         others of pipe and fork
 */
MUST_CHECK enum status process_start(const struct process_start *how, struct process *out,
                                     struct reason *out_why);
/* Takes over a process that another one made, and that is a child of this one. said_fd as in struct
 * process. */
void process_adopt(struct process *out, pid_t pid, int said_fd);
/* Sends a signal to this one process, if it lives. */
void process_signal(const struct process *process, int number);
/* Reaps the process if it has ended; returns whether it has. */
bool process_check(struct process *process);
/* True if the process is stopped, as by SIGSTOP. */
bool process_is_stopped(const struct process *process);

/* Makes this process the one that orphans of its descendants come to. Errors: of prctl */
MUST_CHECK enum status processes_adopt_orphans(void);
/*
 * Kills all processes and their descendants, and reaps them. They are `ended` afterwards. keep: one
 * that lives on; NULL: none.
 * Errors: ST_TIMED_OUT  some still live after timeout_ms: they wait in the kernel
 */
MUST_CHECK enum status processes_kill_all(struct process *list, size_t count, struct process *keep,
                                          int timeout_ms);
