/* How many workers a generation has, and which of them take which seats. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Chooses the ranks of the generation that is about to begin: workers that are kept, those that
 * have slots, and spares. */
void fsm_assign_ranks(struct fsm_ctx *t);
/* Gives the ranks of a job that never ran their stages, as many ranks as the job is to have. */
void fsm_cut(struct fsm *m);
/* True if the state that the rank has kept is the one that it is to have; in a pipeline: its stage,
 * of as many as there are. */
bool fsm_has_stage(const struct fsm *m, uint32_t rank);
/* True if all workers could park now, and go on in another generation. It is false while some are
 * away: after a restart of the coordinator they come back first. */
bool fsm_may_regroup(const struct fsm *m);
/* Called after every event: ends the generation if one with another number of workers is to
 * follow. */
void fsm_resize_tick(struct fsm_ctx *t);
int64_t fsm_resize_deadline(const struct fsm *m);
