/*
 * What a sample of the words says: which planes are worth an entropy coder, and which of several
 * ways to make planes of the words is the smallest.
 *
 * Thread: any; pure. All of it is integer arithmetic or sums in a fixed order, so every machine
 * decides alike.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLE_MAX 4096u /* words that an entropy is estimated from */
#define SAMPLE_RUN 64u   /* in runs of so many, spread evenly */

#define INCOMPRESSIBLE 7.85f /* bits a byte; the estimate for random bytes is 7.955 */

/* Where the runs of a sample of a chunk of count words lie. */
struct sample_plan {
    size_t runs, run, step;
};
struct sample_plan sample_plan(size_t count, size_t words);

struct probe_weights {
    float of[SAMPLE_MAX + 1]; /* n * log2(n) */
};
void probe_weights(struct probe_weights *out);

/* Estimated bits a byte of every plane of the words. */
void probe_entropy(const struct probe_weights *weights, const uint32_t *words, size_t count,
                   size_t width, float entropy[4]);
