/*
 * What a machine's owner tells a trainer by signals:
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

/* Call before any other thread is started: they inherit it. */
void signals_block(void);
/* log is borrowed until close, session until close or signals_tell. */
MUST_CHECK enum status signals_open(struct session *session, const struct log *log,
                                    struct signals **out);
/* Whom it tells from now on; NULL: nobody, for a while. What nobody was told is told then, and that
 * this process is to go, again. */
void signals_tell(struct signals *signals, struct session *session);
/* It has nothing to save: from now on SIGTERM ends it at once. */
void signals_leave_at_once(struct signals *signals, bool at_once);
/* The job's time of grace, once it is known. */
void signals_set_grace(struct signals *signals, int64_t grace_ms);
/* NULL is fine. */
void signals_close(struct signals *signals);
