/* Saves to come: announced for a step, or due by time. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Announces a save for a step beyond every one reported; exit: workers leave after it. Of a job of
 * which nothing is saved none is announced. */
void fsm_announce(struct fsm_ctx *t, bool exit);
/* Like fsm_announce, for step `from` or a later one. */
void fsm_announce_from(struct fsm_ctx *t, uint64_t from, bool exit);
bool fsm_announced_exit(const struct fsm *m, uint64_t step);
/* Returns the first announced step that workers are to leave after; 0: there is none. */
uint64_t fsm_exit_step(const struct fsm *m);
/* True if workers are to leave after a save that is announced, or once they train. */
bool fsm_leaves(const struct fsm *m);
/* True if workers end with the save of that step, or after it: they do nothing but wait for it. */
bool fsm_leaves_at(const struct fsm *m, uint64_t step);
/* Forgets the saves announced for that step; false: there was none. *out_exit: workers were to
 * leave after one of them. */
bool fsm_forget_announced(struct fsm *m, uint64_t step, bool *out_exit);
void fsm_due_tick(struct fsm_ctx *t);
int64_t fsm_due_deadline(const struct fsm *m);
void fsm_due_from(struct fsm_ctx *t); /* the next save by time is counted from now */
void fsm_due_resume(struct fsm_ctx *t);
/* Notes what a save cost, as `every: auto` goes by it. */
void fsm_note_cost(struct fsm_ctx *t, const struct fsm_save *save);
void fsm_note_failure(struct fsm_ctx *t); /* of a failure that cost steps */
void fsm_on_save_wanted(struct fsm_ctx *t);
void fsm_on_leaving(struct fsm_ctx *t);
