/*
 * The one loop that adds: out[i] = a[i] + b[i], float32, rounded once. Compiled with full
 * vectorisation, without contraction or reassociation, so its bits don't depend on the vector
 * width. Denormals are zero, as in the kernels, whatever the mode of the calling thread: with one
 * rank the step's thread adds, with more the communication thread.
 *
 * Memory: out may be a or b; other overlap is not allowed.
 */
#pragma once

#include <stddef.h>

void sum_f32(float *out, const float *a, const float *b, size_t count);
