/* The memory that the state takes where a rank has a part of it. */
#include <stdlib.h>

#include "common/cleanup.h"
#include "trainer/update/optimizer_internal.h"

/* An extent of a buffer of `count` elements, out to the borders of chunks. */
static struct memory_part part_of(struct lane_extent extent, size_t count)
{
    const size_t first = extent.first / OPTIMIZER_CHUNK * OPTIMIZER_CHUNK;
    size_t end = (extent.end + OPTIMIZER_CHUNK - 1) / OPTIMIZER_CHUNK * OPTIMIZER_CHUNK;
    end = end < count ? end : count;
    if (extent.first == extent.end)
        end = first;
    return (struct memory_part){ first * sizeof(float), (end - first) * sizeof(float) };
}

int optimizer_moments(const struct optimizer_options *options)
{
    return jobspec_moments(options->kind, (double)options->momentum) + (options->ema > 0);
}

size_t optimizer_parts(const struct lane_extent *extents, size_t extent_count, size_t count,
                       struct memory_part *out)
{
    size_t made = 0;
    for (size_t i = 0; i < extent_count; i++) {
        struct memory_part part = part_of(extents[i], count);
        const size_t behind = made > 0 ? out[made - 1].first + out[made - 1].bytes : 0;
        if (part.bytes == 0 || part.first + part.bytes <= behind)
            continue; /* in a neighbour's chunks */
        if (made > 0 && part.first < behind) {
            part.bytes -= behind - part.first;
            part.first = behind;
        }
        out[made++] = part;
    }
    return made;
}

/* extents NULL: all `count` elements. */
static enum status add_bytes(const struct lane_extent *extents, size_t extent_count, size_t count,
                             size_t *bytes)
{
    auto_free struct memory_part *parts = calloc(extent_count + 1, sizeof(*parts));
    if (parts == NULL)
        return ST_NO_MEMORY;
    if (extents == NULL) {
        *bytes += count * sizeof(float);
        return ST_OK;
    }
    const size_t made = optimizer_parts(extents, extent_count, count, parts);
    for (size_t i = 0; i < made; i++)
        *bytes += parts[i].bytes;
    return ST_OK;
}

static enum status add_owned_bytes(const struct owners *owners, size_t count, size_t *bytes)
{
    uint32_t extent_count = 0;
    const struct owned_extent *own = owners_own(owners, &extent_count);
    auto_free struct lane_extent *extents = calloc((size_t)extent_count + 1, sizeof(*extents));
    if (extents == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < extent_count; i++)
        extents[i] = (struct lane_extent){ own[i].first, own[i].first + own[i].count };
    return add_bytes(extents, extent_count, count, bytes);
}

enum status optimizer_measure(const struct optimizer_options *options, const struct tape *tape,
                              const struct optimizer_holding *holding, struct optimizer_bytes *out)
{
    const struct lane_layout layout = lane_layout(tape);
    const struct owners *owners = holding->owners;
    const bool shares = owners != NULL && owners->size > 1;
    const size_t moments = (size_t)optimizer_moments(options);
    *out = (struct optimizer_bytes){ 0 };
    if (options->kind == JOBSPEC_OPTIMIZER_MUON)
        out->work = optimizer_muon_bytes(tape);
    enum status st =
        add_bytes(holding->params, holding->param_extents, layout.param_count, &out->params);
    if (st == ST_OK && shares) {
        st = add_owned_bytes(owners, layout.param_count, &out->moments);
    } else if (st == ST_OK) {
        out->moments = layout.param_count * sizeof(float);
    }
    out->moments *= moments;
    return st == ST_OK
               ? add_bytes(holding->stats, holding->stat_extents, layout.stat_count, &out->stats)
               : st;
}
