/* Copies in memory: from which of them a new generation starts. */
#pragma once

#include "server/jobfsm/ctx.h"

void fsm_copies_hear(struct fsm_ctx *t);   /* copies that FSM_EV_HELLO offers */
void fsm_copies_choose(struct fsm_ctx *t); /* once, before the first assignment */
void fsm_copies_clear(struct fsm *m);
/* Forgets what this generation would restore from memory. */
void fsm_memory_forget(struct fsm *m);
/* Called before a failure is counted. True if the copies in memory were its cause, or may have
 * been; they are not tried again. */
bool fsm_copies_failed(struct fsm_ctx *t, const struct fsm_fault *fault, bool budget);
