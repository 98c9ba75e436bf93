/*
 * A rank that runs the job's own program instead of a model: `command` of the job file
 * (docs/command.md).
 *
 *     meet    the workers of the generation find out where each stands (launch.h)
 *     start   `processes` copies of the program (process.h)
 *     watch   what they write, whether they live, whether they get on (output.h)
 *     end     by themselves, or SIGTERM, grace, SIGKILL for them and all that came of them
 *
 * Each generation starts the program anew. Its state is its own, and what it goes on from is what
 * it saved itself; or, where the job has a `checkpoint`, what it gave to Cairn
 * (trainer/relay/relay.h). The worker's process outlives generations, so it keeps nothing and costs
 * little.
 *
 * It has failed if a process ended with a code that isn't 0, or by a signal, or hangs. Success is
 * code 0 of each process, unless somebody asked it to go: then it is to be resumed, whatever its
 * code says.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/io.h"
#include "common/log.h"
#include "common/status.h"
#include "jobspec/jobspec.h"
#include "session/session.h"
#include "trainer/command/options.h"

/* The program's time after SIGTERM once its generation has failed elsewhere: enough to close a
 * file, and less than parking may take (FSM_PARK_MS). */
#define COMMAND_PARK_GRACE_MS 2000

/* Lives as long as the worker's process. */
struct command_worker;

MUST_CHECK enum status command_new(struct command_worker **out);
/* NULL is fine. No program of it runs. */
void command_free(struct command_worker *command);

enum command_stop {
    COMMAND_GOES_ON,
    COMMAND_PARKS, /* the generation is over, the process goes on in the next one */
    COMMAND_LEAVES /* the process is to end */
};
/* Makes command_run end the program and return. A stronger one wins. Thread: any */
void command_stop(struct command_worker *command, enum command_stop how);
/* Forgets COMMAND_PARKS, which was for the generation before; another one is about to be joined. */
void command_go_on(struct command_worker *command);

enum command_end {
    COMMAND_DONE, /* all processes ended with 0, unasked; what Cairn saves of them is committed */
    COMMAND_STOPPED, /* as command_stop said */
    COMMAND_FAILED,  /* `failed` was called */
};

/* Runs the program once, in a new generation. out_step: the highest that it showed. Nothing of it
 * lives any more when this returns, but for processes that wait in the kernel, which are logged. */
MUST_CHECK enum command_end command_run(struct command_worker *command,
                                        const struct command_options *options, uint64_t *out_step);
