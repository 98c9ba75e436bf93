/* Trainers that leave: those of a generation that ends, and those kept for the next one. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Ends trainers that should have left by now, and counts those as gone of which nobody will ever
 * say that they are. */
void fsm_watch_ending(struct fsm_ctx *t);
/* Watches workers that are kept for the next generation: one that is lost is not kept any longer,
 * and all are ended if that generation doesn't begin in time. */
void fsm_watch_survivors(struct fsm_ctx *t);
