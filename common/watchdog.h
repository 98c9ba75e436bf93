/*
 * How a supervised program shows that its main loop turns: it writes a byte into an inherited pipe
 * every WATCHDOG_BEAT_MS. A supervisor that reads none for long ends the process: it hangs.
 *
 * The descriptor's number comes in CAIRN_WATCHDOG_FD; without it nothing is written.
 *
 * A supervised program leaves SIGTERM to its supervisor: where it goes to every process at once
 * (systemd ends a service so), the supervisor has the jobs saved before it ends anybody. It ends
 * its programs by SIGINT. Thread: the main loop's.
 */
#pragma once

#include <stdbool.h>

#define WATCHDOG_ENV     "CAIRN_WATCHDOG_FD"
#define WATCHDOG_BEAT_MS 1000
/* The exit code of a program that can't do its work until a person has done something, which its
 * last line says: its supervisor doesn't start it again. */
#define WATCHDOG_REFUSED 78

/* Takes the inherited descriptor, closed on exec and non-blocking from now on; -1: the process is
 * not supervised. */
int watchdog_open(void);

/* Writes a beat. Never waits and never fails; a full pipe already holds what this would say. */
void watchdog_beat(int fd);

/* True if the supervisor lives: its end of the pipe is open then. false also for fd -1. */
bool watchdog_watched(int fd);
