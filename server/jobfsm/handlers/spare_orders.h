/* What becomes of spares: events about them, and watching them. */
#pragma once

#include "server/jobfsm/ctx.h"

void fsm_on_spare(struct fsm_ctx *t);
/* Handles an event about a spare. */
void fsm_on_spare_event(struct fsm_ctx *t);
/* Watches spares: those that are lost or hang are ended, those that were ended are ended again. */
void fsm_watch_spares(struct fsm_ctx *t);
