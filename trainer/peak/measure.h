/*
 * The most operations a second that a rank could do: by products of large square matrices, in the
 * job's precision, with the library that its steps compute with, on as many threads at once.
 *
 * It is what `linear` runs forward, so nothing is measured that a step couldn't use; on backends
 * that are opened for it, as on the job's what is prepared becomes a pin. The matrices grow as long
 * as a product of twice their side would take PEAK_PRODUCT_MS at most; then products are run, one
 * after the other, until PEAK_MS are over.
 *
 * Where time is a processor's, each thread has products of its own, and its time is its own alone:
 * while it waits for its turn, as others have more to do there than it has cores, nothing counts.
 * The peak is the sum over the threads of the best of each one's PEAK_PARTS parts of that time. So
 * it is what so many processors can do at once, with the caches, memory and power that they share,
 * and not how busy others kept them just then: a job would seem to do more than it could once they
 * are gone. How many workers share the processors is the caller's to know.
 *
 * Ranks of one machine call this at about the same time, as they compute in a step.
 *
 * Memory: three matrices for each thread (of 512 rows on a processor of today), freed before it
 *         returns; of more threads than PEAK_THREADS_MAX the rest counts as these do.
 * Thread: any; it makes others.
 * Errors: what the backend returns: the peak is then not known
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "kernels/backend.h"

#define PEAK_MS          100
#define PEAK_PARTS       10
#define PEAK_PRODUCT_MS  12 /* of one product, at most */
#define PEAK_SIDE_MIN    128
#define PEAK_SIDE_MAX    8192
#define PEAK_THREADS_MAX 16

struct peak_options {
    const struct backend_table *table;
    int ordinal, threads; /* as of struct backend_options */
    enum math math;
};

/* Operations a second; a multiplication and an addition are two. */
MUST_CHECK enum status peak_measure(const struct peak_options *options, double *out_flops);
