/*
 * Which convolutions go by Winograd. A fixed table by shape, never a measurement at run time: the
 * choice is part of what the bits depend on (docs/invariants.md, "The exact step").
 *
 * Source: both algorithms, side by side, on AVX-512; the .c has the figures.
 */
#pragma once

#include <stdbool.h>

#include "kernels/op.h"

enum conv_method {
    CONV_DIRECT,
    CONV_WINOGRAD,     /* oneDNN's */
    CONV_WINOGRAD_OWN, /* winograd.h */
};

/* Return the method of a conv2d: for forward and backward-data, and for the weights' gradient.
 * own_works: whether our own Winograd runs here, which takes AVX-512 and a single thread. */
enum conv_method conv_table_forward(const struct op_spec *spec, bool own_works);
enum conv_method conv_table_weights(const struct op_spec *spec, bool own_works);
