/*
 * The three directions of a convolution by oneDNN's primitives. W is canonical, [K, C, R, S], or in
 * the layout that the primitive chose for itself; pack and unpack translate.
 *
 *   forward            y  = x * W (+ bias)
 *   backward-data      dx = dy * W, each kernel turned by 180°
 *   backward-weights   dW = x * dy; db = dy summed per channel
 *
 * For some shapes (with AVX2: a padded image smaller than the kernel) oneDNN has only its reference
 * in the blocked layout, which is a thousand times slower. Then x and y are copied to the plain
 * layout, for which it has a product of matrices:
 *
 *   scratch   | the primitive's own | x, plain | y, plain |
 *
 * All calls are made on the backend's thread.
 */
#pragma once

#include <stdbool.h>

#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/gemm/dnn.h"

enum conv_direction { CONV_FORWARD, CONV_BACKWARD_DATA, CONV_BACKWARD_WEIGHTS };

/* Properties that all directions of a convolution share. */
struct conv_shape {
    const struct op_attr *attr;
    dnnl_memory_desc_t x, y, bias;
    dnnl_memory_desc_t canonical; /* W */
};

/* x or y, copied from or to the plain layout. All zero: the primitive takes it as it is. */
struct conv_copy {
    struct dnn_op reorder;
    size_t at; /* in scratch */
};

/* The primitive of one direction, with its copies. All zero: there is none. */
struct conv_dnn {
    struct dnn_op op;
    size_t scratch_bytes;
    struct conv_copy x, y;
    dnnl_memory_desc_t weights; /* oneDNN's layout of W, or of dW */
    size_t weights_bytes;
    struct dnn_op pack;               /* canonical to `weights`; not of backward-weights … */
    struct dnn_op unpack, unpack_add; /* … which has: `weights` to canonical, written or added */
};

/* in and out are what the primitives read and write: blocked; `in` may be plain. */
MUST_CHECK enum status conv_shape_init(const struct backend *backend, const struct op_attr *attr,
                                       const struct tensor *in, const struct tensor *out,
                                       struct conv_shape *shape);

/* Prepares one direction. With `winograd` it uses that algorithm, if oneDNN has it for this shape
 * and processor. Otherwise it is direct; if there is no such primitive either, oneDNN chooses. */
MUST_CHECK enum status conv_dnn_init(struct dnn *dnn, const struct conv_shape *shape,
                                     enum conv_direction direction, bool winograd,
                                     struct conv_dnn *conv);
void conv_dnn_release(struct conv_dnn *conv);

MUST_CHECK enum status conv_dnn_pack(struct dnn *dnn, struct conv_dnn *conv, const float *canonical,
                                     void *weights);
MUST_CHECK enum status conv_dnn_unpack(struct dnn *dnn, struct conv_dnn *conv, const void *weights,
                                       float *canonical, bool add);

/* bias, db: NULL without attr.bias. scratch: conv->scratch_bytes, aligned to 64. */
MUST_CHECK enum status conv_dnn_forward(struct dnn *dnn, struct conv_dnn *conv, const void *x,
                                        const void *weights, const float *bias, void *y,
                                        void *scratch);
MUST_CHECK enum status conv_dnn_backward_data(struct dnn *dnn, struct conv_dnn *conv,
                                              const void *dy, const void *weights, void *dx,
                                              void *scratch);
MUST_CHECK enum status conv_dnn_backward_weights(struct dnn *dnn, struct conv_dnn *conv,
                                                 const void *x, const void *dy, void *dw, float *db,
                                                 void *scratch);
