/*
 * Our dtypes as the libraries name them, and tensors.
 */
#include <stdlib.h>

#include "common/check.h"
#include "kernels/cuda/device/cuda.h"

struct kernel *cuda_kernel_new(const struct op_spec *spec)
{
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel != NULL)
        kernel->spec = *spec;
    return kernel;
}

cudaDataType_t cuda_type(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return CUDA_R_32F;
    case DTYPE_BF16:
        return CUDA_R_16BF;
    case DTYPE_F16:
        return CUDA_R_16F;
    case DTYPE_I32:
    case DTYPE_I64:
    case DTYPE_U8:
        break;
    }
    CHECK("a floating dtype" == NULL);
    return CUDA_R_32F;
}

cudnnDataType_t cudnn_type(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return CUDNN_DATA_FLOAT;
    case DTYPE_BF16:
        return CUDNN_DATA_BFLOAT16;
    case DTYPE_F16:
        return CUDNN_DATA_HALF;
    case DTYPE_I32:
    case DTYPE_I64:
    case DTYPE_U8:
        break;
    }
    CHECK("a floating dtype" == NULL);
    return CUDNN_DATA_FLOAT;
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

const char *cuda_math_name(enum math math)
{
    static const char *const names[] = {
        [MATH_F32] = "f32", [MATH_TF32] = "tf32", [MATH_BF16] = "bf16", [MATH_F16] = "f16"
    };
    CHECK(math <= MATH_F16);
    return names[math];
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
