/*
 * The order of the reducer's sum, without data: which rank carries which lanes, which lane goes
 * into which buffer, what is added to what and when, which rank owns which part of a bucket. Pure
 * functions of the shares, so that every rank derives the same. reducer.h has the picture.
 *
 * A share of n lanes is made of nodes, one for each power of two in n. All shares' nodes stand from
 * left to right by size, those of equal size by rank. So each begins at a multiple of its size, as
 * a node has to.
 *
 *     shares 11, 5 of 16      A  8 lanes   B  4      A  2    A 1  B 1
 *                                0 ... 7     8 ... 11  12 13   14   15
 *
 * A node (level, index) of the tree stands for the lanes [index << level, (index + 1) << level)
 * below `lanes`. A node whose right child has no lanes is its left child.
 *
 * A sum lies in a *place*: while a rank adds its own lanes, a place is one of its buffers; when an
 * owner adds the partial sums of all ranks, it is one of the operands.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Most nodes of a share, or of a counter: one per level. */
#define REDUCER_PARTIALS_MAX 16

struct reducer_tree_node {
    uint32_t level, index;
    uint32_t place; /* where its sum lies */
};

/* place `into` += place `from`. */
struct reducer_add {
    uint32_t into, from;
};

/*
 * The binary counter: nodes are pushed from left to right. Siblings are merged at once; the
 * additions that a push causes are appended to adds.
 */
struct reducer_counter {
    uint32_t lanes, height;
    struct reducer_tree_node
        partial[REDUCER_PARTIALS_MAX]; /* from left to right, no siblings among them */
    uint32_t count;
    struct reducer_add *adds; /* borrowed; NULL: they are only counted */
    size_t add_count;
};

void reducer_counter_init(struct reducer_counter *counter, uint32_t lanes,
                          struct reducer_add *adds);
void reducer_counter_push(struct reducer_counter *counter, struct reducer_tree_node node);

/* Orders the lanes: [sum of shares] those of rank 0 first, of each rank ascending. */
void reducer_spread(const uint32_t *shares, uint32_t size, uint32_t *order);

/* The additions of one rank over its own n lanes. */
struct reducer_local {
    uint32_t n;
    uint32_t *buffer_of; /* [n] the buffer that its i-th lane is written into */
    size_t *add_begin;   /* [n + 1] into adds: what is added once that is done */
    struct reducer_add *adds;
    struct reducer_tree_node partial[REDUCER_PARTIALS_MAX]; /* the partial sums that are left */
    uint32_t partial_count;
    uint32_t buffers; /* how many are needed */
};

/* Returns the buffers that a share of n lanes needs, each a copy of the lane vector: floor(log2 n)
 * + 1. */
uint32_t reducer_gradient_buffers(uint32_t n);

/* lane: [n] of reducer_spread's order; not kept. lanes: of all. */
MUST_CHECK enum status reducer_local_init(struct reducer_local *local, const uint32_t *lane,
                                          uint32_t n, uint32_t lanes);
void reducer_local_release(struct reducer_local *local);

/* Returns elements [*begin, *end) of the bucket [bucket_begin, bucket_end) that belong to rank. */
void reducer_chunk(size_t bucket_begin, size_t bucket_end, uint32_t rank, uint32_t size,
                   size_t *begin, size_t *end);
