/*
 * The supervisor: keeps the coordinator, the agent and the observer of a home alive. No gRPC in it:
 * it only forks, waits and kills, so that nothing that breaks them can break it.
 *
 *   dies      starts again after 0.1, 0.2, 0.4 ... 5 s; from 0.1 again after 10 s of life
 *   refuses   (WATCHDOG_REFUSED: a person has to do something first) the supervisor stops, too;
 *             what trains goes on
 *   hangs     no byte in its pipe (common/host/watchdog.h) for 15 s: SIGKILL, then as above
 *   SIGTERM   runs `cairn down`, which has the jobs saved and then sends SUPERVISOR_STOP; once
 *             that command is over or late, the supervisor stops, whatever came of it
 *   SIGINT    likewise (Ctrl-C, --foreground); the second one: stops at once
 *   SIGUSR1   SUPERVISOR_STOP: ends them, then every process of the home that is left, and returns
 *
 * SIGTERM to every process of a service at once does the same: the coordinator and the agent leave
 * it to the supervisor (common/host/watchdog.h). As a service itself (`cairn up --foreground`) it
 * beats for systemd, and serves as soon as the coordinator does.
 */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/base/exit.h"
#include "client/base/options.h"
#include "common/paths.h"
#include "identity/files.h"

#define SUPERVISOR_STOP SIGUSR1

struct supervisor_options {
    const struct paths *paths;
    int64_t slots;                  /* -1: the agent's default */
    const char *listen;             /* NULL: no TCP */
    const char *advertise;          /* --advertise of the coordinator; NULL: none */
    const char *job_paths;          /* --paths of the coordinator; NULL: none */
    bool job_commands;              /* --commands of the coordinator */
    struct identity_files tls;      /* of the listener; all NULL: plaintext */
    const char *page;               /* --listen of the observer; NULL: its default */
    struct identity_files page_tls; /* of the observer; all NULL: plain HTTP */
    bool page_none;                 /* there is no observer */
    int64_t grace_ms;               /* time of the jobs for their last checkpoints */
};

/* Returns when it has stopped. EXIT_REFUSED: another supervisor of this home lives, or a program
 * waits for a person, which its log says. */
enum exit_code supervisor_run(const struct supervisor_options *options);

/* Ends the home's supervisor, if there is one, with what it started; waits for that. */
void supervisor_end(const struct paths *paths);

/* --grace, or its default. EXIT_USAGE: it is too long, which is said. */
enum exit_code supervisor_grace(const struct arguments *args, int64_t *out_ms);

/* Returns how long to wait before the next start: `last` is the wait before, followed by a life of
 * lived_ms. */
int64_t supervisor_backoff_ms(int64_t last_ms, int64_t lived_ms);
