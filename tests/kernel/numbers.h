/*
 * Numbers that need not be kept to be known again, and places to look at: for results that are
 * compared with float64 by sample.
 */
#pragma once

#include <stdint.h>

/* Element i of an array of `seed`: a multiple of 1/64 from -1 to 1, which bfloat16 has exactly. */
static inline float number_at(unsigned seed, int64_t i)
{
    uint64_t mixed = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)seed * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 29) * 0x94d049bb133111ebu;
    return (float)((int64_t)(mixed >> 32 & 127) - 64) / 64.0f;
}

/* Returns sample i of `count` places: spread, with the first and the last. */
static inline int64_t sample_at(int64_t count, int i)
{
    const uint64_t mixed = ((uint64_t)i + 17) * 0x9e3779b97f4a7c15u >> 20;
    return i == 0 ? 0 : i == 1 ? count - 1 : (int64_t)(mixed % (uint64_t)count);
}
