#include "common/check.h"
#include "kernels/cuda/device/cuda.h"

cudaDataType_t cuda_type(enum dtype dtype)
{
    CHECK(cuda_dtype_is_floating(dtype));
    if (dtype == DTYPE_F32)
        return CUDA_R_32F;
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

cudnnDataType_t cudnn_type(enum dtype dtype)
{
    CHECK(cuda_dtype_is_floating(dtype));
    if (dtype == DTYPE_F32)
        return CUDNN_DATA_FLOAT;
    return dtype == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

enum dtype cuda_math_dtype(enum math math)
{
    switch (math) {
    case MATH_BF16:
        return DTYPE_BF16;
    case MATH_F16:
        return DTYPE_F16;
    case MATH_F32:
    case MATH_TF32:
        break;
    }
    return DTYPE_F32;
}

bool cuda_dtype_is_floating(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

struct tensor cuda_nhwc(enum dtype dtype, const int64_t dims[4])
{
    struct tensor tensor = tensor_plain(dtype, 4, dims);
    tensor.format = FORMAT_NHWC;
    return tensor;
}
