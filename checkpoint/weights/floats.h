/*
 * Between float32 and the other float types of stored tensors. Widening is exact; narrowing rounds
 * to nearest, ties to even, beyond the largest finite value to infinity; a NaN stays a NaN.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"

/* Whether dtype is F32, BF16 or F16. */
bool floats_known(enum ckpt_dtype dtype);
/* count values of a type that floats_known. */
void floats_widen(enum ckpt_dtype dtype, const void *in, size_t count, float *out);
/* Returns how many finite values became infinite. */
size_t floats_narrow(enum ckpt_dtype dtype, const float *in, size_t count, void *out);
