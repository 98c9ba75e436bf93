#include "tests/unit/comm/reducer/reducer_fixture.h"

#include <stdlib.h>

#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/limits.h"
#include "tests/test.h"

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

void lanes_fill(struct reducer *reducer, const uint32_t *shares, int size, int rank, size_t count,
                size_t bucket_count)
{
    uint32_t order[LIMIT_LANES], first = 0;
    reducer_spread(shares, (uint32_t)size, order);
    for (int r = 0; r < rank; r++)
        first += shares[r];
    reducer_begin(reducer);
    for (uint32_t lane = 0; lane < shares[rank]; lane++) {
        float *buffer = reducer_lane(reducer, 0);
        for (size_t i = 0; i < count; i++)
            buffer[i] = lane_value(order[first + lane], i);
        if (lane + 1 < shares[rank])
            assert_int_equal(reducer_lane_done(reducer, 0), ST_OK);
    }
    for (size_t b = bucket_count; b > 0; b--)
        reducer_bucket_done(reducer, b - 1);
}
