/*
 * Which versions of the codec's loops this machine runs.
 *
 * Thread: any; pure.
 */
#pragma once

#include <stddef.h>

#include "checkpoint/codec/planes.h"

/* The fastest. */
const struct plane_loops *ckpt_loops(void);
/* Number i, the slowest first; 0 is the definition, NULL after the last. */
const struct plane_loops *ckpt_loops_at(size_t i);
