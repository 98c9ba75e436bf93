/*
 * cuDNN's handle, and its legacy convolutions. Refuses the algorithms that add with atomics, and
 * mixed types.
 */
#include <cstring>
#include <cudnn.h>

#include "tests/gpu/fake/convolve.h"
#include "tests/gpu/fake/cudnn_handle.h"
#include "tests/gpu/fake/fake_internal.h"

typedef std::lock_guard<std::recursive_mutex> held;

struct cudnnTensorStruct {
    struct fake_tensor as;
};

struct cudnnFilterStruct {
    struct fake_tensor as;
};

struct cudnnConvolutionStruct {
    int pad[2], stride[2];
    cudnnMathType_t math;
};

static cudnnStatus_t enter(const char *function)
{
    return (cudnnStatus_t)fake_fault(function);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    const held lock(fake_lock());
    const cudnnStatus_t st = enter("cudnnCreate");
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    *out = new cudnnContext();
    fake_object(1);
    return st;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    const held lock(fake_lock());
    delete handle;
    fake_object(-1);
    return enter("cudnnDestroy");
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    const held lock(fake_lock());
    handle->stream = stream;
    return enter("cudnnSetStream");
}

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                : "an error of cuDNN";
}

/* --- descriptors ---------------------------------------------------------------------------- */

template <typename T> static cudnnStatus_t make(const char *function, T **out)
{
    const held lock(fake_lock());
    const cudnnStatus_t st = enter(function);
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    *out = new T();
    fake_object(1);
    return st;
}

template <typename T> static cudnnStatus_t unmake(T *object)
{
    const held lock(fake_lock());
    delete object;
    fake_object(-1);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *out)
{
    return make("cudnnCreateTensorDescriptor", out);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc)
{
    return unmake(desc);
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *out)
{
    return make("cudnnCreateFilterDescriptor", out);
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t desc)
{
    return unmake(desc);
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *out)
{
    return make("cudnnCreateConvolutionDescriptor", out);
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t desc)
{
    return unmake(desc);
}

static cudnnStatus_t set(struct fake_tensor *out, cudnnDataType_t type, cudnnTensorFormat_t format,
                         const int dims[4])
{
    const int64_t c = dims[1], h = dims[2], w = dims[3];
    for (int i = 0; i < 4; i++) {
        if (dims[i] < 1)
            return CUDNN_STATUS_BAD_PARAM;
        out->dims[i] = dims[i];
    }
    out->type = type == CUDNN_DATA_FLOAT ? CUDA_R_32F
                                         : (type == CUDNN_DATA_HALF ? CUDA_R_16F : CUDA_R_16BF);
    const int64_t nhwc[4] = { c * h * w, 1, w * c, c }, nchw[4] = { c * h * w, h * w, w, 1 };
    memcpy(out->strides, format == CUDNN_TENSOR_NHWC ? nhwc : nchw, sizeof(nhwc));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t desc, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w)
{
    const held lock(fake_lock());
    const int dims[4] = { n, c, h, w };
    return set(&desc->as, type, format, dims);
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t desc, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w)
{
    const held lock(fake_lock());
    const int dims[4] = { k, c, h, w };
    return set(&desc->as, type, format, dims);
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t desc, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    const held lock(fake_lock());
    if (dilation_h != 1 || dilation_w != 1 || mode != CUDNN_CROSS_CORRELATION ||
        compute != CUDNN_DATA_FLOAT)
        return CUDNN_STATUS_NOT_SUPPORTED;
    desc->pad[0] = pad_h;
    desc->pad[1] = pad_w;
    desc->stride[0] = u;
    desc->stride[1] = v;
    desc->math = CUDNN_DEFAULT_MATH;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t desc, cudnnMathType_t math)
{
    const held lock(fake_lock());
    desc->math = math;
    return CUDNN_STATUS_SUCCESS;
}

/* --- convolutions --------------------------------------------------------------------------- */

static cudnnStatus_t said(enum fake_answer answer)
{
    static const cudnnStatus_t statuses[] = { CUDNN_STATUS_SUCCESS, CUDNN_STATUS_BAD_PARAM,
                                              CUDNN_STATUS_NOT_SUPPORTED,
                                              CUDNN_STATUS_EXECUTION_FAILED };
    return statuses[answer];
}

static struct fake_convolution of(enum fake_direction direction, const struct cudnnTensorStruct *x,
                                  const struct cudnnFilterStruct *w,
                                  const struct cudnnTensorStruct *y,
                                  const struct cudnnConvolutionStruct *desc)
{
    struct fake_convolution c = {};
    c.direction = direction;
    c.x = x->as;
    c.w = w->as;
    c.y = y->as;
    for (int i = 0; i < 2; i++) {
        c.pad[i] = desc->pad[i];
        c.stride[i] = desc->stride[i];
    }
    c.tf32 = desc->math != CUDNN_FMA_MATH;
    c.nan = c.x.type == CUDA_R_16BF && desc->math == CUDNN_TENSOR_OP_MATH; /* for float16 alone */
    return c;
}

static cudnnStatus_t workspace_of(const char *function, bool known,
                                  const struct fake_convolution &c, size_t *out)
{
    const held lock(fake_lock());
    const cudnnStatus_t st = enter(function);
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    *out = FAKE_CONVOLUTION_WORKSPACE;
    return known ? said(fake_convolution_check(c)) : CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle,
                                                      const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t desc,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algo, size_t *out)
{
    (void)handle;
    return workspace_of("cudnnGetConvolutionForwardWorkspaceSize",
                        algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM ||
                            algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                        of(FAKE_FORWARD, x, w, y, desc), out);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t desc, const cudnnTensorDescriptor_t x,
    cudnnConvolutionBwdDataAlgo_t algo, size_t *out)
{
    (void)handle;
    return workspace_of("cudnnGetConvolutionBackwardDataWorkspaceSize",
                        algo == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, of(FAKE_DATA, x, w, y, desc),
                        out);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t desc, const cudnnFilterDescriptor_t w,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *out)
{
    (void)handle;
    return workspace_of("cudnnGetConvolutionBackwardFilterWorkspaceSize",
                        algo == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
                        of(FAKE_WEIGHTS, x, w, y, desc), out);
}

static cudnnStatus_t run(const char *function, cudnnHandle_t handle, struct fake_convolution c,
                         const void *const at[3], const void *const factors[2], void *workspace,
                         size_t bytes)
{
    const held lock(fake_lock());
    const cudnnStatus_t st = enter(function);
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    c.x_at = at[0];
    c.w_at = at[1];
    c.y_at = at[2];
    c.alpha = *static_cast<const float *>(factors[0]);
    c.beta = *static_cast<const float *>(factors[1]);
    c.workspace = workspace;
    return said(fake_convolve(c, bytes, handle->stream));
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t x_desc, const void *x,
                                      const cudnnFilterDescriptor_t w_desc, const void *w,
                                      const cudnnConvolutionDescriptor_t desc,
                                      cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes,
                                      const void *beta, const cudnnTensorDescriptor_t y_desc,
                                      void *y)
{
    const void *const at[3] = { x, w, y }, *const factors[2] = { alpha, beta };
    (void)algo;
    return run("cudnnConvolutionForward", handle, of(FAKE_FORWARD, x_desc, w_desc, y_desc, desc),
               at, factors, workspace, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t w_desc, const void *w,
                                           const cudnnTensorDescriptor_t y_desc, const void *dy,
                                           const cudnnConvolutionDescriptor_t desc,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workspace,
                                           size_t bytes, const void *beta,
                                           const cudnnTensorDescriptor_t x_desc, void *dx)
{
    const void *const at[3] = { dx, w, dy }, *const factors[2] = { alpha, beta };
    (void)algo;
    return run("cudnnConvolutionBackwardData", handle, of(FAKE_DATA, x_desc, w_desc, y_desc, desc),
               at, factors, workspace, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t x_desc, const void *x,
                                             const cudnnTensorDescriptor_t y_desc, const void *dy,
                                             const cudnnConvolutionDescriptor_t desc,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
                                             size_t bytes, const void *beta,
                                             const cudnnFilterDescriptor_t w_desc, void *dw)
{
    const void *const at[3] = { x, dw, dy }, *const factors[2] = { alpha, beta };
    (void)algo;
    return run("cudnnConvolutionBackwardFilter", handle,
               of(FAKE_WEIGHTS, x_desc, w_desc, y_desc, desc), at, factors, workspace, bytes);
}
