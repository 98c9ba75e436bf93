/*
 * A product or a convolution in bfloat16 on a device, forward and backward, with a sample of what
 * it gives computed in float64 on the host. Any failure fails the test, with the shape's name.
 */
#pragma once

#include "kernels/backend.h"

struct shape {
    const char *name;
    enum op op;                    /* OP_LINEAR, OP_CONV2D */
    int64_t dims[TENSOR_DIMS_MAX]; /* of the input; two of a linear's */
    struct op_attr attr;           /* no activation, no residual; a bias of a linear only */
};

struct shape_run;

/* Fills input, parameters and the output's gradient with numbers of the shape's own. */
struct shape_run *shape_open(const struct backend_table *table, struct backend *backend,
                             const struct shape *shape);
void shape_close(struct shape_run *run);

/* Forward and backward, enqueued; the results are poisoned before. */
void shape_run_once(struct shape_run *run);
/* Checksum of all results. Waits. */
uint64_t shape_checksum(struct shape_run *run);
/* Samples of the output and all gradients, to some roundings of bfloat16 (or float32) in a sum of
 * the length that it has. Waits. */
void shape_compare(struct shape_run *run);
/* The pins name what this shape needs. */
void shape_is_pinned(const struct shape_run *run, const char *pins);
