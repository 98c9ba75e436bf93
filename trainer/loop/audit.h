/*
 * Audits of a step: ranks tell each other what they computed, and come to a verdict
 * (trainer/audit/audit_judge.h).
 *
 * Thread: the step thread. Errors: comm/comm.h, trainer/loop/step.h
 */
#pragma once

#include "trainer/loop/step.h"
#include "trainer/worker/agree.h"

/* Audits the lanes of a step that was computed and not updated yet. Where lanes differ, the
 * generation is over: step.h, step_recompute. */
MUST_CHECK enum status audit_lanes(struct worker *worker, uint64_t step,
                                   const struct step_audit *mine, struct audit_verdict *out);
/* Audits the state after `step` finished steps. */
MUST_CHECK enum status audit_replicas(struct worker *worker, uint64_t step,
                                      struct audit_verdict *out);
