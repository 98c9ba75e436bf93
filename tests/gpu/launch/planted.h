/*
 * A kernel of the test's own, started as all kernels are, by the device's `launch`.
 */
#pragma once

#include <stddef.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the kernel is told: arguments of several sizes, the first narrowed by launch. */
struct planted_extent {
    int rows, columns;
    long stride;
};

enum status planted_start(long count, const float *in, struct planted_extent extent, size_t shared,
                          void *stream);

#ifdef __cplusplus
}
#endif
