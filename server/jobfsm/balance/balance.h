/*
 * How lanes are spread over workers of different speeds.
 *
 * A worker that takes us[r] for a lane takes lanes[r] * us[r] for its share of a step. A step takes
 * as long as the worker that is through with its share last. That time is to be the least there is,
 * with whole lanes, and one for each worker at least.
 *
 *     us      10  10  16          lanes  8 8 8  -> 128 us a step
 *                                        9 9 6  ->  96 us
 *
 * Pure functions. Thread: any.
 */
#pragma once

#include <stdint.h>

/*
 * Spreads the lanes so that no other spread has a shorter step. Where several spreads have that
 * one, lower ranks carry what others could. us: [count], of one lane, none 0. lanes: of all, count
 * at least. out: [count].
 */
void balance_lanes(const uint32_t *us, uint32_t count, uint32_t lanes, uint32_t *out);
/* Returns the time that the slowest worker takes for its share. */
uint64_t balance_step_us(const uint32_t *us, const uint32_t *lanes, uint32_t count);
/* Returns the median of the times that are known (not 0): half of them are no longer. 0: none is
 * known. count: LIMIT_RANKS at most. */
uint32_t balance_median(const uint32_t *us, uint32_t count);
