/*
 * How a kernel is written and started, the same for a device and for the emulator of tests/gpu
 * (CAIRN_EMULATE: the very sources, compiled by the host's C++ compiler, run on the CPU).
 *
 *   launch(kernel, grid, block, shared, stream, arguments...)
 *       Enqueues; ST_DEVICE if that failed, and the runtime's last error says why (CUDA_LAUNCHED
 *       reads it); one that another library left there doesn't count. shared: bytes of dynamic
 *       shared memory; where they are more than LAUNCH_SHARED_UNASKED, launch asks CUDA for them
 *       first.
 *   SHARED_ARRAY(type, name, count)
 *       Declares `type *name`, an array of the block; count is a constant. All threads of the block
 *       come by, or none.
 *   SHARED_DYNAMIC(type, name)
 *       Declares `type *name`, the dynamic shared memory, aligned to 128 bytes.
 *
 * Blocks are a multiple of 32 threads; all of them reach each barrier.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* A block gets 48 KiB unasked, of which a kernel's SHARED_ARRAYs take some. */
#define LAUNCH_SHARED_UNASKED (32 * 1024)

#if defined(CAIRN_EMULATE)
#include <emulator.h>
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define SHARED_ARRAY(type, name, count)                                                            \
    __shared__ __align__(16) type name##_shared[count];                                            \
    type *const name = name##_shared

extern __shared__ __align__(128) unsigned char launch_dynamic_shared[];
#define SHARED_DYNAMIC(type, name) type *const name = (type *)launch_dynamic_shared

template <typename... Parameters, typename... Arguments>
static inline enum status launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                 size_t shared, void *stream, Arguments... arguments)
{
    if (shared > LAUNCH_SHARED_UNASKED &&
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)shared) != cudaSuccess)
        return ST_DEVICE;
    /* Told of this launch alone: the last error may be another library's. */
    const auto start = [&](Parameters... values) {
        void *addresses[] = { (void *)&values... };
        return cudaLaunchKernel((const void *)kernel, grid, block, addresses, shared,
                                (cudaStream_t)stream);
    };
    return start(static_cast<Parameters>(arguments)...) == cudaSuccess ? ST_OK : ST_DEVICE;
}

#endif
