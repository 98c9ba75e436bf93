/*
 * Cairn's own CUDA kernels: what launches each of them, from C.
 *
 * All but products, convolutions and attention. A call enqueues one or a few kernels and returns.
 * Nothing is allocated and nothing waits, so that all of it can be captured into a graph.
 *
 * Shapes:  row-major and contiguous. [rows, c] is any tensor whose innermost dimension is c: a text
 *          tensor [N, T, C], or an NHWC image with rows = N·H·W.
 * Types:   `dtype` members are float32, bfloat16 or float16. Arithmetic and sums are float32
 *          (double where it says so); halves are rounded to nearest even when they are stored.
 * Memory:  all pointers are device memory, except the argument structs, which are read before the
 *          call returns. `const float *` and `float *` parameters and their gradients may lie
 *          anywhere in a flat buffer (4-byte aligned); tensors and scratch are 16-byte aligned.
 *          An output may be the same memory as an input only where it says so.
 * Bits:    no float atomics, one writer per output, sums in an order that the shape alone fixes:
 *          not the device, not where the memory lies.
 * Thread:  any. `stream` is a cudaStream_t.
 * Errors:  ST_INVALID  shapes, types or alignment outside of the above; nothing was enqueued
 *          ST_DEVICE   a launch failed: the device must be considered lost
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of a word in device memory, which its owner zeroes. A kernel that meets wrong data skips the
 * row and sets its bit; the host reads the word when it likes. */
enum k_fault {
    K_FAULT_LABEL = 1, /* a label not in -1..V-1 */
    K_FAULT_TOKEN = 2, /* a token not in 0..V-1 */
};

/* Layer norm: y = (x - mean)·rstd·gamma + beta, of each row. With rms the mean counts as 0 (and is
 * stored so), and beta isn't read. */
struct k_layer_norm {
    int64_t rows, c;
    enum dtype x_dtype, y_dtype; /* equal, or x float32 and y half */
    float eps;
    bool rms;
    const void *x;
    const float *gamma, *beta; /* [c] */
    void *y;
    float *mean, *rstd; /* [rows], or both NULL */
};
MUST_CHECK enum status k_layer_norm_forward(const struct k_layer_norm *args, void *stream);

struct k_layer_norm_grad {
    int64_t rows, c;
    enum dtype x_dtype, y_dtype; /* of x, dx, dx_add; of dy */
    bool rms;                    /* then dbeta is NULL */
    const void *x;
    const float *gamma, *mean, *rstd;
    const void *dy;
    const void *dx_add; /* NULL, or added to dx; may be dx */
    void *dx;           /* NULL: not wanted; may be x where the types allow it */
    float *dgamma, *dbeta;
    bool accumulate_gamma, accumulate_beta; /* add instead of write */
    void *scratch;                          /* k_layer_norm_scratch bytes */
};
size_t k_layer_norm_scratch(int64_t rows, int64_t c);
MUST_CHECK enum status k_layer_norm_backward(const struct k_layer_norm_grad *args, void *stream);

/* y = activation(x + bias) + residual; relu, gelu, or none (then: adds or casts). */
struct k_activation {
    int64_t rows, c; /* without bias only the product counts */
    enum activation activation;
    enum dtype x_dtype, y_dtype; /* equal, or x half and y float32, or x float32 and y half */
    const void *x;
    const float *bias;    /* [c] or NULL */
    const void *residual; /* NULL, or like y */
    void *pre;            /* NULL, or x + bias is stored, in x_dtype; may be x */
    void *y;              /* may be x (same dtype) or residual */
};
MUST_CHECK enum status k_activation_forward(const struct k_activation *args, void *stream);

/*
 * g = (dy + dy2)·activation'(from); dx = g + dx_add; dbias = the column sums of g, not rounded.
 * With activation none and dx NULL it gives the bias gradient alone.
 */
struct k_activation_grad {
    int64_t rows, c;
    enum activation activation;
    enum dtype x_dtype, y_dtype; /* of from (gelu), dx, dx_add; of dy, dy2, from (relu) */
    const void *dy, *dy2;        /* dy2: NULL, or a second gradient to add */
    const void *from;            /* gelu: x + bias; relu: y (or anything with its sign) */
    const void *dx_add;          /* NULL, or added; may be dx */
    void *dx;                    /* NULL: not wanted; may be dy or from (same dtype) */
    float *dbias;                /* [c] or NULL */
    bool as_with_dbias;          /* dx has the bits that it has where dbias is wanted */
    bool accumulate;             /* dbias: add instead of write */
    void *scratch;               /* k_activation_scratch bytes; only for dbias, or as with it */
};
size_t k_activation_scratch(int64_t rows, int64_t c);
MUST_CHECK enum status k_activation_backward(const struct k_activation_grad *args, void *stream);

/* out[n, t] = weight[tokens[n, t]] (+ position[t]) (+ residual[n, t]). A wrong token's row counts
 * as 0, and gives K_FAULT_TOKEN. */
struct k_embedding {
    int64_t n, t, c, vocab;
    enum dtype dtype; /* of out */
    const int32_t *tokens;
    const float *weight, *position; /* [vocab, c]; [>= t, c] or NULL */
    const void *residual;           /* like out, or NULL */
    void *out;
    uint32_t *fault;
};
MUST_CHECK enum status k_embedding_forward(const struct k_embedding *args, void *stream);

struct k_embedding_grad {
    int64_t n, t, c, vocab, positions; /* positions: rows of dposition */
    enum dtype dtype;                  /* of dout */
    const int32_t *tokens;
    const void *dout;
    float *dweight, *dposition; /* each NULL: not wanted */
    bool accumulate_weight, accumulate_position;
    void *scratch; /* k_embedding_scratch bytes */
};
size_t k_embedding_scratch(int64_t tokens, int64_t c, int64_t vocab); /* tokens = n·t */
MUST_CHECK enum status k_embedding_backward(const struct k_embedding_grad *args, void *stream);

/* A sequence y [n, 1 + pixels, c] of an image x [n, pixels, c]: first + position[0], then each
 * pixel + its position. Types: equal, or one of them float32. */
struct k_sequence {
    int64_t n, pixels, c;
    enum dtype x_dtype, y_dtype;
    const void *x;
    const float *first, *position; /* [c], [1 + pixels, c] */
    void *y;
};
MUST_CHECK enum status k_sequence_forward(const struct k_sequence *args, void *stream);

struct k_sequence_grad {
    int64_t n, pixels, c;
    enum dtype x_dtype, y_dtype; /* of dx, dy */
    const void *dy;
    void *dx;                  /* NULL: not wanted */
    float *dfirst, *dposition; /* each NULL: not wanted */
    bool accumulate_first, accumulate_position;
};
MUST_CHECK enum status k_sequence_backward(const struct k_sequence_grad *args, void *stream);

/* out [n, c] = row `row` of each in [n, t, c]; backward: that row of out [n, t, c] is in [n, c],
 * and the others are 0. */
struct k_select {
    int64_t n, t, c, row;
    enum dtype dtype;
    bool backward;
    const void *in;
    void *out;
};
MUST_CHECK enum status k_select(const struct k_select *args, void *stream);

/*
 * y = keep ? x / (1 - p) : 0, + add if there is one; by the words at `draw` (enum op_draw).
 *
 *   forward     x is the input, add the residual
 *   backward    x is the output's gradient, add another gradient of the input
 */
struct k_dropout {
    int64_t samples, elements; /* elements of one sample, at most 2^34 */
    enum dtype x_dtype, y_dtype;
    float p;
    int layer;
    const uint32_t *draw;
    const void *x;
    const void *add; /* NULL, or like y */
    void *y;         /* may be x (same dtype) or add */
};
MUST_CHECK enum status k_dropout(const struct k_dropout *args, void *stream);

/*
 * Softmax cross-entropy of each row of logits.
 *
 *   lse[r]   log Σ exp(logits[r])
 *   out[0]   the sum of the losses of rows with a label >= 0, in double, by a fixed tree over rows
 *   out[1]   how many they are
 *   out[2]   how many of them have the greatest logit (the first of equals) at the label
 */
struct k_loss {
    int64_t rows, vocab, stride; /* stride: elements from one row to the next, >= vocab */
    enum dtype dtype;
    float smoothing;
    const void *logits;
    const int32_t *labels; /* -1: does not count */
    float *lse;            /* [rows] */
    float *out;            /* [3] */
    void *scratch;         /* k_loss_scratch bytes */
    uint32_t *fault;
};
size_t k_loss_scratch(int64_t rows);
MUST_CHECK enum status k_loss_forward(const struct k_loss *args, void *stream);

struct k_loss_grad {
    int64_t rows, vocab, stride;
    enum dtype dtype;
    float smoothing;
    const void *logits;
    const int32_t *labels;
    const float *lse;
    const float *scale; /* a single factor of the gradient, or NULL: 1 */
    void *dlogits;      /* may be logits; columns beyond vocab become 0 */
};
MUST_CHECK enum status k_loss_backward(const struct k_loss_grad *args, void *stream);
/* Computes forward and backward at once, where dlogits is logits, which are read once. shared_max:
 * bytes of shared memory that a block may have; a row that takes more than half of it is read
 * twice, soon after another. */
MUST_CHECK enum status k_loss_both(const struct k_loss *args, const struct k_loss_grad *grad,
                                   size_t shared_max, void *stream);

/* Batch norm of an NHWC tensor: y = relu?((x - mean)·rstd·gamma + beta + residual). */
struct k_batch_norm {
    int64_t rows, c;
    enum dtype dtype; /* of x, residual, y */
    float eps;
    bool relu;
    const void *x, *residual; /* residual: may be NULL */
    const float *gamma, *beta;
    const float *running_mean, *running_var; /* k_batch_norm_apply */
    void *y;                                 /* may be x or residual */
    float *mean, *rstd;                      /* [c]: written by the training forward */
    float *mean_sum, *var_sum;               /* [c] or NULL: mean, unbiased variance */
    bool accumulate_stats;                   /* add to mean_sum and var_sum instead of write */
    void *scratch;                           /* k_batch_norm_scratch bytes; not for apply */
};
size_t k_batch_norm_scratch(int64_t rows, int64_t c);
MUST_CHECK enum status k_batch_norm_forward(const struct k_batch_norm *args, void *stream);
/* Inference: the running statistics are used. */
MUST_CHECK enum status k_batch_norm_apply(const struct k_batch_norm *args, void *stream);

/* Backward, with g = dy + dy2, under a relu 0 where y <= 0. k_batch_norm.cu has the formulas. */
struct k_batch_norm_grad {
    int64_t rows, c;
    enum dtype dtype;
    bool relu;
    const void *x, *dy, *dy2; /* dy2: NULL, or a second gradient to add */
    const void *y;            /* relu: the output; NULL: recomputed (only without residual) */
    const float *gamma, *beta, *mean, *rstd;
    const void *dx_add; /* NULL, or added to dx; may be dx */
    void *dx;           /* NULL: not wanted; may be x or dy */
    void *dresidual;    /* NULL, or g is stored there; may be dy or dy2, not dx */
    float *dgamma, *dbeta;
    bool accumulate_gamma, accumulate_beta;
    void *scratch; /* k_batch_norm_scratch bytes */
};
MUST_CHECK enum status k_batch_norm_backward(const struct k_batch_norm_grad *args, void *stream);

/* Windows of an NHWC tensor. The first of the greatest in a window wins; its place in the window,
 * row by row from 0, is kept in index. */
struct k_max_pool {
    int64_t n, h, w, c, p, q;
    int kernel, stride, pad; /* kernel <= 15, pad < kernel */
    enum dtype dtype;
    const void *x;  /* forward */
    void *y;        /* forward */
    uint8_t *index; /* [n, p, q, c]: written by forward (may be NULL there), read by backward */
    const void *dy, *dx_add; /* backward; dx_add: NULL, or added; may be dx */
    void *dx;
};
MUST_CHECK enum status k_max_pool_forward(const struct k_max_pool *args, void *stream);
MUST_CHECK enum status k_max_pool_backward(const struct k_max_pool *args, void *stream);

/* y [n, c] = the mean over positions of x [n, positions, c], and back. */
struct k_avg_pool {
    int64_t n, positions, c;
    enum dtype dtype;
    const void *in;  /* forward: x; backward: dy */
    const void *add; /* backward: NULL, or added to dx; may be out */
    void *out;       /* forward: y; backward: dx */
};
MUST_CHECK enum status k_avg_pool_forward(const struct k_avg_pool *args, void *stream);
MUST_CHECK enum status k_avg_pool_backward(const struct k_avg_pool *args, void *stream);

/*
 * out [batch, b, a] (+)= in [batch, a, b], from one type to another.
 *
 *                                  batch    a      b
 *   plain to NHWC                  N        C      H·W
 *   NHWC to plain                  N        H·W    C
 *   weights, KCRS to KRSC          K        C      R·S
 */
struct k_transpose {
    int64_t batch, a, b;
    enum dtype from, to;
    const void *in; /* aligned to its elements only, like out */
    void *out;
    bool accumulate; /* add instead of write */
};
MUST_CHECK enum status k_transpose(const struct k_transpose *args, void *stream);

/*
 * Transposes like k_transpose, with the inner dimension padded, for convolutions whose channels
 * must be a multiple.
 *
 *   k_pad_transpose      out [batch, b, padded] = in [batch, a, b], zeros beyond a
 *   k_unpad_transpose    out [batch, a, b] (+)= in [batch, b, padded]; what is beyond a is dropped
 */
struct k_pad {
    int64_t batch, a, padded, b; /* padded >= a */
    enum dtype from, to;
    const void *in; /* aligned to its elements only, like out */
    void *out;
    bool accumulate; /* k_unpad_transpose: add instead of write */
};
MUST_CHECK enum status k_pad_transpose(const struct k_pad *args, void *stream);
MUST_CHECK enum status k_unpad_transpose(const struct k_pad *args, void *stream);

/* n elements from one type to another, aligned to their elements only. */
MUST_CHECK enum status k_cast(enum dtype from, const void *in, enum dtype to, void *out, int64_t n,
                              void *stream);

/* out = x + y; out may be x or y. */
MUST_CHECK enum status k_sum(enum dtype dtype, const void *x, const void *y, void *out, int64_t n,
                             void *stream);

/* y [rows, c] = silu(a)·b, with a the first c columns of x [rows, 2·c] and b the others. */
struct k_gated {
    int64_t rows, c;
    enum dtype dtype;
    const void *x;
    void *y;        /* forward */
    const void *dy; /* backward */
    void *dx;       /* backward; may be x */
};
MUST_CHECK enum status k_gated_forward(const struct k_gated *args, void *stream);
MUST_CHECK enum status k_gated_backward(const struct k_gated *args, void *stream);

/*
 * The op rotary (kernels/op.h): narrow [n, t, (heads + 2·kv_heads)·dim], wide [n, t, 3·heads·dim].
 *
 *   forward     narrow to wide
 *   backward    wide, a gradient, to narrow: turned back, and summed where a head was repeated
 */
#define K_ROTARY_DIM_MAX 1024
struct k_rotary {
    int64_t n, t;
    int heads, kv_heads, dim; /* dim is even; heads·dim at most 2^24 */
    float theta;
    enum dtype dtype;
    const void *in;
    void *out;
};
MUST_CHECK enum status k_rotary_forward(const struct k_rotary *args, void *stream);
MUST_CHECK enum status k_rotary_backward(const struct k_rotary *args, void *stream);

/* Flat float32 buffers: struct vector_table says what these do. */
struct sgd_args;
struct adamw_args;
MUST_CHECK enum status k_vector_add(float *out, const float *x, const float *y, size_t n,
                                    void *stream);
MUST_CHECK enum status k_vector_fill(float *out, float value, size_t n, void *stream);
/* n words as they are; out may be the host's pinned memory. */
MUST_CHECK enum status k_vector_words(void *out, const void *in, size_t n, void *stream);
MUST_CHECK enum status k_vector_square_sums(double *out, const float *x, const uint64_t *begin,
                                            size_t n, void *stream);
MUST_CHECK enum status k_vector_checksums(uint64_t *out, const float *x, size_t n, void *stream);
MUST_CHECK enum status k_vector_sgd(float *param, float *momentum, const float *grad, size_t n,
                                    const struct sgd_args *args, void *stream);
struct k_adamw_buffers {
    float *param, *m, *v;
    const float *grad;
};
MUST_CHECK enum status k_vector_adamw(const struct k_adamw_buffers *buffers, size_t n,
                                      const struct adamw_args *args, void *stream);

#ifdef __cplusplus
}
#endif
