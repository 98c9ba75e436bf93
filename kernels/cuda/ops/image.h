/*
 * What the ops on images share: batch_norm, pools, flatten; own kernels on NHWC.
 *
 * A plain input of 4 dims is turned into NHWC in scratch, forward and backward; its gradient is
 * NHWC, too.
 */
#pragma once

#include <stdlib.h>

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

struct image {
    struct kernel base;
    int64_t n, c, h, w, p, q; /* of in[0]; of the output of a pool */
    bool turn;                /* in[0] is plain, and that differs from NHWC */
    size_t turned_bytes;      /* in scratch, before everything else */
};

static inline int64_t rows_of(const struct image *self)
{
    return self->n * self->h * self->w;
}

static inline bool is_image(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    return in->ndim == 4 && cuda_dtype_is_floating(in->dtype) && tensor_elements(in) >= 1 &&
           in->format != FORMAT_BLOCKED && spec->out_dtype == in->dtype;
}

static inline enum status image_new(const struct op_spec *spec, struct image **out)
{
    struct image *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    const struct tensor *in = &spec->in[0];
    self->base.spec = *spec;
    self->n = in->dims[0];
    self->c = in->dims[1];
    self->h = in->dims[2];
    self->w = in->dims[3];
    self->turn = in->format == FORMAT_PLAIN && self->c > 1 && self->h * self->w > 1;
    self->turned_bytes =
        self->turn ? cuda_align((size_t)tensor_elements(in) * dtype_size(in->dtype)) : 0;
    *out = self;
    return ST_OK;
}

/* in[i] with its channels innermost; `at` is where it may be made. */
static inline enum status channels_last(struct backend *backend, const struct image *self,
                                        const void *in, void *at, const void **out,
                                        cudaStream_t stream)
{
    *out = in;
    if (!self->turn)
        return ST_OK;
    const enum dtype dtype = self->base.spec.in[0].dtype;
    const struct k_transpose args = { .batch = self->n,
                                      .a = self->c,
                                      .b = self->h * self->w,
                                      .from = dtype,
                                      .to = dtype,
                                      .in = in,
                                      .out = at };
    *out = at;
    return cuda_launched(backend, k_transpose(&args, stream), "reformat");
}
