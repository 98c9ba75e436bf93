#include "checkpoint/weights/floats.h"

#include <math.h>
#include <string.h>

#include "common/halves.h"

#define F16_INFINITY 0x7c00u
#define F16_LEAST    0x1p-24f /* of the subnormal ones, whose exponent all of them share */

static float f16_widen(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u;
    uint32_t fraction = half & 0x3ffu;
    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0)
        return float_of_bits(sign | float_bits((float)fraction * F16_LEAST));
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* The upper bits of a fraction of `drop` bits more, rounded to nearest, ties to even. */
static uint32_t round_off(uint32_t bits, uint32_t drop)
{
    uint32_t half = 1u << (drop - 1), rest = bits & (2 * half - 1), kept = bits >> drop;
    return kept + (rest > half || (rest == half && (kept & 1u) != 0));
}

static uint16_t f16_narrow(float value)
{
    uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | F16_INFINITY | 0x200u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) /* 2^16 */
        return (uint16_t)(sign | F16_INFINITY);
    if (magnitude >= 0x38800000u) /* 2^-14: a carry into the exponent is right, into infinity too */
        return (uint16_t)(sign | round_off(magnitude - (112u << 23), 13));
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) /* under half of the least */
        return (uint16_t)sign;
    return (uint16_t)(sign | round_off((magnitude & 0x7fffffu) | 0x800000u, 126 - exponent));
}

bool floats_known(enum ckpt_dtype dtype)
{
    return dtype == CKPT_F32 || dtype == CKPT_BF16 || dtype == CKPT_F16;
}

void floats_widen(enum ckpt_dtype dtype, const void *in, size_t count, float *out)
{
    if (dtype == CKPT_F32) {
        memcpy(out, in, count * sizeof(*out));
        return;
    }
    const uint16_t *halves = in;
    for (size_t i = 0; i < count; i++)
        out[i] = dtype == CKPT_BF16 ? bf16_widen(halves[i]) : f16_widen(halves[i]);
}

size_t floats_narrow(enum ckpt_dtype dtype, const float *in, size_t count, void *out)
{
    size_t overflows = 0;
    if (dtype == CKPT_F32) {
        memcpy(out, in, count * sizeof(*in));
        return 0;
    }
    uint16_t *halves = out;
    uint16_t infinity = dtype == CKPT_BF16 ? 0x7f80u : F16_INFINITY;
    for (size_t i = 0; i < count; i++) {
        halves[i] = dtype == CKPT_BF16 ? bf16_narrow(in[i]) : f16_narrow(in[i]);
        overflows += (halves[i] & 0x7fffu) == infinity && isfinite(in[i]);
    }
    return overflows;
}
