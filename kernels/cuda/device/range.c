/*
 * Named ranges for Nsight Systems. NVTX is headers only: without a tool that listens, a call is one
 * comparison.
 */
#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/device/cuda.h"

void cuda_range_push(const char *name)
{
    (void)nvtxRangePushA(name);
}

void cuda_range_pop(void)
{
    (void)nvtxRangePop();
}
