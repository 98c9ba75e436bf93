/*
 * Finds the rank that is at fault when no rank of a generation gets on.
 *
 * All ranks take part in the same collectives in the same order, and none ends without all of them.
 * So one that hasn't come to a collective keeps those waiting that are in it, and nobody else is to
 * blame for that:
 *
 *     rank 0   … 1833 [1834
 *     rank 1   … 1833 [1834             [ it has begun, and waits for the others
 *     rank 2   … 1833   backward        2 holds 0, 1 and 3 up
 *     rank 3   … 1833 [1834
 *
 *   several have not come            the one that came to the fewest; of those the one that stopped
 *                                    first
 *   of those one waits in the pipe   it holds up nobody: another stage owes it something. Who is
 *                                    neither in a collective nor there holds up those in the pipe;
 *                                    of several the one that stopped first
 *   all wait in the same one         the same by the exchanges that the reduction consists of,
 *                                    within each stage of a pipeline, as stages differ in how many
 *                                    they have: another thread of the rank does these
 *   in these, too; or behind is      nobody, by this: something is lost on its way between two
 *   who waits itself                 that both wait
 *   a rank doesn't tell, or wasn't   the others are judged without it
 *   heard of late
 *
 * Pure functions of what the ranks said. Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"

#define HANG_NOBODY  UINT32_MAX
#define HANG_NAME    24     /* bytes of a collective's name, with the NUL */
#define HANG_IN_PIPE "pipe" /* phase of a rank that waits for another stage */
#define HANG_NAMED   4      /* of those that wait, as many are named */

/* The place where a rank is, as it said in its message Progress. */
struct hang_place {
    uint64_t collectives, exchanges; /* begun and ended, together: odd within one */
    char name[HANG_NAME];            /* of the newest collective; "": the rank doesn't tell */
    bool in_pipe;                    /* the rank waits for another stage */
};

/* Collectives, or exchanges of a stage: numbered from 1 in the order that those ranks share. */
struct hang_order {
    uint64_t front; /* the last one that any rank has come to */
    char name[HANG_NAME];
    uint32_t waiting[HANG_NAMED]; /* the lowest ranks that wait in it */
    uint32_t waiting_count;       /* how many do */
    /* The rank that waits in none of them, and has come to the fewest. */
    uint32_t behind;
    uint64_t behind_at;
    int64_t behind_since;
};

struct hang {
    uint32_t ranks; /* also those that don't tell where they are */
    struct hang_order collectives;
    struct hang_order exchanges[LIMIT_STAGES]; /* of each stage; the first's without a pipeline */
    struct hang_order pipe;                    /* to which those come that wait in it */
};

void hang_init(struct hang *hang);
/* Adds a rank. The caller adds ranks in ascending order, each once. stage: of the rank, below
 * LIMIT_STAGES. stopped_at: when the rank got on last. */
void hang_add(struct hang *hang, uint32_t rank, uint32_t stage, const struct hang_place *place,
              int64_t stopped_at);
/* Returns the rank that keeps the others waiting, or HANG_NOBODY. */
uint32_t hang_culprit(const struct hang *hang);

/* The rank that a text is to be made of: the culprit or, without one, the rank that is blamed
 * instead. */
struct hang_suspect {
    uint32_t rank;
    const char *node, *phase;
    int64_t still_ms; /* since it got on last */
};
/* Writes one line: the rank, and the evidence. */
void hang_describe(const struct hang *hang, const struct hang_suspect *suspect, char *out,
                   size_t capacity);
