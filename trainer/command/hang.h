/*
 * Processes of a program that hang: found, and told where they are. Python's write their stack at
 * SIGABRT, which ends them, or py-spy reads it (spy.h).
 */
#pragma once

#include <stdint.h>

#include "trainer/command/worker.h"

/* Returns a process that is stopped, or for too long has shown nothing; count: none. */
uint32_t hang_find(const struct command_worker *c, int64_t now_ms);
/* Explains the hang of a process that shows nothing. */
struct command_failure hang_explain(struct command_worker *c, uint32_t i);
/* Tells where the processes are in a hang that another worker has told of: of several, one that
 * doesn't wait for others. */
void hang_tell_stacks(struct command_worker *c);
