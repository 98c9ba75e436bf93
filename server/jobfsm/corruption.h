/* Checkpoints that are read back, and set aside if they are damaged; another store at its place. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Forgets the suspicion that the node reads badly; true: there was one. */
bool fsm_unsuspect(struct fsm *m, const char *node);

/* Notes from an answer of the store whether its mark is the expected one (checkpoint/store/store.h:
 * a store's mark). */
void fsm_note_mark(struct fsm_ctx *t);
/* Called when a worker can't restore from the checkpoint that it was given. The coordinator reads
 * it, and those that it is read through, before anything else; only the one file that the fault
 * names, if it names one. */
void fsm_suspect_damage(struct fsm_ctx *t, const struct fsm_fault *fault);
/* Asks again for the reads that failed on the medium. */
void fsm_damage_tick(struct fsm_ctx *t);
void fsm_on_remove_done(struct fsm_ctx *t);
void fsm_on_verify_done(struct fsm_ctx *t);
void fsm_on_read_back(struct fsm_ctx *t);
void fsm_on_quarantine_done(struct fsm_ctx *t);
void fsm_catalog_resume(struct fsm_ctx *t);
