#include "tests/unit/comm/exact/exact_fixture.h"

#include <stdlib.h>

#include "common/check.h"

float lane_value(uint32_t lane, size_t i)
{
    uint32_t z = (uint32_t)i * 0x9E3779B9u ^ (lane * 0x85EBCA6Bu + 0x165667B1u);
    z ^= z >> 16;
    z *= 0x7feb352du;
    z ^= z >> 15;
    z *= 0x846ca68bu;
    z ^= z >> 16;
    const float unit = (float)(int32_t)z / 2147483648.0f;
    return unit * ((z & 7) != 0 ? 1.0f : 1024.0f);
}

float lane_sum(uint32_t first, uint32_t span, uint32_t lanes, size_t i)
{
    if (span == 1)
        return lane_value(first, i);
    const float left = lane_sum(first, span / 2, lanes, i);
    if (first + span / 2 >= lanes)
        return left;
    return left + lane_sum(first + span / 2, span / 2, lanes, i);
}

float *lane_sums_new(uint32_t lanes, size_t count)
{
    uint32_t span = 1;
    while (span < lanes)
        span *= 2;
    float *sum = malloc(count * sizeof(float));
    CHECK(sum != NULL);
    for (size_t i = 0; i < count; i++)
        sum[i] = lane_sum(0, span, lanes, i);
    return sum;
}
