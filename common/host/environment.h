/*
 * Which variables of the environment may reach what trains.
 *
 * Libraries that compute read dozens of variables, some of which change results: how many threads
 * come, to what products are rounded, which instructions are used. docs/environment.md has the
 * names, each with its reason; tests/unit/common/host/test_environment.c compares.
 *
 * Workers get from their agent those that pass, and no others. What trains in a person's shell
 * (cairn-trainer --local, cairn audit) keeps what no such library reads, and leaves out the rest
 * before anything has read it: some are read before main, so it becomes itself anew without them.
 *
 * Thread: any; environment_leave_out before there is a second one.
 */
#pragma once

#include <stdbool.h>

#include "common/reason.h"
#include "common/status.h"

/* variable: NAME or NAME=VALUE. Whether it goes on to workers. */
bool environment_passes(const char *variable);
/* True for a variable of a library that computes, or that moves what is added, unless it passes. */
bool environment_is_left_out(const char *variable);
/* Writes the names of our own variables that are left out, with a blank between them; "": none. Cut
 * at capacity. */
void environment_name_left_out(char *out, unsigned capacity);

/*
 * If variables have to be left out, runs this very program anew without them, with these arguments:
 * then it doesn't return. ST_OK: there are none.
 * Errors: ST_REFUSED  it can't be run: the reason names them
 */
MUST_CHECK enum status environment_leave_out(char *const argv[], struct reason *why);

/* The rows of what passes, and of whose variables are left out otherwise: a name, or its beginning
 * with a '*'. NULL: there are no more. */
const char *environment_passing(unsigned row);
const char *environment_family(unsigned row);
