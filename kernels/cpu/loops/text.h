/*
 * Loops of the ops of text models, over float32 or bfloat16; compiled per instruction set like
 * those of loops.h. All arithmetic is float32; reductions run in LOOPS_LANES lanes whatever the
 * width.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/op.h"

#define LOOPS_LANES 16

/* An array to read and one to write: float32, or bfloat16. */
struct source {
    const void *data;
    bool half;
};

struct target {
    void *data;
    bool half;
};

/* What the random words of one sample's dropout depend on; see struct op_draw. */
struct dropout_draw {
    uint32_t key[2];
    uint32_t layer, sample, step;
    float drop;
};

/* One row of layer_norm. */
struct layer_row {
    struct source x;
    const float *gamma, *beta;
    int64_t count;
    float eps, mean, rstd; /* mean and rstd: written by forward, read by backward */
};

/* One row of softmax_cross_entropy. */
struct softmax_row {
    struct source x;
    int64_t count;
    int64_t best;    /* the first place of the greatest */
    float most;      /* its value */
    double sum, all; /* Σ exp(x - most); Σ x where wanted */
};

/*
 * A tile of attention, [side][side] scores of one head, side a multiple of LANES: row r is a query,
 * column c a key. On the diagonal c <= r counts, elsewhere all. Rows lie side elements apart.
 */
struct attention_tile {
    int64_t side, depth; /* depth: elements of a head */
    float scale;
    bool diagonal;
    const float *scores;       /* [side][side] q·k, unscaled */
    struct target probability; /* [side][side] */
    float *most, *sum, *out;   /* forward: [side], [side] and [side][depth], running */
    const float *lse, *delta;  /* backward: [side] each; delta = Σ dout·out */
    const float *dprobability; /* backward: [side][side] */
    struct target dscores;     /* backward: [side][side] */
};

/* Loops of the ops of text models. Reductions run in 16 lanes whatever the width. */
struct text_loops {
    void (*convert)(struct target out, struct source x, size_t n);
    /* out = x + y; y.data may be NULL. out may be x or y of the same dtype. */
    void (*add)(struct target out, struct source x, struct source y, size_t n);
    /* relu and gelu; out is of x's dtype and may be x. */
    void (*activate)(enum activation kind, struct target out, struct source x, size_t n);
    /* din = dout·f'(x), all of one dtype; for relu `x` may be its output. din may be dout or x. */
    void (*activate_backward)(enum activation kind, struct target din, struct source dout,
                              struct source x, size_t n);
    /* out[c] (+)= Σ over rows in order. */
    void (*column_sums)(float *out, struct source x, size_t rows, size_t columns, bool accumulate);
    /* Elements of one sample: out = keep ? x / (1 - drop) : 0, + residual (of out's dtype). */
    void (*dropout)(struct target out, struct source x, struct source residual, size_t n,
                    const struct dropout_draw *draw);
    void (*layer_norm)(struct layer_row *row, struct target out);
    /* din = gradient (+ add, of din's dtype); dgamma and dbeta are added to. */
    void (*layer_norm_backward)(const struct layer_row *row, struct source dout, struct source add,
                                struct target din, float *dgamma, float *dbeta);
    void (*softmax)(struct softmax_row *row, bool all);
    /* dx = exp(x - most)·factor - constant; may be x. */
    void (*softmax_backward)(const struct softmax_row *row, float factor, float constant,
                             struct target dx);
    void (*attention)(const struct attention_tile *tile);
    void (*attention_backward)(const struct attention_tile *tile);
    float (*dot)(struct source x, struct source y, size_t n);
};

struct nhwc_norm_loops; /* loops_nhwc.h */
struct nhwc_loops;

extern const struct text_loops text_loops_base, text_loops_avx2, text_loops_avx512,
    text_loops_avx512bf16;
