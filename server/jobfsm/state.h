/* Actions, the reason that people see, what a state means, accounts of time, and endings. */
#pragma once

#include "server/jobfsm/moves.h"

struct fsm_action *fsm_act(struct fsm_ctx *t, enum fsm_action_kind kind);
struct fsm_action *fsm_act_on(struct fsm_ctx *t, enum fsm_action_kind kind, uint64_t step,
                              uint32_t generation);
void fsm_ask_store(struct fsm_ctx *t, enum fsm_task task, uint64_t step, uint32_t generation);
/* Adds an event for people to the job's history, at the current step. */
void fsm_emit_event(struct fsm_ctx *t, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Like fsm_emit_event, for an explicit step. */
void fsm_emit_event_of(struct fsm_ctx *t, uint64_t step, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void fsm_text(char *out, size_t capacity, const char *text); /* copies, cuts; NULL: "" */
void fsm_set_reason(struct fsm *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Returns where a job goes whose generation saved and left as it was intended. */
enum fsm_state fsm_intended(enum fsm_intent intent);
/* How long a session may be open without a message: longer than its agent may be silent. */
int64_t fsm_mute_ms(const struct fsm *m);
/* How long a lost session has to come back: where there are thousands, each waits for its turn. */
int64_t fsm_session_ms(const struct fsm *m);
bool fsm_is_silent(const struct fsm_ctx *t, const struct fsm_rank *rank);
/* Counts a rank as gone that nobody has seen to be gone: no other trainer gets its slot until
 * somebody has. */
void fsm_count_as_gone(struct fsm_ctx *t, uint32_t rank);
int64_t fsm_lost_total(const struct fsm *m); /* without stalls: these are training */
/* Books the time since the last turn as training or as lost. */
void fsm_account(struct fsm *m, int64_t now);
/* Functions that keep the record of a recovery (server/recovery/recovery.h). Callers: book, before
 * fsm_account; fail, when a generation failed, with m->cause; mend, when the cause is another
 * one. Also end, when the generation is gone, before GEN_END; form, when the next one is formed,
 * before m->cause is cleared; tick, after every event; resume, when the coordinator is back. */
void fsm_recovery_book(struct fsm_ctx *t);
void fsm_recovery_fail(struct fsm_ctx *t, int64_t detect_ms);
void fsm_recovery_mend(struct fsm *m);
void fsm_recovery_end(struct fsm_ctx *t, enum fsm_state to);
void fsm_recovery_form(struct fsm_ctx *t);
void fsm_recovery_tick(struct fsm_ctx *t);
void fsm_recovery_resume(struct fsm_ctx *t);
/* Leaves PLACING: the slots are given back, and the scheduler places the job again. */
void fsm_unplace(struct fsm_ctx *t);
/* Returns how long trainers have to leave by themselves: for their programs, too. */
int64_t fsm_leave_ms(const struct fsm *m);
/* Ends the trainers; then the job goes to `to`. gently: they have fsm_leave_ms to leave by
 * themselves. */
void fsm_end_ranks(struct fsm_ctx *t, enum fsm_state to, bool gently);
/* The job becomes idle, without trainers: QUEUED, PAUSED, or a final state. */
void fsm_enter_idle(struct fsm_ctx *t, enum fsm_state to);
