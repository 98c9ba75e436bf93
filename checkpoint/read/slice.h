/*
 * Which elements of a flat buffer an n-dimensional slice of a tensor is made of: runs of
 * consecutive ones, ascending. Pure arithmetic; a plain range is one run.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SLICE_DIMS 4

struct ckpt_slice {
    uint64_t first;              /* element of the buffer that the first run begins with */
    uint64_t run;                /* elements of a run */
    uint64_t runs;               /* 0: the slice is empty */
    uint32_t dims;               /* that the runs are counted by, the outermost first */
    uint64_t extent[SLICE_DIMS]; /* of each: its product is runs */
    uint64_t stride[SLICE_DIMS]; /* elements from one to the next */
};

struct ckpt_slice ckpt_slice_range(uint64_t first, uint64_t count);

/* Elements start[i] … start[i] + extent[i] - 1 along each dimension of a row-major tensor that lies
 * at element offset. All lie within shape. */
struct ckpt_slice ckpt_slice_of(uint64_t offset, uint32_t dims, const uint64_t *shape,
                                const uint64_t *start, const uint64_t *extent);

/* The element after the last one; a slice that isn't empty. */
uint64_t ckpt_slice_end(const struct ckpt_slice *slice);
/* Whether it has one of the elements [first, first + count). */
bool ckpt_slice_touches(const struct ckpt_slice *slice, uint64_t first, uint64_t count);
/* Copies those of the elements [first, first + count), which lie in data, to their places in out.
 * Units: width is bytes of an element. */
void ckpt_slice_copy(const struct ckpt_slice *slice, uint64_t first, uint64_t count, uint64_t width,
                     const void *data, void *out);
