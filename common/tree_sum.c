#include "common/tree_sum.h"

#include "common/check.h"

double tree_sum(double *values, size_t count)
{
    CHECK(count > 0);
    /* After the pass with this stride, values[i] holds the node of i's multiple of 2·stride. */
    for (size_t stride = 1; stride < count; stride *= 2) {
        for (size_t i = 0; i + stride < count; i += 2 * stride)
            values[i] += values[i + stride];
    }
    return values[0];
}
