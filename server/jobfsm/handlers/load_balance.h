/* Lanes by the speed of workers. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Takes how long the rank computed for its lanes, as it said with its progress. */
void fsm_note_timed(struct fsm_ctx *t, struct fsm_rank *rank);
/* Gives each rank its lanes, as a generation begins. */
void fsm_lanes_deal(struct fsm_ctx *t);
/* Checks whether other shares would be faster, after an event at which the rules of silence are
 * checked, too. */
void fsm_lanes_tick(struct fsm_ctx *t);
