/*
 * The supervisor: keeps one coordinator and one agent of a home alive. No gRPC in it: it only
 * forks, waits and kills, so that nothing that breaks them can break it.
 *
 *   dies      starts again after 0.1, 0.2, 0.4 ... 5 s; from 0.1 again after 10 s of life
 *   hangs     no byte in its watchdog pipe (common/watchdog.h) for 15 s: SIGKILL, then as above
 *   SIGTERM   ends both, then every process of the home that is left, and returns
 *   SIGINT    (--foreground) runs `cairn down`, which saves the jobs and then sends SIGTERM
 */
#pragma once

#include <stdint.h>

#include "client/base/exit.h"
#include "common/paths.h"

struct supervisor_options {
    const struct paths *paths;
    int64_t slots;      /* -1: the agent's default */
    const char *listen; /* NULL: no TCP */
};

/* Returns after SIGTERM. EXIT_REFUSED: another supervisor of this home lives. */
enum exit_code supervisor_run(const struct supervisor_options *options);

/* How long to wait before the next start: `last` waited before, after a life of lived_ms. */
int64_t supervisor_backoff_ms(int64_t last_ms, int64_t lived_ms);
