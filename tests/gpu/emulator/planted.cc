#include "tests/gpu/emulator/planted.h"

#include "kernels/cuda/own/launch.h"

/* 64 threads in two blocks of 32, or in one block of two warps. */
static __global__ void planted_kernel(enum planted planted, float *out)
{
    SHARED_ARRAY(float, shared, 64);
    const int t = (int)threadIdx.x, i = (int)(blockIdx.x * blockDim.x) + t;
    float value = (float)i;
    if (planted == PLANTED_NO_BARRIER && t >= 32)
        return;
    if (planted != PLANTED_STALE_SHARED)
        shared[t] = value;
    if (planted != PLANTED_RACE)
        __syncthreads();
    const int other = t ^ (int)(blockDim.x / 2);
    value = shared[other] + (float)(t - other);
    if (planted == PLANTED_MASKS)
        value += 0.0f * __shfl_xor_sync(t % 2 == 0 ? ~0u : 0x7fffffffu, value, 2);
    if (planted == PLANTED_LONELY_SHUFFLE && t % 32 < 16)
        value += 0.0f * __shfl_xor_sync(0xffffu, value, 16);
    if (planted == PLANTED_BLOCK_ORDER && blockIdx.x == 1)
        value = out[0] + (float)i;
    if (planted == PLANTED_READ_FAR)
        value += 0.0f * out[i + 2048];
    if (planted != PLANTED_HOLE || i != 63)
        out[i] = value;
    if (planted == PLANTED_WRITE_BEHIND && i == 63)
        out[64] = value;
    if (planted == PLANTED_WRITE_BEFORE && i == 63)
        out[-1] = value;
}

void planted_run(enum planted planted, float *out)
{
    const bool two = planted == PLANTED_BLOCK_ORDER || planted == PLANTED_NOTHING;
    dim3 grid(two ? 2 : 1), block(two ? 32 : 64);
    if (planted == PLANTED_GRID)
        grid.y = 65536;
    if (launch(planted_kernel, grid, block, 0, nullptr, planted, out) != ST_OK)
        emulator_fail("a launch failed");
}
