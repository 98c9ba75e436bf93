/*
 * Tensor core products, and copies that run beside them: what one warp of sm_80 and later does in
 * one instruction, each as a function. Under CAIRN_EMULATE they come from tests/gpu, written from
 * the PTX manual's fragment layouts, so that the arithmetic of indices is tested without a device.
 *
 * A matrix in shared memory lies row by row, PITCH bytes apart, in 16-byte pieces. With an odd
 * number of pieces per row (the last unused) the eight rows that are read together lie in distinct
 * banks, for every width, and an address is a constant away from the lane's first.
 *
 * Fragments (lane = 4·g + t): half[2] words, low half first.
 *  a  16×16  a[0] (g, 2t) (g, 2t+1); a[1] rows + 8; a[2] columns + 8; a[3] both
 *  b  16×8   b[0] (2t, g) (2t+1, g); b[1] rows + 8
 *  c  16×8   c[0] (g, 2t), c[1] (g, 2t+1), c[2] and c[3] rows + 8; float32
 * So c of two neighbours side by side, rounded, is a of the next product.
 */
#pragma once

#include <stdint.h>

#include "kernels/cuda/own/launch.h"
#include "kernels/tensor.h"

#if defined(CAIRN_EMULATE)
#include <emulated_mma.h>
#else

typedef uint32_t shared_address; /* bytes into shared memory */

static __device__ __forceinline__ shared_address shared_address_of(const void *memory)
{
    return (uint32_t)__cvta_generic_to_shared(memory);
}

/* c += a · b */
template <enum dtype TYPE>
static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0,
                                           uint32_t b1)
{
    if constexpr (TYPE == DTYPE_BF16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

/* Four 8×8 matrices of halfs: lanes 8·i .. 8·i + 7 name the rows of matrix i; out[i] of a lane is
 * row g, columns 2t and 2t+1 of matrix i. */
static __device__ __forceinline__ void load_matrices(uint32_t out[4], shared_address row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

/* The same, each matrix transposed: rows 2t and 2t+1, column g. */
static __device__ __forceinline__ void load_matrices_transposed(uint32_t out[4], shared_address row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

/* 16 bytes to shared memory, later: see copies_commit. Zeros, and nothing read, unless `there`. */
static __device__ __forceinline__ void copy_16(shared_address to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* 4 bytes, the same way. */
static __device__ __forceinline__ void copy_4(shared_address to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

/* What this thread has begun to copy since the last call is one group. */
static __device__ __forceinline__ void copies_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits for all groups of this thread but the latest LEFT. Others see them after a barrier. */
template <int LEFT> static __device__ __forceinline__ void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT) : "memory");
}

/* Two floats as halfs, rounded to nearest even; `low` in the low half. */
template <enum dtype TYPE>
static __device__ __forceinline__ uint32_t pack_halfs(float low, float high)
{
    uint32_t word;
    if constexpr (TYPE == DTYPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* The two halfs of a word; x is the low one. */
template <enum dtype TYPE> static __device__ __forceinline__ float2 unpack_halfs(uint32_t word)
{
    if constexpr (TYPE == DTYPE_BF16)
        return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
    return __half22float2(*reinterpret_cast<const __half2 *>(&word));
}

/* 2^x to about 2 units in the last place; 0 below 2^-126. */
static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

#endif
