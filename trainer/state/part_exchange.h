/*
 * Memory of which each rank has a part: every rank gets the others' parts, straight to where they
 * belong.
 *
 *     memory      | part of 0 | part of 1 | part of 2 |      pieces, the same on all ranks
 *     round 0       ----->      ----->      ----->           a stretch of each part goes to all
 *     round 1            ----->      ----->      ----->
 *
 * The sender of a stretch hashes it while it is under way, and its receivers while the next one
 * comes; the two must agree.
 *
 * Before the first round all ranks wait for each other, as long as it takes: one may still be
 * reading its part from a slow store.
 *
 * Memory: a round brings PART_EXCHANGE_ROUND bytes to a rank, or 64 KiB of each; nothing is kept.
 * Thread: one, on all ranks together; another hashes.
 * Errors: ST_CORRUPT  a stretch came damaged, out_blamed is whose it was
 *         ST_INVALID  ranks have cut the memory differently
 *         those of comm/comm.h; after any the memory of other ranks' parts is undefined
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/reason.h"
#include "common/status.h"

#define PART_EXCHANGE_ROUND ((size_t)32 * 1024 * 1024)

/* Bytes of one rank's part that lie side by side. */
struct part_piece {
    uint32_t rank;
    void *data; /* host memory */
    size_t bytes;
};

struct part_exchange_options {
    const struct comm_table *table; /* of host memory */
    struct comm *comm;
    uint32_t rank, size;
    uint32_t first;                  /* number of rank 0 of these, in messages */
    const struct part_piece *pieces; /* ascending by rank; of the same ranks and sizes on all */
    size_t piece_count;
    void (*tick)(void *arg); /* a round is done; NULL: nobody wants to know */
    void *tick_arg;
};

MUST_CHECK enum status part_exchange(const struct part_exchange_options *options,
                                     uint32_t *out_blamed, struct reason *reason);
