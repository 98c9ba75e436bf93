#include "kernels/tensor.h"

#include "common/check.h"

size_t dtype_size(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
    case DTYPE_I32:
        return 4;
    case DTYPE_BF16:
    case DTYPE_F16:
        return 2;
    case DTYPE_I64:
        return 8;
    case DTYPE_U8:
        return 1;
    }
    CHECK(false);
}

const char *dtype_name(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
        return "f32";
    case DTYPE_BF16:
        return "bf16";
    case DTYPE_F16:
        return "f16";
    case DTYPE_I32:
        return "i32";
    case DTYPE_I64:
        return "i64";
    case DTYPE_U8:
        return "u8";
    }
    CHECK(false);
}

int64_t tensor_elements(const struct tensor *tensor)
{
    int64_t n = 1;
    for (int i = 0; i < tensor->ndim; i++)
        n *= tensor->dims[i];
    return n;
}

struct tensor tensor_plain(enum dtype dtype, int ndim, const int64_t *dims)
{
    CHECK(ndim >= 1);
    CHECK(ndim <= TENSOR_DIMS_MAX);
    struct tensor tensor = { .dtype = dtype, .format = FORMAT_PLAIN, .ndim = ndim };
    for (int i = 0; i < ndim; i++)
        tensor.dims[i] = dims[i];
    tensor.bytes = (size_t)tensor_elements(&tensor) * dtype_size(dtype);
    return tensor;
}
