/*
 * The one loop that adds: out[i] = a[i] + b[i], float32, rounded once. Compiled with full
 * vectorisation, without contraction or reassociation, so its bits don't depend on the vector
 * width.
 *
 * Memory: out may be a or b; other overlap is not allowed.
 */
#pragma once

#include <stddef.h>

void sum_f32(float *out, const float *a, const float *b, size_t count);
