/*
 * How a program shows whoever started it that its main loop turns, and how far it is.
 *
 * The supervisor of `cairn up` gives it a pipe: CAIRN_WATCHDOG_FD has the descriptor's number. The
 * program writes a byte every WATCHDOG_BEAT_MS, another one when it serves. A supervisor that reads
 * none for long ends the process: it hangs. systemd gives it a socket (common/host/notify.h) and is
 * told the same, as often as it asks for. A program that has the pipe leaves systemd to its
 * supervisor. Without either nothing is written.
 *
 * A supervised program leaves SIGTERM to its supervisor: where it goes to every process at once
 * (systemd ends a service so), the supervisor has the jobs saved before it ends anybody. It ends
 * its programs by SIGINT. Thread: the main loop's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/host/notify.h"

#define WATCHDOG_ENV     "CAIRN_WATCHDOG_FD"
#define WATCHDOG_BEAT_MS 1000
/* The exit code of a program that can't do its work until a person has done something, which its
 * last line says: its supervisor doesn't start it again. */
#define WATCHDOG_REFUSED 78

#define WATCHDOG_BEAT  'b' /* what the pipe takes */
#define WATCHDOG_READY 'r'

struct watchdog {
    int fd; /* of the pipe; -1: there is none */
    struct notify notify;
    bool serves;
    int64_t beat_at, sign_at;  /* not before: monotonic ms */
    char status[NOTIFY_BYTES]; /* the newest one that was told */
};

/* Takes the inherited descriptor, closed on exec and non-blocking from now on, or else systemd's
 * variables, out of the environment. Thread: the first; before there are others. */
void watchdog_open(struct watchdog *watchdog);

/* Returns how long a loop may wait between two beats, in ms; -1: nobody wants any. */
int watchdog_every_ms(const struct watchdog *watchdog);

/* Writes what is due, so that it may be called all the time. Never waits and never fails; a full
 * pipe already holds what this would say. Before watchdog_ready it asks systemd for more time to
 * start. */
void watchdog_beat(struct watchdog *watchdog);

/* Says that the program serves. Waits a second at most. */
void watchdog_ready(struct watchdog *watchdog);

/* Tells systemd in a short line how the program is, where that is another than before. */
void watchdog_status(struct watchdog *watchdog, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Says that the program begins to end, which may take so long. */
void watchdog_stopping(struct watchdog *watchdog, uint32_t takes_ms);

/* True if the supervisor lives: its end of the pipe is open then. false also without a pipe. */
bool watchdog_watched(const struct watchdog *watchdog);
