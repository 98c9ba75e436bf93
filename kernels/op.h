/*
 * The closed set of operations, once: name and number of tensor inputs, outputs, parameters.
 *
 * Parameters are float32 masters in the job's flat buffer, canonical: row-major in PyTorch's order.
 * Statistics (running mean and variance) are in a flat buffer of their own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/tensor.h"

#define OP_IN_MAX    2
#define OP_PARAM_MAX 2
#define OP_STAT_MAX  2

/*
 *  conv2d                 x [N, C, H, W] → y [N, K, P, Q]; weight [K, C, R, S], (bias [K])
 *  batch_norm             x [N, C, H, W], (residual like x) → relu?(norm(x)·γ + β (+ residual));
 *                         γ [C], β [C]; running mean [C], running variance [C]
 *  relu                   x → y
 *  max_pool               x [N, C, H, W] → y [N, C, P, Q]
 *  global_avg_pool        x [N, C, H, W] → y [N, C]
 *  flatten                x [N, C, H, W] → y [N, C·H·W] plain
 *  linear                 x [N, I] → relu?(x·Wᵀ + b) [N, O]; weight [O, I], (bias [O])
 *  softmax_cross_entropy  logits [N, O], labels i32 [N] → sum of losses [1]
 */
/* X(UPPER, lower, tensor inputs, parameters, statistics); an input or parameter may be optional. */
#define OP_LIST(X)                                                                                 \
    X(CONV2D, conv2d, 1, 2, 0)                                                                     \
    X(BATCH_NORM, batch_norm, 2, 2, 2)                                                             \
    X(RELU, relu, 1, 0, 0)                                                                         \
    X(MAX_POOL, max_pool, 1, 0, 0)                                                                 \
    X(GLOBAL_AVG_POOL, global_avg_pool, 1, 0, 0)                                                   \
    X(FLATTEN, flatten, 1, 0, 0)                                                                   \
    X(LINEAR, linear, 1, 2, 0)                                                                     \
    X(SOFTMAX_CROSS_ENTROPY, softmax_cross_entropy, 2, 0, 0)

#define OP_ENUM(upper, lower, in, params, stats) OP_##upper,
enum op { OP_LIST(OP_ENUM) OP_COUNT };
#undef OP_ENUM

/* "conv2d", … */
const char *op_name(enum op op);

struct op_attr {
    int64_t out;             /* conv2d: output channels; linear: output features */
    int kernel, stride, pad; /* conv2d, max_pool: square windows */
    bool bias;               /* conv2d, linear */
    bool relu;               /* batch_norm, linear: fused */
    bool residual;           /* batch_norm: in[1] is added before the relu */
    float eps;               /* batch_norm */
    float label_smoothing;   /* softmax_cross_entropy, in [0, 1) */
};

/*
 * One operation to prepare. The caller fills op, attr and in (formats too: those of the producers'
 * outputs). A kernel takes the format it is given, and reformats in its own scratch where it must.
 */
struct op_spec {
    enum op op;
    struct op_attr attr;
    struct tensor in[OP_IN_MAX];
    int in_count;
    bool training;  /* false: inference, no saved bytes, running statistics are used */
    bool need_din0; /* false: nobody wants the gradient of in[0] (it is the data) */
};
