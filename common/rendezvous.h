/*
 * The rendezvous: how the ranks of a generation find each other. It has one operation, a round:
 * every rank brings a part, and when all have brought theirs, each gets what the others brought,
 * in one answer. session/rendezvous.c is the trainers' end of it, server/coord/rendezvous.c the
 * coordinator's, which holds the parts and forgets them with the generation.
 *
 * Thread: callable from any thread; of one round by one at a time.
 * Errors: ST_STALE      the generation is over; whoever waits is told at once
 *         ST_TIMED_OUT  a rank did not come in time. The same call may be made again: it goes on
 *                       waiting, with what was brought first
 *         ST_INVALID    sizes beyond the limits below, or not those of the other ranks
 *         ST_FULL       more than RENDEZVOUS_ROUNDS in one generation
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#define RENDEZVOUS_ROUNDS     8   /* of one generation: the workers', the restore's, the copies' */
#define RENDEZVOUS_NAME       32  /* with the NUL */
#define RENDEZVOUS_COMMON_MAX 256 /* bytes: the id of NCCL has 128 */
#define RENDEZVOUS_ITEM_MAX   16  /* bytes; there are ranks · ranks of them in a round */

/* What a rank contributes to a round. */
struct rendezvous_part {
    const void *common; /* for all */
    size_t common_size;
    const void *items; /* [ranks][item_size]: one for each rank; its own is not looked at */
    size_t item_size;  /* the same on all ranks */
};

/* What one rank contributed, as this rank receives it. */
struct rendezvous_got {
    size_t common_size;
    uint8_t common[RENDEZVOUS_COMMON_MAX];
    uint8_t item[RENDEZVOUS_ITEM_MAX]; /* its item for this rank */
};

struct rendezvous {
    void *self;
    /* name: of the round, once per generation. out: [ranks], this rank's own part among them. */
    enum status (*join)(void *self, const char *name, const struct rendezvous_part *mine, int ranks,
                        int64_t timeout_ms, struct rendezvous_got *out);
    /* The generation is over. Doesn't wait. */
    bool (*is_over)(void *self);
};
