/*
 * Whether a node has memory for copies between saves.
 *
 * Copies that nobody asked for (checkpoint.memory_every: auto): all copy files of the job's workers
 * there have to fit into a quarter of what is free: of the file system that they lie in, of the
 * machine's memory, and below the bounds of the process's control groups, whichever is least.
 *
 * Copies that the job asks for (N steps): they have to fit into that file system. A container's
 * /dev/shm has 64 MB, if nobody says else.
 *
 * What the job's copies of an earlier generation take counts as free: they are used again.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/reason.h"
#include "session/memory/budget.h"

#define SESSION_HEADROOM_PART 4 /* copies take one part in so many of what is free */
/* Name in the environment: bytes above which nothing counts as free, for copies of one job on a
 * node. */
#define SESSION_HEADROOM_ENV "CAIRN_COPIES_FREE"

/* Free memory of a node, in bytes; UINT64_MAX: not known. */
struct session_headroom {
    uint64_t folder; /* free in its file system; 0: there is no folder that can be written to */
    uint64_t whole;  /* size of that file system, full or not; 0: not known */
    uint64_t memory; /* available */
    uint64_t groups; /* left to the process's control groups */
    uint64_t bound;  /* SESSION_HEADROOM_ENV */
    uint64_t held;   /* in the folder, by copies of the job */
};

/* folder: of the job's copies, or the nearest one above it that is there; NULL: none. Reads files
 * of /proc and /sys. */
struct session_headroom session_headroom_measure(const char *folder);

/*
 * Copies between saves of `workers` workers on a node, each of which asks for what `demand` says
 * (`every` is taken as true). out: what a worker then gets.
 * false: they find no room, and why; out is not set.
 */
bool session_headroom_holds(const struct session_headroom *headroom,
                            const struct session_demand *demand, uint32_t workers,
                            struct session_budget *out, struct reason *why);

/* Copies between saves that the job asks for: whether the file system holds those of `workers`
 * workers. false: it doesn't, and why; no error, for a job trains on without them. */
bool session_headroom_fits(const struct session_headroom *headroom,
                           const struct session_budget *budget, uint32_t workers,
                           struct reason *why);
