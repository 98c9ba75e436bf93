/*
 * Which convolutions go by Winograd: a fixed table by shape, never by timing, since the choice is
 * part of what the bits depend on.
 *
 * Source: medians of bench/kernels, both algorithms, on AVX-512 (docs/bench.md).
 */
#pragma once

#include <stdbool.h>

#include "kernels/op.h"

enum conv_direction { CONV_FORWARD, CONV_BACKWARD_DATA, CONV_BACKWARD_WEIGHTS };

bool conv_table_winograd(const struct op_spec *spec, enum conv_direction direction);
