/*
 * A stable sort of token positions by token: positions of one token come out in ascending order.
 *
 * Radix sort, 8 bits a pass, lowest first. A pass counts the digits of each tile, scans the counts
 * (digit by digit, tiles within), and scatters: a warp keeps its elements' order by matching equal
 * digits among its lanes.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Views into scratch; see sort_layout. */
struct sorted {
    uint32_t *keys[2]; /* [count], the second for the passes between */
    int32_t *places[2];
    uint32_t *digits; /* [256][tiles] */
};

/* Bytes for `count` tokens; with memory not NULL also where things lie in it. */
size_t sort_layout(int64_t count, void *memory, struct sorted *out);

/*
 * Sorts; *out_keys and *out_places point into the layout. A token not in 0..vocab-1 gets the key
 * vocab: it is at the end.
 */
enum status sort_tokens(const int32_t *tokens, int64_t count, int64_t vocab,
                        const struct sorted *memory, const uint32_t **out_keys,
                        const int32_t **out_places, void *stream);
