/*
 * A convolution by loops, with float32 sums: what both of cuDNN's interfaces, as the fakes have
 * them, compute.
 */
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <library_types.h>

#define FAKE_CONVOLUTION_WORKSPACE 777

/* Dims in the order n, c, h, w (a filter: k, c, r, s) with the elements between neighbours. */
struct fake_tensor {
    cudaDataType_t type;
    int64_t dims[4], strides[4];
};

enum fake_direction { FAKE_FORWARD, FAKE_DATA, FAKE_WEIGHTS };

/* Two of x, w, y are read, the third is written, whole. */
struct fake_convolution {
    enum fake_direction direction;
    struct fake_tensor x, w, y;
    int64_t pad[2], stride[2];
    bool tf32;      /* float32 is rounded to it */
    bool nan;       /* what it reads is taken for another type */
    bool backwards; /* the sum over windows begins at the end: other bits */
    const void *x_at, *w_at, *y_at;
    void *workspace;
    float alpha, beta;
};

enum fake_answer { FAKE_TAKEN, FAKE_BAD, FAKE_UNSUPPORTED, FAKE_FAILED };

enum fake_answer fake_convolution_check(const struct fake_convolution &c);
/* FAKE_FAILED: a capture does not allow it. */
enum fake_answer fake_convolve(const struct fake_convolution &c, size_t workspace,
                               cudaStream_t stream);
