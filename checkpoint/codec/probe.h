/*
 * Estimates from a sample of a chunk's words: which planes are worth an entropy coder, and which of
 * several ways to make planes of the words is the smallest.
 *
 * All of it is integer arithmetic or sums in a fixed order, so every machine decides alike. Plane p
 * of a word is its byte p, the lowest first.
 *
 * Thread: any; pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROBE_WORDS_MAX 4096u /* of a sample */
#define PROBE_RUN       64u   /* a sample's words lie in runs of that many, spread evenly */

#define INCOMPRESSIBLE 7.85f /* bits a byte; the estimate for random bytes is 7.955 */

/* Positions of the runs of a sample: run r begins at word r * stride of the chunk. */
struct probe_places {
    size_t runs, run, stride;
};
/* Returns the positions for at most `words` words of a chunk of count words. */
struct probe_places probe_places(size_t count, size_t words);

struct probe_weights {
    float of[PROBE_WORDS_MAX + 1]; /* n * log2(n) */
};
void probe_weights(struct probe_weights *out);

/* Estimated bits a byte of every plane of the words. width: planes, 4 at most. */
void probe_entropy(const struct probe_weights *weights, const uint32_t *words, size_t count,
                   size_t width, float entropy[4]);
/* Estimated bits a word; planes count as raw where they are stored raw because that is about as
 * small. */
float probe_bits(const float entropy[4], size_t width);

/* Whether the lowest bit of a word is set. */
bool probe_any_lowest_bit(const uint32_t *words, size_t count);
/* Whether 15 values in a row cover most of plane p: it is worth being stored as nibbles. */
bool probe_is_narrow(const uint32_t *words, size_t count, size_t p);
