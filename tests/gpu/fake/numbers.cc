#include <cmath>
#include <cstring>

#include "tests/gpu/fake/fake_internal.h"

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Drops the low bits, to nearest even. */
static uint32_t rounded(uint32_t bits, int drop)
{
    return bits + ((1u << (drop - 1)) - 1) + ((bits >> drop) & 1);
}

size_t fake_size(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static uint16_t half_of(float x)
{
    const uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    const float size = std::fabs(x);
    if (std::isnan(x))
        return (uint16_t)(sign | 0x7e00);
    if (size >= 65520.0f)
        return (uint16_t)(sign | 0x7c00);
    if (size < 6.103515625e-05f) /* subnormal: steps of 2^-24 */
        return (uint16_t)(sign | (uint16_t)std::nearbyint(std::ldexp((double)size, 24)));
    return (uint16_t)(sign | (uint16_t)((rounded(bits_of(size), 13) - (112u << 23)) >> 13));
}

static float float_of_half(uint16_t half)
{
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * std::ldexp((float)mantissa, -24);
    return sign * std::ldexp((float)(mantissa + 1024), exponent - 25);
}

float fake_load(cudaDataType_t type, const void *array, int64_t at)
{
    if (type == CUDA_R_32F)
        return ((const float *)array)[at];
    const uint16_t word = ((const uint16_t *)array)[at];
    return type == CUDA_R_16BF ? float_of((uint32_t)word << 16) : float_of_half(word);
}

void fake_store(cudaDataType_t type, void *array, int64_t at, float value)
{
    if (type == CUDA_R_32F) {
        ((float *)array)[at] = value;
    } else if (type == CUDA_R_16F) {
        ((uint16_t *)array)[at] = half_of(value);
    } else {
        const uint32_t bits = bits_of(value);
        ((uint16_t *)array)[at] =
            (uint16_t)(std::isnan(value) ? bits >> 16 | 0x40 : rounded(bits, 16) >> 16);
    }
}

float fake_tf32(float x)
{
    return std::isfinite(x) ? float_of(rounded(bits_of(x), 13) & ~0x1fffu) : x;
}
