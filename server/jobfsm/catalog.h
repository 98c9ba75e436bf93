/* The checkpoints of a job, and its saves under way: lists of them, and questions about them. */
#pragma once

#include "server/jobfsm/ctx.h"

struct fsm_ckpt *fsm_ckpt_at(struct fsm *m, uint64_t step, uint32_t generation);
/* Returns the step with which this generation ends: the job's last one, unless its program ends
 * before it. 0: not known. */
uint64_t fsm_last_step(const struct fsm *m);
/* True if nothing follows this step. */
bool fsm_is_last(const struct fsm *m, uint64_t step);
/* True if the checkpoint of the last step is committed. */
bool fsm_final_committed(const struct fsm *m);
/* True if what the next generation would restore is still to be read after a report of damage, or
 * is read through a checkpoint that is set aside. */
bool fsm_damage_pending(struct fsm *m);
/* True if the checkpoint may hold what was computed wrongly; fsm_distrusts: if any does. */
bool fsm_is_distrusted(const struct fsm *m, const struct fsm_ckpt *ckpt);
bool fsm_distrusts(const struct fsm *m);
/* Returns the checkpoint that ckpt holds differences to, or NULL. */
struct fsm_ckpt *fsm_chain_next(struct fsm *m, const struct fsm_ckpt *ckpt);
/* True if ckpt is `of`, or one that `of` is read through. */
bool fsm_in_chain(struct fsm *m, const struct fsm_ckpt *of, const struct fsm_ckpt *ckpt);
/* True if another checkpoint holds differences to ckpt. */
bool fsm_is_parent(const struct fsm *m, const struct fsm_ckpt *ckpt);
/* True if a save under way may write differences to ckpt. */
bool fsm_is_base(const struct fsm *m, const struct fsm_ckpt *ckpt);
/* Returns the save's place in m->saves, or -1. */
int fsm_save_index(const struct fsm *m, uint64_t step, uint32_t generation);
/* Returns the place of the save that the store's answer is about; -1: there is no such save, or
 * another try of it is under way by now. */
int fsm_answered_save(const struct fsm_ctx *t);
/* True if all ranks have that flag for the save. */
bool fsm_every_rank(const struct fsm *m, int index, uint8_t flag);
/* True while the save can still commit, or is still to be removed; fsm_saves_busy: while any
 * can. */
bool fsm_save_busy(const struct fsm_save *save);
bool fsm_saves_busy(const struct fsm *m);
