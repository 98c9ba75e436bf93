/*
 * Which elements of a flat buffer a slice of a tensor is made of: runs of consecutive elements,
 * ascending. A range of the buffer is one run.
 *
 *     tensor [3, 4, 5], its slice [1:3, 1:2, 0:5]    runs of 5 elements, at 25 and at 45
 *
 * Thread: any; pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SLICE_DIMS 4

struct ckpt_slice {
    uint64_t first;              /* element of the buffer that the first run begins with */
    uint64_t run;                /* elements of a run */
    uint64_t runs;               /* 0: the slice is empty */
    uint32_t dims;               /* that lie outside of a run, the outermost first */
    uint64_t extent[SLICE_DIMS]; /* of each; their product is runs */
    uint64_t stride[SLICE_DIMS]; /* elements from one index to the next */
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
