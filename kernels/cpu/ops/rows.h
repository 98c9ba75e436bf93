/*
 * Functions that the ops of text models share: plain tensors of float32 or bfloat16, of any number
 * of dims, seen as rows of the last one.
 */
#pragma once

#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/loops/text.h"

/* Plain, float32 or bfloat16, all dims >= 1, at least `ndim` of them. */
static inline bool rows_is_valid(const struct tensor *t, int ndim)
{
    if (t->ndim < ndim || t->ndim > TENSOR_DIMS_MAX || t->format != FORMAT_PLAIN ||
        !cpu_is_float(t->dtype))
        return false;
    for (int i = 0; i < t->ndim; i++) {
        if (t->dims[i] < 1)
            return false;
    }
    return true;
}

static inline bool rows_same_dims(const struct tensor *a, const struct tensor *b)
{
    bool same = a->ndim == b->ndim;
    for (int i = 0; same && i < a->ndim; i++)
        same = a->dims[i] == b->dims[i];
    return same;
}

static inline int64_t rows_columns(const struct tensor *t)
{
    return t->dims[t->ndim - 1];
}

static inline int64_t rows_count(const struct tensor *t)
{
    return tensor_elements(t) / rows_columns(t);
}

static inline struct text_source rows_source(const void *data, enum dtype dtype)
{
    return (struct text_source){ .data = data, .half = dtype == DTYPE_BF16 };
}

static inline struct text_target rows_target(void *data, enum dtype dtype)
{
    return (struct text_target){ .data = data, .half = dtype == DTYPE_BF16 };
}

/* Return s or t from row r on, for rows of `columns`. */
static inline struct text_source rows_at(struct text_source s, int64_t r, int64_t columns)
{
    const size_t size = s.half ? sizeof(uint16_t) : sizeof(float);
    s.data = (const char *)s.data + (size_t)(r * columns) * size;
    return s;
}

static inline struct text_target rows_at_out(struct text_target t, int64_t r, int64_t columns)
{
    const size_t size = t.half ? sizeof(uint16_t) : sizeof(float);
    t.data = (char *)t.data + (size_t)(r * columns) * size;
    return t;
}
