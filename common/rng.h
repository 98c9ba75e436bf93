/*
 * Counter-based random numbers and the permutation of samples.
 *
 * There is no generator state: a number is a function of (seed, purpose, counter), so whoever
 * computes it, whenever, gets the same.
 *
 * Source: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
 *         Feistel network with cycle walking: Black and Rogaway, "Ciphers with arbitrary finite
 *         domains", CT-RSA 2002.
 * Thread: any; all functions are pure.
 */
#pragma once

#include <stdint.h>

/* The purpose of a stream of numbers; a part of the key. Saved state depends on these values: never
 * renumber. */
enum rng_purpose {
    RNG_PERMUTATION = 1,
    RNG_INIT = 2,    /* counter: (element, tensor index, 0, 0) */
    RNG_AUGMENT = 3, /* counter: (draw, 0, sample, step) */
    RNG_DROPOUT = 4, /* counter: (element, layer, sample, step) */
    RNG_SYNTHETIC = 5,
};

struct rng_counter {
    uint32_t word[4];
};

/* Philox4x32-10 of counter under the 64-bit key. */
struct rng_counter rng_philox(struct rng_counter counter, uint64_t key);

/* The key of a purpose: mixes seed and purpose through one Philox call. */
uint64_t rng_key(uint64_t seed, enum rng_purpose purpose);

/* Four words for counter (a, b, c, d). */
struct rng_counter rng_words(uint64_t key, uint32_t a, uint32_t b, uint32_t c, uint32_t d);

/* Uniform in [0, 1) with 24 bits; uniform integer in [0, n) by multiplication, n >= 1. */
float rng_uniform(uint32_t word);
uint32_t rng_below(uint32_t word, uint32_t n);

/* Position i of the permutation of 0..n-1 that belongs to (seed, epoch); i < n, n >= 1. O(1). */
uint64_t rng_permute(uint64_t seed, uint64_t epoch, uint64_t n, uint64_t i);
