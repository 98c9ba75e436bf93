/*
 * What a machine's owner says to a trainer: SIGTERM, that it is to go (a preemption, a reboot), and
 * SIGUSR1, that a checkpoint is wanted. A thread takes them, so that no call of any library is
 * interrupted: it tells the coordinator, which has all workers save.
 *
 * After SIGTERM the process leaves with that save; if none came to its end within the time of
 * grace, it dies of the signal. Before a session there is none to tell: notice_block makes them
 * wait.
 */
#pragma once

#include <stdint.h>

#include "common/log.h"
#include "common/status.h"

#define NOTICE_GRACE_MS  30000
#define NOTICE_GRACE_ENV "CAIRN_GRACE_MS" /* takes the place of checkpoint.grace */

struct notice;
struct session;

/* Before any other thread is started: they inherit it. */
void notice_block(void);
/* log and session are borrowed until close. */
MUST_CHECK enum status notice_open(struct session *session, const struct log *log,
                                   struct notice **out);
/* The job's time of grace, once it is known. */
void notice_set_grace(struct notice *notice, int64_t grace_ms);
/* NULL is fine. */
void notice_close(struct notice *notice);
