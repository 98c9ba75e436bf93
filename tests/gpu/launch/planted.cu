#include "tests/gpu/launch/planted.h"

#include "kernels/cuda/own/launch.h"

__global__ void planted_kernel(int count, const float *in, planted_extent extent, float *out)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        out[i] = in[i * extent.stride];
}

extern "C" enum status planted_start(long count, const float *in, struct planted_extent extent,
                                     size_t shared, void *stream)
{
    return launch(planted_kernel, dim3(3, 2), dim3(64), shared, stream, count, in, extent, nullptr);
}
