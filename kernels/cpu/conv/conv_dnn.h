/*
 * The three directions of a convolution by oneDNN's primitives.
 */
#pragma once

#include <stdbool.h>

#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/gemm/dnn.h"

enum conv_direction { CONV_FORWARD, CONV_BACKWARD_DATA, CONV_BACKWARD_WEIGHTS };

/* What the directions of one convolution have in common. */
struct conv_shape {
    const struct op_attr *attr;
    dnnl_memory_desc_t x, y, bias, canonical; /* canonical: the weights, [K, C, R, S] */
};

/* One direction. All zero = none. */
struct conv_dnn {
    struct dnn_op op;
    dnnl_memory_desc_t weights; /* oneDNN's layout of W, or of dW */
    size_t weights_bytes;
    struct dnn_op pack;               /* canonical to weights */
    struct dnn_op unpack, unpack_add; /* backward-weights instead: weights to canonical */
};

/* in, out: as the primitives shall see them, blocked, or `in` plain. */
MUST_CHECK enum status conv_shape_init(const struct backend *backend, const struct op_attr *attr,
                                       const struct tensor *in, const struct tensor *out,
                                       struct conv_shape *shape);

/* winograd: if oneDNN has it for this shape and processor; else direct, else whatever it has. */
MUST_CHECK enum status conv_dnn_init(struct dnn *dnn, const struct conv_shape *shape,
                                     enum conv_direction direction, bool winograd,
                                     struct conv_dnn *conv);
void conv_dnn_release(struct conv_dnn *conv);

MUST_CHECK enum status conv_dnn_pack(struct dnn *dnn, struct conv_dnn *conv, const float *canonical,
                                     void *weights);
MUST_CHECK enum status conv_dnn_unpack(struct dnn *dnn, struct conv_dnn *conv, const void *weights,
                                       float *canonical, bool add);

/* y = x * W (+ bias); dx = dy * W'; dW = x * dy, db. bias, db: NULL without attr.bias. */
MUST_CHECK enum status conv_dnn_forward(struct dnn *dnn, struct conv_dnn *conv, const void *x,
                                        const void *weights, const float *bias, void *y,
                                        void *scratch);
MUST_CHECK enum status conv_dnn_backward_data(struct dnn *dnn, struct conv_dnn *conv,
                                              const void *dy, const void *weights, void *dx,
                                              void *scratch);
MUST_CHECK enum status conv_dnn_backward_weights(struct dnn *dnn, struct conv_dnn *conv,
                                                 const void *x, const void *dy, void *dw, float *db,
                                                 void *scratch);
