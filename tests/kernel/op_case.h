/*
 * One op on one shape, run by a backend and compared with the float64 reference.
 */
#pragma once

#include "kernels/backend.h"

struct op_case {
    const char *name;
    enum op op;
    struct op_attr attr;
    int ndim;
    int64_t dims[TENSOR_DIMS_MAX];
    enum format format;   /* of the tensor inputs */
    enum dtype dtype;     /* of the tensor inputs; 0: float32. A residual of linear or dropout
                             has out_dtype */
    enum dtype out_dtype; /* 0: float32 */
    enum math math;
    bool inference;
    bool no_din;       /* the input is data */
    bool pitched;      /* the output may be, and is */
    bool dying;        /* nobody else reads the first input */
    bool padded;       /* attention: tokens say where each sample ends */
    const char *wants; /* part of the implementation's name where there is AVX-512; or NULL */
    double tolerance;  /* relative to the greatest value; 0: 2e-5, bfloat16 1.5e-2, float16 2e-3 */
};

/*
 * Runs the case and fails the test unless:
 *  - output, statistics and every gradient are those of the reference (differences at up to
 *    SAMPLES places per array);
 *  - padding channels of outputs and of input gradients are zero;
 *  - a second run in other, poisoned memory gives the same bits;
 *  - with accumulate, parameter gradients and statistics are added to what was there;
 *  - with two gradients (where the kernel sums them), the result is that of their sum;
 *  - with a gradient to add to din[i] (where the kernel adds one), also over itself, it is added;
 *  - with din[i] written over in[i] (where the kernel does that), the bits are the same;
 *  - with a factor of the loss, its gradient has that factor.
 */
void op_case_check(const struct backend_table *table, struct backend *backend,
                   const struct op_case *c);
