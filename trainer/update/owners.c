#include "trainer/update/owners.h"

#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/limits.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/lane_owners.h"

size_t owners_unit(bool host_memory)
{
    return (host_memory ? 4 : 8) * (size_t)PIECE_ELEMENTS;
}

enum status owners_most(const struct tape *tape, size_t unit, uint32_t ranks, size_t *out)
{
    struct lane_owned buckets;
    auto_free size_t *begin = calloc(LANE_BUCKETS_MAX, sizeof(*begin));
    if (begin == NULL)
        return ST_NO_MEMORY;
    const size_t wanted = lane_wanted(tape->param_elements, LANE_OWNED_BUCKETS_MAX);
    enum status st = lane_owned_buckets(tape, unit, wanted, begin, LANE_BUCKETS_MAX, &buckets);
    if (st != ST_OK)
        return st;
    auto_free size_t *borders = calloc(buckets.count * (ranks + 1), sizeof(*borders));
    if (borders == NULL)
        return ST_NO_MEMORY;
    lane_owners(tape, unit, begin, &buckets, ranks, borders);
    *out = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        size_t owned = 0;
        for (size_t b = 0; b < buckets.params; b++) {
            const size_t *chunk = borders + b * (ranks + 1) + r;
            owned += chunk[1] - chunk[0];
        }
        *out = owned > *out ? owned : *out;
    }
    return ST_OK;
}

/* Appends an extent of this rank, or makes its last one longer. */
static void append(struct owned_extent *extents, uint32_t *count, size_t first, size_t end)
{
    struct owned_extent *last = extents + *count - 1;
    if (*count > 0 && last->first + last->count == first) {
        last->count += end - first;
    } else {
        extents[(*count)++] = (struct owned_extent){ first, end - first };
    }
}

enum status owners_make(const size_t *borders, size_t buckets, size_t count, uint32_t rank,
                        uint32_t size, struct owners *out)
{
    out->rank = rank;
    out->size = size;
    out->extent = calloc(buckets * size + 1, sizeof(*out->extent));
    out->begin = calloc((size_t)size + 1, sizeof(*out->begin));
    if (out->extent == NULL || out->begin == NULL)
        return ST_NO_MEMORY;
    for (uint32_t r = 0; r < size; r++) {
        uint32_t extents = 0;
        for (size_t b = 0; b < buckets; b++) {
            const size_t *chunk = borders + b * (size + 1) + r;
            const size_t end = chunk[1] < count ? chunk[1] : count;
            if (chunk[0] < end)
                append(out->extent + out->begin[r], &extents, chunk[0], end);
        }
        out->begin[r + 1] = out->begin[r] + extents;
    }
    return ST_OK;
}

void owners_release(struct owners *owners)
{
    free(owners->extent);
    free(owners->begin);
    memset(owners, 0, sizeof(*owners));
}

const struct owned_extent *owners_own(const struct owners *owners, uint32_t *out_count)
{
    const uint32_t *begin = owners->begin + owners->rank;
    *out_count = begin[1] - begin[0];
    return owners->extent + begin[0];
}
