/* Kernels with one mistake each, by number. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

enum planted {
    PLANTED_NOTHING,
    PLANTED_WRITE_BEHIND,   /* writes one element beyond the end */
    PLANTED_WRITE_BEFORE,   /* and one before the start */
    PLANTED_READ_FAR,       /* reads a page beyond the end */
    PLANTED_NO_BARRIER,     /* half of the block leaves out a barrier */
    PLANTED_MASKS,          /* lanes name different masks */
    PLANTED_LONELY_SHUFFLE, /* reads a lane outside of the mask */
    PLANTED_GRID,           /* a grid beyond the limits */
    PLANTED_STALE_SHARED,   /* reads shared memory that nobody wrote */
    PLANTED_RACE,           /* reads what another thread writes, without a barrier */
    PLANTED_BLOCK_ORDER,    /* a block adds to what another wrote */
    PLANTED_HOLE,           /* leaves out the last element */
};

/* out[0..n) of n = 64 floats; what a right kernel writes is 0, 1, 2, ... */
void planted_run(enum planted planted, float *out);

#ifdef __cplusplus
}
#endif
