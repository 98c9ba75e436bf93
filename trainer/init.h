/*
 * Initial parameters and statistics: PyTorch's default distributions, drawn by counter.
 *
 * Element e of parameter t is (2u - 1)·bound with u from word 0 of Philox(rng_key(seed, RNG_INIT),
 * (e, t, 0, 0)) and bound = (float)(1/sqrt(fan_in)); the same on every rank, with no order.
 */
#pragma once

#include <stdint.h>

#include "trainer/tape/tape.h"

/* params: tape->param_elements floats. */
void init_params(const struct tape *tape, uint64_t seed, float *params);
/* stats: running means 0, running variances 1. */
void init_stats(const struct tape *tape, float *stats);
