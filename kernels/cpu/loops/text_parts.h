/*
 * The members of a text_loops table, which are spread over text_flat.c, text_dropout.c,
 * text_rows.c, text_attention.c and text_gated.c.
 */
#pragma once

#include "kernels/cpu/loops/text.h"
#include "kernels/cpu/loops/text_simd.h"

#define TEXT(name) LOOPS_TABLE(text_##name)

void TEXT(convert)(struct text_target out, struct text_source x, size_t n);
void TEXT(add)(struct text_target out, struct text_source x, struct text_source y, size_t n);
void TEXT(activate)(enum activation kind, struct text_target out, struct text_source x, size_t n);
void TEXT(activate_backward)(enum activation kind, struct text_target din, struct text_source dout,
                             struct text_source x, size_t n);
void TEXT(column_sums)(float *out, struct text_source x, size_t rows, size_t columns,
                       bool accumulate);
float TEXT(dot)(struct text_source x, struct text_source y, size_t n);
void TEXT(dropout)(struct text_target out, struct text_source x, struct text_source residual,
                   size_t n, const struct dropout_draw *draw);
void TEXT(layer_norm)(struct layer_row *row, struct text_target out);
void TEXT(layer_norm_backward)(const struct layer_row *row, struct text_source dout,
                               struct text_source add, struct text_target din, float *dgamma,
                               float *dbeta);
void TEXT(softmax)(struct softmax_row *row, bool all);
void TEXT(softmax_backward)(const struct softmax_row *row, float factor, float constant,
                            struct text_target dx);
void TEXT(attention)(const struct attention_tile *tile);
void TEXT(attention_backward)(const struct attention_tile *tile);
void TEXT(gated)(struct text_target out, struct text_source a, struct text_source b, size_t n);
void TEXT(gated_backward)(struct text_target da, struct text_target db, struct text_source dout,
                          struct text_source a, struct text_source b, size_t n);
void TEXT(turn)(struct text_target out, struct text_source x, size_t count, const float *turn,
                size_t depth);
