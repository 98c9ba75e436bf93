/* The memory that the state takes where a rank has a part of it. */
#include <stdlib.h>

#include "common/cleanup.h"
#include "trainer/update/optimizer_internal.h"

/* A run of a buffer of `count` elements, out to the borders of chunks. */
static struct memory_part part_of(struct lane_run run, size_t count)
{
    const size_t first = run.first / OPTIMIZER_CHUNK * OPTIMIZER_CHUNK;
    size_t end = (run.end + OPTIMIZER_CHUNK - 1) / OPTIMIZER_CHUNK * OPTIMIZER_CHUNK;
    end = end < count ? end : count;
    if (run.first == run.end)
        end = first;
    return (struct memory_part){ first * sizeof(float), (end - first) * sizeof(float) };
}

int optimizer_moments(const struct optimizer_options *options)
{
    return jobspec_moments(options->kind, (double)options->momentum);
}

size_t optimizer_parts(const struct lane_run *runs, size_t run_count, size_t count,
                       struct memory_part *out)
{
    size_t made = 0;
    for (size_t i = 0; i < run_count; i++) {
        struct memory_part part = part_of(runs[i], count);
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

/* runs NULL: all `count` elements. */
static enum status add_bytes(const struct lane_run *runs, size_t run_count, size_t count,
                             size_t *bytes)
{
    auto_free struct memory_part *parts = calloc(run_count + 1, sizeof(*parts));
    if (parts == NULL)
        return ST_NO_MEMORY;
    if (runs == NULL) {
        *bytes += count * sizeof(float);
        return ST_OK;
    }
    const size_t made = optimizer_parts(runs, run_count, count, parts);
    for (size_t i = 0; i < made; i++)
        *bytes += parts[i].bytes;
    return ST_OK;
}

static enum status add_owned_bytes(const struct owners *owners, size_t count, size_t *bytes)
{
    uint32_t run_count = 0;
    const struct owned_run *own = owners_own(owners, &run_count);
    auto_free struct lane_run *runs = calloc((size_t)run_count + 1, sizeof(*runs));
    if (runs == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < run_count; i++)
        runs[i] = (struct lane_run){ own[i].first, own[i].first + own[i].count };
    return add_bytes(runs, run_count, count, bytes);
}

enum status optimizer_measure(const struct optimizer_options *options, const struct tape *tape,
                              const struct optimizer_holding *holding, struct optimizer_bytes *out)
{
    const struct lane_layout layout = lane_layout(tape);
    const struct owners *owners = holding->owners;
    const bool shares = owners != NULL && owners->size > 1;
    const size_t moments = (size_t)optimizer_moments(options);
    *out = (struct optimizer_bytes){ 0 };
    enum status st =
        add_bytes(holding->params, holding->param_runs, layout.param_count, &out->params);
    if (st == ST_OK && shares) {
        st = add_owned_bytes(owners, layout.param_count, &out->moments);
    } else if (st == ST_OK) {
        out->moments = layout.param_count * sizeof(float);
    }
    out->moments *= moments;
    return st == ST_OK
               ? add_bytes(holding->stats, holding->stat_runs, layout.stat_count, &out->stats)
               : st;
}
