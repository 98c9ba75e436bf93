/*
 * Loops of the ops of text models, over float32 or bfloat16 (loops.h has the rules). All arithmetic
 * is float32. Reductions run in LOOPS_LANES lanes whatever the width of the vectors.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/op.h"

#define LOOPS_LANES 16

/* An array to read, and one to write. half: bfloat16, else float32. */
struct text_source {
    const void *data;
    bool half;
};

struct text_target {
    void *data;
    bool half;
};

/* Inputs of the random words of one sample's dropout (enum op_draw). */
struct dropout_draw {
    uint32_t key[2];
    uint32_t layer, sample, step;
    float drop;
};

/* A row of layer_norm. */
struct layer_row {
    struct text_source x;
    const float *gamma, *beta;
    int64_t count;
    float eps, mean, rstd; /* mean and rstd: written by forward, read by backward */
    bool rms;              /* the mean is 0, and there is no β */
};

/* A row of softmax_cross_entropy. */
struct softmax_row {
    struct text_source x;
    int64_t count;
    int64_t best;    /* where the greatest is, the first of equals */
    float most;      /* its value */
    double sum, all; /* Σ exp(x - most); Σ x, where it is asked for */
};

/*
 * A tile of attention: the scores of `side` queries (rows) and `side` keys (columns) of one head.
 * side is a multiple of LOOPS_LANES. kernels/cpu/ops/attention.c has the algorithm.
 *
 *                  shape           FlashAttention's
 *   side                           Br = Bc
 *   depth                          d
 *   scores         [side][side]    S = q·kᵀ, but not scaled yet
 *   probability    [side][side]    P = exp(S - m), m the greatest so far; in backward exp(S - L)
 *   most           [side]          m, of the keys so far
 *   sum            [side]          l = Σ exp(S - m), of the keys so far
 *   out            [side][depth]   O = Σ exp(S - m)·v, of the keys so far
 *   lse            [side]          L = m + log l
 *   delta          [side]          D = Σ dout·out
 *   dprobability   [side][side]    dP = dout·vᵀ
 *   dscores        [side][side]    dS
 */
struct attention_tile {
    int64_t side, depth;
    float scale;   /* of the scores: 1 / √depth */
    bool diagonal; /* the keys are those of the queries' rows: query r sees key c if c <= r */
    int64_t keys;  /* that anybody sees; at least 1 */
    const float *scores;
    struct text_target probability;
    /* forward */
    float *most, *sum, *out;
    /* backward */
    const float *lse, *delta, *dprobability;
    struct text_target dscores;
};

struct text_loops {
    void (*convert)(struct text_target out, struct text_source x, size_t n);
    /* out = x (+ y, unless y.data is NULL). out may be x, or y, if it is of the same dtype. */
    void (*add)(struct text_target out, struct text_source x, struct text_source y, size_t n);
    /* relu and gelu; out is of x's dtype and may be x. */
    void (*activate)(enum activation kind, struct text_target out, struct text_source x, size_t n);
    /* din = dout·f'(x), all of one dtype. For relu x may be its output. din may be dout or x. */
    void (*activate_backward)(enum activation kind, struct text_target din, struct text_source dout,
                              struct text_source x, size_t n);
    /* out[c] (+)= Σ over rows r, in order, of x[r][c]. */
    void (*column_sums)(float *out, struct text_source x, size_t rows, size_t columns,
                        bool accumulate);
    /* Drops elements of one sample: out = keep ? x / (1 - drop) : 0, + residual (of out's dtype)
     * unless that has no data. */
    void (*dropout)(struct text_target out, struct text_source x, struct text_source residual,
                    size_t n, const struct dropout_draw *draw);
    void (*layer_norm)(struct layer_row *row, struct text_target out);
    /* din = the gradient of x (+ add, unless its data is NULL), both of x's dtype; din.data may be
     * NULL. dgamma += …, dbeta += … . */
    void (*layer_norm_backward)(const struct layer_row *row, struct text_source dout,
                                struct text_source add, struct text_target din, float *dgamma,
                                float *dbeta);
    /* Writes best, most and sum, and with `all` row->all. */
    void (*softmax)(struct softmax_row *row, bool all);
    /* dx = exp(x - most)·factor - constant, of x's dtype; may be x. */
    void (*softmax_backward)(const struct softmax_row *row, float factor, float constant,
                             struct text_target dx);
    /* Writes probability, and brings most, sum and out up to the new maximum; that these keys' P·v
     * is added to out is left to the caller. */
    void (*attention)(const struct attention_tile *tile);
    /* Writes probability and dscores. */
    void (*attention_backward)(const struct attention_tile *tile);
    /* Σ x·y; both of one dtype. */
    float (*dot)(struct text_source x, struct text_source y, size_t n);
    /* out = silu(a)·b, all of one dtype. */
    void (*gated)(struct text_target out, struct text_source a, struct text_source b, size_t n);
    /* Writes da and db, all of one dtype; da may be a, and db may be b. */
    void (*gated_backward)(struct text_target da, struct text_target db, struct text_source dout,
                           struct text_source a, struct text_source b, size_t n);
    /* out = the sum of `count` heads of `depth` elements that lie one after the other, in order,
     * turned; all of one dtype. turn: [depth], the cosines of its pairs (i, i + depth/2), then the
     * sines; NULL: isn't turned. */
    void (*turn)(struct text_target out, struct text_source x, size_t count, const float *turn,
                 size_t depth);
};

extern const struct text_loops text_loops_base, text_loops_avx2, text_loops_avx512,
    text_loops_avx512bf16;
