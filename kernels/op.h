/*
 * The closed set of operations, listed once, and how one of them is described to a backend.
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

#ifdef __cplusplus
#define OP_CONSTEXPR constexpr
#else
#define OP_CONSTEXPR
#endif

/*
 * Inputs → output, then parameters. What stands in brackets is optional; [..] are any dims.
 *
 *   conv2d           x [N, C, H, W] → y [N, K, P, Q]
 *                    weight [K, C, R, S], (bias [K]); P = op_windows(H), Q = op_windows(W)
 *   batch_norm       x [N, C, H, W], (residual like x) → relu?(norm(x)·γ + β (+ residual))
 *                    γ [C], β [C]; statistics: running mean [C], running variance [C]
 *   relu             x → y
 *   max_pool         x [N, C, H, W] → y [N, C, P, Q]
 *   global_avg_pool  x [N, C, H, W] → y [N, C]
 *   flatten          x [N, C, H, W] → y [N, C·H·W], plain
 *   linear           x [.., I], (residual [.., O]) → act(x·Wᵀ + b) (+ residual) [.., O]
 *                    weight [O, I], (bias [O]); no activation together with a residual
 *   gelu             x → y
 *   dropout          x, (residual like x) → (keep ? x / (1 - p) : 0) (+ residual)
 *   layer_norm       x [.., C] → norm(x)·γ + β, the norm over C
 *                    γ [C], β [C]; with rms: x/√(mean x² + eps)·γ, without β
 *   embedding        tokens i32 [N, T], (residual [N, T, C]) → weight[token] (+ position[t])
 *                    (+ residual) [N, T, C]; no position together with a residual
 *                    weight [V, C], (position [L, C], L >= T)
 *   attention        qkv [N, T, 3·C] → softmax(q·kᵀ/√D, causal)·v of each head [N, T, C]
 *                    q, k and v are C columns each; head h is columns [h·D, (h + 1)·D) of each,
 *                    D = C / heads; bidirectional: not causal, and
 *                    (tokens i32 [N, T]): nobody sees the keys behind a sample's last token that
 *                    isn't 0; of a sample without one the first key counts
 *   softmax_cross_entropy
 *                    logits [.., V], plain or pitched, labels i32 [..] → f32 [3]: the sum of the
 *                    losses, the number of labels that count (not -1), of right guesses
 *   gated            x [.., 2·I] → silu(a)·b [.., I], a the first I columns of x, b the others
 *   rotary           qkv [N, T, (heads + 2·kv_heads)·D] → [N, T, 3·heads·D], for attention
 *                    q and k of each head are turned by the token's place, and each head of k and
 *                    v is given to its heads / kv_heads neighbouring heads of q. At place t the
 *                    pair (i, i + D/2) of a head turns by t·rope_theta^(-2·i/D)
 *   sequence         x [N, C, H, W] → [N, 1 + H·W, C]: row 0 first + position[0], row 1 + p
 *                    x[.., p] + position[1 + p], p the pixel h·W + w
 *                    first [C], position [1 + H·W, C]
 *   select           x [N, T, C] → x[.., row, ..] [N, C], in x's dtype
 *
 * Source of rms: Zhang, Sennrich, "Root mean square layer normalization", 2019, equation 4; of
 *         gated: Shazeer, "GLU variants improve transformer", 2020, equation 6 (SwiGLU); of rotary:
 *         Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021,
 *         equation 34, with the pairs of Hugging Face's Llama; Ainslie et al., "GQA: training
 *         generalized multi-query transformer models from multi-head checkpoints", 2023.
 */
/* X(UPPER, lower, tensor inputs, parameters, statistics); an input or parameter may be optional. */
#define OP_LIST(X)                                                                                 \
    X(CONV2D, conv2d, 1, 2, 0)                                                                     \
    X(BATCH_NORM, batch_norm, 2, 2, 2)                                                             \
    X(RELU, relu, 1, 0, 0)                                                                         \
    X(MAX_POOL, max_pool, 1, 0, 0)                                                                 \
    X(GLOBAL_AVG_POOL, global_avg_pool, 1, 0, 0)                                                   \
    X(FLATTEN, flatten, 1, 0, 0)                                                                   \
    X(LINEAR, linear, 2, 2, 0)                                                                     \
    X(GELU, gelu, 1, 0, 0)                                                                         \
    X(DROPOUT, dropout, 2, 0, 0)                                                                   \
    X(LAYER_NORM, layer_norm, 1, 2, 0)                                                             \
    X(EMBEDDING, embedding, 2, 2, 0)                                                               \
    X(ATTENTION, attention, 2, 0, 0)                                                               \
    X(SOFTMAX_CROSS_ENTROPY, softmax_cross_entropy, 2, 0, 0)                                       \
    X(SEQUENCE, sequence, 1, 2, 0)                                                                 \
    X(SELECT, select, 1, 0, 0)                                                                     \
    X(GATED, gated, 1, 0, 0)                                                                       \
    X(ROTARY, rotary, 1, 0, 0)

#define OP_ENUM(upper, lower, in, params, stats) OP_##upper,
enum op { OP_LIST(OP_ENUM) OP_COUNT };
#undef OP_ENUM

/* "conv2d", … */
const char *op_name(enum op op);

enum activation {
    ACTIVATION_NONE,
    ACTIVATION_RELU,
    ACTIVATION_GELU_TANH, /* x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))): GPT-2's */
    ACTIVATION_GELU_ERF,  /* x·Φ(x): BERT's */
};

enum activation_reads { ACTIVATION_READS_NOTHING, ACTIVATION_READS_OUTPUT, ACTIVATION_READS_INPUT };

/* Returns what the backward pass of an activation reads. Where it is the input, a kernel that
 * computes the input itself has to keep it. */
static inline OP_CONSTEXPR enum activation_reads activation_reads(enum activation kind)
{
    switch (kind) {
    case ACTIVATION_NONE:
        return ACTIVATION_READS_NOTHING;
    case ACTIVATION_RELU:
        return ACTIVATION_READS_OUTPUT;
    case ACTIVATION_GELU_TANH:
    case ACTIVATION_GELU_ERF:
        return ACTIVATION_READS_INPUT;
    }
    return ACTIVATION_READS_NOTHING;
}

struct op_attr {
    int64_t out;                /* conv2d: output channels; linear: features; embedding: C */
    int64_t rows, positions;    /* embedding: V and L (0: none) */
    int kernel, stride, pad;    /* conv2d, max_pool: square windows */
    int heads;                  /* attention */
    bool bidirectional;         /* attention: each token sees all, not only those before it */
    int64_t row;                /* select */
    int layer;                  /* dropout: ordinal on the tape, a word of its random counters */
    enum activation activation; /* linear: fused; gelu: which */
    bool bias;                  /* conv2d, linear */
    bool relu;                  /* batch_norm: fused */
    bool residual;              /* batch_norm, linear, dropout, embedding: in[1] is added */
    float eps;                  /* batch_norm, layer_norm */
    float drop;                 /* dropout: probability, in [0, 1) */
    float label_smoothing;      /* softmax_cross_entropy, in [0, 1) */
    bool rms;                   /* layer_norm: by the root mean square, without mean and β */
    int kv_heads;               /* rotary: of k and of v; divides `heads` */
    float rope_theta;           /* rotary: base of the angles, above 0 */
};

/* Windows of a convolution or pool along a side of `pixels`: P of H, Q of W; 0: none fits. */
static inline int64_t op_windows(int64_t pixels, const struct op_attr *attr)
{
    const int64_t room = pixels + 2 * (int64_t)attr->pad - attr->kernel;
    return room < 0 ? 0 : room / attr->stride + 1;
}

/* The type in which the operands of products enter; products are always summed in float32. */
enum math {
    MATH_F32,
    MATH_TF32, /* float32 in memory, rounded to 10 bits of mantissa on the way in: CUDA only */
    MATH_BF16,
    MATH_F16, /* CUDA only */
};

/*
 * One operation to prepare. The caller fills in everything; the formats of `in` are those that the
 * producers' kernel_info named. A kernel takes the format and dtype that it is given, converts in
 * its own scratch where it must, and writes out_dtype. Parameters are float32 whatever the math is:
 * what a kernel wants in half precision it keeps in its cache.
 */
struct op_spec {
    enum op op;
    struct op_attr attr;
    struct tensor in[OP_IN_MAX];
    int in_count;
    enum dtype out_dtype; /* float32, bfloat16, float16 */
    enum math math;       /* conv2d, linear, attention */
    bool training;        /* false: inference, no saved bytes, running statistics are used */
    bool need_din0;       /* false: nobody wants the gradient of in[0] (it is the data) */
    bool dying_in0;       /* training: nobody else reads in[0], and its gradient goes where it lies:
                             forward may write that (kernel_info.din_in_forward) */
    bool pitched_out;     /* the output's only reader takes FORMAT_PITCHED, too, and gives its
                             gradient so: linear may choose it */
};
