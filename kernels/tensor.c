#include "kernels/tensor.h"

#include "common/check.h"

static const struct {
    size_t size;
    const char *name;
} dtypes[] = {
    [DTYPE_F32] = { 4, "f32" }, [DTYPE_BF16] = { 2, "bf16" }, [DTYPE_F16] = { 2, "f16" },
    [DTYPE_I32] = { 4, "i32" }, [DTYPE_I64] = { 8, "i64" },   [DTYPE_U8] = { 1, "u8" },
};

size_t dtype_size(enum dtype dtype)
{
    CHECK(dtype < sizeof(dtypes) / sizeof(dtypes[0]));
    return dtypes[dtype].size;
}

const char *dtype_name(enum dtype dtype)
{
    CHECK(dtype < sizeof(dtypes) / sizeof(dtypes[0]));
    return dtypes[dtype].name;
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

int64_t tensor_pitch(const struct tensor *tensor)
{
    CHECK(tensor->format == FORMAT_PLAIN || tensor->format == FORMAT_PITCHED);
    const int64_t columns = tensor->dims[tensor->ndim - 1];
    if (tensor->format == FORMAT_PLAIN)
        return columns;
    return (columns + TENSOR_PITCH - 1) / TENSOR_PITCH * TENSOR_PITCH;
}

struct tensor tensor_pitched(enum dtype dtype, int ndim, const int64_t *dims)
{
    struct tensor tensor = tensor_plain(dtype, ndim, dims);
    const int64_t rows = tensor_elements(&tensor) / dims[ndim - 1];
    tensor.format = FORMAT_PITCHED;
    tensor.bytes = (size_t)(rows * tensor_pitch(&tensor)) * dtype_size(dtype);
    return tensor;
}
