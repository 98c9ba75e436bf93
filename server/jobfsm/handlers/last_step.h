/* A program that ends by itself before its last step: early stopping, for example. All of its ranks
 * say with which step; it is the last one then, and the job is done once that is saved. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Handles a rank's Ready that says so. */
void fsm_note_last(struct fsm_ctx *t);
/* Called when the rank has finished a step: blames it if another rank ended before. */
void fsm_check_last(struct fsm_ctx *t, uint32_t rank);
