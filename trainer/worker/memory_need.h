/*
 * Contents of a worker's memory, by category, and the micro-batch that fits a device: computed from
 * plans that are prepared but not allocated.
 *
 * Thread: one. Errors: what plan_new returns
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/backend.h"
#include "trainer/stage/stage.h"
#include "trainer/tape/tape.h"
#include "trainer/worker/settings.h"

struct memory_need_options {
    const struct tape *tape;         /* borrowed for the call, as all below */
    const struct settings *settings; /* micro_batch is not read */
    const struct backend_table *table;
    struct backend *backend;
    uint32_t lane_count; /* the worker's */
    uint32_t owners;     /* ranks that own the moments (trainer/update/owners.h); 0: each has all.
                            With a stage not read */
    bool evaluates;      /* there is data.eval */
    const struct stage *stage; /* of a pipeline; NULL: the worker has all nodes */
};

/* Units: bytes. */
struct memory_need {
    size_t activations; /* and their gradients, saved and scratch regions: the arena; of a stage for
                           each micro-batch that is under way at once */
    size_t caches;      /* parameters in the kernels' own formats */
    size_t parameters;  /* and running statistics */
    size_t moments;
    size_t gradients; /* copies of the lane's vector that the reduction holds; sums of ties that
                           come from other stages */
    size_t inputs;    /* two micro-batches */
    size_t under_way; /* of a stage, beside activations: what goes with each micro-batch, and what
                           is sent back of it */
};

MUST_CHECK enum status memory_need_measure(const struct memory_need_options *options,
                                           uint32_t micro_batch, struct memory_need *out);
size_t memory_need_total(const struct memory_need *need);
/* Writes a line for people: "activations 12 MiB, …"; cut to capacity, of which MEMORY_NEED_TEXT is
 * enough. */
#define MEMORY_NEED_TEXT 256
void memory_need_print(const struct memory_need *need, char *text, size_t capacity);

/*
 * Finds the micro-batch of `micro_batch: auto`: the largest divisor of lane_size with which a
 * worker that carries all lanes fits a device of device_bytes. A tenth and half a GiB of these are
 * left to libraries. So the result depends on the job and the device alone, not on how lanes are
 * shared. It doesn't depend on stages either, which are cut when it is known: options->stage is not
 * read.
 * Errors: ST_NO_MEMORY  not even 1 fits; *out_need is what that would take
 */
MUST_CHECK enum status memory_need_fit(const struct memory_need_options *options,
                                       uint32_t lane_size, uint64_t device_bytes, uint32_t *out,
                                       struct memory_need *out_need);
