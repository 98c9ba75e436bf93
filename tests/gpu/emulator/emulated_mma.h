/*
 * What kernels/cuda/attention/mma.cuh needs, on the emulator: each function is one that all 32
 * lanes of a warp call together, as on the device, with the fragment layouts of the PTX manual
 * ("Matrix fragments for mma.m16n8k16", "ldmatrix").
 *
 * An asynchronous copy happens as late as it may (when it is waited for), or as early (at once):
 * what is right in both cases waits for what it reads, and does not overwrite what is still read.
 * Products are summed in double, then added to c: a device's own order and rounding are not seen.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tensor.h"
#include "tests/gpu/emulator/emulator.h"

typedef unsigned char *shared_address;

/* A test's side. */
void emulated_copies_early(bool early);
size_t emulated_copies_left(void);    /* begun and never waited for, since the last call */
size_t emulated_bank_conflicts(void); /* rows read together from one bank, since the last call */

/* The kernels' side. */
static inline shared_address shared_address_of(const void *memory)
{
    return (shared_address)(uintptr_t)memory;
}

void emulated_mma(float c[4], const uint32_t a[4], const uint32_t b[2],
                  float (*to_float)(uint32_t half));
void load_matrices(uint32_t out[4], shared_address row);
void load_matrices_transposed(uint32_t out[4], shared_address row);
void emulated_copy(shared_address to, const void *from, size_t bytes, bool there);
void copies_commit(void);
void emulated_copies_wait(size_t left);

static inline float emulated_bfloat16(uint32_t half)
{
    return __bfloat162float({ (uint16_t)half });
}

static inline float emulated_float16(uint32_t half)
{
    return __half2float({ (uint16_t)half });
}

template <enum dtype TYPE>
static inline void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    const uint32_t b[2] = { b0, b1 };
    emulated_mma(c, a, b, TYPE == DTYPE_BF16 ? emulated_bfloat16 : emulated_float16);
}

static inline void copy_16(shared_address to, const void *from, bool there)
{
    emulated_copy(to, from, 16, there);
}

static inline void copy_4(shared_address to, const void *from, bool there)
{
    emulated_copy(to, from, 4, there);
}

template <int LEFT> static inline void copies_wait(void)
{
    emulated_copies_wait(LEFT);
}

template <enum dtype TYPE> static inline uint32_t pack_halfs(float low, float high)
{
    if (TYPE == DTYPE_BF16)
        return __float2bfloat16_rn(low).bits | (uint32_t)__float2bfloat16_rn(high).bits << 16;
    return __float2half_rn(low).bits | (uint32_t)__float2half_rn(high).bits << 16;
}

template <enum dtype TYPE> static inline float2 unpack_halfs(uint32_t word)
{
    if (TYPE == DTYPE_BF16)
        return { emulated_bfloat16(word & 0xffff), emulated_bfloat16(word >> 16) };
    return { emulated_float16(word & 0xffff), emulated_float16(word >> 16) };
}
