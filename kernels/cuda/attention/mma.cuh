/*
 * Products on tensor cores, and copies that run beside them: what one warp of sm_80 and later does
 * in one instruction, each as a function. Under CAIRN_EMULATE they come from tests/gpu, written
 * after the PTX manual's fragment layouts, so that all arithmetic of indices is tested without a
 * device.
 *
 * Fragments of mma (m16n8k16): what lane 4·g + t holds, g of 0..7 and t of 0..3. A word has two
 * halfs, the one of lower index in its low half.
 *
 *   a, 16×16           columns 2t, 2t+1    2t+8, 2t+9
 *     row g            a[0]                a[2]
 *     row g + 8        a[1]                a[3]
 *
 *   b, 16×8            column g                    c, 16×8 float32    column 2t    2t+1
 *     rows 2t, 2t+1    b0                            row g            c[0]         c[1]
 *     rows 2t+8, 2t+9  b1                            row g + 8        c[2]         c[3]
 *
 * So two c side by side, rounded, are an a of the next product: the left one is a[0], a[1], the
 * right one a[2], a[3].
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

/* Four 8×8 matrices of halfs. Lanes 8·i … 8·i + 7 give the addresses of the rows of matrix i, of 16
 * bytes each; out[i] of a lane becomes row g, columns 2t and 2t+1 of matrix i. */
static __device__ __forceinline__ void load_matrices(uint32_t out[4], shared_address row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

/* Like load_matrices, with each matrix transposed: out[i] becomes rows 2t and 2t+1, column g. */
static __device__ __forceinline__ void load_matrices_transposed(uint32_t out[4], shared_address row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
}

/* Begins to copy 16 bytes to shared memory; copies_wait waits for them. Unless `there` nothing is
 * read, and they become zeros. */
static __device__ __forceinline__ void copy_16(shared_address to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* Like copy_16, for 4 bytes. */
static __device__ __forceinline__ void copy_4(shared_address to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

/* Makes one group of what this thread has begun to copy since its last call. */
static __device__ __forceinline__ void copies_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits for this thread's groups but the latest LEFT. Other threads see them after a barrier. */
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

#endif
