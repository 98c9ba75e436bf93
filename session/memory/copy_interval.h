/*
 * Interval of copies in memory where the job leaves it open (checkpoint.memory_every: auto).
 *
 * A copy is taken after every k-th step, k being a power of two that is at most SESSION_EVERY_MAX,
 * and the least with which
 *
 *   - copies take no more than SESSION_COPY_COST_SHARE of the time: what a copy costs, by k steps.
 *     It costs the time that the step thread spends on it, and where no core is free for the copier
 *     the processor time of that, too;
 *   - the copier is busy for half of the time at most: no step waits for the copy before.
 *
 * All ranks take the highest k of any: copies of different steps make no complete state. It is
 * agreed as a generation begins, and again after steps that are a function of the step alone
 * (session_copy_interval_revises). Until something was measured, k is 1.
 *
 * Pure functions.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SESSION_COPY_COST_SHARE 0.005
#define SESSION_EVERY_MAX       1024

/* Measured costs of copies and steps: moving averages in milliseconds; 0: nothing yet. */
struct session_copy_cost {
    bool core_free;  /* the copier runs beside what computes, not instead of it */
    double step_ms;  /* of a step */
    double stall_ms; /* of the step thread, for a copy */
    double cpu_ms;   /* processor time of the copier, for a copy */
    double busy_ms;  /* from when the copier has a copy until it is complete */
};

/* Adds one more value to a moving average. */
void session_copy_cost_note(double *average, double value_ms);

/* Steps from one copy to the next. */
uint32_t session_copy_interval(const struct session_copy_cost *copy_cost);

/* Whether all ranks agree anew after the finished step `step`, in a generation that began with
 * `first`: 16 and 64 steps later, and at every multiple of SESSION_EVERY_MAX. */
bool session_copy_interval_revises(uint64_t first, uint64_t step);

/* Returns the interval that all ranks take, given what each wants: the longest; 0 (no copies) if
 * any rank can take none. */
uint32_t session_copy_interval_agree(const uint32_t *wanted, size_t ranks);
