/*
 * Products of row-major matrices by cuBLASLt. Descriptors and algorithm are made once, in an op's
 * prepare.
 *
 *   d [rows, columns] = act(a · b + bias) (+ c)
 *
 *   a [rows, depth]   b [depth, columns]   c like d   bias [columns]
 *
 * Rows of a may lie apart.
 *
 * Bits: the algorithm is the first that cuBLASLt's heuristic names for the shape and that adds in a
 *       fixed order: without atomics, and without split-K in the type of the output (the parts of a
 *       split sum are float32, and a kernel adds them in order). It is kept under the product's key
 *       (kernels/cuda/device/choice.h).
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
    PRODUCT_GELU, /* the tanh form; a · b + bias is stored at aux, laid out like d */
};

struct cuda_product_spec {
    int64_t rows, columns, depth;
    int64_t pitch_a;   /* elements from one row of a, as it lies, to the next; 0: its columns */
    bool a_transposed; /* a lies as [depth, rows] instead of [rows, depth] */
    bool b_transposed; /* b lies as [columns, depth] instead of [depth, columns] */
    enum math math;
    enum dtype out; /* float32, or that of the operands */
    enum product_epilogue epilogue;
    bool bias;           /* in the type of d */
    bool weak_b, weak_d; /* b, or c and d, are aligned to 4 bytes only, as flat parameters are */
};

struct cuda_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

struct cuda_product_operands {
    const void *a, *b;
    const void *c; /* may be d; NULL: nothing is added */
    void *d;
    const void *bias;
    void *aux;
    void *workspace; /* workspace_bytes, aligned to 256 */
};

/* Errors: ST_NOT_FOUND  cuBLASLt has no algorithm for it */
MUST_CHECK enum status cuda_product_init(struct backend *backend,
                                         const struct cuda_product_spec *spec,
                                         struct cuda_product *out);
void cuda_product_release(struct cuda_product *product);
MUST_CHECK enum status cuda_product_run(struct backend *backend, const struct cuda_product *product,
                                        const struct cuda_product_operands *operands,
                                        cudaStream_t stream);
