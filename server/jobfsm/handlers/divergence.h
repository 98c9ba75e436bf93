/* Audits: what two workers computed alike, and what follows if they did not. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Notes that ranks computed the same up to that step. */
void fsm_note_audited(struct fsm_ctx *t, uint64_t step);
/* Called when a generation begins to train, from restore.step on. */
void fsm_audit_begin(struct fsm *m);
/* Called after every event: drops the saves, and sets aside the checkpoints, of what was trained
 * after somebody computed wrongly. */
void fsm_audit_tick(struct fsm_ctx *t);
