/*
 * Threads for the time of one call.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/checkpoint.h"

#define CKPT_CREW_MAX (CKPT_THREADS_MAX + 1) /* with the caller's thread */

typedef void (*ckpt_crew_fn)(void *arg, uint32_t number);

/*
 * Calls fn with the numbers 0 to threads: 0 on the caller's thread, each other one on a thread of
 * its own, without signals. Returns when all calls have returned. A thread that can't be made is
 * done without: the calls share the work among those that there are. At most CKPT_CREW_MAX calls.
 */
void ckpt_crew_run(uint32_t threads, ckpt_crew_fn fn, void *arg);
