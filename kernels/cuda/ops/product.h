/*
 * Products of row-major matrices by cuBLASLt: descriptors and algorithm are made once, in prepare.
 *
 *   d [rows, columns] = act(a · b + bias) + (adds ? c : 0)        bias [columns]
 *
 * Bits: the first algorithm that cuBLASLt's heuristic names for this shape, without split-K in the
 *       type of the output and without atomics (parts of a sum are kept in float32 and added by a
 *       kernel of its own, in order); kept under the product's key (choice.h).
 */
#pragma once

#include <cublasLt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

enum product_epilogue {
    PRODUCT_PLAIN,
    PRODUCT_RELU,
    PRODUCT_GELU, /* the tanh form; what it is applied to is stored at aux, like d */
};

struct product_spec {
    int64_t rows, columns, depth;
    bool a_transposed; /* a lies as [depth, rows] instead of [rows, depth] */
    bool b_transposed; /* b lies as [columns, depth] instead of [depth, columns] */
    enum math math;
    enum dtype out; /* float32, or that of the operands */
    enum product_epilogue epilogue;
    bool bias;           /* in the type of d */
    bool weak_b, weak_d; /* b, or c and d, are aligned to 4 bytes only: flat parameters */
};

struct product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

struct product_operands {
    const void *a, *b;
    const void *c; /* NULL: nothing is added; may be d */
    void *d;
    const void *bias;
    void *aux;
    void *workspace; /* workspace_bytes, aligned to 256 */
};

/* Errors: ST_NOT_FOUND  cuBLASLt has no algorithm for it. */
MUST_CHECK enum status product_init(struct backend *backend, const struct product_spec *spec,
                                    struct product *out);
void product_release(struct product *product);
MUST_CHECK enum status product_run(struct backend *backend, const struct product *product,
                                   const struct product_operands *operands, cudaStream_t stream);
