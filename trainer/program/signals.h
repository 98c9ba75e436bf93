/*
 * Signals that a trainer takes from its machine's owner:
 *
 *   SIGTERM  it is to go (a preemption, a reboot): all workers save, then this process leaves; if
 *            that save hasn't ended within the time of grace, it dies of the signal; a spare, which
 *            has nothing to save, dies of it at once
 *   SIGUSR1  a checkpoint is wanted
 *
 * A thread takes them, so that no call of any library is interrupted, and tells the coordinator.
 * Until it runs, signals_block makes them wait.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/log.h"
#include "common/status.h"

#define SIGNALS_GRACE_MS  30000
#define SIGNALS_GRACE_ENV "CAIRN_GRACE_MS" /* takes the place of checkpoint.grace */

struct signals;
struct session;

/* Blocks the signals. Call it before any other thread is started: threads inherit the mask. */
void signals_block(void);
/* Starts the thread. log is borrowed until close, session until close or signals_set_session. */
MUST_CHECK enum status signals_open(struct session *session, const struct log *log,
                                    struct signals **out);
/* Sets the session that is told from now on; NULL: none, for a while. Signals that no session was
 * told are then told, and that this process is to go, again. */
void signals_set_session(struct signals *signals, struct session *session);
/* Sets whether SIGTERM ends the process at once from now on, since it has nothing to save. */
void signals_leave_at_once(struct signals *signals, bool at_once);
/* Sets the job's time of grace, once it is known. */
void signals_set_grace(struct signals *signals, int64_t grace_ms);
/* NULL is fine. */
void signals_close(struct signals *signals);
