/*
 * The most operations a second that a rank could do: by a product of large square matrices, in the
 * job's precision, with the library and the threads that its steps compute with.
 *
 * It is what `linear` runs forward, so nothing is measured that a step couldn't use; on a backend
 * that is opened for it, as on the job's what is prepared becomes a pin. The matrices grow until one product takes PEAK_PRODUCT_MS, or has PEAK_SIDE_MAX
 * rows; then products are run, one after the other, for PEAK_MS in all.
 *
 *     alone     the best of PEAK_PARTS parts of that time: what disturbs is left out
 *     crowded   all of it: workers have more threads than the machine has cores, so each gets its
 *               turn, and the best part would be one in which the others had none
 *
 * Ranks of one machine call this at about the same time, so that they share its memory, power and
 * caches as they do in a step.
 *
 * Memory: three matrices, freed before it returns. Thread: the step thread.
 * Errors: what the backend returns: the peak is then not known
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/backend.h"

#define PEAK_MS         100
#define PEAK_PARTS      4
#define PEAK_PRODUCT_MS 4
#define PEAK_SIDE_MIN   128
#define PEAK_SIDE_MAX   8192

struct peak_options {
    const struct backend_table *table;
    int ordinal, threads; /* as of struct backend_options */
    enum math math;
    bool crowded;
};

/* Operations a second; a multiplication and an addition are two. */
MUST_CHECK enum status peak_measure(const struct peak_options *options, double *out_flops);
