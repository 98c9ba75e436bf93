/*
 * bfloat16 and float16 as their 16 bits, for tests: rounded to nearest even, not a number kept.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/tensor.h"

bool is_half(enum dtype dtype);
uint16_t to_half(enum dtype dtype, float x);
float from_half(enum dtype dtype, uint16_t half);
