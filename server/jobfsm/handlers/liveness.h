/* The rules of silence: which rank is silent, what that means, and when it is looked at next. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Called when the rank of an event says something. If the whole generation was silent until then,
 * what the others say is taken to be on its way, too. */
void fsm_hear(struct fsm_ctx *t);
/* Called when the rank's node is heard again: the worker gets its full time to be heard, too. */
void fsm_rank_heard(struct fsm_ctx *t, uint32_t rank);
/* Checks deadlines and, with `looks`, the rules of silence. */
void fsm_watch(struct fsm_ctx *t, bool looks);
