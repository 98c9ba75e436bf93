/*
 * Every op's forward pass in float64 on plain arrays, straight from its definition.
 *
 * Gradients are central differences of these, so that a backward kernel is not compared with a
 * derivation that could share its mistake.
 */
#pragma once

#include <stdint.h>

#include "kernels/op.h"

struct reference {
    struct op_spec spec; /* formats are ignored: all arrays are plain */
    double *in[OP_IN_MAX];
    double *param[OP_PARAM_MAX];
    double *stat[OP_STAT_MAX];
    const int32_t *labels; /* softmax_cross_entropy; the tokens of embedding, attention */
    const uint32_t *draw;  /* dropout; see enum op_draw */
};

/* Dims of the output; elements of each parameter. */
struct tensor reference_out(const struct op_spec *spec);
void reference_params(const struct op_spec *spec, int64_t out[OP_PARAM_MAX]);
void reference_forward(const struct reference *r, double *out);

/* gelu, dropout, layer_norm, embedding and attention. */
void reference_text(const struct reference *r, double *out);

/* An activation of linear or gelu. */
double reference_activation(enum activation kind, double x);

/* Mean and unbiased variance of each channel of in[0]. */
void reference_statistics(const struct reference *r, double *mean, double *variance);
