/* What the kinds of failures mean, and how long is waited after one. */
#pragma once

#include "server/jobfsm/ctx.h"

/* Returns how much a report says about the cause. Within the window (FSM_WINDOW_MS) a better
 * one replaces a worse one; one of weight 3 or more needs no window. */
int fsm_fault_weight(const struct fsm_fault *fault);
/* True if the fault uses the job's budget: FSM_BUDGET such faults at one step or phase end the
 * job, if it has no budget of its own. */
bool fsm_fault_counts(const struct fsm_fault *fault);
/* Returns the last step known to be correct, m->audit.sure or later. States that differ were equal
 * when they were compared last (good_step), whichever generation did it. Lanes that differ say
 * nothing beyond m->audit.sure, as a generation knows only its own audits of lanes. */
uint64_t fsm_fault_good_step(const struct fsm *m, const struct fsm_fault *fault);
/* True if a broken path between two nodes of the generation shows as such a fault. */
bool fsm_fault_of_paths(const struct fsm_fault *fault);
/* True if workers that are not to blame may go on after the fault. */
bool fsm_fault_outlived(const struct fsm_fault *fault);
/* True if the fault may come from what the job asks for, and not from what happened to it. */
bool fsm_fault_is_own(const struct fsm_fault *fault);
/* True if the rank lacks what the job needs (files, a device's module). */
bool fsm_fault_lacks(const struct fsm *m, const struct fsm_fault *fault);
/* Returns after how many generations in a row that failed by the job's own fault it is given up. */
uint32_t fsm_own_max(const struct fsm *m);
/* Returns by what the job is given up, as it failed too often: by `fault`, the newest, or by the
 * first cause. NULL: it may try again. out_why: how often, in words. */
#define FSM_WORN_OUT_BYTES 120
const struct fsm_fault *fsm_worn_out_by(const struct fsm *m, const struct fsm_fault *fault,
                                        char out_why[FSM_WORN_OUT_BYTES]);
/* True if more than FSM_NO_PROGRESS_MAX generations in a row made no progress: a person may want to
 * know. */
bool fsm_makes_no_progress(const struct fsm *m);
/* Returns the time from a failure until the next generation; 0 after the first failure in a row. */
int64_t fsm_backoff_ms(const struct fsm *m);
