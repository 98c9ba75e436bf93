/* For tests of the exact reduction: lanes, and their tree sum by brute force. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/reducer.h"

/* Element i of a lane: of mixed magnitude, so that every order of addition gives other bits. */
float lane_value(uint32_t lane, size_t i);
/* The sum of lanes [first, first + span) of `lanes`, span a power of two. */
float lane_sum(uint32_t first, uint32_t span, uint32_t lanes, size_t i);
/* That of all lanes, `count` elements; free it. */
float *lane_sums_new(uint32_t lanes, size_t count);
/* One step of a rank up to handing over all buckets, the last first: lane_value in each of its
 * lanes, as they are spread by shares[size]. */
void lanes_fill(struct reducer *reducer, const uint32_t *shares, int size, int rank, size_t count,
                size_t bucket_count);
