/*
 * The arithmetic of the exact reduction without data: which lane goes to which buffer, what is
 * added to what and when, who owns which part of a bucket. Pure functions of the shares, so every
 * rank derives the same (design 5).
 *
 * A node (level, index) of the tree stands for the lanes [index << level, (index + 1) << level)
 * below `lanes`. A node whose right child has no lanes is its left child.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* A contiguous range of lanes is at most two nodes per level. */
#define EXACT_NODES_MAX 32

struct exact_node {
    uint32_t level, index;
    uint32_t slot; /* where its sum lies: a buffer (local) or an operand (owner) */
};

/* slot `into` += slot `from`. */
struct exact_add {
    uint32_t into, from;
};

/*
 * A binary counter: nodes are pushed in ascending order; what is complete is merged at once.
 * Additions that a push causes are appended to adds.
 */
struct exact_counter {
    uint32_t lanes, height;
    struct exact_node node[EXACT_NODES_MAX]; /* ascending, disjoint, none mergeable */
    uint32_t count;
    struct exact_add *adds; /* borrowed; NULL: not wanted */
    size_t add_count;
};

void exact_counter_init(struct exact_counter *counter, uint32_t lanes, struct exact_add *adds);
void exact_counter_push(struct exact_counter *counter, struct exact_node node);

/* What one rank does with its own lanes [first, first + n). */
struct exact_local {
    uint32_t n;
    uint32_t *slot;    /* [n] the buffer of each lane */
    size_t *add_begin; /* [n + 1] into adds: what is added once lane i is done */
    struct exact_add *adds;
    struct exact_node node[EXACT_NODES_MAX]; /* the partial sums that are left */
    uint32_t node_count;
    uint32_t buffers;
};

MUST_CHECK enum status exact_local_init(struct exact_local *local, uint32_t first, uint32_t n,
                                        uint32_t lanes);
void exact_local_release(struct exact_local *local);

/* Elements [*begin, *end) of the bucket [bucket_begin, bucket_end) belong to rank. */
void exact_chunk(size_t bucket_begin, size_t bucket_end, uint32_t rank, uint32_t size,
                 size_t *begin, size_t *end);
