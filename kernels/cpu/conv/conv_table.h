/*
 * Which convolutions go by Winograd: a fixed table by shape, never by timing, since the choice is
 * part of what the bits depend on.
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

/*
 * For a conv2d. own_works: AVX-512 and one thread. Forward and backward-data share their method.
 */
enum conv_method conv_table_forward(const struct op_spec *spec, bool own_works);
enum conv_method conv_table_weights(const struct op_spec *spec, bool own_works);
