/*
 * The order in which Cairn adds: the binary tree over the index.
 *
 *     0   1   2   3   4          with five values:
 *      \ /     \ /    |          (0 + 1) + (2 + 3)   and then   + 4
 *       +       +     |
 *        \     /      |          A leaf that is absent is skipped, never added as 0, and a node
 *         -- + --     |          with one child is that child. So the tree may be thought over
 *              \     /           any power of two that is large enough: the order is the same.
 *                 +
 *
 * Everything that crosses lanes, pieces or batches is summed in this order, so that a sum doesn't
 * depend on who computed which part of it. comm/reducer_order.h has the same tree over lanes whose
 * gradients lie on several ranks; tests/unit/comm/reducer/test_reducer.c holds both together.
 *
 * Source: pairwise summation; Higham, "The accuracy of floating point summation", SIAM Journal on
 *         Scientific Computing 14 (1993): its error grows with log2 count.
 */
#pragma once

#include <stddef.h>

/* The sum of count >= 1 values. They are overwritten with partial sums. */
double tree_sum(double *values, size_t count);
