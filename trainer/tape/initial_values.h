/*
 * Initial parameters and statistics: PyTorch's default distributions, or what the model says. Drawn
 * by counter: the same on every rank and machine, in whatever order.
 *
 * Parameter t, under key = rng_key(seed, RNG_INIT):
 *   uniform  element e is (2u - 1)·bound, u from word 0 of Philox(key, (e, t, 0, 0)),
 *            bound = (float)(1/sqrt(fan_in))
 *   normal   element e is (float)(std·z), z number e % 4 of initial_values_normal of the words of
 *            Philox(key, (e / 4, t, 0, 0))
 *
 * Memory: host memory. Thread: any.
 */
#pragma once

#include <stdint.h>

#include "trainer/tape/tape.h"

/* params: tape->param_elements floats. */
void initial_values_params(const struct tape *tape, uint64_t seed, float *params);
/* Draw one parameter, or one statistic, alone, to its place. */
void initial_values_param(const struct tape *tape, uint64_t seed, int param, float *params);
void initial_values_stat(const struct tape *tape, int stat, float *stats);
/* stats: running means 0, running variances 1. */
void initial_values_stats(const struct tape *tape, float *stats);

/*
 * Four normal numbers of four random words, by Box and Muller:
 *   out[0] = r·cos 2πu    r = sqrt(-2·log((word[0] + 1)/2³²))
 *   out[1] = r·sin 2πu    u = word[1]/2³²
 *   out[2], out[3]        the same of word[2] and word[3]
 * In double, with + - * / sqrt and series of our own, so that no library version moves their bits.
 */
void initial_values_normal(const uint32_t word[4], double out[4]);
