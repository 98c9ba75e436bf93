/* Workers that end, or report what failed. */
#pragma once

#include "server/jobfsm/ctx.h"

void fsm_on_exited(struct fsm_ctx *t);
void fsm_on_finished(struct fsm_ctx *t);
void fsm_on_fault(struct fsm_ctx *t);
