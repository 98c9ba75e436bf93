/*
 * Which convolutions go by Winograd: a fixed table by shape, never by timing, since the choice is
 * part of what the bits depend on.
 *
 * Source: both algorithms, side by side, on AVX-512; the .c has the figures.
 */
#pragma once

#include <stdbool.h>

#include "kernels/op.h"

/* For a conv2d, in all three directions. */
bool conv_table_winograd(const struct op_spec *spec);
