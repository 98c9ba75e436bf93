/*
 * Our own product of bfloat16 matrices on AMX tiles, on one thread.
 *
 *   c [m, n] = a [m, k] · b [k, n] (+ bias [n]) (+ c)     row-major, summed in float32
 *
 * Bits: sums run over k in order; they depend on the shape alone. Operands may lie anywhere and
 *       have any shape: they are packed in scratch.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct half_gemm {
    int64_t m, n, k;
    const uint16_t *a;
    bool a_transposed; /* a lies as [k, m] */
    const uint16_t *b;
    bool b_transposed; /* b lies as [n, k] */
    const float *bias; /* may be NULL */
    void *c;
    bool c_half;     /* c is bfloat16, else float32 */
    bool accumulate; /* c is added to; float32 only */
};

size_t half_gemm_scratch_bytes(int64_t m, int64_t n, int64_t k);
/* Multiplies; only where the backend's `amx` is set. scratch is aligned to 64. */
void half_gemm_amx(const struct half_gemm *g, void *scratch);
