/*
 * cuDNN's legacy C functions, with fixed algorithms that are deterministic:
 *
 *   forward             IMPLICIT_PRECOMP_GEMM, else IMPLICIT_GEMM
 *   backward-data       ALGO_1    (ALGO_0 adds with atomics)
 *   backward-weights    ALGO_1    (ALGO_0 and ALGO_3 add with atomics)
 */
#include "common/unconst.h"
#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/library/conv_parts.h"

static cudnnTensorFormat_t format_of(const struct cuda_conv_spec *spec)
{
    return spec->planar ? CUDNN_TENSOR_NCHW : CUDNN_TENSOR_NHWC;
}

static cudnnStatus_t set_tensor(const struct cuda_conv_spec *spec, cudnnTensorDescriptor_t *out,
                                const int64_t dims[4])
{
    const cudnnDataType_t type = cudnn_type(cuda_math_dtype(spec->math));
    cudnnStatus_t st = cudnnCreateTensorDescriptor(out);
    if (st == CUDNN_STATUS_SUCCESS) {
        st = cudnnSetTensor4dDescriptor(*out, format_of(spec), type, (int)dims[0], (int)dims[1],
                                        (int)dims[2], (int)dims[3]);
    }
    return st;
}

/* DEFAULT is tensor cores in the operands' own type, or TF32. TENSOR_OP is for float16 alone: with
 * bfloat16 others got NaN from it. */
static cudnnMathType_t math_type(enum math math)
{
    switch (math) {
    case MATH_F32:
        return CUDNN_FMA_MATH;
    case MATH_F16:
        return CUDNN_TENSOR_OP_MATH;
    case MATH_TF32:
    case MATH_BF16:
        break;
    }
    return CUDNN_DEFAULT_MATH;
}

static cudnnStatus_t describe(const struct cuda_conv_spec *spec, struct conv_legacy *out)
{
    const int64_t x[4] = { spec->n, spec->c, spec->h, spec->w };
    const int64_t y[4] = { spec->n, spec->k, spec->p, spec->q };
    const cudnnDataType_t type = cudnn_type(cuda_math_dtype(spec->math));
    cudnnStatus_t st = set_tensor(spec, &out->x, x);
    if (st == CUDNN_STATUS_SUCCESS)
        st = set_tensor(spec, &out->y, y);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnCreateFilterDescriptor(&out->filter);
    if (st == CUDNN_STATUS_SUCCESS) {
        st = cudnnSetFilter4dDescriptor(out->filter, type, format_of(spec), (int)spec->k,
                                        (int)spec->c, spec->kernel, spec->kernel);
    }
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnCreateConvolutionDescriptor(&out->desc);
    if (st == CUDNN_STATUS_SUCCESS) {
        st = cudnnSetConvolution2dDescriptor(out->desc, spec->pad, spec->pad, spec->stride,
                                             spec->stride, 1, 1, CUDNN_CROSS_CORRELATION,
                                             CUDNN_DATA_FLOAT);
    }
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnSetConvolutionMathType(out->desc, math_type(spec->math));
    return st;
}

/* Finds an algorithm and the size of its workspace. Returns the error of one that is refused. */
static cudnnStatus_t choose(const struct backend *backend, struct conv_legacy *out)
{
    static const cudnnConvolutionFwdAlgo_t forward[] = {
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
    };
    cudnnStatus_t st = CUDNN_STATUS_NOT_SUPPORTED;
    switch (out->direction) {
    case CUDA_CONV_DATA:
        out->algorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
        return cudnnGetConvolutionBackwardDataWorkspaceSize(
            backend->cudnn, out->filter, out->y, out->desc, out->x,
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, &out->workspace_bytes);
    case CUDA_CONV_WEIGHTS:
        out->algorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(
            backend->cudnn, out->x, out->y, out->desc, out->filter,
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, &out->workspace_bytes);
    case CUDA_CONV_FORWARD:
    case CUDA_CONV_DIRECTIONS:
        break;
    }
    for (int i = 0; i < 2 && st != CUDNN_STATUS_SUCCESS && !cuda_dnn_lacks_memory(st); i++) {
        out->algorithm = (int)forward[i];
        st = cudnnGetConvolutionForwardWorkspaceSize(backend->cudnn, out->x, out->filter, out->desc,
                                                     out->y, forward[i], &out->workspace_bytes);
    }
    return st;
}

enum status conv_legacy_init(struct backend *backend, const struct cuda_conv_spec *spec,
                             struct conv_legacy *out)
{
    struct conv_legacy made = { .direction = spec->direction };
    enum status st = CUDA_DNN_STATUS(backend, describe(spec, &made), "convolution descriptors");
    if (st == ST_OK) {
        st = CUDA_DNN_STATUS(backend, choose(backend, &made), "convolution algorithm");
    }
    if (st != ST_OK) {
        conv_legacy_release(&made);
        return st == ST_INVALID ? ST_NOT_FOUND : st;
    }
    *out = made;
    return ST_OK;
}

void conv_legacy_release(struct conv_legacy *legacy)
{
    if (legacy->desc != NULL)
        (void)cudnnDestroyConvolutionDescriptor(legacy->desc);
    if (legacy->filter != NULL)
        (void)cudnnDestroyFilterDescriptor(legacy->filter);
    if (legacy->y != NULL)
        (void)cudnnDestroyTensorDescriptor(legacy->y);
    if (legacy->x != NULL)
        (void)cudnnDestroyTensorDescriptor(legacy->x);
    *legacy = (struct conv_legacy){ .x = NULL };
}

cudnnStatus_t conv_legacy_run(const struct backend *backend, const struct conv_legacy *legacy,
                              const struct cuda_conv_operands *o)
{
    const float one = 1.0f, beta = o->adds ? 1.0f : 0.0f;
    switch (legacy->direction) {
    case CUDA_CONV_FORWARD:
        return cudnnConvolutionForward(backend->cudnn, &one, legacy->x, o->x, legacy->filter,
                                       o->weights, legacy->desc,
                                       (cudnnConvolutionFwdAlgo_t)legacy->algorithm, o->workspace,
                                       legacy->workspace_bytes, &beta, legacy->y, unconst(o->y));
    case CUDA_CONV_DATA:
        return cudnnConvolutionBackwardData(
            backend->cudnn, &one, legacy->filter, o->weights, legacy->y, o->y, legacy->desc,
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, o->workspace, legacy->workspace_bytes, &beta,
            legacy->x, unconst(o->x));
    case CUDA_CONV_WEIGHTS:
        return cudnnConvolutionBackwardFilter(
            backend->cudnn, &one, legacy->x, o->x, legacy->y, o->y, legacy->desc,
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, o->workspace, legacy->workspace_bytes, &beta,
            legacy->filter, unconst(o->weights));
    case CUDA_CONV_DIRECTIONS:
        break;
    }
    return CUDNN_STATUS_BAD_PARAM;
}
