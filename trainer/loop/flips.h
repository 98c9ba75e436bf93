/*
 * The numbers of a step whose bits a fault may flip (common/fault.h), as hardware does that
 * computes wrongly; above each function stands its fault point. Nothing happens where the host may
 * not touch the memory, and in programs without fault points.
 *
 * Thread: the step loop's.
 */
#pragma once

#include "trainer/worker/worker.h"

/* "trainer.gradient": a lane's gradients in the last bucket, which is complete; not the loss and
 * the counts behind them. */
void flip_gradient(const struct worker *worker, float *lane);
/* "trainer.loss": the loss of a complete lane. */
void flip_loss(const struct worker *worker, float *lane);
/* "trainer.weight", then "trainer.moment": right after the update. */
void flip_state(struct worker *worker);
/* "trainer.snapshot": the weights, before a snapshot of them is described. */
void flip_snapshot(struct worker *worker);
