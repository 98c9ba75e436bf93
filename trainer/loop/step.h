/*
 * One step, in its two phases (docs/invariants.md, "The exact step").
 *
 *   step_compute  forward and backward of the share's lanes, micro-batches in order, and the exact
 *                 sum over all lanes. Communicates; changes no state.
 *   step_update   clipping, optimizer, running statistics, and the kernels' copies of the
 *                 parameters. Begins only when everything that it reads is complete. Communicates
 *                 in two layouts only: with owners of parts of the moments
 *                 (trainer/worker/ownership.h), and with other stages (trainer/stage/stage.h).
 *
 * So where a peer dies, the survivors differ by at most one whole step.
 *
 * Thread: the step thread.
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "trainer/worker/worker.h"

/*
 * A call that must return before any rank can finish this step. step_compute calls it once, when
 * this rank has computed everything and before its last bucket leaves. The sum that all ranks wait
 * for lacks that bucket until the call returns.
 */
struct step_gate {
    enum status (*before_last_bucket)(void *arg);
    void *arg;
    enum status st; /* out: what the call returned; ST_OK before */
};

/* Result of an audit of a step (trainer/audit/audit_rule.h): checksums of the gradients of two
 * lanes. Where `own` and another rank's `foreign` are of one lane, they must be equal. */
struct step_audit {
    uint32_t own_lane, foreign_lane; /* AUDIT_NO_LANE: this step is not audited */
    uint64_t own, foreign;
};

/*
 * Runs the forward and backward passes of the share's lanes on a state of zeros, whatever it was
 * before; for a spare. Its first real step then finds memory, kernels and recordings as later steps
 * do. Errors: as step_compute
 */
MUST_CHECK enum status step_rehearse(struct worker *worker);

/*
 * step: from 0. Where gate->st is an error, the step is not finished and an error is returned: that
 * one, if nothing failed after it.
 * Errors: ST_CONFIG          the data are wrong: feed_reason of worker->batches
 *         ST_PEER, ST_STALE  comm/comm.h
 *         those of the backend
 */
MUST_CHECK enum status step_compute(struct worker *worker, uint64_t step, struct step_gate *gate,
                                    struct step_audit *out_audit);
/*
 * Computes one lane of the step again, whichever rank's it is. The reduced sum is lost, so this
 * generation can't go on. Errors: as step_compute
 */
MUST_CHECK enum status step_recompute(struct worker *worker, uint64_t step, uint32_t lane,
                                      uint64_t *out_sum);
/*
 * A loss that is a spike (recovery.on_spike; out->spike) changes nothing: the step goes to the skip
 * list, or the call returns ST_CONFIG.
 * A gradient that overflowed under dynamic loss scaling (out->overflow) changes nothing but the
 * scale, and the step goes to the skip list.
 * ST_NUMERIC: loss or gradient is not finite; nothing was changed, out is filled in.
 */
MUST_CHECK enum status step_update(struct worker *worker, uint64_t step, double lr,
                                   struct optimizer_report *out);
