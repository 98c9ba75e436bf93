/* Saves on their way to checkpoints. */
#pragma once

#include "server/jobfsm/ctx.h"

void fsm_on_save_begin(struct fsm_ctx *t);
void fsm_on_folder_done(struct fsm_ctx *t);
void fsm_on_save_report(struct fsm_ctx *t);
void fsm_on_save_passed(struct fsm_ctx *t);
/* Drops saves that a rank will never write: it has finished `step`, and begins a save before it
 * goes beyond that save's step. (A rank may have said that it had passed a save, to a coordinator
 * that is gone, while another rank began it.) */
void fsm_saves_beyond(struct fsm_ctx *t, uint32_t rank, uint64_t step);
void fsm_on_check_done(struct fsm_ctx *t);
void fsm_on_publish_done(struct fsm_ctx *t);
void fsm_saves_tick(struct fsm_ctx *t);
void fsm_saves_resume(struct fsm_ctx *t);
