/*
 * Initial parameters and statistics, drawn by counter: PyTorch's default distributions, or what
 * the model says. The same on every rank and machine, with no order.
 *
 * Parameter t under key = rng_key(seed, RNG_INIT):
 *   uniform  element e is (2u - 1)·bound, u from word 0 of Philox(key, (e, t, 0, 0)),
 *            bound = (float)(1/sqrt(fan_in))
 *   normal   element e is (float)(std·z), z number e % 4 of init_normal of the words of
 *            Philox(key, (e / 4, t, 0, 0))
 *
 * Memory: host memory.
 */
#pragma once

#include <stdint.h>

#include "trainer/tape/tape.h"

/* params: tape->param_elements floats. */
void init_params(const struct tape *tape, uint64_t seed, float *params);
/* stats: running means 0, running variances 1. */
void init_stats(const struct tape *tape, float *stats);

/*
 * Four normal numbers of four random words, by Box and Muller: 0 and 1 are r·cos 2πu and r·sin 2πu
 * with r = sqrt(-2·log((word 0 + 1)/2³²)), u = word 1 / 2³²; 2 and 3 likewise of words 2 and 3.
 * In double with + - * / sqrt and our own series, so that no library version moves their bits.
 */
void init_normal(const uint32_t word[4], double out[4]);
