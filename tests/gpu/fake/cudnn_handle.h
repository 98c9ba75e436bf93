/* What both of cuDNN's interfaces share: the handle. */
#pragma once

#include <cuda_runtime_api.h>

struct cudnnContext {
    cudaStream_t stream;
};
