#include "checkpoint/read/slice.h"

#include <string.h>

#include "common/check.h"

struct ckpt_slice ckpt_slice_range(uint64_t first, uint64_t count)
{
    return (struct ckpt_slice){ .first = first, .run = count, .runs = count > 0 };
}

struct ckpt_slice ckpt_slice_of(uint64_t offset, uint32_t dims, const uint64_t *shape,
                                const uint64_t *start, const uint64_t *extent)
{
    struct ckpt_slice slice = { .first = offset, .run = 1, .runs = 1 };
    uint64_t stride[SLICE_DIMS] = { 0 }, size = 1;
    CHECK(dims <= SLICE_DIMS);
    for (uint32_t i = dims; i-- > 0; size *= shape[i]) {
        stride[i] = size;
        slice.first += start[i] * size;
    }
    /* Whole inner dimensions, and one that needn't be whole, are consecutive. */
    uint32_t inner = dims;
    while (inner > 0 && slice.run == stride[inner - 1])
        slice.run *= extent[--inner];
    slice.dims = inner;
    for (uint32_t i = 0; i < inner; i++) {
        slice.extent[i] = extent[i];
        slice.stride[i] = stride[i];
        slice.runs *= extent[i];
    }
    if (slice.run == 0)
        slice.runs = 0;
    return slice;
}

/* The element that run number r begins with. */
static uint64_t run_start(const struct ckpt_slice *slice, uint64_t r)
{
    uint64_t at = slice->first;
    for (uint32_t i = slice->dims; i-- > 0; r /= slice->extent[i])
        at += r % slice->extent[i] * slice->stride[i];
    return at;
}

uint64_t ckpt_slice_end(const struct ckpt_slice *slice)
{
    CHECK(slice->runs > 0);
    return run_start(slice, slice->runs - 1) + slice->run;
}

/* The first run that doesn't end before element `at`, or runs. */
static uint64_t run_at(const struct ckpt_slice *slice, uint64_t at)
{
    uint64_t low = 0, high = slice->runs;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (run_start(slice, middle) + slice->run <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool ckpt_slice_touches(const struct ckpt_slice *slice, uint64_t first, uint64_t count)
{
    uint64_t r = run_at(slice, first);
    return r < slice->runs && run_start(slice, r) < first + count;
}

void ckpt_slice_copy(const struct ckpt_slice *slice, uint64_t first, uint64_t count, uint64_t width,
                     const void *data, void *out)
{
    uint64_t end = first + count;
    for (uint64_t r = run_at(slice, first); r < slice->runs; r++) {
        uint64_t start = run_start(slice, r), stop = start + slice->run;
        if (start >= end)
            return;
        uint64_t from = start > first ? start : first, to = stop < end ? stop : end;
        memcpy((uint8_t *)out + (r * slice->run + (from - start)) * width,
               (const uint8_t *)data + (from - first) * width, (size_t)((to - from) * width));
    }
}
