/*
 * CUDA's built-in types and the arithmetic that goes with them, for host compilers.
 *
 * Halves are rounded to nearest even from float32; not a number stays so.
 */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((unused))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__   static /* one block runs at a time */
#define __constant__ static const

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};

template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcs(T *p, T value)
{
    *p = value;
}

static inline float2 make_float2(float x, float y)
{
    return { x, y };
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}

static inline uint32_t __float_as_uint(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}
static inline float __uint_as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

struct __nv_bfloat16 {
    uint16_t bits;
};
struct __half {
    uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    uint32_t bits = __float_as_uint(x);
    if (x != x)
        return { 0x7fff };
    return { (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16) };
}

static inline float __half2float(__half x)
{
    const uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16;
    const int exponent = x.bits >> 10 & 31;
    const uint32_t mantissa = x.bits & 0x3ff;
    if (exponent == 31)
        return __uint_as_float(sign | 0x7f800000 | mantissa << 13);
    const float magnitude = exponent == 0 ? ldexpf((float)mantissa, -24)
                                          : ldexpf((float)(mantissa | 0x400), exponent - 25);
    return sign != 0 ? -magnitude : magnitude;
}
static inline __half __float2half_rn(float x)
{
    const uint16_t sign = (uint16_t)(__float_as_uint(x) >> 16 & 0x8000);
    const float magnitude = fabsf(x);
    if (x != x)
        return { 0x7fff };
    if (magnitude >= 65520.0f)
        return { (uint16_t)(sign | 0x7c00) };
    if (magnitude < 0x1p-14f) /* nearbyintf rounds to even */
        return { (uint16_t)(sign | (uint16_t)nearbyintf(ldexpf(magnitude, 24))) };
    uint32_t bits = __float_as_uint(magnitude);
    bits += 0xfff + (bits >> 13 & 1);
    return { (uint16_t)(sign | (uint16_t)((bits >> 13) - (112u << 10))) };
}

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
#define __expf expf /* the C library has a function of that name */
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float normcdff(float x)
{
    return 0.5f * erfcf(-x * 0.70710678118654752f);
}
template <typename T> static inline T min(T x, T y)
{
    return y < x ? y : x;
}
template <typename T> static inline T max(T x, T y)
{
    return x < y ? y : x;
}

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return { __float2bfloat16_rn(x), __float2bfloat16_rn(y) };
}
struct alignas(4) __half2 {
    __half x, y;
};
static inline __half2 __floats2half2_rn(float x, float y)
{
    return { __float2half_rn(x), __float2half_rn(y) };
}
