/*
 * Requests to cuDNN's two interfaces to convolutions, and their functions: for conv.c alone.
 */
#pragma once

#include <cudnn.h>
#include <cudnn_backend.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

enum cuda_conv_direction {
    CUDA_CONV_FORWARD,
    CUDA_CONV_DATA,
    CUDA_CONV_WEIGHTS,
    CUDA_CONV_DIRECTIONS
};

struct cuda_conv_spec {
    enum cuda_conv_direction direction;
    /* x [n, c, h, w], weights [k, c, kernel, kernel], y [n, k, p, q] */
    int64_t n, c, h, w, k, p, q;
    int kernel, stride, pad;
    enum math math; /* all three tensors are of its operands' type */
    bool planar;    /* the tensors are NCHW; else the channels are innermost */
};

struct cuda_conv_operands {
    const void *x, *weights, *y; /* two are read; which is written, the direction says */
    void *workspace;             /* workspace_bytes, aligned to 256 */
    bool adds;                   /* to what is there; the legacy interface only */
};

/* cuDNN's graph interface (NVIDIA, cuDNN backend API reference). */
struct conv_graph {
    cudnnBackendDescriptor_t plan;  /* NULL: there is none */
    cudnnBackendDescriptor_t *made; /* owned: all that it was made of, itself the last */
    int made_count;
    size_t workspace_bytes;
    cudnnBackendDescriptor_t pack; /* owned: of `packed`; NULL: it hasn't run */
    struct cuda_conv_operands packed;
};

/* cuDNN's older interface. */
struct conv_legacy {
    enum cuda_conv_direction direction;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t filter;
    cudnnConvolutionDescriptor_t desc;
    int algorithm; /* the library's number */
    size_t workspace_bytes;
};

/* Errors of both: ST_NOT_FOUND  it has nothing that this takes
 *                 ST_NO_MEMORY  what it would take can't be made now */
MUST_CHECK enum status conv_graph_init(struct backend *backend, const struct cuda_conv_spec *spec,
                                       struct conv_graph *out);
void conv_graph_release(struct conv_graph *graph);
/* operands->adds must be false. */
MUST_CHECK cudnnStatus_t conv_graph_run(const struct backend *backend, struct conv_graph *graph,
                                        const struct cuda_conv_operands *operands);

MUST_CHECK enum status conv_legacy_init(struct backend *backend, const struct cuda_conv_spec *spec,
                                        struct conv_legacy *out);
void conv_legacy_release(struct conv_legacy *legacy);
MUST_CHECK cudnnStatus_t conv_legacy_run(const struct backend *backend,
                                         const struct conv_legacy *legacy,
                                         const struct cuda_conv_operands *operands);
