/*
 * Which dtype a value has, and in what a node computes: the whole of mixed precision.
 *
 * The tape says float32 everywhere; a plan asks here. With bf16 or fp16 products every value is
 * half, except the loss, and with O1 the residual stream of transformers. Gradients of a value have
 * its dtype; parameters, their gradients, moments and statistics are float32 whatever is asked.
 */
#pragma once

#include "kernels/op.h"
#include "trainer/tape/tape.h"

/* The residual stream of transformers is what embeddings and sequences write, linear and dropout
 * nodes with a residual, and norms whose output is one. A token selected from it has its dtype. */
enum amp {
    AMP_O1, /* the residual stream stays float32 */
    AMP_O2, /* the residual stream is half, too */
};

/* Returns the dtype that a node writes; in0: the dtype of its first input. */
enum dtype precision_out(const struct tape *tape, int node, enum dtype in0, enum math math,
                         enum amp amp);

/* Returns the type in which a node computes its products; MATH_F32 where it has none. */
enum math precision_math(const struct tape *tape, int node, enum math math);
