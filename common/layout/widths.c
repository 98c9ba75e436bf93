#include "common/layout/widths.h"

#include <stdbool.h>
#include <stddef.h>

#include "common/check.h"

uint32_t layout_request_stages(const struct layout_request *request, uint32_t workers)
{
    CHECK(workers > 0);
    return workers < request->stages ? workers : request->stages;
}

/* Returns how many of the workers that are there the stage has no place for yet. */
static uint32_t waiting(const uint32_t *there, const uint32_t *width, uint32_t stage)
{
    if (there == NULL || there[stage] <= width[stage])
        return 0;
    return there[stage] - width[stage];
}

static bool is_next(const struct layout_request *request, const uint32_t *there,
                    const uint32_t *width, uint32_t stage, uint32_t other)
{
    const uint64_t mine = (uint64_t)request->workers[stage] * (width[other] + 1);
    const uint64_t theirs = (uint64_t)request->workers[other] * (width[stage] + 1);
    if (mine != theirs)
        return mine > theirs;
    return waiting(there, width, stage) > waiting(there, width, other);
}

void layout_request_widths(const struct layout_request *request, uint32_t workers,
                           const uint32_t *there, uint32_t *out)
{
    const uint32_t stages = layout_request_stages(request, workers);
    CHECK(workers <= (uint64_t)stages * request->lanes);
    for (uint32_t s = 0; s < stages; s++)
        out[s] = 1;
    for (uint32_t given = stages; given < workers; given++) {
        uint32_t next = stages;
        for (uint32_t s = 0; s < stages; s++) {
            if (out[s] < request->lanes &&
                (next == stages || is_next(request, there, out, s, next)))
                next = s;
        }
        CHECK(next < stages);
        out[next]++;
    }
}
