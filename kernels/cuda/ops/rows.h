/*
 * What the ops of text models share: tensors as rows of their last dim.
 */
#pragma once

#include <stdlib.h>

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

struct text {
    struct kernel base;
    int64_t rows, c; /* of in[0] */
    size_t first_at; /* scratch: what comes before it is the loss's lse */
};

static inline bool is_plain(const struct tensor *t, enum dtype dtype, int ndim_min)
{
    return t->dtype == dtype && t->format == FORMAT_PLAIN && t->ndim >= ndim_min &&
           tensor_elements(t) >= 1;
}

static inline enum status text_new(const struct op_spec *spec, struct text **out)
{
    struct text *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    const struct tensor *in = &spec->in[0];
    self->base.spec = *spec;
    self->c = in->dims[in->ndim - 1];
    self->rows = tensor_elements(in) / self->c;
    *out = self;
    return ST_OK;
}

/* The output has the input's dims and format, and a type of its own. */
static inline struct tensor like_input(const struct op_spec *spec)
{
    struct tensor out = spec->in[0];
    out.dtype = spec->out_dtype;
    out.bytes = (size_t)tensor_elements(&out) * dtype_size(out.dtype);
    return out;
}

static inline bool same_shape(const struct tensor *a, const struct tensor *b)
{
    return a->format == b->format && tensor_elements(a) == tensor_elements(b);
}
