/* Which checkpoints stay, and which one the next may write differences to. */
#pragma once

#include "server/jobfsm/ctx.h"

void fsm_ask_verify(struct fsm_ctx *t, struct fsm_ckpt *ckpt);
void fsm_quarantine(struct fsm_ctx *t, struct fsm_ckpt *ckpt, const char *why);
void fsm_drop_orphans(struct fsm_ctx *t); /* sets aside what is read through a bad one */
void fsm_remove_ckpt(struct fsm_ctx *t, struct fsm_ckpt *ckpt);
/* Removes checkpoints that nothing keeps any more, and reads back what that requires. */
void fsm_retain(struct fsm_ctx *t);
/* Ends the read-back by the ranks: they have read what they were to read, or, where `why` is not
 * NULL, it came to nothing for that reason. */
void fsm_read_back_end(struct fsm_ctx *t, const char *why);
/* Repeats READ_BACK to a rank whose session is there again. */
void fsm_read_back_resend(struct fsm_ctx *t, uint32_t rank);
void fsm_read_back_tick(struct fsm_ctx *t); /* after every event */
/* Returns the checkpoint that a save of `step` may write differences to, or NULL. */
const struct fsm_ckpt *fsm_choose_base(struct fsm *m, uint64_t step);
