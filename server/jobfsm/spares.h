/* Spares, workers without a part in the generation: how many there are, and how they go. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Counts the spares that are not ending. fsm_spares_wanted: the configured spares, one for each
 * worker that is missing, and one to replace a worker that is slow. */
uint32_t fsm_spares_staying(const struct fsm *m);
uint32_t fsm_spares_wanted(const struct fsm *m);
/* True if a worker has been slow for so long (handlers/load_balance.c) that another one is to take
 * its seat. */
bool fsm_replaces(const struct fsm *m, int64_t now);
/* Ends the generation (fsm_end_ranks), and its spares with it. */
void fsm_end_generation(struct fsm_ctx *t, enum fsm_state to, bool gently);
/* Like fsm_end_generation, of a job of which nothing is saved: gently, if its program runs. A
 * generation that ends already leads to `to`, unless it leads to a final state. */
void fsm_leave(struct fsm_ctx *t, enum fsm_state to);
/* Notes that a step is finished of which nobody had heard. After the first new step of a generation
 * more workers may start. */
void fsm_note_reached(struct fsm_ctx *t, uint64_t step);
/* Ends all spares, as the job ends or starts anew; fsm_dismiss: ends one of them. */
void fsm_dismiss_spares(struct fsm_ctx *t);
void fsm_dismiss(struct fsm_ctx *t, uint32_t index);
/* Ends a worker that had a seat and has none in the generation that comes. */
void fsm_let_go(struct fsm_ctx *t, uint32_t index);
/* Adds the actions that make the spare go (OVER and END). */
void fsm_end_spare(struct fsm_ctx *t, uint32_t index);
/* Returns a number that no worker has: `wanted`, if that is free. */
uint32_t fsm_new_number(struct fsm *m, uint32_t wanted);
