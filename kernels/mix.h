/*
 * A word of 32 bits mixed with its place, for checksums of buffers: MurmurHash3's finalizer. For
 * one place different words give different results, so that a sum over places sees any single
 * change; of others it misses one in 2^32.
 *
 * Source: Appleby, MurmurHash3 (fmix32).
 */
#pragma once

#include <stdint.h>
#include <string.h>

/* word: an lvalue of uint32_t, or a vector of them, as place is. */
#define MIX_WORD(word, place)                                                                      \
    do {                                                                                           \
        (word) += (place)*0x9e3779b1U;                                                             \
        (word) ^= (word) >> 16;                                                                    \
        (word) *= 0x85ebca6bU;                                                                     \
        (word) ^= (word) >> 13;                                                                    \
        (word) *= 0xc2b2ae35U;                                                                     \
        (word) ^= (word) >> 16;                                                                    \
    } while (0)

static inline uint32_t mix_word(float value, uint32_t place)
{
    uint32_t word;
    memcpy(&word, &value, sizeof(word));
    MIX_WORD(word, place);
    return word;
}

/* Joins the checksums of pieces, in order, to one. */
static inline uint64_t mix_sums(const uint64_t *sums, uint64_t count)
{
    uint64_t all = count;
    for (uint64_t i = 0; i < count; i++)
        all = (all ^ sums[i]) * UINT64_C(0x9e3779b97f4a7c15) + (all >> 29);
    return all;
}
