#include "server/jobfsm/balance/balance.h"

#include <stdbool.h>
#include <stdlib.h>

#include "common/check.h"
#include "common/limits.h"

/* Returns the lanes that one worker is through with in step_us; none carries less than one. */
static uint64_t lanes_within(uint32_t us, uint64_t step_us)
{
    const uint64_t lanes = step_us / us;
    return lanes > 0 ? lanes : 1;
}

static uint64_t all_within(const uint32_t *us, uint32_t count, uint64_t step_us)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < count; r++)
        sum += lanes_within(us[r], step_us);
    return sum;
}

void balance_lanes(const uint32_t *us, uint32_t count, uint32_t lanes, uint32_t *out)
{
    CHECK(count > 0 && lanes >= count);
    uint64_t most_us = 0;
    for (uint32_t r = 0; r < count; r++) {
        CHECK(us[r] > 0);
        most_us = us[r] > most_us ? us[r] : most_us;
    }
    uint64_t low = 0, high = most_us * lanes; /* too short; long enough */
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        const bool enough = all_within(us, count, middle) >= lanes;
        high = enough ? middle : high;
        low = enough ? low : middle;
    }
    uint64_t spare = all_within(us, count, high) - lanes;
    for (uint32_t r = count; r-- > 0;) {
        out[r] = (uint32_t)lanes_within(us[r], high);
        /* A lane that takes all of the time: in less there are too few, so some of these stay. */
        if (spare > 0 && out[r] > 1 && (uint64_t)out[r] * us[r] == high) {
            out[r]--;
            spare--;
        }
    }
    CHECK(spare == 0);
}

uint64_t balance_step_us(const uint32_t *us, const uint32_t *lanes, uint32_t count)
{
    uint64_t step_us = 0;
    for (uint32_t r = 0; r < count; r++) {
        const uint64_t own_us = (uint64_t)us[r] * lanes[r];
        step_us = own_us > step_us ? own_us : step_us;
    }
    return step_us;
}

static int compare_us(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t balance_median(const uint32_t *us, uint32_t count)
{
    uint32_t known[LIMIT_RANKS], n = 0;
    CHECK(count <= LIMIT_RANKS);
    for (uint32_t r = 0; r < count; r++) {
        if (us[r] > 0)
            known[n++] = us[r];
    }
    qsort(known, n, sizeof(known[0]), compare_us);
    return n > 0 ? known[(n - 1) / 2] : 0;
}
