/*
 * Owners of the elements of the parameters: only an owner has memory for their moments, and only it
 * updates them (parallel.zero: 1). Without owners every rank has and updates all.
 *
 * An owner has extents of elements, in ascending order. All ranks' extents together are the
 * parameters, each element once; they begin and end at pieces of the buffer.
 *
 * Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
 *         Models" (2020), stage 1.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/tape/tape.h"

/* Returns the elements that one rank owns together: a chunk of a checkpoint (1 MiB), or what a
 * device maps at once (2 MiB). */
size_t owners_unit(bool host_memory);
/* Returns the most elements of the parameters that one of `ranks` ranks owns. ST_NO_MEMORY,
 * ST_FULL */
MUST_CHECK enum status owners_most(const struct tape *tape, size_t unit, uint32_t ranks,
                                   size_t *out);

struct owned_extent {
    size_t first, count; /* elements */
};

struct owners {
    uint32_t rank, size;
    struct owned_extent *extent; /* [begin[size]] rank by rank */
    uint32_t *begin;             /* [size + 1] into extent */
};

/*
 * borders: [buckets][size + 1] elements, ascending: chunk r of a bucket is rank r's. What is beyond
 * `count` elements is left out; neighbours become one extent. out starts zeroed and is released
 * whatever is returned. ST_NO_MEMORY
 */
MUST_CHECK enum status owners_make(const size_t *borders, size_t buckets, size_t count,
                                   uint32_t rank, uint32_t size, struct owners *out);
void owners_release(struct owners *owners);

/* Returns this rank's extents. */
const struct owned_extent *owners_own(const struct owners *owners, uint32_t *out_count);
