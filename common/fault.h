/*
 * Named fault points, compiled in only with CAIRN_FAULTS (tests); armed by the environment.
 *
 * CAIRN_FAULT="POINT[,rank=R][,generation=G][,step=S][,from=S][,nth=N]:ACTION[;…]"
 *   ACTION  kill (SIGKILL to itself), segv, exit1, stop (SIGSTOP to itself),
 *           wait (creates DIR/POINT.hit and waits, 60 s at most, until DIR/POINT.go exists),
 *           eio, enospc (fault_status returns it),
 *           flip (fault_flip flips a bit, once), flips (each time), nan (all become NaN, once),
 *           slowMS (sleeps so many ms, each time that it comes there, and leaves nothing)
 * CAIRN_FAULT_DIR=DIR  where an armed fault leaves "POINT.hit" (O_EXCL) before it acts: each fires
 *                      once, whatever is restarted.
 *
 * from: in that step or a later one. rank, generation and step are those that fault_context last
 * set in this process.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef CAIRN_FAULTS
void fault_context(int64_t rank, int64_t generation, int64_t step);
void fault_point(const char *point);
enum status fault_status(const char *point);
/* Flips a bit of one of the words. */
void fault_flip(const char *point, float *words, size_t count);
#else
static inline void fault_context(int64_t rank, int64_t generation, int64_t step)
{
    (void)rank;
    (void)generation;
    (void)step;
}
static inline void fault_point(const char *point)
{
    (void)point;
}
static inline enum status fault_status(const char *point)
{
    (void)point;
    return ST_OK;
}
static inline void fault_flip(const char *point, float *words, size_t count)
{
    (void)point;
    (void)words;
    (void)count;
}
#endif
