/*
 * What is saved of a program, as the checkpoint format sees it: buffers, tensors, blobs and the
 * share of each rank (library/wire/place.h).
 *
 * Replicated buffers are dealt out evenly to all workers; of the buffer "ranks" each one has the
 * areas of its own processes. So what a worker writes is what its processes have.
 *
 * Thread: as any struct.
 */
#pragma once

#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/reason.h"
#include "common/status.h"
#include "library/wire/place.h"
#include "session/session.h"

#define SAVED_BLOBS 4

struct saved {
    /* Known with the layout. */
    struct wire_entry *entries; /* [count]; owned */
    uint64_t count;
    struct layout_places places;
    struct ckpt_hash hash; /* of what all ranks have alike */

    /* Known once all ranks have theirs. */
    uint32_t rank, size, processes; /* of workers; and how many each one runs */
    uint64_t *areas;                /* [size * processes]: bytes of each process's area; owned */
    struct ckpt_buffer buffers[PLACE_BUFFERS];
    uint32_t buffer_count;
    uint32_t number[PLACE_BUFFERS]; /* of each buffer among those that have elements */
    struct ckpt_tensor *tensors;    /* owned */
    uint32_t tensor_count;
    struct ckpt_share share; /* of this rank */
    void *areas_blob;        /* owned */
    size_t areas_size;
    struct ckpt_blob blobs[SAVED_BLOBS];
    char metrics[64];
};

/* Takes a copy of the entries and checks them. Errors: as layout_places_make */
MUST_CHECK enum status saved_describe(const struct wire_entry *entries, uint64_t count,
                                      uint64_t blob_bytes, struct saved *out,
                                      struct reason *out_why);
/* Deals out the state to `size` workers, once the bytes of all areas are known: areas,
 * [size * processes].
 * Errors: ST_CONFIG  it can't be saved: out_why; ST_NO_MEMORY */
MUST_CHECK enum status saved_deal(struct saved *saved, const uint64_t *areas, uint32_t rank,
                                  uint32_t size, uint32_t processes, struct reason *out_why);
/* Returns the bytes of a rank's share; 0: it can't be saved. */
uint64_t saved_share_bytes(const struct saved *saved, uint32_t rank);
uint64_t saved_state_bytes(const struct saved *saved);
/* Describes the state after `step` steps; borrows saved and assignment. */
void saved_state(struct saved *saved, const struct session_assignment *assignment, uint64_t step,
                 uint64_t steps_per_epoch, struct ckpt_state *out);
/* All zero is fine. */
void saved_release(struct saved *saved);
