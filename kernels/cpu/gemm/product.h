/*
 * Products of dense matrices by oneDNN, for linear and attention.
 */
#pragma once

#include "kernels/cpu/gemm/dnn.h"

/* c [m, n] = a [m, k] · b [k, n] (+ bias [n]) (+ c), `batch` of them one after the other;
 * row-major, unless transposed: then a lies as [k, m], b as [n, k]. */
struct product {
    int64_t batch, m, n, k; /* batch 0: plain matrices */
    bool a_transposed, b_transposed;
    bool half;     /* a and b are bfloat16; else float32 */
    bool half_out; /* c is */
    bool sum;      /* c is added to */
    bool bias;     /* float32; not with batch */
};

/* Whether products of bfloat16 run here; where not, operands are widened. */
bool product_has_half(void);

MUST_CHECK enum status product_init(struct dnn *dnn, struct dnn_op *op, const struct product *p);
/* The same at once for float32, not of a batch and without bias, by oneDNN's gemm: where a lies
 * transposed, or b as it is, that is faster than its matmul on whole rows (by a tenth on 256 rows).
 */
MUST_CHECK enum status product_f32(const struct product *p, const float *a, const float *b,
                                   float *c);
/* bias is read iff the product has one. */
MUST_CHECK enum status product_run(struct dnn *dnn, struct dnn_op *op, const void *a, const void *b,
                                   const float *bias, void *c, void *scratch);
