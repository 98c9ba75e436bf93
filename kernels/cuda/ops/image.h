/*
 * Functions that the ops on images share (batch_norm, pools, flatten). Our own kernels take tensors
 * with the channels innermost: a plain input is turned into that in scratch, in forward and in
 * backward. Its gradient has the channels innermost, too.
 */
#pragma once

#include <stdlib.h>

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

struct image {
    struct kernel base;
    int64_t n, c, h, w;  /* of in[0] */
    int64_t p, q;        /* rows and columns of a pool's output */
    bool turn;           /* in[0] is plain, and its bytes differ from those of NHWC */
    size_t turned_bytes; /* of in[0] turned, at the start of scratch */
};

static inline int64_t image_rows(const struct image *self)
{
    return self->n * self->h * self->w;
}

static inline bool image_is_valid(const struct op_spec *spec)
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

/* *out: `in`, a tensor like in[0], with its channels innermost; made at `at` unless it is so. */
static inline enum status image_channels_last(struct backend *backend, const struct image *self,
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
    return CUDA_LAUNCHED(backend, k_transpose(&args, stream), "reformat");
}
