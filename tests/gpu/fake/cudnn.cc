/*
 * cuDNN: convolutions by loops, with float32 sums. Refuses the algorithms that add with atomics,
 * and mixed types.
 */
#include <cmath>
#include <cstring>
#include <cudnn.h>
#include <vector>

#include "tests/gpu/fake/fake_internal.h"

typedef std::lock_guard<std::recursive_mutex> held;

#define WORKSPACE 777

struct cudnnContext {
    cudaStream_t stream;
};

/* Dims in the order n, c, h, w (a filter: k, c, r, s) with the elements between neighbours. */
struct cudnnTensorStruct {
    cudaDataType_t type;
    int dims[4];
    int64_t strides[4];
};

struct cudnnFilterStruct {
    struct cudnnTensorStruct as;
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

static cudnnStatus_t set(struct cudnnTensorStruct *out, cudnnDataType_t type,
                         cudnnTensorFormat_t format, const int dims[4])
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
    return set(desc, type, format, dims);
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

/* One of the three directions: two of x, w, y are read, the third is written. */
struct convolution {
    struct cudnnTensorStruct x, w, y;
    struct cudnnConvolutionStruct desc;
    const void *read[2];
    void *written, *workspace;
    float alpha, beta;
};

static cudnnStatus_t check(const struct convolution &c)
{
    for (int i = 0; i < 2; i++) {
        const int out = (c.x.dims[2 + i] + 2 * c.desc.pad[i] - c.w.dims[2 + i]) / c.desc.stride[i];
        if (c.y.dims[2 + i] != out + 1)
            return CUDNN_STATUS_BAD_PARAM;
    }
    if (c.x.dims[0] != c.y.dims[0] || c.x.dims[1] != c.w.dims[1] || c.y.dims[1] != c.w.dims[0])
        return CUDNN_STATUS_BAD_PARAM;
    if (fake_only_planar() && c.x.dims[1] > 1 && c.x.strides[1] == 1)
        return CUDNN_STATUS_NOT_SUPPORTED;
    return c.x.type == c.y.type && c.x.type == c.w.type ? CUDNN_STATUS_SUCCESS
                                                        : CUDNN_STATUS_NOT_SUPPORTED;
}

static int64_t offset(const struct cudnnTensorStruct &t, int a, int b, int c, int d)
{
    return a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d * t.strides[3];
}

static float load(const struct convolution &c, const struct cudnnTensorStruct &t, const void *array,
                  int64_t at)
{
    const float value = fake_load(t.type, array, at);
    if (t.type == CUDA_R_16BF && c.desc.math == CUDNN_TENSOR_OP_MATH)
        return NAN; /* it is for float16 */
    return t.type == CUDA_R_32F && c.desc.math != CUDNN_FMA_MATH ? fake_tf32(value) : value;
}

/* Calls visit(x's place, w's place, y's place) for every product of the convolution. */
template <typename F> static void each_window(const struct convolution &c, const int at[4], F visit)
{
    const int n = at[0], k = at[1], p = at[2], q = at[3];
    for (int ch = 0; ch < c.x.dims[1]; ch++) {
        for (int r = 0; r < c.w.dims[2]; r++) {
            for (int s = 0; s < c.w.dims[3]; s++) {
                const int h = p * c.desc.stride[0] - c.desc.pad[0] + r;
                const int w = q * c.desc.stride[1] - c.desc.pad[1] + s;
                if (h >= 0 && h < c.x.dims[2] && w >= 0 && w < c.x.dims[3])
                    visit(offset(c.x, n, ch, h, w), offset(c.w, k, ch, r, s),
                          offset(c.y, n, k, p, q));
            }
        }
    }
}

template <typename F> static void each_product(const struct convolution &c, F visit)
{
    int at[4];
    for (at[0] = 0; at[0] < c.y.dims[0]; at[0]++)
        for (at[1] = 0; at[1] < c.y.dims[1]; at[1]++)
            for (at[2] = 0; at[2] < c.y.dims[2]; at[2]++)
                for (at[3] = 0; at[3] < c.y.dims[3]; at[3]++)
                    each_window(c, at, visit);
}

static int64_t elements(const struct cudnnTensorStruct &t)
{
    return (int64_t)t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3];
}

static void finish(const struct convolution &c, const struct cudnnTensorStruct &t,
                   const std::vector<float> &sums)
{
    for (int64_t i = 0; i < elements(t); i++) {
        float value = c.alpha * sums[(size_t)i];
        if (c.beta != 0.0f)
            value += c.beta * fake_load(t.type, c.written, i);
        fake_store(t.type, c.written, i, value);
    }
}

static cudnnStatus_t run(cudnnHandle_t handle, const struct convolution &c, size_t workspace,
                         std::function<void()> work)
{
    if (check(c) != CUDNN_STATUS_SUCCESS)
        return check(c);
    if (workspace < WORKSPACE || c.workspace == nullptr)
        return CUDNN_STATUS_BAD_PARAM;
    return fake_enqueue(handle->stream, std::move(work)) ? CUDNN_STATUS_SUCCESS
                                                         : CUDNN_STATUS_EXECUTION_FAILED;
}

static float number(const void *pointer)
{
    return *static_cast<const float *>(pointer);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle,
                                                      const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t desc,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algo, size_t *out)
{
    const held lock(fake_lock());
    (void)handle;
    const cudnnStatus_t st = enter("cudnnGetConvolutionForwardWorkspaceSize");
    const struct convolution c = { *x, w->as, *y, *desc, {}, nullptr, nullptr, 0, 0 };
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    if (algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM &&
        algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM)
        return CUDNN_STATUS_NOT_SUPPORTED;
    *out = WORKSPACE;
    return check(c);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t desc, const cudnnTensorDescriptor_t x,
    cudnnConvolutionBwdDataAlgo_t algo, size_t *out)
{
    const held lock(fake_lock());
    (void)handle;
    const cudnnStatus_t st = enter("cudnnGetConvolutionBackwardDataWorkspaceSize");
    const struct convolution c = { *x, w->as, *y, *desc, {}, nullptr, nullptr, 0, 0 };
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    if (algo != CUDNN_CONVOLUTION_BWD_DATA_ALGO_1)
        return CUDNN_STATUS_NOT_SUPPORTED;
    *out = WORKSPACE;
    return check(c);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y,
    const cudnnConvolutionDescriptor_t desc, const cudnnFilterDescriptor_t w,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *out)
{
    const held lock(fake_lock());
    (void)handle;
    const cudnnStatus_t st = enter("cudnnGetConvolutionBackwardFilterWorkspaceSize");
    const struct convolution c = { *x, w->as, *y, *desc, {}, nullptr, nullptr, 0, 0 };
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    if (algo != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1)
        return CUDNN_STATUS_NOT_SUPPORTED;
    *out = WORKSPACE;
    return check(c);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t x_desc, const void *x,
                                      const cudnnFilterDescriptor_t w_desc, const void *w,
                                      const cudnnConvolutionDescriptor_t desc,
                                      cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes,
                                      const void *beta, const cudnnTensorDescriptor_t y_desc,
                                      void *y)
{
    const held lock(fake_lock());
    (void)algo;
    const cudnnStatus_t st = enter("cudnnConvolutionForward");
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    const struct convolution c = { *x_desc, w_desc->as, *y_desc,       *desc,       { x, w },
                                   y,       workspace,  number(alpha), number(beta) };
    return run(handle, c, bytes, [c] {
        std::vector<float> sums((size_t)elements(c.y));
        memset(c.workspace, 0x5a, WORKSPACE);
        each_product(c, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
            sums[(size_t)y_at] += load(c, c.x, c.read[0], x_at) * load(c, c.w, c.read[1], w_at);
        });
        finish(c, c.y, sums);
    });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t w_desc, const void *w,
                                           const cudnnTensorDescriptor_t y_desc, const void *dy,
                                           const cudnnConvolutionDescriptor_t desc,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workspace,
                                           size_t bytes, const void *beta,
                                           const cudnnTensorDescriptor_t x_desc, void *dx)
{
    const held lock(fake_lock());
    (void)algo;
    const cudnnStatus_t st = enter("cudnnConvolutionBackwardData");
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    const struct convolution c = { *x_desc, w_desc->as, *y_desc,       *desc,       { w, dy },
                                   dx,      workspace,  number(alpha), number(beta) };
    return run(handle, c, bytes, [c] {
        std::vector<float> sums((size_t)elements(c.x));
        memset(c.workspace, 0x5a, WORKSPACE);
        each_product(c, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
            sums[(size_t)x_at] += load(c, c.w, c.read[0], w_at) * load(c, c.y, c.read[1], y_at);
        });
        finish(c, c.x, sums);
    });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t x_desc, const void *x,
                                             const cudnnTensorDescriptor_t y_desc, const void *dy,
                                             const cudnnConvolutionDescriptor_t desc,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
                                             size_t bytes, const void *beta,
                                             const cudnnFilterDescriptor_t w_desc, void *dw)
{
    const held lock(fake_lock());
    (void)algo;
    const cudnnStatus_t st = enter("cudnnConvolutionBackwardFilter");
    if (st != CUDNN_STATUS_SUCCESS)
        return st;
    const struct convolution c = { *x_desc, w_desc->as, *y_desc,       *desc,       { x, dy },
                                   dw,      workspace,  number(alpha), number(beta) };
    return run(handle, c, bytes, [c] {
        std::vector<float> sums((size_t)elements(c.w));
        memset(c.workspace, 0x5a, WORKSPACE);
        each_product(c, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
            sums[(size_t)w_at] += load(c, c.x, c.read[0], x_at) * load(c, c.y, c.read[1], y_at);
        });
        finish(c, c.w, sums);
    });
}
