#include "tests/kernel/halves.h"

#include <math.h>
#include <string.h>

#include "common/check.h"

bool is_half(enum dtype dtype)
{
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

static uint16_t to_float16(float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double size = fabs((double)x);
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    if (size >= 65520.0)
        return (uint16_t)(sign | 0x7c00);
    int exponent = 0;
    (void)frexp(size, &exponent);               /* size < 2^exponent */
    exponent = exponent < -13 ? -13 : exponent; /* subnormals have the least one's step */
    const double steps = nearbyint(ldexp(size, 11 - exponent));
    /* Normal: 1024 ≤ steps ≤ 2048, and a carry goes into the exponent by itself. */
    return (uint16_t)(sign + (uint16_t)((exponent + 13) * 1024 + (int)steps));
}

static float from_float16(uint16_t half)
{
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexpf((float)mantissa, -24);
    return sign * ldexpf((float)(mantissa + 1024), exponent - 25);
}

uint16_t to_half(enum dtype dtype, float x)
{
    CHECK(is_half(dtype));
    if (dtype == DTYPE_F16)
        return to_float16(x);
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_half(enum dtype dtype, uint16_t half)
{
    CHECK(is_half(dtype));
    if (dtype == DTYPE_F16)
        return from_float16(half);
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

float load_as_float(enum dtype dtype, const void *array, int64_t i)
{
    return is_half(dtype) ? from_half(dtype, ((const uint16_t *)array)[i])
                          : ((const float *)array)[i];
}

void store_float(enum dtype dtype, void *array, int64_t i, float x)
{
    if (is_half(dtype))
        ((uint16_t *)array)[i] = to_half(dtype, x);
    else
        memcpy((float *)array + i, &x, sizeof(x));
}
