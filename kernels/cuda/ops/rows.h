/*
 * Functions that the ops of text models share: tensors as rows of their last dim.
 */
#pragma once

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

static inline int64_t rows_columns(const struct tensor *t)
{
    return t->dims[t->ndim - 1];
}

static inline int64_t rows_count(const struct tensor *t)
{
    return tensor_elements(t) / rows_columns(t);
}

static inline bool rows_is_plain(const struct tensor *t, enum dtype dtype, int ndim_min)
{
    return t->dtype == dtype && t->format == FORMAT_PLAIN && t->ndim >= ndim_min &&
           tensor_elements(t) >= 1;
}

/* An output with the input's dims and format, in out_dtype. */
static inline struct tensor rows_like_input(const struct op_spec *spec)
{
    struct tensor out = spec->in[0];
    out.dtype = spec->out_dtype;
    out.bytes = (size_t)tensor_elements(&out) * dtype_size(out.dtype);
    return out;
}
