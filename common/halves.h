/* A float32 as its bits, and bfloat16: the upper half of them. */
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float bf16_widen(uint16_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

/* Rounds to the nearest, ties to even, beyond the largest to infinity; a NaN stays one. */
static inline uint16_t bf16_narrow(float value)
{
    uint32_t bits = float_bits(value);
    if (value != value)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
