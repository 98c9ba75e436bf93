/*
 * A stable sort of positions by their token: positions of one token come out in ascending order.
 *
 * Radix sort, 8 bits per pass, the lowest first. A pass is three kernels:
 *
 *   sort_count_kernel      how often each digit is in each tile: digits[digit][tile]
 *   sort_scan_kernel       an exclusive sum over those, digit by digit: where each tile's elements
 *                          of a digit begin
 *   sort_scatter_kernel    puts them there; a warp keeps the order of its elements by matching
 *                          equal digits among its lanes
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Addresses in scratch. A pass reads one pair of keys and places and writes the other. */
struct sorted {
    uint32_t *keys[2]; /* [count] each */
    int32_t *places[2];
    uint32_t *digits; /* [256][tiles] */
};

/* Bytes of scratch for `count` tokens. Unless memory is NULL, *out says where things lie in it. */
size_t sort_layout(int64_t count, void *memory, struct sorted *out);

/*
 * *out_keys: the tokens in order, *out_places: where each came from; both in scratch. A token not
 * in 0..vocab-1 has the key vocab, so that it is at the end.
 */
enum status sort_tokens(const int32_t *tokens, int64_t count, int64_t vocab,
                        const struct sorted *memory, const uint32_t **out_keys,
                        const int32_t **out_places, void *stream);
