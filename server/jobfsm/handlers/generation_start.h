/* From slots to a running generation: handlers of the events on that way. */
#pragma once

#include "server/jobfsm/ctx.h"

void fsm_on_placed(struct fsm_ctx *t);
void fsm_on_probed(struct fsm_ctx *t);
void fsm_on_hello(struct fsm_ctx *t);
void fsm_on_ready(struct fsm_ctx *t);
void fsm_enter_running(struct fsm_ctx *t);
