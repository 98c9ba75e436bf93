/*
 * Description of a tensor, without its data.
 *
 * dims are always logical, outermost first, in PyTorch's index order (N, C, H, W); `format` says
 * how they lie in memory. Only FORMAT_PLAIN is the same on every backend; whatever leaves a worker
 * is plain. Element (n, c, h, w) of [N, C, H, W] is number
 *
 *   FORMAT_PLAIN    ((n·C + c)·H + h)·W + w
 *   FORMAT_NHWC     ((n·H + h)·W + w)·C + c
 *   FORMAT_PITCHED  ((n·C + c)·H + h)·P + w    P: W, rounded up to TENSOR_PITCH
 *   FORMAT_BLOCKED  (((n·⌈C/B⌉ + c / B)·H + h)·W + w)·B + c % B     B: the backend's block
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TENSOR_DIMS_MAX 4
#define TENSOR_PITCH    64 /* elements: 128 bytes of halves, what a GPU fetches at a time */

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_I64, DTYPE_U8 };

enum format {
    FORMAT_PLAIN,   /* row-major over dims */
    FORMAT_PITCHED, /* plain, but rows of the last dim begin aligned; between them lies anything,
                       and zeros in a gradient */
    FORMAT_NHWC,    /* the channels innermost */
    FORMAT_BLOCKED, /* CPU only (oneDNN's nChw16c or nChw8c); channels padded with zeros */
};

struct tensor {
    enum dtype dtype;
    enum format format;
    int ndim;
    int64_t dims[TENSOR_DIMS_MAX];
    size_t bytes; /* in this format, padding included */
};

size_t dtype_size(enum dtype dtype);
const char *dtype_name(enum dtype dtype); /* "f32", … */

/* A plain tensor with its bytes filled in. */
struct tensor tensor_plain(enum dtype dtype, int ndim, const int64_t *dims);
/* A tensor in FORMAT_PITCHED with its bytes filled in. */
struct tensor tensor_pitched(enum dtype dtype, int ndim, const int64_t *dims);
int64_t tensor_elements(const struct tensor *tensor); /* without padding */
/* Elements from one row of the last dim to the next, of a plain or pitched tensor. */
int64_t tensor_pitch(const struct tensor *tensor);
