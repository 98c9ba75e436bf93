/* The progress of workers: what they say of their progress, and how long a phase may take. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Takes what the event's rank says of its progress. */
void fsm_note_progress(struct fsm_ctx *t, struct fsm_rank *rank);
/* Returns for how long a phase may make no progress: max(floor, 10 x its median); after that it
 * hangs. A few gaps may all be of a standstill that is over: from these no more than twice the
 * floor follows. */
int64_t fsm_hang_ms(const struct fsm *m, const char *phase);
