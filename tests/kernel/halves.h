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

/* Element i of an array of halves; of any other, its 32 bits. */
float load_as_float(enum dtype dtype, const void *array, int64_t i);
void store_float(enum dtype dtype, void *array, int64_t i, float x);
