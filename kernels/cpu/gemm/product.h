/*
 * Products of dense matrices by oneDNN, for linear and attention.
 *
 *   c [m, n] = a [m, k] · b [k, n] (+ bias [n]) (+ c)
 *
 * `batch` of them, one after the other in memory. Row-major; transposed, a lies as [k, m] and b as
 * [n, k].
 */
#pragma once

#include "kernels/cpu/gemm/dnn.h"

struct product {
    int64_t batch, m, n, k; /* batch 0: one product, of matrices of two dims */
    bool a_transposed, b_transposed;
    bool half;     /* a and b are bfloat16, else float32 */
    bool half_out; /* c is bfloat16, else float32 */
    bool sum;      /* c is added to, not overwritten */
    bool bias;     /* float32; only with batch 0 */
};

/* Whether oneDNN multiplies bfloat16 on this processor; if not, callers widen the operands. */
bool product_has_half(void);

MUST_CHECK enum status product_init(struct dnn *dnn, struct dnn_op *op, const struct product *p);
/* Runs a product that was prepared. bias is read iff the product has one. */
MUST_CHECK enum status product_run(struct dnn *dnn, struct dnn_op *op, const void *a, const void *b,
                                   const float *bias, void *c, void *scratch);
/* Multiplies at once, without preparing: float32, batch 0, no bias, by oneDNN's gemm. Where a lies
 * transposed, or b doesn't, that is faster than its matmul (by a tenth on 256 rows). */
MUST_CHECK enum status product_f32(const struct product *p, const float *a, const float *b,
                                   float *c);
