/*
 * Code that our own kernels share: elements as floats, 16 bytes at a time, loops over flat arrays,
 * and dtypes as types.
 *
 * How many elements a thread takes at once is decided by the shape alone; tensors are aligned so
 * that it fits. Flat parameters may lie anywhere: `aligned` says whether they are read in whole
 * vectors, and the order of operations is the same either way.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <type_traits>

#include "kernels/cuda/own/launch.h"
#include "kernels/tensor.h"

#define VECTOR_THREADS 256
#define FULL_WARP      0xffffffffu
#define DEVICE_INLINE  static __device__ __forceinline__

DEVICE_INLINE float to_float(float x)
{
    return x;
}
DEVICE_INLINE float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
DEVICE_INLINE float to_float(__half x)
{
    return __half2float(x);
}

template <typename T> DEVICE_INLINE T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half from_float<__half>(float x)
{
    return __float2half_rn(x);
}

/* A 32-bit word of T's as floats, and back: one float, or two halfs, the first in the low bits. */
template <typename T> DEVICE_INLINE void unpack(float *v, uint32_t word)
{
    if constexpr (sizeof(T) == 4) {
        v[0] = __uint_as_float(word);
    } else {
        T pair[2];
        memcpy(pair, &word, sizeof(word));
        v[0] = to_float(pair[0]);
        v[1] = to_float(pair[1]);
    }
}

DEVICE_INLINE uint32_t pack(float, const float *v)
{
    return __float_as_uint(v[0]);
}
DEVICE_INLINE uint32_t pack(__nv_bfloat16, const float *v)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(v[0], v[1]);
    uint32_t word;
    memcpy(&word, &pair, sizeof(word));
    return word;
}
DEVICE_INLINE uint32_t pack(__half, const float *v)
{
    const __half2 pair = __floats2half2_rn(v[0], v[1]);
    uint32_t word;
    memcpy(&word, &pair, sizeof(word));
    return word;
}

DEVICE_INLINE void check_aligned(const void *p, unsigned bytes)
{
#if defined(CAIRN_EMULATE)
    if ((uintptr_t)p % bytes != 0)
        emulator_fail("a vector that is not aligned");
#else
    (void)p;
    (void)bytes;
#endif
}

/* The emulator counts what is asked of the memory. last: as traffic_touch takes it. */
template <bool STORES, typename T> DEVICE_INLINE void note(const T *p, int n, bool last)
{
#if defined(CAIRN_EMULATE)
    traffic_touch(STORES ? TRAFFIC_STORE : TRAFFIC_LOAD, p, (size_t)n * sizeof(T), last);
#else
    (void)p;
    (void)n;
    (void)last;
#endif
}

/* N elements, aligned to their size or 16 bytes, whichever is less; a single one anyhow. Of shared
 * memory: load and store are for the device's. */
template <int N, typename T> DEVICE_INLINE void get(float *v, const T *p)
{
    if constexpr (N == 1) {
        v[0] = to_float(*p);
    } else {
        constexpr int WORDS = N * (int)sizeof(T) / 4, EACH = 4 / (int)sizeof(T);
        uint32_t words[WORDS];
        check_aligned(p, WORDS >= 4 ? 16 : WORDS * 4);
        if constexpr (WORDS == 1) {
            words[0] = *(const uint32_t *)p;
        } else if constexpr (WORDS == 2) {
            const uint2 two = *(const uint2 *)p;
            words[0] = two.x;
            words[1] = two.y;
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) {
                const uint4 four = *(const uint4 *)((const uint32_t *)p + i);
                words[i] = four.x;
                words[i + 1] = four.y;
                words[i + 2] = four.z;
                words[i + 3] = four.w;
            }
        }
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            unpack<T>(v + i * EACH, words[i]);
    }
}

template <int N, typename T> DEVICE_INLINE void put(T *p, const float *v)
{
    if constexpr (N == 1) {
        *p = from_float<T>(v[0]);
    } else {
        constexpr int WORDS = N * (int)sizeof(T) / 4, EACH = 4 / (int)sizeof(T);
        uint32_t words[WORDS];
        check_aligned(p, WORDS >= 4 ? 16 : WORDS * 4);
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            words[i] = pack(T(), v + i * EACH);
        if constexpr (WORDS == 1) {
            *(uint32_t *)p = words[0];
        } else if constexpr (WORDS == 2) {
            *(uint2 *)p = make_uint2(words[0], words[1]);
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) {
                *(uint4 *)((uint32_t *)p + i) =
                    make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]);
            }
        }
    }
}

template <int N, typename T> DEVICE_INLINE void load(float *v, const T *p)
{
    note<false>(p, N, false);
    get<N>(v, p);
}

template <int N, typename T> DEVICE_INLINE void store(T *p, const float *v)
{
    note<true>(p, N, false);
    put<N>(p, v);
}

/*
 * Streamed: nobody reads it again, or what is written, before much more than a cache holds went by,
 * so that it takes no room there. N is 1 or 4, aligned to as much.
 */
template <int N> DEVICE_INLINE void load_streamed(float *v, const float *p)
{
    note<false>(p, N, true);
    if constexpr (N == 1) {
        v[0] = __ldcs(p);
    } else {
        check_aligned(p, 16);
        const float4 four = __ldcs((const float4 *)p);
        v[0] = four.x;
        v[1] = four.y;
        v[2] = four.z;
        v[3] = four.w;
    }
}

template <int N> DEVICE_INLINE void store_streamed(float *p, const float *v)
{
    note<true>(p, N, true);
    if constexpr (N == 1) {
        __stcs(p, v[0]);
    } else {
        check_aligned(p, 16);
        __stcs((float4 *)p, make_float4(v[0], v[1], v[2], v[3]));
    }
}

/* N floats of a flat buffer. aligned: to 16 bytes; the same for all threads. */
template <int N> DEVICE_INLINE void load_flat(float *v, const float *p, bool aligned)
{
    if (N >= 4 && aligned) {
        load<N>(v, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = p[i];
}

template <int N> DEVICE_INLINE void store_flat(float *p, const float *v, bool aligned)
{
    if (N >= 4 && aligned) {
        store<N>(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        p[i] = v[i];
}

#define LOG2_E 1.4426950408889634f

/* 2^x to about 2 units in the last place; 0 below 2^-126. */
DEVICE_INLINE float exp2_approximate(float x)
{
#if defined(CAIRN_EMULATE)
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* e^x; its error grows with |x|. */
DEVICE_INLINE float exp_approximate(float x)
{
    return exp2_approximate(x * LOG2_E);
}

/* f.at<WIDTH>(i) for i = 0, WIDTH, …, and f.at<1>(i) for the rest. f.at<N>(i) does the elements i …
 * i + N - 1; each must depend on its own index only. */
template <int WIDTH, typename F>
static __global__ void __launch_bounds__(VECTOR_THREADS) each_kernel(int64_t n, F f)
{
    int64_t i = ((int64_t)blockIdx.x * VECTOR_THREADS + threadIdx.x) * WIDTH;
    if (i + WIDTH <= n) {
        f.template at<WIDTH>(i);
        return;
    }
    for (; i < n; i++)
        f.template at<1>(i);
}

template <int WIDTH, typename F>
static inline enum status launch_each(int64_t n, void *stream, const F &f)
{
    const int64_t blocks = (n + (int64_t)VECTOR_THREADS * WIDTH - 1) / (VECTOR_THREADS * WIDTH);
    if (n == 0)
        return ST_OK;
    if (n < 0 || blocks > INT32_MAX)
        return ST_INVALID;
    return launch(each_kernel<WIDTH, F>, dim3((unsigned)blocks), dim3(VECTOR_THREADS), 0, stream, n,
                  f);
}

/* The host's side: f gets a dtype as a type_of. ST_INVALID: not a floating dtype, or not a pair
 * that the function takes. */
template <typename T> struct type_of {
    using type = T;
};

template <typename F> static inline enum status with_type(enum dtype dtype, const F &f)
{
    if (dtype == DTYPE_F32)
        return f(type_of<float>());
    if (dtype == DTYPE_BF16)
        return f(type_of<__nv_bfloat16>());
    if (dtype == DTYPE_F16)
        return f(type_of<__half>());
    return ST_INVALID;
}

/*
 * x and y equal, or x float32 and y half: x is the residual stream's, y what is computed from it.
 */
template <typename F> static inline enum status with_types(enum dtype x, enum dtype y, const F &f)
{
    if (x == y)
        return with_type(x, [&](auto t) { return f(t, t); });
    if (x == DTYPE_F32)
        return with_type(y, [&](auto t) { return f(type_of<float>(), t); });
    return ST_INVALID;
}

/* Like with_types; x half and y float32 are allowed, too. */
template <typename F>
static inline enum status with_any_types(enum dtype x, enum dtype y, const F &f)
{
    if (x == DTYPE_F32 || y != DTYPE_F32)
        return with_types(x, y, f);
    return with_types(y, x, [&](auto to, auto from) { return f(from, to); });
}

/* Any two. */
template <typename F> static inline enum status with_both(enum dtype a, enum dtype b, const F &f)
{
    return with_type(a, [&](auto x) { return with_type(b, [&](auto y) { return f(x, y); }); });
}

/* Elements in 16 bytes of the wider type. */
template <typename X, typename Y>
constexpr int WIDTH_OF = 16 / (int)(sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));

static inline bool is_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}
