/*
 * A Python interpreter that has imported what the job names (`command.preload`) and forks processes
 * of the job's program: they start in milliseconds, where importing torch takes seconds.
 *
 * It is a child of the worker (preload.py), lives as long as the worker, and computes nothing. It
 * forks only while it has one thread and has opened no GPU. Whenever it can't serve, the program is
 * started cold, and the log says why.
 *
 * Thread: the worker's main thread only.
 */
#pragma once

#include "common/log.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "trainer/command/process.h"

#define PRELOAD_IMPORT_MS 120000 /* for its imports, from its start */
#define PRELOAD_FORK_MS   5000   /* for one answer; a hang is longer */

struct preload;

/*
 * Starts the interpreter of a job that has `preload`, and doesn't wait for its imports.
 * env: as the program's; threads of libraries that start some when they are imported are turned
 * off. log is borrowed for the call.
 * Errors: of process_start, socketpair
 */
MUST_CHECK enum status preload_open(const struct jobspec *job, char *const *env,
                                    const struct log *log, struct preload **out);
/* Ends the interpreter. NULL is fine. */
void preload_close(struct preload *preload);
/* Returns the interpreter's process, which is spared when all others are killed. NULL for NULL. */
struct process *preload_process(struct preload *preload);
/*
 * Looks whether the interpreter has imported all, without waiting.
 * Errors: ST_AGAIN    not yet
 *         ST_REFUSED  it can't fork: out_why says why, and it never will
 */
MUST_CHECK enum status preload_look(struct preload *preload, struct reason *out_why);
/*
 * Starts a process as process_start does, once preload_look has returned ST_OK.
 * Errors: ST_REFUSED  the interpreter can't fork: out_why says why, and it never will
 */
MUST_CHECK enum status preload_start(struct preload *preload, const struct process_start *how,
                                     struct process *out, struct reason *out_why);
