/*
 * Joint work of ranks that each own a part of the moments (parallel.zero: 1;
 * trainer/update/owners.h): who owns what, what a rank has and saves of the state, and the two
 * exchanges of an update.
 *
 *     the reduction leaves each rank the sum of its own elements      comm/reducer.h, kept buckets
 *     sums of squares of those go to all                              gather
 *     all decide the same; each updates its own elements
 *     the new parameters go to all                                    reducer_gather
 *
 * Who owns what follows from the model, the device and the number of ranks: not from lanes, so that
 * moving lanes moves no state. Chunks are cut at multiples of a unit (owners_unit).
 *
 * A rank that fails between the first new element of its own and the last one of the others has no
 * whole state any more, and says so (struct loop_resume_point).
 *
 * Use: ownership_open → ownership_cut → optimizer_new with ownership_owners
 *      then in each generation: ownership_cut, ownership_connect, ownership_hold
 *
 * Thread: the step thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "comm/reducer.h"
#include "common/status.h"
#include "trainer/device/device.h"
#include "trainer/device/gather.h"
#include "trainer/device/progress.h"
#include "trainer/tape/lane_owners.h"
#include "trainer/update/optimizer.h"
#include "trainer/update/owners.h"

struct ownership_options { /* borrowed for life */
    const struct tape *tape;
    const struct device *device;
    struct progress *progress;
    bool owns;          /* false: every rank has all, and this says so */
    int64_t timeout_ms; /* of an exchange */
};

struct ownership {
    struct ownership_options options;
    size_t *bucket_begin; /* [buckets.count] of the lane vector, whether moments are owned or not */
    struct lane_owned buckets;
    uint32_t rank, size;
    size_t *borders;               /* struct reducer_options; NULL: every rank has all */
    struct owners owners;          /* of the parameters, in this generation */
    uint32_t moments_of[2];        /* rank and size that the moments have memory for */
    struct ckpt_share held, share; /* parts of the state that this rank has, and saves */
    struct comm *comm;             /* of this generation; borrowed */
    struct reducer *reducer;
    struct gather squares; /* from ownership_hold on */
    struct optimizer_peers peers;
};

/* Cuts the buckets. ownership starts zeroed and is closed whatever is returned. ST_FULL,
 * ST_NO_MEMORY */
MUST_CHECK enum status ownership_open(const struct ownership_options *options,
                                      struct ownership *ownership);
void ownership_close(struct ownership *ownership);

/* Sets this rank's part among `size` ranks. The moments stay as they are. ST_NO_MEMORY */
MUST_CHECK enum status ownership_cut(struct ownership *ownership, uint32_t rank, uint32_t size);
/* Returns the owners among `size` ranks, for the caller to release; changes nothing. */
MUST_CHECK enum status ownership_among(const struct ownership *ownership, uint32_t size,
                                       struct owners *out);
/* Sets the communicator and the reduction for exchanges, until the next call; NULL, NULL: none. */
void ownership_connect(struct ownership *ownership, struct comm *comm, struct reducer *reducer);
/* Notes that the optimizer was made with ownership_owners. */
void ownership_note_held(struct ownership *ownership);
/*
 * Allocates the moments of this rank's part in this generation, and what updates exchange. Call it
 * before the state is filled in. move NULL: moments are zero, for a state that comes from
 * elsewhere. Where owners are as before, moments stay. Errors: optimizer_own's
 */
MUST_CHECK enum status ownership_hold(struct ownership *ownership, struct optimizer *optimizer,
                                      const struct optimizer_move *move);
/* Notes that optimizer_own is to move moments from other ranks as well, even if this rank's part is
 * what it was. */
void ownership_unsettle(struct ownership *ownership);
/* True if the moments are those of this rank's part in this generation. */
bool ownership_is_settled(const struct ownership *ownership);

/* True if other ranks own parts. */
bool ownership_is_shared(const struct ownership *ownership);
/* Returns the owners, borrowed; NULL: this rank owns all. */
const struct owners *ownership_owners(const struct ownership *ownership);
/* Returns the peers for optimizer_update, after ownership_hold; NULL: this rank owns all. */
const struct optimizer_peers *ownership_peers(const struct ownership *ownership);
/* Return the shares of struct ckpt_state, after ownership_hold; NULL: held is all, share the even
 * share of all. */
const struct ckpt_share *ownership_held(const struct ownership *ownership);
const struct ckpt_share *ownership_share(const struct ownership *ownership);
