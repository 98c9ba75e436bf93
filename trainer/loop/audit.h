/*
 * Whether ranks compute the same: lanes that two of them computed, and the state that each has.
 *
 * Equality of bits needs no threshold: whoever differs is wrong, or the other one is.
 *
 *     two ranks differ in a lane   a third one computes it, too: who differs from both is wrong.
 *                                  With two ranks both compute it again: if they agree then, who
 *                                  said something else before was wrong; else nobody knows
 *     replicas differ              who is in the minority is wrong; of two nobody knows
 *
 * All ranks come to the same verdict, since all have the same words.
 *
 * Thread: the step thread. Errors: comm/comm.h, trainer/loop/step.h
 */
#pragma once

#include "trainer/loop/step.h"
#include "trainer/worker/agree.h"

#define AUDIT_NOBODY UINT32_MAX /* nobody is known to be wrong */

struct audit_verdict {
    bool differ;
    uint32_t wrong;       /* a rank; AUDIT_NOBODY: one of these two */
    uint32_t ranks[2];    /* that differ */
    struct reason reason; /* one line */
};

/* Of the audit of a step that was computed and not updated yet. Where lanes differ, the generation
 * is over: step.h, step_recompute. */
MUST_CHECK enum status audit_lanes(struct worker *worker, uint64_t step,
                                   const struct step_audit *mine, struct audit_verdict *out);
/* After `step` finished steps. */
MUST_CHECK enum status audit_replicas(struct worker *worker, uint64_t step,
                                      struct audit_verdict *out);

/* The rule, for tests. words: of each rank, own and foreign lane; replicas: its checksum, and 0.
 * AUDIT_NOBODY with out->differ: no majority. */
void audit_judge_replicas(const struct worker_words *words, uint32_t size,
                          struct audit_verdict *out);
/* The first pair that differs: ranks[0] is the owner of the lane, ranks[1] who computed it, too. */
void audit_judge_lanes(const struct audit_rule *rule, uint64_t step,
                       const struct worker_words *words, struct audit_verdict *out);
/* What was computed again: of who was asked, word[0]. */
uint32_t audit_judge_again(const struct worker_words *before, const struct worker_words *again,
                           const struct audit_verdict *of, uint32_t third);
/* Who is asked: another rank than these two; AUDIT_NOBODY: there is none, and both are. */
uint32_t audit_third(const struct audit_verdict *of, uint32_t size);
