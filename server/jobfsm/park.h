/* Workers that outlive their generation: they are parked, kept, and regrouped. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Ends the generation for that fault. If workers may outlive the fault, those that are not to blame
 * are kept. */
void fsm_end_or_park(struct fsm_ctx *t, enum fsm_state to, const struct fsm_fault *fault);
/* True while a planned change (one without a failure) has to wait for saves that are under way. The
 * caller asks again until it is false. */
bool fsm_park_waits(struct fsm_ctx *t);
/* Parks the generation without a failure, and keeps all workers; fsm_park_but: all but one. */
void fsm_park_all(struct fsm_ctx *t);
void fsm_park_but(struct fsm_ctx *t, uint32_t rank);
/* Ends the workers that are not to go on once more, as an order may have been lost. */
void fsm_park_again(struct fsm_ctx *t);
void fsm_on_parked(struct fsm_ctx *t);
/* Records that the worker has parked (it said so by Parked, or by a hello) and which state it
 * has. */
void fsm_note_parked(struct fsm_ctx *t, uint32_t index, const struct fsm_parked_state *kept);
/* Begins the time in which kept workers wait for the next generation: all workers have left this
 * one. */
void fsm_keep(struct fsm_ctx *t);
/* True while the job waits for kept workers to say again, after a restart of the coordinator, which
 * state they have. Only then can it decide who goes if there are too many, and who sits where in a
 * pipeline. */
bool fsm_awaits_word(const struct fsm *m);
/* True if kept workers, ready spares and free places together reach config.min. If not, the job
 * waits for workers that are about to be gone, or ready. */
bool fsm_reaches_min(const struct fsm *m);
/* True in PLACING if a kept worker went since slots were found, and too few workers are left to go
 * on. */
bool fsm_is_vacated(const struct fsm *m);
/* Prepares the ranks of the generation that begins: kept workers go on in their seats, newcomers
 * start in the others. Returns how many are kept. */
uint32_t fsm_regroup(struct fsm_ctx *t);
