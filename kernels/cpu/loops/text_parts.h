/*
 * The members of a text_loops table, which are spread over loops_text*.c.
 */
#pragma once

#include "kernels/cpu/loops/text.h"
#include "kernels/cpu/loops/text_simd.h"

#define TEXT(name) LOOPS_TABLE(text_##name)

void TEXT(dropout)(struct target out, struct source x, struct source residual, size_t n,
                   const struct dropout_draw *draw);
void TEXT(layer_norm)(struct layer_row *row, struct target out);
void TEXT(layer_norm_backward)(const struct layer_row *row, struct source dout, struct source add,
                               struct target din, float *dgamma, float *dbeta);
void TEXT(softmax)(struct softmax_row *row, bool all);
void TEXT(softmax_backward)(const struct softmax_row *row, float factor, float constant,
                            struct target dx);
void TEXT(attention)(const struct attention_tile *tile);
void TEXT(attention_backward)(const struct attention_tile *tile);
