/* Saves that do not become checkpoints, and what they may leave in the store. */
#pragma once

#include "server/jobfsm/moves.h"

int64_t fsm_retry_ms(uint32_t tries);
/* Puts a save in a free place, or in that of the one that was over first, and returns its index;
 * -1: all are busy. */
#define FSM_SAVE_NEW(t, step, state) fsm_save_new_by(t, step, state, __func__)
int fsm_save_new_by(struct fsm_ctx *t, uint64_t step, enum fsm_save_state state,
                    const char *function);
/* Moves a save to another state, and journals that. */
#define FSM_SAVE_SET_STATE(t, save, state) fsm_save_set_state_by(t, save, state, __func__)
void fsm_save_set_state_by(struct fsm_ctx *t, struct fsm_save *save, enum fsm_save_state state,
                           const char *function);
void fsm_send_done(struct fsm_ctx *t, uint64_t step, uint32_t rank, bool committed);
void fsm_save_drop(struct fsm_ctx *t, int index, const char *why, bool tell);
void fsm_save_remove(struct fsm_ctx *t, int index); /* once no rank can write there */
/* Gives up a dropped save whose ranks had their time to remove their files; true: it did. */
bool fsm_drop_tick(struct fsm_ctx *t, int index);
void fsm_saves_end(struct fsm_ctx *t); /* all trainers are gone: what is complete commits */
int64_t fsm_saves_deadline(const struct fsm *m);
/* Drops a save for which the store has no room. */
void fsm_save_refuse(struct fsm_ctx *t, int index, const char *why);
/* Notes that the store fails saves: sets the reason and, once until a save commits, tells an event.
 * false: nothing runs that could be saved. */
bool fsm_unsaved(struct fsm_ctx *t, const char *why);
void fsm_store_has_space_again(struct fsm_ctx *t, uint64_t step); /* a save committed */
void fsm_on_save_failed(struct fsm_ctx *t);
void fsm_on_drop_done(struct fsm_ctx *t);
void fsm_sweep(struct fsm_ctx *t);       /* after every event */
void fsm_sweep_again(struct fsm_ctx *t); /* a save committed */
void fsm_on_sweep_done(struct fsm_ctx *t);
